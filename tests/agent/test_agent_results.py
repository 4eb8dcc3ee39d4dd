"""What becomes of workers and of what they wrote: error files, output, macros, useless kills, stuck workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticgrid import environment
from elasticgrid.agent.guard import Guard
from elasticgrid.agent.hook_server import HookMessage, HookServer
from elasticgrid.agent.macros import MACROS, expanded
from elasticgrid.agent.memory_kills import memory_kills
from elasticgrid.agent.stacks import MAX_LENGTH, Target, worker_stacks
from elasticgrid.agent.stuck import StuckWatch
from elasticgrid.agent.worker_files import WorkerFiles, read_error
from elasticgrid.agent.worker_output import OutputSettings, WorkerOutput
from elasticgrid.agent.workers import ExitedWorker, WorkerGroup
from elasticgrid.publish.channel import Ended, Expires
from elasticgrid.publish.publisher import publisher
from elasticgrid.testing.processes import until

# Error files --------------------------------------------------------------------------------------------------------

TORCH = {
    "message": {
        "message": "RuntimeError: CUDA error",
        "extraInfo": {"py_callstack": "Traceback:\n  line 3\n", "timestamp": "1760000000"},
    }
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(TORCH).encode(), "Traceback:\n  line 3\nRuntimeError: CUDA error"),
        (b'{"message": "no such file"}', "no such file"),
        (b'{"error": "no such file"}', "no such file"),
        (b'"just text"', "just text"),
        (b"Traceback\nKeyError: 'x'\n", "Traceback\nKeyError: 'x'"),
        (b'{"message": {"message": 7}}', '{"message": {"message": 7}}'),
        (b"[1, 2]", "[1, 2]"),
        (b"{" * 100_000, "{" * 4_096),
        (b"\xff\x00", "\ufffd\x00"),
    ],
)
def test_an_error_file_is_read_whatever_wrote_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = WorkerFiles(tmp_path, 3).error
    path.write_bytes(content)
    error = read_error(path)
    assert error is not None
    assert (error.message, error.file) == (message, str(path))
    assert abs(error.time_ms - time.time_ns() // 1_000_000) < 10_000


@pytest.mark.parametrize("content", [None, b"", b"  \n"])
def test_without_an_error_there_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "error"
    if content is not None:
        path.write_bytes(content)
    assert read_error(path) is None


# Output -------------------------------------------------------------------------------------------------------------


def test_output_is_repeated_line_by_line_behind_its_rank(tmp_path: Path) -> None:
    said: list[bytes] = []
    output = WorkerOutput(OutputSettings(tee=True), said.append)
    first, second = tmp_path / "0", tmp_path / "1"
    output.add(0, first)
    output.add(1, second)
    output.turn()
    first.write_bytes(b"one\ntw")
    second.write_bytes(b"a\nb\n")
    output.turn()
    assert b"".join(said) == b"[rank 0] one\n[rank 1] a\n[rank 1] b\n"
    with first.open("ab") as file:
        file.write(b"o\nend")
    said.clear()
    output.finish()
    output.finish()
    assert b"".join(said) == b"[rank 0] two\n[rank 0] end\n"


def test_output_that_nobody_asked_for_is_not_repeated(tmp_path: Path) -> None:
    said: list[bytes] = []
    output = WorkerOutput(OutputSettings(), said.append)
    output.add(0, tmp_path / "0")
    (tmp_path / "0").write_bytes(b"one\n")
    output.finish()
    assert said == []


def test_output_is_kept_to_a_size_while_it_is_written_and_repeated_whole(tmp_path: Path) -> None:
    said: list[bytes] = []
    output = WorkerOutput(OutputSettings(max_bytes=100, files=2, tee=True), said.append)
    path = tmp_path / "rank-0.log"
    output.add(0, path)
    with path.open("ab", buffering=0) as file:
        for number in range(20):
            file.write(b"line %03d of a worker's output\n" % number)
            output.turn()
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["rank-0.log", "rank-0.log.1", "rank-0.log.2", "rank-0.log.passed"]
    passed = int((tmp_path / names.pop()).read_text())
    assert passed + path.stat().st_size == len(b"line 000 of a worker's output\n" * 20)
    assert all(each.stat().st_size <= 140 for each in tmp_path.iterdir())
    kept = b"".join((tmp_path / name).read_bytes() for name in reversed(names)).splitlines()
    assert kept == [b"line %03d of a worker's output" % number for number in range(20 - len(kept), 20)]
    assert len(b"".join(said).splitlines()) == 20


# Macros -------------------------------------------------------------------------------------------------------------


def test_macros_are_replaced_and_everything_else_stays() -> None:
    values = {name: f"<{name}>" for name in MACROS} | {"node": "${rank}"}
    command = [
        "train.py",
        "--r=${rank}/${world_size}",
        "${local_rank}",
        "${node}",
        "$rank",
        "${HOME}",
        "$${round}",
        "$",
    ]
    assert expanded(command, values) == [
        "train.py",
        "--r=<rank>/<world_size>",
        "<local_rank>",
        "${rank}",
        "$rank",
        "${HOME}",
        "$<round>",
        "$",
    ]


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/job", "job/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/unseen/job", "memory.events", "oom 3\noom_kill 2\n"),
        ("5:cpu:/\n4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
    ],
)
def test_kills_for_memory_are_counted_where_the_kernel_counts_them(
    tmp_path: Path, cgroup: str, file: str, text: str
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    counter = tmp_path / "fs" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    assert memory_kills(tmp_path / "cgroup", tmp_path / "fs") == 2
    counter.write_text("oom_kill many\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path / "fs") == 0


def test_where_nothing_counts_there_are_no_kills(tmp_path: Path) -> None:
    assert memory_kills(tmp_path / "cgroup", tmp_path) == 0


# Kills that do not work ---------------------------------------------------------------------------------------------


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


@pytest.mark.process
async def test_a_worker_that_no_kill_ends_is_fenced_and_not_waited_for(tmp_path: Path, guard: Guard) -> None:
    ended: list[ExitedWorker] = []
    group = WorkerGroup(on_exit=ended.append, guard=guard, signal_group=lambda *_: None, kill_patience_s=0.1)
    command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
    group.start(4, command, env=os.environ, cwd=tmp_path, log_path=tmp_path / "log")
    pid = group.pid(4)
    assert pid is not None
    await until(lambda: (tmp_path / "log").read_text())
    await asyncio.wait_for(group.terminate(patience_s=0.1), 5)
    (fenced,) = ended
    assert (fenced.rank, fenced.code, fenced.fenced) == (4, -signal.SIGKILL, True)
    assert fenced.last_lines.startswith("here\n")
    assert f"pid {pid} did not end" in fenced.last_lines
    assert group.ranks == ()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: group.pid(4) is None)
    assert ended == [fenced]
    group.close()


@pytest.mark.process
async def test_a_fenced_worker_that_never_ends_is_forgotten_with_its_group(tmp_path: Path, guard: Guard) -> None:
    group = WorkerGroup(on_exit=lambda _: None, guard=guard, signal_group=lambda *_: None, kill_patience_s=0.05)
    group.start(0, ["sleep", "600"], env=os.environ, cwd=tmp_path, log_path=tmp_path / "log")
    pid = group.pid(0)
    assert pid is not None
    await asyncio.wait_for(group.terminate(patience_s=0.05), 5)
    group.close()
    assert group.pid(0) is None
    os.killpg(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)


# Stuck workers ------------------------------------------------------------------------------------------------------


class Time:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Time:
    return Time()


def stepping(clock: Time, step_s: float, *, ranks: tuple[int, ...] = (0, 1), after_s: float = 300.0) -> StuckWatch:
    """Workers that took twenty steps and take no more."""
    watch = StuckWatch(100, after_s=after_s, at_start_s=1_800.0, clock=clock)
    for step in range(101, 121):
        clock.now_s += step_s
        for rank in ranks:
            watch.at(rank, step)
    return watch


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.1, 300.0), (20.0, 300.0), (60.0, 600.0)])
def test_workers_are_stuck_after_ten_of_their_steps_and_not_before_five_minutes(
    clock: Time, step_s: float, limit_s: float
) -> None:
    watch = stepping(clock, step_s)
    clock.now_s += limit_s - 0.01
    assert watch.look() is None
    clock.now_s += 0.02
    stall = watch.look()
    assert stall is not None
    assert (stall.what, stall.ranks) == ("no_step", (0, 1))
    assert stall.age_s == pytest.approx(limit_s, abs=0.1)


@pytest.mark.survive("D")
def test_what_is_stuck_is_told_once_until_it_gets_on(clock: Time) -> None:
    watch = stepping(clock, 1.0)
    clock.now_s += 301.0
    assert watch.look() is not None
    clock.now_s += 1_000.0
    assert watch.look() is None
    watch.at(0, 121)
    watch.at(1, 121)
    clock.now_s += 100.0
    assert watch.look() is None
    clock.now_s += 201.0
    assert watch.look() is not None


@pytest.mark.survive("E")
def test_one_rank_that_stops_is_seen_though_the_others_go_on(clock: Time) -> None:
    watch = stepping(clock, 1.0)
    for step in range(121, 500):
        clock.now_s += 1.0
        watch.at(1, step)
    stall = watch.look()
    assert stall is not None
    assert stall.ranks == (0,)


def test_before_the_first_step_there_is_more_time(clock: Time) -> None:
    watch = StuckWatch(100, after_s=300.0, at_start_s=1_800.0, clock=clock)
    watch.at(0, 100)
    clock.now_s += 1_799.0
    assert watch.look() is None
    clock.now_s += 2.0
    assert watch.look() is not None


def test_workers_of_which_nothing_was_heard_or_that_are_gone_are_not_judged(clock: Time) -> None:
    silent = StuckWatch(0, after_s=300.0, at_start_s=1_800.0, clock=clock)
    watch = stepping(clock, 1.0, ranks=(0,))
    watch.gone(0)
    clock.now_s += 100_000.0
    assert silent.look() is None
    assert watch.look() is None


def test_a_checkpoint_is_a_sign_of_life(clock: Time) -> None:
    watch = stepping(clock, 1.0)
    clock.now_s += 299.0
    watch.moved(0)
    watch.moved(1)
    clock.now_s += 299.0
    assert watch.look() is None


def test_with_no_limit_only_what_was_said_to_end_is_judged(clock: Time) -> None:
    watch = stepping(clock, 1.0, after_s=0.0)
    clock.now_s += 100_000.0
    assert watch.look() is None
    watch.expires(0, 1, 5.0, "all-reduce")
    clock.now_s += 5.0
    stall = watch.look()
    assert stall is not None
    assert (stall.what, stall.age_s) == ("expired", 5.0)
    assert "all-reduce of rank 0 was to end in 5 s" in stall.detail


def test_what_ends_in_time_is_not_stuck(clock: Time) -> None:
    watch = stepping(clock, 1.0)
    watch.expires(0, 1, 5.0, "")
    watch.expires(0, 2, 50.0, "")
    clock.now_s += 4.9
    watch.ended(0, 1)
    clock.now_s += 40.0
    assert watch.look() is None


# The hook's side ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def said(tmp_path: Path) -> asyncio.Queue[HookMessage]:
    return asyncio.Queue()


def hook_environment(tmp_path: Path) -> dict[str, str]:
    return {
        "RANK": "0",
        environment.JOB: "job",
        environment.TENANT: "team",
        environment.ROUND: "1",
        environment.AGENT_SOCKET: str(tmp_path / "s"),
    }


async def next_of(said: asyncio.Queue[HookMessage], *kinds: type) -> HookMessage:
    async with asyncio.timeout(10):
        while not isinstance(message := await said.get(), kinds):
            pass
        return message


async def test_a_block_that_lasts_is_told_with_the_time_it_has_left_and_its_end_too(
    tmp_path: Path, said: asyncio.Queue[HookMessage]
) -> None:
    server = HookServer(tmp_path / "s", lambda _, __, message: said.put_nowait(message))
    await server.start()
    server.begin_round(1, frozenset({0}))
    with publisher(hook_environment(tmp_path)) as pub:
        with pub.expires(60, "all-reduce"):
            told = await next_of(said, Expires)
            assert isinstance(told, Expires)
            assert 50 < told.after_s <= 60
            assert told.name == "all-reduce"
            with pub.expires(5):
                inner = await next_of(said, Expires)
            assert isinstance(inner, Expires)
            assert (await next_of(said, Ended)) == Ended(id=inner.id)
        assert (await next_of(said, Ended)) == Ended(id=told.id)
    await server.close()


async def test_a_block_that_raises_has_ended(tmp_path: Path, said: asyncio.Queue[HookMessage]) -> None:
    server = HookServer(tmp_path / "s", lambda _, __, message: said.put_nowait(message))
    await server.start()
    server.begin_round(1, frozenset({0}))
    with publisher(hook_environment(tmp_path)) as pub:

        async def fails() -> None:
            with pub.expires(60):
                await next_of(said, Expires)
                raise KeyError("x")

        with pytest.raises(KeyError):
            await fails()
        await next_of(said, Ended)
    await server.close()


@pytest.mark.parametrize("after_s", ["soon", float("nan"), float("inf"), -1, 0, None, 10**400])
def test_a_time_that_cannot_be_used_is_refused_and_hurts_nothing(after_s: object) -> None:
    ran = False
    with publisher({}) as pub, pub.expires(after_s):  # type: ignore[arg-type] # what the test is about
        ran = True
    assert ran


@pytest.mark.parametrize("after_s", [-1.0, 1e12])
async def test_a_time_from_a_worker_that_cannot_be_used_is_a_bad_message(tmp_path: Path, after_s: float) -> None:
    heard: list[HookMessage] = []
    server = HookServer(tmp_path / "s", lambda _, __, message: heard.append(message))
    await server.start()
    server.begin_round(1, frozenset({0}))
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b'{"type":"hello","rank":0,"round":1,"pid":1}\n')
    writer.write(b'{"type":"expires","id":1,"after_s":%f}\n' % after_s)
    await until(lambda: server.bad_messages == 1)
    assert heard == []
    writer.close()
    await server.close()
    assert await reader.read() == b""


# Stacks -------------------------------------------------------------------------------------------------------------

HANGS = """
import sys, time
from elasticgrid.publish.stacks import write_stacks_when_asked

def deep_in_an_all_reduce():
    print(write_stacks_when_asked(sys.argv[1]), flush=True)
    time.sleep(600)

deep_in_an_all_reduce()
"""


@pytest.mark.process
async def test_the_place_where_a_worker_hangs_is_found_by_the_hooks_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no py-spy
    path = tmp_path / "stacks"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANGS, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"True\n"
        target = Target(rank=3, pid=process.pid, stacks_file=path)
        for _ in range(2):
            text = await worker_stacks([target])
            assert text.startswith(f"rank 3, pid {process.pid}, state ")
            assert text.count("deep_in_an_all_reduce") == 1
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


@pytest.mark.process
async def test_a_worker_without_the_hook_is_not_signalled_and_the_kernel_says_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    process = await asyncio.create_subprocess_exec("/bin/sleep", "600")
    try:
        text = await worker_stacks([Target(rank=0, pid=process.pid, stacks_file=None)])
        assert f"pid {process.pid}, state " in text
        assert "no stacks" in text
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "says"), [("#!/bin/sh\necho Thread 1 of $3\n", "Thread 1 of"), ("#!/bin/sh\nexit 1\n", "no stacks")]
)
async def test_py_spy_is_asked_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(program)
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = await worker_stacks([Target(rank=0, pid=os.getpid(), stacks_file=None)])
    assert says in text


async def test_stacks_never_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!{sys.executable}\nprint('x' * 1_000_000)\n")
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    targets = [Target(rank=rank, pid=os.getpid(), stacks_file=None) for rank in range(4)]
    assert len(await worker_stacks(targets)) <= MAX_LENGTH + len(targets)
    assert await worker_stacks([]) == ""


def test_a_process_that_handles_the_signal_itself_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR2, lambda *_: None)\n"
        "from elasticgrid.publish.stacks import write_stacks_when_asked\n"
        "print(write_stacks_when_asked(sys.argv[1]), write_stacks_when_asked(''))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"False"]
