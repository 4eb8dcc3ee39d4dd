"""Verbs that need no server: plans, specifications, single decisions, files, settings and archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_grid import Run

from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.archive import ArchiveWriter
from elasticgrid.log.codec import decode, encode
from elasticgrid.testing.history import SimulatedGrid

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


def test_a_plan_tells_regions_and_markets_of_one_cloud_apart(run: Run, folder: Path) -> None:
    rows = [("us-east-1", True, 1.0), ("us-east-1", False, 3.0), ("eu-west-1", True, 2.0)]
    entries = [
        {"name": "aws", "region": region, "spot": spot, "max_nodes": 4, "cost_per_node_hour": price}
        for region, spot, price in rows
    ]
    (folder / "p.json").write_text(json.dumps(entries))
    plan = run("plan", "--nodes", 12, "--providers", "p.json", "--json").json()
    assert [line["provider"] for line in plan["assignments"]] == [
        "aws-us-east-1-spot",
        "aws-eu-west-1-spot",
        "aws-us-east-1-on-demand",
    ]
    assert plan["infra_refs"] == ["aws/us-east-1", "aws/eu-west-1", "aws/us-east-1"]


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


def test_fast_steps_are_answered_with_fewer_nodes_once_it_is_said_what_is_fast_enough(run: Run, folder: Path) -> None:
    line = ("simulate", "--samples", steps(folder, duration_s=2.0, queue_s=0.0, nodes=64))
    decision = run(*line, "--target-step", 30, "--json").json()["decision"]
    assert (decision["action"], decision["target_nodes"]) == ("scale_down", 32)
    assert "a step of 32 nodes would take 4 s of 25.5 s allowed" in decision["reason"]
    ended = run(*line)
    assert "hold (64 -> 64)" in ended.out
    assert "say it with --target-step" in ended.err


def test_two_steps_decide_nothing(run: Run, folder: Path) -> None:
    decision = run("simulate", "--samples", steps(folder, count=2), "--json").json()["decision"]
    assert (decision["action"], decision["rule"]) == ("hold", "evidence")


def test_steps_of_another_size_say_nothing_of_this_one(run: Run, folder: Path) -> None:
    ended = run("simulate", "--samples", steps(folder), "--nodes", 4)
    assert "[evidence]" in ended.out
    assert "5 steps taken at another size, which say nothing of 4 nodes" in ended.err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[{"step": 1}]',
        '[{"duration_s": 0}]',
        '[{"duration_s": -1}]',
        '[{"duration_s": 1e99}]',
        '[{"nodes": 0}]',
        "[[[[" * 9_999,
    ],
)
def test_samples_that_are_none_end_with_2_and_name_the_file(text: str, run: Run, folder: Path) -> None:
    (folder / "s.json").write_text(text)
    ended = run("simulate", "--samples", "s.json", "--json")
    assert ended.code == 2
    assert ended.json()["error"]
    assert run("simulate", "--samples", "none.json").code == 3


@pytest.mark.parametrize("text", ["", "{", "[", '[{"duration_s": 1', '[{"duration_s": 1}'])
def test_samples_that_are_cut_short_are_said_to_be(text: str, run: Run, folder: Path) -> None:
    (folder / "s.json").write_text(text)
    assert "s.json: this is no list of steps: the JSON is cut short" in run("simulate", "--samples", "s.json").err


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


@pytest.mark.parametrize("verb", ["validate", "submit"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: x\nrun: python t.py\nworkdir: none\nnodes: 1\n",
            "job.yaml:3: workdir: the folder {}/none is not there",
        ),
        ("name: x\nnodes: 1\nrun: python t.py\nworkdir: /none\n", "job.yaml:4: workdir: the folder /none is not there"),
        ("name: x\nrun: python t.py\nworkdir: job.yaml\nnodes: 1\n", "job.yaml:3: workdir: the folder {}/job.yaml"),
        ("num_nodes: 1\nworkdir: none\nrun: python t.py\n", "job.yaml:2: workdir: the folder {}/none is not there"),
        (
            "name: x\nrun: python t.py\nbundle: true\nfile_mounts:\n  data: none\nnodes: 1\n",
            "job.yaml:5: file_mounts.data: {}/none is not there",
        ),
    ],
)
def test_a_folder_of_a_job_that_is_not_there_ends_with_2_and_names_its_line(
    text: str, said: str, verb: str, run: Run, folder: Path
) -> None:
    (folder / "job.yaml").write_text(text)
    ended = run(verb, "job.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert said.format(folder) in ended.err


@pytest.mark.parametrize(
    ("url", "code"), [("http://127.0.0.1:1", 2), ("http://localhost:1", 2), ("https://grid.example:8080", 0)]
)
def test_folders_are_looked_for_only_where_the_gateway_is_this_machine(
    url: str, code: int, run: Run, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICGRID_GATEWAY_URL", url)
    job_file.write_text(job_file.read_text() + "workdir: /none\n")
    assert run("validate", job_file).code == code


def test_a_secret_whose_file_is_not_there_is_refused_with_its_line(run: Run, job_file: Path) -> None:
    job_file.write_text(job_file.read_text() + "secrets: {HF_TOKEN: ./hf.token}\n")
    ended = run("validate", job_file)
    assert ended.code == 2
    assert f"{job_file}:4: secrets.HF_TOKEN: " in ended.err


def test_what_looks_like_a_secret_is_warned_of_in_the_job_and_in_its_folder(
    run: Run, folder: Path, job_file: Path
) -> None:
    token = "hf_" + "a1" * 17
    (folder / "hf.token").write_text(token)
    (folder / "hf.token").chmod(0o644)
    (folder / "notes.txt").write_text(f"the token is {token}")
    job_file.write_text(job_file.read_text() + f"env: {{TOKEN: {token}}}\nsecrets: {{HF_TOKEN: ./hf.token}}\n")
    ended = run("validate", job_file)
    assert ended.code == 0
    warnings = [line for line in ended.err.splitlines() if line.startswith("warning: ")]
    assert [line.split(" ")[1] for line in warnings] == ["env.TOKEN", "here", "in", "in"]
    assert "secrets: {TOKEN: ./FILE}" in warnings[0]
    assert "its mode is 0644 (chmod 600" in warnings[1]
    assert "job.yaml looks like a secret" in warnings[2]
    assert (
        "notes.txt looks like a secret: it holds a token of a model hub; name it in .elasticgridignore" in warnings[3]
    )
    assert token not in ended.err
    (folder / "hf.token").chmod(0o600)
    (folder / ".elasticgridignore").write_text("notes.txt\n")
    job_file.write_text(job_file.read_text().replace(f"env: {{TOKEN: {token}}}\n", ""))
    assert "warning" not in run("validate", job_file).err


def test_a_folder_that_cannot_be_copied_and_more_warnings_than_anybody_reads_are_said_in_short(
    run: Run, folder: Path, job_file: Path
) -> None:
    for number in range(30):
        (folder / f"{number:02}.pem.txt").write_text("-----BEGIN " + "PRIVATE KEY-----")
    warned = run("validate", job_file).err
    assert warned.count("looks like a secret") == 20
    assert "warning: and 10 more\n" in warned
    (folder / "out").symlink_to("/etc")
    assert "nodes that work in a copy of the folder cannot have one: " in run("validate", job_file).err


def test_one_of_a_thing_is_said_as_one(run: Run, folder: Path, job_file: Path) -> None:
    (folder / "grid.yaml").write_text("providers: [{name: here, max_nodes: 4}]\n")
    assert "a grid of 1 provider\n" in run("validate", "grid.yaml").err
    job_file.write_text("name: x\nrun: python t.py\nnodes: 1\n")
    assert "job x of 1 node\n" in run("validate", job_file).err
    job_file.write_text("name: x\nrun: python t.py\nnodes: {min: 1, max: 3}\n")
    assert "job x of 1 to 3 nodes\n" in run("validate", job_file).err


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
        (("replay", "timeline", "history.egz", "--type", "nosuch"), 2),
        (("replay", "timeline", "history.egz", "--type", "decision.nosuch"), 2),
        (("replay", "timeline", "history.egz", "--since", "2026-02-01", "--until", "2026-02-01"), 2),
        (("replay", "timeline", "history.egz", "--job", "default/train", "--tenant", "other"), 2),
        (("replay", "timeline", "history.egz", "--job", "nope"), 3),
        (("replay", "timeline", "history.egz", "--job", "other/train"), 3),
        (("replay", "state", "history.egz", "--job", "nope"), 3),
        (("replay", "state", "history.egz", "--diff", "3", "9", "--job", "default/nope"), 3),
        (("replay", "whatif", "history.egz", "--job", "nope"), 3),
        (("replay", "report", "history.egz", "-o", "report.md", "--job", "nope"), 3),
        (("replay", "report", "history.egz", "-o", "nowhere/report.md"), 2),
        (("decisions", "why", "nope", "--archive", "history.egz"), 3),
        (("decisions", "why", "default/nope", "--archive", "history.egz"), 3),
        (("decisions", "why", "train", "--archive", "history.egz", "--at", "2020-01-01"), 3),
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


def test_a_filter_that_matches_nothing_says_so(run: Run, archive: Path) -> None:
    for line in (("--provider", "nope"), ("--tenant", "nope"), ("--type", "quota"), ("--until", "2000-01-01")):
        ended = run("replay", "timeline", archive, *line)
        assert (ended.code, ended.out, ended.err) == (0, "", "no event matches\n")
    assert json.loads(run("replay", "timeline", archive, "--type", "quota", "--json").out) == []


def test_a_job_of_an_archive_is_named_with_its_tenant_or_without(run: Run, archive: Path) -> None:
    for line in (
        ("replay", "timeline", archive, "--job"),
        ("replay", "state", archive, "--job"),
        ("replay", "whatif", archive, "--set", "scaling.cooldown_up_s=0", "--job"),
        ("decisions", "why", "--archive", archive),
    ):
        whole, short = run(*line, "default/train"), run(*line, "train")
        assert (whole.code, whole.out) == (0, short.out)
        assert "train" in whole.out
    assert list(run("replay", "state", archive, "--job", "train").json()["jobs"]) == ["default/train"]


def test_a_place_beyond_the_log_is_told(run: Run, archive: Path, history: SimulatedGrid) -> None:
    last = history.recorded[-1].sequence
    beyond = f"ends with event {last}"
    assert beyond in run("replay", "state", archive, "--at", "9999").err
    assert beyond in run("replay", "state", archive, "--diff", "3", "9999").err
    for at in ("9999", "2999-01-01"):
        told = run("decisions", "why", "train", "--archive", archive, "--at", at)
        assert beyond in told.err
        assert "before the end of the log" in told.out
    assert run("replay", "state", archive, "--at", str(last)).err == ""


def test_changes_between_two_moments_are_called_before_and_after(run: Run, archive: Path) -> None:
    changes = run("replay", "state", archive, "--diff", "3", "30", "--json").json()
    assert all(change.keys() == {"field", "before", "after"} for change in changes)
    assert run("replay", "state", archive, "--diff", "30", "30", "--json").json() == []
    same = run("replay", "state", archive, "--diff", "30", "30")
    assert (same.code, same.out, same.err) == (0, "", "nothing differs between 30 and 30\n")
    table = run("replay", "state", archive, "--diff", "3", "30")
    assert max(len(change["after"]) for change in changes) > 200
    assert all(len(line) < 220 for line in table.out.splitlines())
    assert "-o json has them whole" in table.err


def test_what_a_verification_leaves_open_is_told_in_sentences(run: Run, folder: Path, history: SimulatedGrid) -> None:
    requested = next(each for each in history.recorded if b'"launch.requested"' in each.raw)
    assert isinstance(requested.event, Event)
    unknown = msgspec.structs.replace(requested.event, id="0" * 32)
    raw = encode(unknown).replace(b'"launch.requested"', b'"launch.imagined"')
    records = [each for each in history.recorded if each.sequence <= requested.sequence and each.sequence != 2]
    with ArchiveWriter(folder / "open.egz", created_ms=history.now_ms) as writer:
        for each in records:
            writer.add_event(each)
    told = run("replay", "verify", "open.egz")
    assert "missing: event 2\n" in told.err
    assert f"attempt p1a1 of default/train, asked for in event {requested.sequence}, has no outcome yet" in told.err
    with ArchiveWriter(folder / "unknown.egz", created_ms=history.now_ms) as writer:
        for each in records:
            writer.add_event(each)
        writer.add_event(Recorded(requested.sequence + 1, requested.recorded_ms, decode(raw), raw))
    told = run("replay", "verify", "unknown.egz")
    assert f"default/train could not be verified from event {requested.sequence + 1} on" in told.err
    assert "launch.imagined" in told.err
    assert "StoppedJob" not in told.err
