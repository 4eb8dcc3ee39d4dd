"""The reference is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from doc_pages import TOP, prose

from elasticgrid import environment
from elasticgrid.cli.failures import exit_code
from elasticgrid.cli.main import app
from elasticgrid.config.grid_file import parse_grid
from elasticgrid.config.job_file import parse_job
from elasticgrid.config.templates import template
from elasticgrid.core import errors
from elasticgrid.core.events import EVENT_TYPES
from elasticgrid.core.scaling import RULES
from elasticgrid.documents import reference

COMMITTED = TOP / "docs/reference"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.generate(typer.main.get_command(app), exit_code)


def fields_of(page: str) -> dict[str, str]:
    """The first column of a page's tables, with the last."""
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    return dict(rows)


def test_the_committed_reference_is_what_the_code_says(pages: dict[str, str]) -> None:
    assert reference.check(COMMITTED, pages) == []


def test_a_changed_a_lost_and_a_foreign_page_are_noticed_and_writing_restores_them(
    pages: dict[str, str], tmp_path: Path
) -> None:
    assert set(reference.write(tmp_path, pages)) == set(pages)
    assert reference.write(tmp_path, pages) == []
    (tmp_path / "errors.md").write_text("none")
    (tmp_path / "events.md").unlink()
    (tmp_path / "old.md").write_text("")
    assert len(reference.check(tmp_path, pages)) == 3
    assert reference.write(tmp_path, pages) == ["events.md", "errors.md"]
    assert reference.check(tmp_path, pages) == ["old.md belongs to nothing in the code: delete it"]


def test_each_row_of_variables_has_a_variable_and_all_of_its_meaning(pages: dict[str, str]) -> None:
    rows = [line for line in pages["settings.md"].splitlines() if line.startswith("|")]
    assert [row for row in rows if "|  |" in row] == []
    (timeout,) = [row for row in rows if "ELASTICGRID_ORPHAN_TIMEOUT_S" in row]
    assert timeout.endswith("how long without the bus until the node ends itself; empty or absent means never. |")
    (notices,) = [row for row in rows if "ELASTICGRID_NOTICES" in row]
    assert "| For agents: where notices that the node will be taken away come from, a list of aws, gcp," in notices


def test_every_event_type_rule_error_and_variable_has_its_place(pages: dict[str, str]) -> None:
    for name in EVENT_TYPES:
        assert f"\n### {name}\n" in pages["events.md"]
    for number, (name, _) in enumerate(RULES, 1):
        assert f"\n| {number} | `{name}` |" in pages["scaling-rules.md"]
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ElasticGridError):
            assert f"`{kind.__name__}` | `{kind.code}` |" in pages["errors.md"]
    for variable in vars(environment).values():
        if isinstance(variable, str) and variable.startswith("ELASTICGRID_"):
            assert f"`{variable}`" in pages["settings.md"]


@pytest.mark.parametrize("kind", ["job", "grid"])
def test_every_field_of_the_example_files_is_explained(pages: dict[str, str], kind: str) -> None:
    explained = fields_of(pages[f"{kind}-file.md"])
    names = {name.rsplit(".", 1)[-1] for name in explained}
    text = template("job" if kind == "job" else "grid")
    written = set(re.findall(r"^[ #]*(?:- )?([a-z][a-z_]*):(?: |$)", text, re.MULTILINE))
    no_fields = {"nodes", "restarts", "output", "scaling", "placement", "providers", "machine_type", "cost"}
    assert written - names - no_fields == set()
    assert [name for name, meaning in explained.items() if not meaning] == []


def test_a_default_in_the_reference_is_the_one_a_file_without_the_field_gets(pages: dict[str, str]) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| `([^`]+)` \|", pages["job-file.md"], re.MULTILINE)
    assert len(rows) > 20
    spoken = "name: x\nrun: y\n"
    for name, default in rows:
        section, _, field = name.rpartition(".")
        line = f"{section}: {{{field}: {default}}}\n" if section else f"{field}: {default}\n"
        if section == "nodes":
            continue
        bare = parse_job(spoken, file="job.yaml", folder=Path("/"), submitted_ms=0)
        assert parse_job(spoken + line, file="job.yaml", folder=Path("/"), submitted_ms=0) == bare, name
    (provider,) = parse_grid("providers: [{name: a, max_nodes: 1}]", file="grid.yaml")
    for name, default in re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`]+)` \|", pages["grid-file.md"], re.MULTILINE):
        text = f"providers: [{{name: a, max_nodes: 1, {name}: {default}}}]"
        assert parse_grid(text, file="grid.yaml") == (provider,), name


def test_every_verb_is_described_with_an_example_that_is_a_command(pages: dict[str, str]) -> None:
    text = pages["command-line.md"]
    verbs = re.findall(r"^\| \[(elasticgrid [\w -]+)\]", text, re.MULTILINE)
    assert {"elasticgrid up", "elasticgrid submit", "elasticgrid decisions why"} <= set(verbs)
    for verb in verbs:
        (section,) = re.findall(rf"^## {verb}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert verb in section, f"{verb} has no example"


def test_the_guide_for_loops_lists_what_a_worker_is_told() -> None:
    text = prose(TOP / "docs/how-to/adapt-your-loop.md")
    told = {environment.ROUND, environment.RESUME_STEP, environment.RESUME_URI, environment.CHECKPOINT_DIR}
    assert {name for name in told | {"RANK", "WORLD_SIZE", "MASTER_ADDR"} if f"`{name}`" not in text} == set()
