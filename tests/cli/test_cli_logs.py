"""`jobs logs`: what workers wrote, followed across rounds, and nothing that they only point at."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_grid import GridThread, Run

from elasticgrid.agent.worker_output import OutputSettings, WorkerOutput
from elasticgrid.core import events as ev
from elasticgrid.core.names import launch_folder
from elasticgrid.gateway import worker_logs
from elasticgrid.gateway.worker_logs import LogFile, LogSource, read_after, tail

HANDLE = "default-train-p1a1-abcd1234"


class Launched:
    """A job with one launch of two nodes on this machine, whose files a test writes."""

    def __init__(self, grid: GridThread, job: str, *, starts: bool = True) -> None:
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
        if starts:
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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--rank", 9), ("no rank 9 has written anything", "there are 0..1")),
        (("--round", 9), ("no round 9 has written anything", "there is 2 alone")),
        (("--node", "p7a1-0"), ("no node p7a1-0 has written anything", "there are p1a1-0, p1a1-1")),
        (("--rank", 0, "--node", "p1a1-1"), ("together", "leave one of them out")),
    ],
)
def test_what_is_not_among_the_output_of_nodes_that_ran_here_is_not_found_and_what_there_is_is_named(
    asked: tuple[Any, ...], said: tuple[str, ...], run: Run, launched: Launched
) -> None:
    for rank in (0, 1):
        launched.append(
            ev.NodeJoined(node=f"p1a1-{rank}", attempt="p1a1", provider="small", host="h", free_port=1, pid=1)
        )
        launched.write(rank, 2, rank, "here\n")
    ended = run("jobs", "logs", launched.job, *asked)
    assert ended.code == 3, ended
    assert all(text in ended.err for text in said), ended.err
    assert "providers" not in ended.err


def test_a_node_that_ran_elsewhere_is_named_where_others_ran_here(run: Run, launched: Launched) -> None:
    for node in ("p1a1-0", "p1a1-1"):
        launched.append(ev.NodeJoined(node=node, attempt="p1a1", provider="small", host="h", free_port=1, pid=1))
    launched.write(0, 1, 0, "here\n")
    assert "ask their providers: p1a1-1" in run("jobs", "logs", launched.job, "--rank", 1).err


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


# Rotation -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def following(job: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`jobs logs -f` in a process of its own."""
    command = [sys.executable, "-m", "elasticgrid.cli.main", "jobs", "logs", job, "-f", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Rotated:
    """The output of rank 0, which an agent keeps to a size."""

    def __init__(self, launched: Launched, *, max_bytes: int, files: int) -> None:
        self.settings = OutputSettings(max_bytes=max_bytes, files=files)
        self.number = 0
        self.is_at(launched.path(0, 1, 0))

    def is_at(self, path: Path) -> None:
        """The files are there from now on."""
        self.path = path
        self.output = WorkerOutput(self.settings, None)
        self.output.add(0, path)

    def write(self, lines: int, *, cut: int = 0) -> str:
        """Write so many numbered lines and let the agent look after each; with `cut` also in the middle of each.

        Returns the last line as it is shown.
        """
        for _ in range(lines):
            self.number += 1
            line = f"line {self.number} ".ljust(39, ".") + "\n"
            for part in (line[:cut], line[cut:]):
                with self.path.open("a") as file:
                    file.write(part)
                self.output.turn()
        return f"rank 0 | {line}"

    @property
    def shown(self) -> list[str]:
        """All lines as they are to be shown."""
        return [f"rank 0 | line {number} ".ljust(48, ".") for number in range(1, self.number + 1)]


@pytest.mark.process
@pytest.mark.parametrize(("lines", "cut"), [(7, 0), (30, 0), (55, 0), (90, 0), (30, 17)])
def test_every_line_is_followed_exactly_once_over_rotations(launched: Launched, lines: int, cut: int) -> None:
    # So many lines at once are less than a file, about one, or more than two; the older ones are kept.
    rotated = Rotated(launched, max_bytes=1_000, files=5)
    rotated.write(3)
    seen: list[str] = []
    with following(launched.job) as process:
        assert process.stdout is not None
        seen += [process.stdout.readline() for _ in range(3)]
        for _ in range(4):
            last = rotated.write(lines, cut=cut)
            while seen[-1] != last:
                seen.append(process.stdout.readline())
                assert seen[-1], "the stream ended"
        rotated.write(lines)
        launched.end()
        rest, told = process.communicate(timeout=30)
    assert "".join(seen).splitlines() + rest.splitlines() == rotated.shown
    assert "not kept" not in told
    assert (rotated.path.parent / "rank-0.log.1").exists()


@pytest.mark.process
def test_what_was_rotated_away_before_it_was_followed_is_told(launched: Launched) -> None:
    rotated = Rotated(launched, max_bytes=1_000, files=1)
    last = rotated.write(1)
    with following(launched.job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == last
        # In a folder of which nobody knows, so that nobody reads meanwhile.
        folder = rotated.path.parent
        aside = folder.with_name("aside")
        shutil.copytree(folder, aside)
        rotated.is_at(aside / rotated.path.name)
        rotated.write(200)
        folder.rename(folder.with_name("before"))
        aside.rename(folder)
        launched.end()
        out, told = process.communicate(timeout=30)
    shown = out.splitlines()
    assert shown == rotated.shown[-len(shown) :]
    missed = len(rotated.shown) - 1 - len(shown)
    assert missed > 100
    assert f"rank 0: {missed * 40:,} bytes before this are not kept any more" in told


@pytest.mark.process
def test_an_output_that_somebody_emptied_is_followed_from_its_new_beginning(launched: Launched) -> None:
    launched.write(0, 1, 0, "a rather long first line\n")
    with following(launched.job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "rank 0 | a rather long first line\n"
        launched.path(0, 1, 0).write_text("new\n")
        assert process.stdout.readline() == "rank 0 | new\n"
        launched.end()
        assert process.communicate(timeout=30)[0] == ""


def test_the_last_lines_are_those_of_older_files_too(run: Run, launched: Launched) -> None:
    rotated = Rotated(launched, max_bytes=1_000, files=3)
    rotated.write(70)
    shown = [line.removeprefix("rank 0 | ") for line in rotated.shown]
    assert run("jobs", "logs", launched.job, "-n", 60).out.splitlines() == shown[-60:]


@pytest.mark.parametrize("passed", ["", "-5", "many", "9" * 40, "12\n"])
def test_a_count_of_what_was_rotated_that_makes_no_sense_is_none(run: Run, launched: Launched, passed: str) -> None:
    launched.write(0, 1, 0, "a\n")
    launched.path(0, 1, 0).with_name("rank-0.log.passed").write_text(passed)
    assert run("jobs", "logs", launched.job).out == "a\n"


def test_what_an_older_file_points_at_is_not_read(run: Run, launched: Launched, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    launched.write(0, 1, 0, "a\n")
    launched.path(0, 1, 0).with_name("rank-0.log.passed").write_text("8")
    launched.path(0, 1, 0).with_name("rank-0.log.1").symlink_to(tmp_path / "secret")
    assert run("jobs", "logs", launched.job).out == "a\n"


def test_nothing_is_read_while_a_new_file_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "LOCK_PATIENCE_S", 0.02)
    (tmp_path / "log").write_text("a\nb\n")
    source = LogSource(LogFile(node="n", round=1, rank=0), ("log",))
    with (tmp_path / "log").open("r+b") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        nothing = read_after(tmp_path, source, 2, to_end=True)
        assert (nothing.offset, nothing.end, nothing.text) == (2, 2, "")
    assert read_after(tmp_path, source, 2, to_end=True).text == "b\n"
    assert tail(tmp_path, source, 1).text == "b\n"


# Large output and long lines ----------------------------------------------------------------------------------------


@pytest.mark.process
def test_large_output_is_followed_line_by_line_whatever_its_characters(launched: Launched) -> None:
    lines = {rank: [f"{rank} {number} " + "äß€😀" * (number % 97) for number in range(2_000)] for rank in (0, 1)}
    for rank in lines:
        launched.write(0, 1, rank, "begin\n")
    with following(launched.job) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in lines) == ["rank 0 | begin\n", "rank 1 | begin\n"]
        for rank, told in lines.items():
            launched.write(0, 1, rank, "\n".join(told) + "\n")
        launched.end()
        out, _ = process.communicate(timeout=60)
    for rank, told in lines.items():
        mine = [line for line in out.splitlines() if line.startswith(f"rank {rank} | ")]
        assert mine == [f"rank {rank} | {line}" for line in told]
    assert len(out.splitlines()) == 4_000


@pytest.mark.parametrize("to_end", [False, True])
def test_pieces_end_where_lines_or_at_least_characters_end(tmp_path: Path, to_end: bool) -> None:
    written = ("short\n" * 3 + "€" * 50_000 + "\n" + "\r" + "😀" * 40_000 + "\r\n" + "äh\n" * 30_000).encode()
    (tmp_path / "log").write_bytes(written)
    source = LogSource(LogFile(node="n", round=1, rank=0), ("log",))
    pieces = [read_after(tmp_path, source, 0, to_end=to_end)]
    while pieces[-1].text:
        pieces.append(read_after(tmp_path, source, pieces[-1].end, to_end=to_end))
    assert "".join(piece.text for piece in pieces).encode() == written
    assert all(piece.offset == before.end for before, piece in itertools.pairwise(pieces))
    assert "\ufffd" not in "".join(piece.text for piece in pieces)
    # A carriage return and its line feed stay together.
    assert not any(
        before.text.endswith("\r") and piece.text.startswith("\n") for before, piece in itertools.pairwise(pieces)
    )


@pytest.mark.process
def test_a_line_longer_than_a_piece_is_shown_as_one(launched: Launched) -> None:
    long = "€" * 100_000
    launched.write(0, 1, 0, "before\n")
    with following(launched.job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "rank 0 | before\n"
        launched.write(0, 1, 0, f"{long}\nafter\n")
        assert process.stdout.readline() == f"rank 0 | {long}\n"
        assert process.stdout.readline() == "rank 0 | after\n"
        launched.write(0, 1, 0, "no end")
        launched.end()
        assert process.communicate(timeout=30)[0] == "rank 0 | no end\n"


@pytest.mark.process
def test_a_progress_bar_is_followed_as_it_moves(launched: Launched) -> None:
    launched.write(0, 1, 0, "begin\n")
    with following(launched.job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "rank 0 | begin\n"
        launched.write(0, 1, 0, "\rstep 1\rstep 2\rstep 3")
        assert process.stdout.readline() == "rank 0 | step 2\n"
        launched.write(0, 1, 0, "\rstep 4\ndone\n\rnext 1")
        assert [process.stdout.readline() for _ in range(2)] == ["rank 0 | step 4\n", "rank 0 | done\n"]
        launched.write(0, 1, 0, "\rnext 2\n")
        assert process.stdout.readline() == "rank 0 | next 2\n"
        launched.end()
        process.communicate(timeout=30)


# Setup --------------------------------------------------------------------------------------------------------------


def test_what_a_setup_wrote_is_shown_as_long_as_nothing_else_is_there(run: Run, launched: Launched) -> None:
    (launched.folder / "logs").mkdir(parents=True)
    (launched.folder / "logs" / "setup.log").write_text("collecting torch\nno such package\n")
    ended = run("jobs", "logs", launched.job)
    assert (ended.code, ended.out) == (0, "collecting torch\nno such package\n")
    assert "no worker has written anything yet; this is what its setup command wrote" in ended.err
    launched.write(0, 1, 0, "one\n")
    assert run("jobs", "logs", launched.job).out == "one\n"
    assert run("jobs", "logs", launched.job, "--setup", "-n", 1).out == "no such package\n"
    assert run("jobs", "logs", launched.job, "--setup", "--node", "p1a1-1").out.startswith("collecting")
    assert run("jobs", "logs", launched.job, "--setup", "--node", "p2a1-1").out == ""
    assert run("jobs", "logs", launched.job, "--setup", "--agents").code == 2


def test_a_setup_that_failed_is_shown_although_its_launch_never_started(
    run: Run, grid: GridThread, job_file: Path
) -> None:
    job = run("submit", job_file).out.strip()
    launched = Launched(grid, job, starts=False)
    launched.append(ev.LaunchFailed(attempt="p1a1", failure="app_failed", text="the setup command ended with 1"))
    submitted_id = grid.service.jobs.state("default", job).submitted_id
    folder = grid.data_dir / "launches" / launch_folder("default", job, submitted_id, "p1a1") / "logs"
    folder.mkdir(parents=True)
    (folder / "setup.log").write_text("no such package\n")
    assert run("jobs", "logs", job).out == "no such package\n"
    launched.end()
    assert run("jobs", "logs", job, "-f").out == "setup p1a1 | no such package\n"


@pytest.mark.process
def test_a_followed_setup_is_followed_by_all_that_its_workers_write(launched: Launched) -> None:
    (launched.folder / "logs").mkdir(parents=True)
    setup = launched.folder / "logs" / "setup.log"
    setup.write_text("collecting torch\n")
    with following(launched.job, "-n", "1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "setup p1a1 | collecting torch\n"
        launched.write(0, 1, 0, "one\ntwo\n")
        assert [process.stdout.readline() for _ in range(2)] == ["rank 0 | one\n", "rank 0 | two\n"]
        launched.write(0, 2, 0, "the next round\n")
        launched.write(0, 1, 0, "three\n")
        assert sorted(process.stdout.readline() for _ in range(2)) == [
            "rank 0 | the next round\n",
            "rank 0 | three\n",
        ]
        launched.end()
        process.communicate(timeout=30)
