"""The engine `local`: every node is a process group on this machine.

iroh-tinker's own starts processes in the launcher's working folder and knows them by number only. This one starts them
in the job's, marks them, and finds by the mark what runs, also when nobody had the time to note a number.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Final

from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.engines.local import LocalEngine

from elasticgrid import environment
from elasticgrid.core.errors import SetupFailed
from elasticgrid.launcher.engines.remote import without_workdir_modules
from elasticgrid.launcher.launch_files import CACHES_KEY
from elasticgrid.launcher.setup_run import caches_held, run_setup
from elasticgrid.marked_processes import LAUNCH_MARK, end_processes, mark, running_ranks
from elasticgrid.output_files import tail_of

_OWN_VARIABLES: Final = "ELASTICGRID_"
_SETUP_LINES: Final = 40


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

    def setup(self, cluster: ClusterInfo, workdir: str, setup_cmd: str) -> None:
        """Run the setup command once, as rank 0; what it says is kept in the launch's logs.

        Raises:
            SetupFailed: it ended with another code than 0.
        """
        log = Path(cluster.meta["job_dir"]) / "logs" / "setup.log"
        caches = Path(self.spec.envs.get(environment.CACHE_DIR) or Path(cluster.meta["job_dir"], "caches"))
        with caches_held(caches, self.spec.extra.get(CACHES_KEY, [])):
            code = run_setup(setup_cmd, Path(workdir), self._variables(self.spec.envs, 0), log)
            if code:
                raise SetupFailed(code, tail_of(log, _SETUP_LINES))

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        """Start each rank in the job's workdir, in a session of its own, with a log and a folder of its own.

        Raises:
            OSError: one could not be started; those that were are stopped.
        """
        logs_dir = Path(cluster.meta["job_dir"]) / "logs"
        logs_dir.mkdir(parents=True, exist_ok=True)
        pids: dict[int, int] = {}
        cluster.meta["pids"] = pids
        try:
            for node in cluster.nodes:
                with (logs_dir / f"rank_{node.rank}.log").open("ab") as output:
                    process = subprocess.Popen(
                        without_workdir_modules(commands[node.rank]),
                        cwd=self.spec.workdir,
                        env=self._variables(env, node.rank),
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
        ranks = [node.rank for node in cluster.nodes]
        running = running_ranks(self.spec.name, ranks, _leaders(cluster))
        return {rank: "running" if rank in running else "stopped" for rank in ranks}

    def stop(self, cluster: ClusterInfo) -> None:
        """Ask all to end, wait as long as the specification's grace says, and kill everything that is left."""
        end_processes(self.spec.name, _leaders(cluster), self.spec.recovery.signal_grace_s, self._reap)

    def logs(self, cluster: ClusterInfo, rank: int, tail: int = 50) -> str:
        """The last lines of a rank's output; empty when there is none."""
        return tail_of(Path(cluster.meta["job_dir"]) / "logs" / f"rank_{rank}.log", tail)

    def _variables(self, env: dict[str, str], rank: int) -> dict[str, str]:
        # What the launcher was told, its credential first of all, is not for its nodes.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        variables = {**inherited, **env, LAUNCH_MARK: mark(self.spec.name, rank)}
        if environment.NODE_DIR in env:
            variables[environment.NODE_DIR] = str(Path(env[environment.NODE_DIR], str(rank)))
        return variables

    @classmethod
    def _reap(cls) -> None:
        with cls._children_lock:
            for pid, process in list(cls._children.items()):
                if process.poll() is not None:
                    del cls._children[pid]


def _leaders(cluster: ClusterInfo) -> dict[int, int]:
    """The process that leads each rank's session, as far as it was noted."""
    return {int(rank): int(pid) for rank, pid in cluster.meta.get("pids", {}).items()}
