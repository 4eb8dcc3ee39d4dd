"""Verbs that need no server: plans, specifications, single decisions, files, settings and archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_grid import Run

PROVIDERS = [
    {"name": "local", "max_nodes": 4, "cost_per_node_hour": 0.0, "spot": False},
    {"name": "gcp", "region": "us-central1", "max_nodes": 8, "cost_per_node_hour": 3.5, "accelerator": "A100"},
    {"name": "aws", "region": "us-east-1", "max_nodes": 8, "cost_per_node_hour": 3.2},
]
GRID_FILE = """\
providers:
  - {name: here, max_nodes: 4, price_usd_per_hour: 0.5}
  - {name: there, engine: gcp/us-central1, market: spot, max_nodes: 4, price_usd_per_hour: 0.25}
"""


@pytest.fixture
def providers(folder: Path) -> Path:
    path = folder / "providers.json"
    path.write_text(json.dumps(PROVIDERS))
    return path


def steps(folder: Path, *, count: int = 5, **changes: Any) -> Path:
    path = folder / "steps.json"
    step = {"duration_s": 10.0, "queue_s": 4.0, "nodes": 8, "tokens": 100, **changes}
    path.write_text(json.dumps([{"step": number, **step} for number in range(count)]))
    return path


# ---------------------------------------------------------------------------------------------------------------------
# plan, spec, simulate
# ---------------------------------------------------------------------------------------------------------------------


def test_a_plan_has_the_published_keys_and_fills_the_cheapest_first(run: Run, providers: Path) -> None:
    plan = run("plan", "--nodes", 10, "--providers", providers, "--json").json()
    assert {"assignments", "total_nodes", "cost_per_hour", "spot_fraction", "infra_refs"} <= plan.keys()
    placed = [(line["provider"], line["nodes"]) for line in plan["assignments"]]
    assert placed == [("local", 4), ("aws", 6)]
    assert plan["total_nodes"] == 10
    assert plan["cost_per_hour"] == pytest.approx(6 * 3.2)
    assert plan["spot_fraction"] == pytest.approx(0.6)
    assert plan["infra_refs"] == ["local", "aws/us-east-1"]


def test_a_plan_honours_the_spot_share_and_the_preference(run: Run, providers: Path) -> None:
    plan = run("plan", "--nodes", 4, "--providers", providers, "--max-spot-fraction", 0, "--json").json()
    assert [line["provider"] for line in plan["assignments"]] == ["local"]
    plan = run("plan", "--nodes", 12, "--providers", providers, "--prefer", "balance", "--json").json()
    assert [line["nodes"] for line in plan["assignments"]] == [4, 4, 4]


def test_a_plan_takes_a_grid_file_as_well(run: Run, folder: Path) -> None:
    (folder / "grid.yaml").write_text(GRID_FILE)
    plan = run("plan", "--nodes", 6, "--providers", "grid.yaml", "--json").json()
    assert [line["provider"] for line in plan["assignments"]] == ["there", "here"]
    assert plan["infra_refs"] == ["gcp/us-central1", "local"]


def test_no_nodes_are_an_empty_plan(run: Run) -> None:
    plan = run("plan", "--nodes", 0, "--json").json()
    assert (plan["assignments"], plan["total_nodes"], plan["cost_per_hour"]) == ([], 0, 0.0)


def test_more_than_the_grid_holds_ends_with_4_and_says_why_in_json_too(run: Run, providers: Path) -> None:
    ended = run("plan", "--nodes", 21, "--providers", providers, "--json")
    assert ended.code == 4
    assert ended.json()["error"] == "the grid can hold 20 nodes, 21 requested"
    assert "aws" in ended.err


@pytest.mark.parametrize(
    "line",
    [
        ("plan", "--nodes", "-1"),
        ("plan", "--nodes", "1", "--max-spot-fraction", "1.5"),
        ("spec", "--nodes", "0"),
        ("simulate", "--samples", "steps.json", "--min-nodes", "9", "--max-nodes", "3"),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be_meant_end_with_2(line: tuple[str, ...], run: Run, folder: Path) -> None:
    steps(folder)
    assert run(*line).code == 2


@pytest.mark.parametrize(
    "text",
    ["[]", "[1]", '[{"name": 3}]', '[{"name": "a", "max_nodes": -1}]', '[{"name": "a"}, {"name": "a"}]', "{", "\x00"],
)
def test_providers_that_are_none_end_with_2(text: str, run: Run, folder: Path) -> None:
    (folder / "p.json").write_text(text)
    ended = run("plan", "--nodes", 1, "--providers", "p.json")
    assert ended.code == 2
    assert "p.json" in ended.err


def test_a_specification_is_what_iroh_tinker_reads(run: Run, providers: Path) -> None:
    from iroh_tinker.cloud.spec import spec_from_dict

    document = run("spec", "--nodes", 6, "--providers", providers, "--name", "mine", "--run", "python t.py").json()
    assert document["resources"]["infra"] == ["local", "aws/us-east-1"]
    assert document["placement"]["total_nodes"] == 6
    spec = spec_from_dict(document)
    assert (spec.name, spec.run, spec.num_nodes, spec.resources.use_spot) == ("mine", "python t.py", 6, True)


def test_queueing_steps_are_answered_with_growth_and_the_published_keys(run: Run, folder: Path) -> None:
    simulated = run("simulate", "--samples", steps(folder), "--json").json()
    assert simulated["window"]["samples"] == 5
    assert simulated["window"]["queue_fraction"] == pytest.approx(0.4)
    assert simulated["window"]["mean_active_s"] == pytest.approx(6.0)
    assert simulated["window"]["throughput_tokens_per_s"] == pytest.approx(10.0)
    decision = simulated["decision"]
    assert (decision["action"], decision["current_nodes"], decision["target_nodes"]) == ("scale_up", 8, 16)
    assert decision["signals"].keys() >= {"samples", "queue_fraction", "mean_step_s", "mean_queue_s", "cooldown_s"}
    assert decision["rule"] == "queue_bound"


def test_fast_steps_that_wait_for_nobody_are_answered_with_fewer_nodes(run: Run, folder: Path) -> None:
    decision = run("simulate", "--samples", steps(folder, duration_s=2.0, queue_s=0.0), "--json").json()["decision"]
    assert (decision["action"], decision["target_nodes"]) == ("scale_down", 4)


def test_two_steps_decide_nothing(run: Run, folder: Path) -> None:
    decision = run("simulate", "--samples", steps(folder, count=2), "--json").json()["decision"]
    assert (decision["action"], decision["rule"]) == ("hold", "evidence")


def test_steps_of_another_size_say_nothing_of_this_one(run: Run, folder: Path) -> None:
    ended = run("simulate", "--samples", steps(folder), "--nodes", 4)
    assert "[evidence]" in ended.out
    assert "5 steps were taken at another size" in ended.err


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"duration_s": -1}]', '[{"duration_s": 1e99}]', '[{"nodes": 0}]', "[[[[" * 9_999]
)
def test_samples_that_are_none_end_with_2_and_name_the_file(text: str, run: Run, folder: Path) -> None:
    (folder / "s.json").write_text(text)
    ended = run("simulate", "--samples", "s.json", "--json")
    assert ended.code == 2
    assert ended.json()["error"]
    assert run("simulate", "--samples", "none.json").code == 3


# ---------------------------------------------------------------------------------------------------------------------
# Files and settings
# ---------------------------------------------------------------------------------------------------------------------


def test_what_init_writes_is_valid(run: Run) -> None:
    assert run("init", "new").code == 0
    assert run("validate", "new/job.yaml", "--grid", "new/grid.yaml").code == 0
    assert run("validate", "new/grid.yaml").code == 0
    again = run("init", "new")
    assert again.code == 2
    assert "--force" in again.err


def test_a_wrong_file_ends_with_2_and_names_line_field_and_hint(run: Run, folder: Path) -> None:
    (folder / "job.yaml").write_text("name: x\nrun: python t.py\nnodes: {min: 4, maxx: 2}\n")
    ended = run("validate", "job.yaml")
    assert ended.code == 2
    assert "job.yaml:3: nodes.max" in ended.err
    assert "did you mean `max`" in ended.err


def test_a_job_that_no_state_of_the_grid_can_run_ends_with_4(run: Run, folder: Path, job_file: Path) -> None:
    job_file.write_text("name: x\nrun: python t.py\nnodes: {min: 20, max: 30}\n")
    (folder / "grid.yaml").write_text(GRID_FILE)
    assert run("validate", job_file, "--grid", "grid.yaml").code == 4


def test_what_was_read_can_be_printed(run: Run, job_file: Path) -> None:
    assert run("validate", job_file, "--json").json()["command"] == ["python", "train.py"]
    assert "name: train" in run("validate", job_file, "-o", "yaml").out


def test_settings_are_shown_with_where_they_came_from(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elasticgrid.yaml").write_text("key_file: my.key\n")
    monkeypatch.setenv("ELASTICGRID_GATEWAY_URL", "http://127.0.0.1:1")
    shown = run("config", "show", "--origin", "--data", "elsewhere", "--json").json()
    found = {each["name"]: (each["value"], each["source"]) for each in shown}
    assert found == {
        "data_dir": (str(folder / "elsewhere"), "flag"),
        "gateway_url": ("http://127.0.0.1:1", "environment"),
        "key_file": (str(folder / "my.key"), "project file"),
    }
    assert any(
        line.endswith("  ELASTICGRID_GATEWAY_URL") for line in run("config", "show", "--origin").out.splitlines()
    )
    assert run("config", "show", "--json").json()["gateway_url"] == "http://127.0.0.1:1"


def test_schemas_are_written_and_checked(run: Run) -> None:
    assert run("schemas", "write", "out").code == 0
    checked = run("schemas", "check", "out")
    assert checked.code == 1
    assert all("frozen/" in line for line in checked.err.splitlines())


# ---------------------------------------------------------------------------------------------------------------------
# Archives
# ---------------------------------------------------------------------------------------------------------------------


def test_an_archive_is_verified_with_no_server(run: Run, archive: Path) -> None:
    report = run("replay", "verify", archive, "--json")
    assert report.code == 0
    assert report.json()["diverged"] == 0
    assert report.json()["from_samples"] > 0


def test_an_archive_is_looked_at_with_no_server(run: Run, archive: Path) -> None:
    assert "decision.outcome" in run("replay", "timeline", archive, "--type", "decision").out
    assert run("replay", "state", archive, "--at", "5", "-o", "yaml").code == 0
    assert run("replay", "state", archive, "--diff", "5", "20", "--json").json()
    assert "train" in run("decisions", "why", "train", "--archive", archive).out
    assert run("events", "show", "3", "--archive", archive).json()["sequence"] == 3
    assert run("events", "show", "20", "--causes", "--archive", archive).code == 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (("replay", "verify", "none.egz"), 3),
        (("replay", "verify", "junk.egz"), 1),
        (("events", "show", "999999", "--archive", "history.egz"), 3),
        (("events", "show", "3", "--causes", "--effects", "--archive", "history.egz"), 2),
        (("replay", "timeline", "history.egz", "--since", "yesterday"), 2),
        (("replay", "state", "history.egz", "--at", "1", "--diff", "1", "2"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_codes_tell_what_went_wrong(
    line: tuple[str, ...], code: int, run: Run, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(archive.parent)
    Path("junk.egz").write_text("junk")
    ended = run(*line)
    assert ended.code == code
    assert ended.err.startswith("error: ")
