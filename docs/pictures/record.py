"""Records `session.svg` from a real run: a grid, a job on it, why it grew, and its decisions taken again.

    python docs/pictures/record.py

The commands are run in a folder of their own, one after the other; `jobs watch` is shown as it is when the job has
grown. What they print is shown as it is, except that folders are shortened.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from elasticgrid.cli.client import gateway
from elasticgrid.cli.watch import LiveView
from elasticgrid.projections.results import EventPage, EventView

WIDTH = 112
#: Lines of the terminal that the live view fills.
HEIGHT = 30
PATIENCE_S = 120.0
HERE = Path(__file__).parent
SESSION = HERE / "session.svg"
EXAMPLE = HERE.parents[1] / "examples" / "elastic_numpy"
PROGRAM = Path(sys.executable).with_name("elasticgrid")

#: Rich's own, without the fonts that it loads from the network.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img"
 aria-label="A terminal session: elasticgrid up, submit, jobs watch, decisions why, replay verify">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


class Session:
    """A terminal that is recorded, and the folder that its commands run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the console
        self.console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICGRID_")}
        self.environ["COLUMNS"] = str(WIDTH)

    def prompt(self, *arguments: str) -> None:
        """A command as it was typed."""
        self.console.print(Text.assemble(("$ ", "bold green"), ("elasticgrid " + " ".join(arguments), "bold")))

    def show(self, line: str, style: str = "") -> None:
        """A line of what it printed."""
        shortened = line.replace(f"{self.folder}/", "")
        self.console.print(Text(shortened, style, no_wrap=True, overflow="ellipsis"))

    def run(self, *arguments: str) -> list[str]:
        """Run a command, show it and what it prints, and return its standard output."""
        self.prompt(*arguments)
        done = subprocess.run(
            [PROGRAM, *arguments], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=True
        )
        for line in done.stdout.splitlines():
            self.show(line)
        for line in done.stderr.splitlines():
            self.show(line, "dim")
        self.console.print()
        return done.stdout.splitlines()

    @contextmanager
    def up(self, *arguments: str) -> Iterator[None]:
        """Run a grid while the block does."""
        self.prompt("up", *arguments)
        process = subprocess.Popen(
            [PROGRAM, "up", *arguments, "--log-level", "error", "--http", "127.0.0.1:0"],
            cwd=self.folder,
            env=self.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("next:"):
                    break
                self.show(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", line.rstrip()))
            self.console.print()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def events_until(folder: Path, job: str, wanted: str) -> list[EventView]:
    """The job's events once one of them says something."""
    with gateway({"data_dir": str(folder / ".elasticgrid")}) as grid:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            events = grid.get("/v1/events", EventPage, job=job, limit=1_000).items
            if any(re.search(wanted, f"{each.type} {each.text}") for each in events):
                return list(events)
            time.sleep(0.2)
    raise TimeoutError(f"no event of {job} is {wanted}")


def watch(session: Session, job: str) -> None:
    """The live view as it is when the job trains on four nodes."""
    session.prompt("jobs", "watch", job)
    os.environ |= {"COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    events_until(session.folder, job, r"decision\.world .*4 nodes")
    time.sleep(6.0)  # some steps of the new world, for the line that tells of them
    with gateway({"data_dir": str(session.folder / ".elasticgrid")}) as grid:
        view = LiveView(grid, job, "default")
        for event in grid.get("/v1/events", EventPage, job=job, limit=1_000).items:
            view.see(event)
        view.refresh()
        session.console.print(view.render())
    session.console.print()


def main() -> None:
    """Run the commands and write the picture."""
    folder = Path(tempfile.mkdtemp(prefix="elasticgrid-session-"))
    try:
        shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
        session = Session(folder)
        with session.up("--config", "grid.yaml"):
            (job,) = session.run("submit", "job.yaml")
            watch(session, job)
            placed = events_until(folder, job, r"decision\.placement 4 of 4 nodes")
            (grew, *_) = [each for each in placed if each.text.startswith("4 of 4 nodes")]
            session.run("decisions", "why", job, "--at", str(grew.sequence))
            events_until(folder, job, r"decision\.outcome")
            session.run("events", "export", "run.egz", "--with-samples")
        session.run("replay", "verify", "run.egz")
    finally:
        shutil.rmtree(folder)
    session.console.save_svg(str(SESSION), title="elasticgrid", theme=MONOKAI, code_format=FORMAT, unique_id="session")


if __name__ == "__main__":
    main()
