"""What the guides tell people to type does what they say, on a real grid."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from doc_grid import DATA, Shell, gateway_of, grid_in
from doc_pages import GUIDES, TOP, Fence, commands, fences

pytestmark = pytest.mark.process

#: Verbs that go on until Ctrl-C.
ENDLESS = {("jobs", "watch"), ("events", "tail")}
#: What other tests run: the grid itself, single services, and what wants an empty grid.
ELSEWHERE = {"demo", "up", "serve", "agent", "run"}
ELSEWHERE_VERBS = {("events", "import")}
#: The guides speak of a decision at this sequence.
SEQUENCE = 30

FENCES = [fence for page in GUIDES for fence in fences(page)]


#: Requests of the guide to watching: with a stream, and those that answer at once.
CURL = [fence for fence in fences(TOP / "docs/how-to/watch.md") if fence.language == "sh" and "curl" in fence.text]


def program(name: str, page: str) -> Fence:
    return next(fence for fence in FENCES if fence.tested == name and fence.page == TOP / page)


@pytest.fixture(scope="module")
def job(grid: Shell) -> str:
    """A job that runs on, has grown, and has some history."""
    job_id: str = grid.ok("elasticgrid", "submit", "examples/elastic_numpy/long.yaml").strip()
    grid.until(
        lambda line: msgspec.json.decode(line)["sequence"] >= SEQUENCE,
        *("elasticgrid", "events", "tail", "--after", "0", "-o", "jsonl"),
    )
    return job_id


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(TOP)))
def test_the_commands_of_a_guide_work_one_after_the_other(page: Path, grid: Shell, job: str) -> None:
    for fence in fences(page):
        if fence.language != "sh":
            continue
        for words in commands(fence.text):
            if words[0] != "elasticgrid" or words[1] in ELSEWHERE or tuple(words[1:3]) in ELSEWHERE_VERBS:
                continue
            typed = [word.replace("JOB", job).replace("PROVIDER", "local-spot") for word in words]
            # The job of this test is not as old as the one that the guide speaks of.
            typed = ["1s" if word == "15m" else word for word in typed]
            if tuple(words[1:3]) in ENDLESS:
                assert grid.until(lambda line: bool(line.strip()), *typed, *("--after", "0") * (words[2] == "tail"))
            else:
                grid.ok(*typed)


def test_the_queries_that_are_shown_have_answers(grid: Shell, job: str) -> None:
    asked = 0
    for page in GUIDES:
        for fence in fences(page):
            for words in commands(fence.text) if fence.language == "sh" else ():
                if words[0] == "sqlite3" and "VACUUM" not in words[-1]:
                    asked += 1
                    connection = sqlite3.connect(f"file:{grid.folder / words[-2]}?mode=ro", uri=True)
                    assert connection.execute(words[-1]).fetchall(), words
                    connection.close()
    assert asked >= 4


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed on this machine")
def test_the_requests_with_curl_get_jobs_and_then_events(grid: Shell, job: str) -> None:
    live, others = CURL
    lines = grid.until(lambda line: line.startswith("data:"), "bash", "-euo", "pipefail", "-c", live.text)
    assert any(job in line for line in lines)
    assert msgspec.json.decode(lines[-1].removeprefix("data:").strip())["sequence"] == 1
    begin = "".join(line for line in live.text.splitlines(keepends=True) if not line.startswith("curl"))
    for line in others.text.replace("JOB", job).splitlines():
        answer = msgspec.json.decode(grid.ok("bash", "-euo", "pipefail", "-c", f"{begin}{line}"))
        assert "code" not in answer, answer


def test_the_reader_of_server_sent_events_follows_a_job_to_its_end(grid: Shell, job: str) -> None:
    grid.ok("elasticgrid", "submit", "examples/elastic_numpy/job.yaml", "--wait")
    said = grid.ok(sys.executable, "-c", program("sse", "docs/how-to/watch.md").text).splitlines()
    assert said[0].startswith("1 provider.declared")
    assert " decision.outcome completed" in said[-1]


def test_the_reader_of_the_bus_sees_events_and_samples(grid: Shell, job: str) -> None:
    url = f"nats://127.0.0.1:{(grid.folder / DATA / 'bus/port').read_text().strip()}"
    credentials = str(grid.folder / DATA / "bus/service.json")
    said = grid.ok(sys.executable, "-c", program("bus", "docs/how-to/watch.md").text, url, credentials, job)
    assert "JobSubmitted(" in said
    assert f"grid.samples.default.{job}." in said
    assert "StepSample(" in said


MODEL = """
import os, time

class Batch:
    tokens = 8

class Model:
    state = 0
    def files(self): return {"state": str(self.state).encode()}
    def restore(self, files): self.state = int(files["state"])

def loader(skip):
    for step in range(skip, STEPS):
        time.sleep(0.01)
        yield Batch()

def train(model, batch):
    model.state += 1
    return 1.0 / model.state

model = Model()
"""
HOOKS = [fence for fence in FENCES if fence.tested == "hook"]


@pytest.mark.parametrize("fence", HOOKS, ids=lambda fence: str(fence.page.relative_to(TOP)))
def test_the_loop_of_a_guide_runs_without_a_grid_and_leaves_a_checkpoint(fence: Fence, tmp_path: Path) -> None:
    Shell(tmp_path).ok(sys.executable, "-c", MODEL.replace("STEPS", "12") + fence.text)
    (committed,) = (tmp_path / "checkpoints").glob("step-*")
    assert (committed / "state").read_text() == "12"


@pytest.mark.parametrize("fence", HOOKS, ids=lambda fence: str(fence.page.relative_to(TOP)))
def test_the_loop_of_a_guide_goes_on_in_a_larger_world_and_takes_each_step_once(grid: Shell, fence: Fence) -> None:
    folder = grid.folder / fence.page.stem
    folder.mkdir()
    (folder / "train.py").write_text(MODEL.replace("STEPS", "600") + fence.text)
    (folder / "job.yaml").write_text("name: loop\nrun: python train.py\nnodes: {min: 1, max: 2}\n")
    job_id = grid.ok("elasticgrid", "submit", str(folder / "job.yaml")).strip()
    grid.until(lambda line: "node.started" in line, "elasticgrid", "jobs", "watch", job_id)
    grid.ok("elasticgrid", "jobs", "resize", job_id, "--min", "2")
    grid.ok("elasticgrid", "jobs", "watch", job_id)
    shown = job_of(grid, job_id)
    assert shown["job"]["phase"] == "completed"
    assert shown["job"]["round"] == 2
    assert shown["job"]["checkpoint_step"] == 600
    events = [
        msgspec.json.decode(line)
        for line in grid.ok("elasticgrid", "jobs", "watch", job_id, "-o", "jsonl").splitlines()
    ]
    last = [event["event"]["data"] for event in events if event["type"] == "node.checkpointed"][-1]
    assert (Path(last["checkpoint"]["uri"]) / "state").read_text() == "600"


def job_of(grid: Shell, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.json.decode(grid.ok("elasticgrid", "jobs", "show", job_id, "--json"))
    return shown


def test_a_log_that_is_restored_as_described_is_the_same_log(tmp_path: Path) -> None:
    shutil.copytree(TOP / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    with grid_in(tmp_path) as shell:
        before = shell.ok("elasticgrid", "events", "list", "-o", "jsonl")
        assert gateway_of(tmp_path).url.startswith("http://127.0.0.1:")
    (words,) = (
        each for fence in FENCES for each in commands(fence.text) if "VACUUM" in each[-1] and fence.language == "sh"
    )
    connection = sqlite3.connect(tmp_path / words[-2])
    connection.execute(words[-1].replace("backup.sqlite", str(tmp_path / "backup.sqlite")))
    connection.close()
    said = shell.ok(sys.executable, "-c", program("restore", "docs/how-to/run-a-grid.md").text, DATA, "backup.sqlite")
    assert "the old stream is " in said
    with grid_in(tmp_path) as shell:
        assert shell.ok("elasticgrid", "events", "list", "-o", "jsonl") == before
