"""The reference in `docs/reference/`: pages made from the code, written to a folder and compared with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from elasticgrid.documents.pages.bus import bus_page
from elasticgrid.documents.pages.commands import Command, commands_page
from elasticgrid.documents.pages.errors import ExitCodeOf, errors_page
from elasticgrid.documents.pages.events import events_page, samples_page
from elasticgrid.documents.pages.files import grid_page, job_page
from elasticgrid.documents.pages.http import http_page
from elasticgrid.documents.pages.markdown import page, table
from elasticgrid.documents.pages.metrics import metrics_page
from elasticgrid.documents.pages.rules import rules_page
from elasticgrid.documents.pages.settings import settings_page

_HOLDS: Final = {
    "command-line.md": "every verb with its options",
    "job-file.md": "the fields of a job file, with units and defaults",
    "grid-file.md": "the fields of a grid file",
    "settings.md": "settings and environment variables",
    "scaling-rules.md": "the rules in their order",
    "events.md": "every event type and its fields",
    "samples.md": "what workers publish",
    "subjects.md": "subjects, streams, and who may write what",
    "http.md": "the gateway's routes",
    "metrics.md": "what Prometheus is told",
    "errors.md": "errors with their codes",
}


def generate(command_line: Command, exit_code_of: ExitCodeOf) -> dict[str, str]:
    """The text of every page, by its name.

    Args:
        command_line: the root command.
        exit_code_of: the exit code of a command that ended with an error.
    """
    return {
        "README.md": page(
            "Reference",
            "Made from the code, so that it says what the code says.",
            table(("page", "holds"), ((f"[{name}]({name})", holds) for name, holds in _HOLDS.items())),
        ),
        "command-line.md": commands_page(command_line),
        "job-file.md": job_page(),
        "grid-file.md": grid_page(),
        "settings.md": settings_page(),
        "scaling-rules.md": rules_page(),
        "events.md": events_page(),
        "samples.md": samples_page(),
        "subjects.md": bus_page(),
        "http.md": http_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(exit_code_of),
    }


def write(folder: Path, pages: dict[str, str]) -> list[str]:
    """Write the pages that are missing or differ, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = [name for name, text in pages.items() if _text_at(folder / name) != text]
    for name in changed:
        (folder / name).write_text(pages[name], encoding="utf-8")
    return changed


def check(folder: Path, pages: dict[str, str]) -> list[str]:
    """What is wrong with the folder, a sentence each: outdated, missing or foreign pages. Else empty."""
    differences = [
        f"{name} is not what the code says: run `elasticgrid schemas write`"
        for name, text in pages.items()
        if _text_at(folder / name) != text
    ]
    foreign = sorted(path.name for path in folder.glob("*") if path.name not in pages)
    return differences + [f"{name} belongs to nothing in the code: delete it" for name in foreign]


def _text_at(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
