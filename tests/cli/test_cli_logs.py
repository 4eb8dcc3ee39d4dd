"""`jobs logs`: what workers wrote, followed across rounds, and nothing that they only point at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_grid import GridThread, Run

from elasticgrid.core import events as ev

HANDLE = "default-train-p1a1-abcd1234"


class Launched:
    """A job with one launch of two nodes on this machine, whose files a test writes."""

    def __init__(self, grid: GridThread, job: str) -> None:
        self.grid = grid
        self.job = job
        self.folder = grid.data_dir / "launches" / HANDLE
        self.number = 0
        placed = ev.Assignment(id="p1a1", provider="small", action="add", nodes=2, price_microdollars_per_hour=1)
        self.append(ev.PlacementDecided(demand_nodes=2, placed_nodes=2, assignments=(placed,)), decision=1)
        self.append(
            ev.LaunchRequested(
                attempt="p1a1",
                assignment="p1a1",
                provider="small",
                engine="local",
                nodes=2,
                node_ids=("p1a1-0", "p1a1-1"),
                price_microdollars_per_hour=1,
            )
        )
        self.append(ev.LaunchStarted(attempt="p1a1", handle=HANDLE))

    def append(self, data: ev.EventData, *, decision: int = 0) -> None:
        self.number += 1
        basis = None
        if decision:
            basis = ev.Basis(
                number=decision,
                as_of_ms=0,
                events_through=0,
                samples_through=0,
                policy="",
                policy_version=1,
                config_digest="",
            )
        event = ev.Event(
            id=f"e{self.number}", time_ms=0, tenant="default", job=self.job, actor="test", basis=basis, data=data
        )
        self.grid.append(ev.Recorded(0, 0, event))

    def end(self) -> None:
        """The job is over."""
        self.append(ev.DrainDecided(round=1, reason="completed", leaving=("p1a1-0", "p1a1-1")), decision=2)
        self.append(ev.OutcomeDecided(outcome="completed", reason=""), decision=3)

    def path(self, node: int, round_number: int, rank: int) -> Path:
        path = self.folder / "nodes" / str(node) / f"round-{round_number}" / f"rank-{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, node: int, round_number: int, rank: int, text: str) -> None:
        with self.path(node, round_number, rank).open("a") as file:
            file.write(text)


@pytest.fixture
def launched(run: Run, grid: GridThread, job_file: Path) -> Launched:
    return Launched(grid, run("submit", job_file).out.strip())


def test_the_last_rounds_lines_are_shown_by_rank(run: Run, launched: Launched) -> None:
    launched.write(0, 1, 0, "old\n")
    launched.write(0, 2, 0, "one\ntwo\nthree\n")
    launched.write(1, 2, 1, "eins\n")
    assert run("jobs", "logs", launched.job).out.splitlines() == [
        "rank 0 | one",
        "rank 0 | two",
        "rank 0 | three",
        "rank 1 | eins",
    ]
    assert run("jobs", "logs", launched.job, "-n", 1, "--rank", 0).out == "three\n"
    assert run("jobs", "logs", launched.job, "--node", "p1a1-1").out == "eins\n"
    assert run("jobs", "logs", launched.job, "--round", 1, "--node", "p1a1-0").out.startswith("rank 0 | old\n")
    assert run("jobs", "logs", launched.job, "-n", 0).out == ""


def test_what_agents_wrote_is_shown_where_it_is_asked_for(run: Run, launched: Launched) -> None:
    (launched.folder / "logs").mkdir(parents=True)
    (launched.folder / "logs" / "rank_1.log").write_text("cannot reach the bus\n")
    assert run("jobs", "logs", launched.job, "--agents").out == "cannot reach the bus\n"
    pieces = run("jobs", "logs", launched.job, "--agents", "-o", "jsonl").out.splitlines()
    assert json.loads(pieces[0])["node"] == "p1a1-1"


def test_without_any_output_that_is_said(run: Run, launched: Launched) -> None:
    ended = run("jobs", "logs", launched.job)
    assert (ended.code, ended.out) == (0, "")
    assert "no worker has written anything yet" in ended.err


def test_nodes_of_other_machines_are_named(run: Run, launched: Launched) -> None:
    launched.append(ev.NodeJoined(node="p1a1-0", attempt="p1a1", provider="small", host="10.0.0.9", free_port=1, pid=1))
    assert "ask their providers: p1a1-0" in run("jobs", "logs", launched.job).err


def test_the_page_has_the_published_fields(run: Run, launched: Launched) -> None:
    launched.write(0, 1, 0, "a\nb\n")
    page = run("jobs", "logs", launched.job, "--json").json()
    assert (page["job_id"], page["log"]) == (launched.job, "a\nb")
    launched.write(1, 1, 1, "c\n")
    assert run("jobs", "logs", launched.job, "--json").json()["log"] == "rank 0 | a\nrank 0 | b\nrank 1 | c"


def test_bytes_that_are_no_text_are_shown_as_such(run: Run, launched: Launched) -> None:
    launched.path(0, 1, 0).write_bytes(b"\xff\xfe\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jx\r\n")
    page = run("jobs", "logs", launched.job, "--json").json()
    assert page["log"].startswith("\ufffd\ufffd\x1b[31mred")
    # Colours are kept; what would change the terminal is not.
    assert run("jobs", "logs", launched.job).out == ("\ufffd\ufffd\x1b[31mred\x1b[0m \ufffd]0;title\ufffd\ufffd[2Jx\n")


def test_only_the_end_of_a_long_log_is_read(run: Run, launched: Launched) -> None:
    launched.write(0, 1, 0, "".join(f"line {number}\n" for number in range(200_000)))
    lines = run("jobs", "logs", launched.job, "-n", 10_000).out.splitlines()
    assert (len(lines), lines[-1]) == (10_000, "line 199999")


def test_what_a_log_points_at_is_not_read(run: Run, launched: Launched, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "rank-0.log").write_text("hunter2\n")
    launched.path(0, 1, 0).symlink_to(secret / "rank-0.log")
    (launched.folder / "nodes" / "0" / "round-2").symlink_to(secret)
    (launched.folder / "nodes" / "1").symlink_to(secret)
    os.mkfifo(launched.path(0, 3, 0))
    launched.path(0, 4, 0).mkdir()
    for chosen in ((), ("--round", 1), ("--round", 2)):
        ended = run("jobs", "logs", launched.job, *chosen)
        assert ended.code == 0
        assert "hunter2" not in ended.out


@pytest.mark.parametrize("handle", ["..", "../../home", "/etc", "a/b", "", ".hidden"])
def test_a_handle_that_leads_elsewhere_is_not_followed(handle: str, run: Run, grid: GridThread, job_file: Path) -> None:
    launched = Launched(grid, run("submit", job_file).out.strip())
    launched.append(ev.LaunchStarted(attempt="p1a1", handle=handle))
    assert run("jobs", "logs", launched.job).out == ""


def test_a_finished_job_is_followed_to_its_end(run: Run, launched: Launched) -> None:
    launched.write(0, 1, 0, "a\nno end of line")
    launched.end()
    followed = run("jobs", "logs", launched.job, "-f")
    assert followed.code == 0
    assert followed.out == "rank 0 | a\nrank 0 | no end of line\n"
    assert "the job is over" in followed.err


@pytest.mark.process
def test_new_lines_and_later_rounds_come_in_as_they_are_written(launched: Launched) -> None:
    launched.write(0, 1, 0, "before\n")
    with subprocess.Popen(
        [sys.executable, "-m", "elasticgrid.cli.main", "jobs", "logs", launched.job, "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "rank 0 | before\n"
        launched.write(0, 1, 0, "during\n")
        assert process.stdout.readline() == "rank 0 | during\n"
        launched.write(1, 2, 1, "the next round\n")
        assert process.stdout.readline() == "rank 1 | the next round\n"
        launched.end()
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "the job is over" in told
