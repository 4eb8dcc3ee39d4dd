"""`elastic_launch`: values come back by rank, and a failure is one structured error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticgrid.core.errors import InvalidInput, WorkersFailed
from elasticgrid.elastic import LaunchConfig, elastic_launch
from elasticgrid.elastic.config import START_METHODS, StartMethod
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]


def config(folder: Path, workers: int = 2, start_method: StartMethod = "fork", **fields: int) -> LaunchConfig:
    return LaunchConfig(nproc_per_node=workers, start_method=start_method, log_dir=folder / "logs", **fields)  # type: ignore[arg-type] # only numbers are given


def square_of_rank(factor: int) -> dict[str, int]:
    rank = int(os.environ["RANK"])
    print("rank", rank, "speaks")
    return {"value": factor * rank * rank, "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid()}


def fails_on_rank_1(folder: str) -> None:
    rank = os.environ["RANK"]
    Path(folder, f"began-{os.environ['ELASTICGRID_ROUND']}-{rank}").touch()
    if rank == "1":
        raise ZeroDivisionError("by rank 1")
    threading.Event().wait()


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def returns_what_cannot_be_sent() -> object:
    return threading.Lock()


def leaves_with(code: int) -> None:
    sys.exit(code)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_what_a_function_returns_comes_back_by_rank(tmp_path: Path, start_method: StartMethod) -> None:
    values = elastic_launch(config(tmp_path, 2, start_method), square_of_rank)(3)
    assert {rank: value["value"] for rank, value in values.items()} == {0: 0, 1: 3}
    assert {value["world"] for value in values.values()} == {2}
    assert os.getpid() not in {value["pid"] for value in values.values()}
    assert not any(running(value["pid"]) for value in values.values())
    (log,) = (tmp_path / "logs").glob("*/round-1/rank-1.log")
    assert log.read_text() == "rank 1 speaks\n"


def test_a_function_that_is_no_modules_needs_the_start_method_fork(tmp_path: Path) -> None:
    secret = 41
    assert elastic_launch(config(tmp_path, 1), lambda more: secret + more)(1) == {0: 42}
    with pytest.raises(InvalidInput, match="cannot be sent to another process"):
        elastic_launch(config(tmp_path, 1, "spawn"), lambda more: secret + more)(1)


def test_an_exception_is_raised_as_one_failure_root_cause_first(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as raised:
        elastic_launch(config(tmp_path), fails_on_rank_1)(str(tmp_path))
    root, other = raised.value.failures
    assert (root.rank, root.local_rank, root.exit_code, root.signal) == (1, 1, 1, "")
    assert root.message == "ZeroDivisionError: by rank 1"
    assert "in fails_on_rank_1" in root.traceback
    assert root.traceback.count("ZeroDivisionError: by rank 1") == 1
    assert Path(root.error_file).exists()
    assert root.time_ms > 0
    assert (other.rank, other.signal) == (0, "SIGTERM")
    assert str(raised.value).index("rank 1 ") < str(raised.value).index("rank 0 ")


def test_functions_start_again_as_often_as_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed, match="rounds that failed: 3, restarts allowed: 2"):
        elastic_launch(config(tmp_path, max_restarts=2), fails_on_rank_1)(str(tmp_path))
    assert len(list(tmp_path.glob("began-*-1"))) == 3


def test_a_signal_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as raised:
        elastic_launch(config(tmp_path, 1), kills_itself)()
    (root,) = raised.value.failures
    assert (root.exit_code, root.signal) == (-9, "SIGKILL")


def test_a_value_that_cannot_be_sent_back_is_a_failure_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as raised:
        elastic_launch(config(tmp_path, 1), returns_what_cannot_be_sent)()
    assert "cannot pickle '_thread.lock' object" in raised.value.failures[0].message


def test_the_exit_code_of_a_function_is_the_workers(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as raised:
        elastic_launch(config(tmp_path, 1), leaves_with)(3)
    assert raised.value.failures[0].exit_code == 3


def leaves_without_a_word(code: int) -> None:
    os._exit(code)


def leaves_on_rank_1() -> int:
    if os.environ["RANK"] == "1":
        sys.exit()
    return 5


@pytest.mark.parametrize("function", [leaves_with, leaves_without_a_word])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_function_that_ends_its_process_with_success_has_returned_nothing(
    tmp_path: Path, start_method: StartMethod, function: Callable[[int], None]
) -> None:
    assert elastic_launch(config(tmp_path, 1, start_method), function)(0) == {0: None}


def test_what_the_other_workers_returned_is_not_lost_with_one_that_left(tmp_path: Path) -> None:
    assert elastic_launch(config(tmp_path), leaves_on_rank_1)() == {0: 5, 1: None}


def test_a_command_gives_the_exit_code_of_each_rank(tmp_path: Path) -> None:
    launch = elastic_launch(config(tmp_path), [sys.executable, "-c", "import sys; print(sys.argv[1])"])
    assert launch("${rank}") == {0: 0, 1: 0}
    (log,) = (tmp_path / "logs").glob("*/round-1/rank-1.log")
    assert log.read_text() == "1\n"


async def test_it_works_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    assert elastic_launch(config(tmp_path, 1, "spawn"), leaves_nothing)() == {0: None}


def leaves_nothing() -> None:
    pass


INTERRUPTED = """
import sys, time
from pathlib import Path
from elasticgrid.elastic import LaunchConfig, elastic_launch

def wait(folder):
    import os, subprocess
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
    far = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(folder, "draft").write_text(f"{os.getpid()} {child.pid} {far.pid}")
    Path(folder, "draft").rename(Path(folder, "pids"))
    time.sleep(600)

if __name__ == "__main__":
    try:
        elastic_launch(LaunchConfig(start_method=sys.argv[2], log_dir=sys.argv[1] + "/logs"), wait)(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


@pytest.mark.parametrize("start_method", START_METHODS)
async def test_ctrl_c_is_a_keyboard_interrupt_and_leaves_no_process(tmp_path: Path, start_method: str) -> None:
    pids, parent = await _started(tmp_path, start_method)
    parent.send_signal(signal.SIGINT)
    _, said = await parent.communicate()
    assert said.decode().splitlines()[-1] == "interrupted"
    await until(lambda: not any(map(running, pids)))


@pytest.mark.parametrize("start_method", START_METHODS)
async def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path, start_method: str) -> None:
    pids, parent = await _started(tmp_path, start_method)
    *ours, far = pids
    try:
        parent.kill()
        await parent.wait()
        await until(lambda: not any(map(running, ours)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(far, signal.SIGKILL)


async def _started(folder: Path, start_method: str) -> tuple[list[int], asyncio.subprocess.Process]:
    script = folder / "script.py"
    script.write_text(INTERRUPTED)
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(folder), start_method),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    await until(lambda: (folder / "pids").exists() or parent.returncode is not None)
    assert parent.returncode is None
    return [int(pid) for pid in (folder / "pids").read_text().split()], parent
