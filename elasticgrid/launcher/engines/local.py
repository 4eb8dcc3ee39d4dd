"""The engine `local`: every node is a process group on this machine.

iroh-tinker's own starts processes in the launcher's working folder and knows them by number only. This one starts them
in the job's, marks them, and finds by the mark what runs, also when nobody had the time to note a number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.engines.local import LocalEngine

from elasticgrid import environment
from elasticgrid.launcher.engines.marked_processes import (
    LAUNCH_MARK,
    MarkedProcess,
    find_marked,
    mark,
    rank_of,
    send_signal,
)

_OWN_VARIABLES: Final = "ELASTICGRID_"
#: How much longer than their runner's grace processes get, and how long what outlives them, before they are killed.
_SLACK_S: Final = 2.0
_REMAINS_S: Final = 1.0
_KILL_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05
_TAIL_BYTES: Final = 65_536


class LocalProcesses(LocalEngine):  # type: ignore[misc] # iroh-tinker ships no types
    """Starts, watches and stops the processes of one launch on this machine."""

    name = "local"

    # One process has many engine objects for one launch, but is the parent of its processes once.
    _children: Final[dict[int, subprocess.Popen[bytes]]] = {}
    _children_lock: Final = threading.Lock()

    def provision(self, job_dir: str) -> ClusterInfo:
        """Nothing is created; a working folder that is not there is refused."""
        if not Path(self.spec.workdir).is_dir():
            raise FileNotFoundError(f"the job's workdir {self.spec.workdir} does not exist on this machine")
        return super().provision(job_dir)

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        """Start each rank in the job's workdir, in a session of its own, with a log and a folder of its own.

        Raises:
            OSError: one could not be started; those that were are stopped.
        """
        logs_dir = Path(cluster.meta["job_dir"]) / "logs"
        logs_dir.mkdir(parents=True, exist_ok=True)
        # What the launcher was told, its credential first of all, is not for its nodes.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        pids: dict[int, int] = {}
        cluster.meta["pids"] = pids
        try:
            for node in cluster.nodes:
                variables = {**inherited, **env, LAUNCH_MARK: mark(self.spec.name, node.rank)}
                if environment.NODE_DIR in env:
                    variables[environment.NODE_DIR] = str(Path(env[environment.NODE_DIR], str(node.rank)))
                with (logs_dir / f"rank_{node.rank}.log").open("ab") as output:
                    process = subprocess.Popen(
                        _without_workdir_modules(commands[node.rank]),
                        cwd=self.spec.workdir,
                        env=variables,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                with self._children_lock:
                    self._children[process.pid] = process
                pids[node.rank] = process.pid
        except (OSError, ValueError):
            self.stop(cluster)
            raise

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        """`running` while anything of the rank's own session runs; what a worker left behind elsewhere is no node."""
        self._reap()
        leaders = _leaders(cluster)
        running = {rank for rank, pid in leaders.items() if rank_of(pid, self.spec.name) == rank}
        if any(node.rank not in running for node in cluster.nodes):
            running |= {process.rank for process in self._in_sessions(leaders)}
        return {node.rank: "running" if node.rank in running else "stopped" for node in cluster.nodes}

    def stop(self, cluster: ClusterInfo) -> None:
        """Ask all to end, wait as long as the specification's grace says, and kill everything that is left."""
        leaders = _leaders(cluster)
        launch = self.spec.name
        send_signal(self._in_sessions(leaders), launch, signal.SIGTERM)
        if self._wait_until_none(
            lambda: self._in_sessions(leaders), self.spec.recovery.signal_grace_s + _SLACK_S
        ) and self._wait_until_none(lambda: find_marked(launch), _REMAINS_S):
            return
        deadline_s = time.monotonic() + _KILL_S
        while time.monotonic() < deadline_s:
            # A process may have forked while the list was read, so the list is read until it is empty.
            send_signal(find_marked(launch), launch, signal.SIGKILL)
            if self._wait_until_none(lambda: find_marked(launch), _LOOK_AGAIN_S):
                return

    def logs(self, cluster: ClusterInfo, rank: int, tail: int = 50) -> str:
        """The last lines of a rank's output; empty when there is none."""
        path = Path(cluster.meta["job_dir"]) / "logs" / f"rank_{rank}.log"
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-tail:])

    def _in_sessions(self, leaders: dict[int, int]) -> list[MarkedProcess]:
        """Processes in the sessions that were started; of a rank whose session nobody noted, all there are."""
        return [each for each in find_marked(self.spec.name) if leaders.get(each.rank) in (None, each.session)]

    def _wait_until_none(self, find: Callable[[], list[MarkedProcess]], timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._reap()
            if not find():
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOOK_AGAIN_S)

    @classmethod
    def _reap(cls) -> None:
        with cls._children_lock:
            for pid, process in list(cls._children.items()):
                if process.poll() is not None:
                    del cls._children[pid]


def _without_workdir_modules(command: list[str]) -> list[str]:
    """The runner's command, such that a `queue.py` in the job's folder does not stand in for Python's own."""
    return [command[0], "-P", *command[1:]] if command[1:2] == ["-m"] else command


def _leaders(cluster: ClusterInfo) -> dict[int, int]:
    """The process that leads each rank's session, as far as it was noted."""
    return {int(rank): int(pid) for rank, pid in cluster.meta.get("pids", {}).items()}
