"""Tables on terminals of any width: a row stays a row, and what is copied or compared is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_grid import GridThread, Run
from cli_terminal import on_terminal
from rich.console import Console

from elasticgrid.cli import tables
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

NAMES = {
    "default": "x-otgyts",
    "research": "llama-finetune-with-a-long-name-k3x9ab",
    "vision": "tokenizer-ablation-2b7qxy",
}


@pytest.fixture
def shared(data_dir: Path) -> Iterator[GridThread]:
    """A grid of three tenants; each had a job that is over."""
    simulated = SimulatedGrid((ProviderSpec(name="spot", max_nodes=6, price_microdollars_per_hour=900_000),))
    for tenant, name in NAMES.items():
        spec = JobSpec(name=name, command=("python", "train.py"), min_nodes=1, max_nodes=2, max_restarts=0)
        simulated.submit(spec, Workload(total_steps=40), tenant=tenant)
    simulated.run()
    with GridThread(data_dir, None, recorded=simulated.recorded) as running:
        yield running


@pytest.mark.process
@pytest.mark.parametrize("width", [120, 80, 60, 50])
def test_each_job_is_a_row_whose_id_phase_nodes_and_outcome_are_whole(width: int, shared: GridThread) -> None:
    printed = on_terminal("jobs", "list", environ={"NO_COLOR": "1", "COLUMNS": str(width)})
    lines = [line.rstrip() for line in printed if "next: " not in line and "--tenant" not in line]
    assert max(map(len, lines)) <= width
    heads = 1 if lines[1].split()[0].count("/") else 2
    rows = lines[heads:]
    assert len(rows) == len(NAMES) * heads
    for index, (tenant, name) in enumerate(sorted(NAMES.items())):
        row = " ".join(rows[index * heads : (index + 1) * heads])
        assert row.split()[0] == f"{tenant}/{name}"
        assert row.split().count("completed") == 2, "its phase and its outcome"
        assert " 0 " in row
    assert all(word in " ".join(lines[:heads]) for word in ("phase", "nodes", "cost", "submitted", "outcome"))


@pytest.mark.process
def test_a_command_in_a_hint_is_copied_as_one_line_from_a_narrow_terminal(shared: GridThread) -> None:
    words = ("--url", shared.url, "--key-file", str(shared.service.key_file))
    for line in (("jobs", "list"), ("cost",), ("providers", "list")):
        hint = [text for text in on_terminal(*line, *words, environ={"COLUMNS": "50"}) if "next: " in text]
        assert hint[0].endswith(" ".join(words))
    costs = "\n".join(on_terminal("cost", *words))
    assert all(f"{tenant}/{name}" in costs for tenant, name in NAMES.items())


@pytest.mark.process
@pytest.mark.parametrize("width", [80, 60])
def test_times_of_keys_are_told_whole(width: int, run: Run, grid: GridThread) -> None:
    made = run("keys", "create", "--whole-grid", "--label", "the dashboard of the whole team", "--ttl", "30d", "--json")
    key = made.json()["key"]
    printed = on_terminal("keys", "list", environ={"NO_COLOR": "1", "COLUMNS": str(width)})
    listed = run("keys", "list").out.splitlines()[1]
    times = [" ".join(pair) for pair in zip(listed.split(), listed.split()[1:], strict=False) if pair[0][:2] == "20"]
    assert len(times) == 2
    assert times[0] != times[1]
    text = " ".join(" ".join(printed).split())
    assert all(each in text for each in (*times, key["prefix"], key["label"]))
    assert max(map(len, printed)) <= width


def shown(columns: tuple[str, ...], row: tuple[str, ...], width: int, *, fold: bool = True) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(tables.table(columns, [row], width, fold=fold, beneath=True))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", range(30, 121, 10))
def test_a_text_has_24_columns_or_a_line_of_its_own_and_loses_nothing(width: int) -> None:
    words = "the provider took no more nodes because its quota of the region is used up until tomorrow"
    lines = shown(("!provider", "engine", "#nodes", "~takes nodes"), ("local-spot", "local", "4", words), width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).count("local-spot local 4") == 1
    beside = "takes nodes" in lines[0]
    if beside:
        start = lines[0].index("takes nodes")
        assert width - start >= 24
        lines = [line[start:] for line in lines[1:]]
    else:
        lines = lines[3:]
    assert " ".join(" ".join(lines).split()) == words


def test_what_is_copied_is_never_cut_even_where_it_is_longer_than_a_line() -> None:
    name = "research/" + "a" * 63
    lines = shown(("!job", "phase", "~why"), (name, "running", "because"), 40, fold=False)
    assert name in "".join(lines)
    assert any("running" in line for line in lines)
