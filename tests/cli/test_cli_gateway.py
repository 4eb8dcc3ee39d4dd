"""Verbs that ask a gateway: what they print, what they end with, and what happens when there is none."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_grid import GridThread, Run

from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload


@pytest.fixture
def job(run: Run, grid: GridThread, job_file: Path) -> str:
    """A job that was submitted, and that nobody decides about."""
    return run("submit", job_file).out.strip()


def test_a_submitted_job_is_listed_and_shown(run: Run, job: str) -> None:
    assert job in run("jobs", "list").out
    assert run("jobs", "list", "--phase", "running").out.splitlines()[1:] == []
    shown = run("jobs", "show", job)
    assert "1..4 allowed" in shown.out
    assert f"next: elasticgrid decisions why {job}" in shown.err
    assert run("jobs", "show", job, "-o", "yaml").out.startswith("job:")


def test_a_job_that_trains_is_shown_at_its_checkpoint_at_least(
    run: Run, data_dir: Path, history: SimulatedGrid
) -> None:
    ends = [index for index, each in enumerate(history.recorded) if kind(each) == "node.checkpointed"]
    with GridThread(data_dir, None, recorded=history.recorded[: ends[-1] + 1]):
        summary = run("jobs", "show", "train", "--json").json()
        kept = summary["job"]["checkpoint_step"]
        assert kept > max(node["last_step"] for node in summary["nodes"])
        shown = run("jobs", "show", "train").out
        (told,) = re.findall(r"progress +round \d+, step (\d+) at least, checkpoint at step (\d+)", shown)
        assert int(told[0]) >= int(told[1]) == kept
        assert "[" in line_of(shown, "decision")


def test_of_a_job_that_is_over_the_outcome_is_shown_and_no_decision_of_before(run: Run, past: GridThread) -> None:
    shown = run("jobs", "show", "train").out
    assert line_of(shown, "outcome").split() == ["outcome", "completed"]
    assert line_of(shown, "progress").endswith("step 300, checkpoint at step 300")
    assert "hold [" not in shown
    (listed,) = run("jobs", "list").out.splitlines()[1:]
    assert listed.endswith("  completed")


def test_a_job_that_is_over_is_not_paused_any_more(run: Run, data_dir: Path) -> None:
    simulated = SimulatedGrid((ProviderSpec(name="spot", max_nodes=2),))
    spec = JobSpec(name="train", command=("true",), min_nodes=1, max_nodes=2, grace_ms=1_000)
    key = simulated.submit(spec, Workload(total_steps=5_000), tenant="default")
    simulated.advance(60_000)
    simulated.append(key, ev.JobPauseRequested(reason="maintenance"), actor="key:simulated")
    simulated.append(key, ev.JobCancelRequested(reason="wrong data"), actor="key:simulated")
    simulated.run()
    with GridThread(data_dir, None, recorded=simulated.recorded):
        (listed,) = run("jobs", "list").out.splitlines()[1:]
        shown = run("jobs", "show", "train").out
        assert run("jobs", "list", "--json").json()[0]["paused"] == "maintenance"
    assert listed.split()[1] == "cancelled"
    assert "hold [" not in listed + shown
    assert "paused" not in listed + shown
    assert "wrong data" in listed


def kind(recorded: ev.Recorded) -> str:
    return ev.type_of(recorded.event.data) if isinstance(recorded.event, ev.Event) else ""


def line_of(text: str, first: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{first} ")]
    return line


def test_the_same_idempotency_key_is_the_same_job(run: Run, grid: GridThread, job_file: Path) -> None:
    first = run("submit", job_file, "--idempotency-key", "k1")
    assert run("submit", job_file, "--idempotency-key", "k1").out == first.out
    job_file.write_text(job_file.read_text().replace("max: 4", "max: 3"))
    other = run("submit", job_file, "--idempotency-key", "k1")
    assert other.code == 1
    assert "the key was used for" in other.err


def test_a_dry_run_submits_nothing(run: Run, grid: GridThread, job_file: Path) -> None:
    assert run("submit", job_file, "--dry-run").code == 0
    assert run("submit", job_file, "--dry-run", "--json").json()["accepted"] is True
    assert run("jobs", "list", "--json").json() == []


def test_what_looks_like_a_secret_is_warned_of_before_it_is_submitted(
    run: Run, grid: GridThread, job_file: Path
) -> None:
    token = "hf_" + "a1" * 17
    job_file.write_text(job_file.read_text() + f"env: {{HF_TOKEN: {token}}}\n")
    for words in (("--dry-run",), ()):
        ended = run("submit", job_file, *words)
        assert ended.code == 0
        assert "warning: env.HF_TOKEN looks like a secret: " in ended.err
        assert "secrets: {HF_TOKEN: ./FILE}" in ended.err
        assert token not in ended.err + ended.out
    assert run("submit", job_file, "--dry-run", "--json").json()["warnings"]


def test_a_job_that_this_grid_can_never_run_ends_with_4(run: Run, grid: GridThread, job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("min: 1, max: 4", "min: 50, max: 90"))
    assert run("submit", job_file).code == 4


def test_a_job_is_resized_paused_resumed_and_cancelled(run: Run, job: str) -> None:
    assert "between 2 and 3 nodes" in run("jobs", "resize", job, "--min", 2, "--max", 3).err
    assert "paused" in run("jobs", "pause", job, "--reason", "maintenance").err
    assert "maintenance" in run("jobs", "show", job).out
    assert "maintenance" not in run("jobs", "resume", job).err
    assert run("jobs", "resize", job, "--min", 9, "--max", 3).code == 2
    assert run("jobs", "cancel", job, "--reason", "wrong data").code == 0
    assert run("jobs", "show", job, "--json").json()["job"]["cancel_requested"] is True


@pytest.mark.parametrize(
    "name", ["none", "..", "a/b", "a?b=c", "a#b", "x\ny", "x" * 300, "Ünïcode", "%2e%2e", "-"], ids=repr
)
def test_what_is_no_job_ends_with_3_whatever_it_is_called(name: str, run: Run, grid: GridThread) -> None:
    for line in (("jobs", "show"), ("jobs", "cancel"), ("jobs", "logs"), ("jobs", "watch"), ("decisions", "list")):
        ended = run(*line, "--", name)
        assert ended.code == 3, ended.err
        assert ended.err.startswith("error: ")


def test_a_watched_job_ends_with_its_outcome(run: Run, past: GridThread) -> None:
    watched = run("jobs", "watch", "train")
    assert watched.code == 0
    assert "decision.outcome" in watched.out.splitlines()[-1]
    lines = [json.loads(line) for line in run("jobs", "watch", "train", "-o", "jsonl").out.splitlines()]
    assert [line["sequence"] for line in lines] == sorted(line["sequence"] for line in lines)
    assert lines[0]["type"] == "job.submitted"


def test_decisions_are_listed_and_explained(run: Run, past: GridThread) -> None:
    assert "queue_bound" in run("decisions", "list", "train").out
    assert len(run("decisions", "list", "train", "--limit", 2, "--json").json()) == 2
    card = run("decisions", "why", "train", "--at", 40)
    assert card.code == 0
    assert "rules:" in card.out
    assert run("decisions", "why", "train", "--json").json()["rule"]


def test_the_live_log_is_read_as_an_archive_is(run: Run, past: GridThread, archive: Path) -> None:
    live = run("replay", "timeline", "--job", "train")
    assert live.out == run("replay", "timeline", archive, "--job", "train").out
    assert run("replay", "verify", "--json").json()["diverged"] == 0
    assert run("events", "show", 3).json()["sequence"] == 3


@pytest.mark.parametrize(
    "line",
    [
        ("replay", "timeline"),
        ("replay", "timeline", "-o", "json"),
        ("replay", "verify"),
        ("replay", "verify", "--json"),
        ("replay", "state"),
        ("replay", "state", "--diff", "3", "9999"),
        ("decisions", "why", "train"),
        ("events", "show", "3", "--effects"),
    ],
    ids=" ".join,
)
def test_what_is_read_of_the_live_log_says_through_where(
    line: tuple[str, ...], run: Run, past: GridThread, history: SimulatedGrid
) -> None:
    ended = run(*line)
    assert ended.code == 0
    assert f"the live log was read through event {history.recorded[-1].sequence}\n" in ended.err


def test_a_log_that_is_read_to_a_place_only_says_so(run: Run, past: GridThread) -> None:
    assert "the live log was read through event 3\n" in run("events", "show", 3).err
    # One more is read to see that the place was passed.
    assert "the live log was read through event 21\n" in run("replay", "state", "--at", 20).err


@pytest.mark.parametrize(
    "line",
    [
        ("jobs", "show"),
        ("jobs", "watch"),
        ("decisions", "list"),
        ("decisions", "why"),
        ("replay", "timeline", "--job"),
        ("replay", "state", "--job"),
        ("events", "list", "--job"),
    ],
    ids=" ".join,
)
def test_a_job_is_named_with_its_tenant_or_without(line: tuple[str, ...], run: Run, past: GridThread) -> None:
    whole, short = run(*line, "default/train"), run(*line, "train")
    assert (whole.code, whole.out) == (0, short.out)
    assert run(*line, "default/none").code == run(*line, "none").code == 3
    assert run(*line, "other/train").code == 3


def test_events_are_listed_in_pages(run: Run, past: GridThread) -> None:
    first = run("events", "list", "--limit", 5)
    assert "there are more: elasticgrid events list --after 5" in first.err
    rest = run("events", "list", "--after", 5, "--limit", 2, "--json").json()
    assert [event["sequence"] for event in rest] == [6, 7]
    only = run("events", "list", "--type", "decision.scale", "--json").json()
    assert {event["type"] for event in only} == {"decision.scale"}


def test_providers_are_listed_and_cordoned(run: Run, grid: GridThread) -> None:
    assert "small" in run("providers", "list").out
    assert run("providers", "cordon", "small", "--reason", "maintenance").code == 0
    assert "no: cordoned maintenance" in run("providers", "list").out
    assert run("providers", "check", "--json").json()[1]["refused"] == "cordoned maintenance"
    assert run("providers", "uncordon", "small").code == 0
    assert run("providers", "cordon", "none").code == 3
    assert run("providers", "cordon", "../jobs").code == 3


def test_a_provider_that_cannot_be_used_from_here_is_named_with_the_remedy(run: Run, data_dir: Path) -> None:
    providers = (ProviderSpec(name="here", max_nodes=1), ProviderSpec(name="hosts", engine="ssh", max_nodes=1))
    with GridThread(data_dir, providers):
        ended = run("providers", "check")
    assert ended.code == 1
    assert [line.split()[2] for line in ended.out.splitlines()[1:]] == ["yes", "no"]
    assert "hosts: " in ended.err


def test_cost_is_told_by_job_tenant_and_provider(run: Run, past: GridThread) -> None:
    assert "train" in run("cost").out
    assert "default" in run("cost", "--by", "tenant").out
    assert {line["name"] for line in run("cost", "--by", "provider", "--json").json()["lines"]} >= {"spot"}


# ---------------------------------------------------------------------------------------------------------------------
# Which gateway, and with which key
# ---------------------------------------------------------------------------------------------------------------------


def test_without_a_gateway_the_error_says_how_to_get_one(run: Run) -> None:
    ended = run("jobs", "list")
    assert ended.code == 2
    assert "elasticgrid up" in ended.err


def test_a_gateway_that_does_not_answer_ends_with_1(run: Run, folder: Path) -> None:
    (folder / "key").write_text("x" * 40)
    for verb in (("jobs", "list"), ("events", "tail"), ("events", "export", "x.egz")):
        ended = run(*verb, "--url", "http://127.0.0.1:9", "--key-file", "key")
        assert ended.code == 1
        assert "the gateway does not answer" in ended.err
    assert not (folder / "x.egz").exists()


def test_a_wrong_key_ends_with_3_and_is_not_repeated(run: Run, grid: GridThread, folder: Path) -> None:
    (folder / "key").write_text("w" * 40)
    ended = run("jobs", "list", "--key-file", "key", "--url", grid.url)
    assert ended.code == 3
    assert "not a key of this gateway" in ended.err
    assert "wwww" not in ended.err


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "\x00" * 40, "ключ" * 10])
def test_a_file_without_a_key_ends_with_2(text: str, run: Run, grid: GridThread, folder: Path) -> None:
    (folder / "key").write_text(text)
    assert run("jobs", "list", "--key-file", "key", "--url", grid.url).code == 2


def test_the_key_can_come_from_standard_input(run: Run, grid: GridThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(grid.service.key_file.read_text()))
    assert run("jobs", "list", "--url", grid.url, "--key-file", "-").code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run("jobs", "list", "--url", grid.url, "--key-file", "-").code == 2


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[", "http://a b"])
def test_an_address_that_is_none_ends_with_an_error_and_no_trace(url: str, run: Run, folder: Path) -> None:
    (folder / "key").write_text("x" * 40)
    ended = run("jobs", "list", "--url", url, "--key-file", "key")
    assert ended.code in (1, 2)
    assert ended.err.startswith("error: ")


# ---------------------------------------------------------------------------------------------------------------------
# Ctrl-C
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "first", "says"),
    [
        (("jobs", "watch", "JOB"), "job.submitted", "cancel it with: elasticgrid jobs cancel JOB"),
        (("submit", "job.yaml", "--wait", "-o", "jsonl"), "job.submitted", "the job goes on; look again with"),
        (("events", "tail", "--after", "0"), "provider.declared", "go on with: elasticgrid events tail --after"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_interrupt_ends_with_130_leaves_the_job_alone_and_says_how_to_go_on(
    line: tuple[str, ...], first: str, says: str, job: str, run: Run
) -> None:
    words = [word.replace("JOB", job) for word in line]
    with subprocess.Popen(
        [sys.executable, "-m", "elasticgrid.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert first in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert says.replace("JOB", job) in told
    assert "Traceback" not in told
    assert run("jobs", "show", job, "--json").json()["job"]["cancel_requested"] is False


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_failure(past: GridThread) -> None:
    command = f"{sys.executable} -m elasticgrid.cli.main events list --limit 500 | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "error" not in ended.stderr.lower()
