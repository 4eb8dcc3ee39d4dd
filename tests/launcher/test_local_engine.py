"""Nodes as processes of this machine: started where the job says, found whatever happened, stopped without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from iroh_tinker.cloud.engines import ClusterInfo, create_engine
from iroh_tinker.cloud.spec import spec_from_dict
from launcher_bench import eventually

from elasticgrid.launcher.engines import register_engines
from elasticgrid.launcher.engines.local import LocalProcesses
from elasticgrid.marked_processes import find_marked, send_signal

pytestmark = pytest.mark.process

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


class Started:
    """A launch named `t1` and its engine."""

    def __init__(self, folder: Path) -> None:
        register_engines()
        self.folder = folder
        (folder / "work").mkdir()
        self.engine = self.new_engine()
        self.cluster = self.engine.provision(str(folder / "job"))

    def new_engine(self) -> LocalProcesses:
        document = {
            "name": "t1",
            "run": "unused",
            "workdir": str(self.folder / "work"),
            "num_nodes": 2,
            "recovery": {"mode": "none", "max_restarts": 0, "signal_grace_s": 0},
        }
        engine = create_engine("local", spec_from_dict(document))
        assert isinstance(engine, LocalProcesses)
        return engine

    def start(self, *codes: str, env: dict[str, str] | None = None) -> None:
        self.engine.start(self.cluster, {rank: python(code) for rank, code in enumerate(codes)}, env or {})

    def log(self, rank: int) -> str:
        return self.engine.logs(self.cluster, rank)

    async def until_ready(self) -> None:
        await eventually(lambda: all("ready" in self.log(rank) for rank in (0, 1)))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Started]:
    launch = Started(tmp_path)
    yield launch
    send_signal(find_marked("t1"), "t1", signal.SIGKILL)


async def test_each_rank_runs_in_the_jobs_workdir_with_a_session_a_folder_and_a_log_of_its_own(launch: Started) -> None:
    where = "import os; print(os.getcwd(), os.environ['ELASTICGRID_NODE_DIR'], os.getsid(0) == os.getpid());"
    launch.start(where + SLEEP, where + SLEEP, env={"ELASTICGRID_NODE_DIR": "/nodes"})
    await launch.until_ready()
    work = launch.folder / "work"
    assert [launch.log(rank).splitlines()[0] for rank in (0, 1)] == [f"{work} /nodes/0 True", f"{work} /nodes/1 True"]
    assert launch.engine.status(launch.cluster) == {0: "running", 1: "running"}


async def test_what_the_launcher_was_told_is_not_inherited(launch: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICGRID_ADMIN_KEY", "secret")
    names = "import os; print(sorted(n for n in os.environ if n.startswith('ELASTICGRID')));"
    launch.start(names + SLEEP, names + SLEEP, env={"ELASTICGRID_JOB": "j1"})
    await launch.until_ready()
    assert launch.log(0).splitlines()[0] == "['ELASTICGRID_JOB', 'ELASTICGRID_LAUNCH']"


async def test_a_process_that_ended_is_stopped_and_no_zombie(launch: Started) -> None:
    launch.start("pass", SLEEP)
    pid = launch.cluster.meta["pids"][0]
    await eventually(lambda: launch.engine.status(launch.cluster) == {0: "stopped", 1: "running"})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_number_that_another_process_has_now_is_not_the_launchs(launch: Started) -> None:
    stranger = subprocess.Popen(python(SLEEP), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        launch.cluster.meta["pids"] = {"0": stranger.pid, "1": os.getpid()}
        assert launch.engine.status(launch.cluster) == {0: "stopped", 1: "stopped"}
        launch.engine.stop(launch.cluster)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_stopping_ends_also_what_will_not_end_and_what_left_the_session(launch: Started) -> None:
    elsewhere = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}], start_new_session=True);"
    )
    launch.start(elsewhere + SLEEP, STUBBORN)
    await launch.until_ready()
    await eventually(lambda: len(find_marked("t1")) == 3)
    launch.engine.stop(launch.cluster)
    assert find_marked("t1") == []
    assert launch.engine.status(launch.cluster) == {0: "stopped", 1: "stopped"}


async def test_what_a_worker_left_behind_elsewhere_is_no_running_node(launch: Started) -> None:
    leaves = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)"
    )
    launch.start(leaves, SLEEP)
    await launch.until_ready()
    await eventually(lambda: launch.engine.status(launch.cluster)[0] == "stopped")
    assert {process.rank for process in find_marked("t1")} == {0, 1}


async def test_another_engine_that_knows_no_numbers_finds_and_stops_the_processes(launch: Started) -> None:
    launch.start(SLEEP, SLEEP)
    await launch.until_ready()
    unknown = ClusterInfo("t1", "local", launch.cluster.nodes, {"job_dir": launch.cluster.meta["job_dir"]})
    assert launch.new_engine().status(unknown) == {0: "running", 1: "running"}
    launch.new_engine().stop(unknown)
    assert find_marked("t1") == []


def test_a_start_that_fails_in_the_middle_leaves_nothing(launch: Started) -> None:
    with pytest.raises(FileNotFoundError):
        launch.engine.start(launch.cluster, {0: python(SLEEP), 1: ["/no/such/program"]}, {})
    assert find_marked("t1") == []
