"""Engines as other people write them, each with one trouble of its own. Named by `module=provider_engines:Class`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from iroh_tinker.cloud.engines import ClusterInfo, Engine
from iroh_tinker.cloud.engines.base import Node

from elasticgrid.launcher.engines.local import LocalProcesses


class StockedOut(LocalProcesses):
    """Has no machines."""

    def provision(self, job_dir: str) -> ClusterInfo:
        raise RuntimeError("ZONE_RESOURCE_POOL_EXHAUSTED: the zone has no more capacity for this machine type")


class Forbidden(LocalProcesses):
    """Does not know us."""

    def provision(self, job_dir: str) -> ClusterInfo:
        raise RuntimeError("PERMISSION_DENIED: caller is not authorized to create instances")


class FailsAfterCreate(LocalProcesses):
    """Starts everything, and then loses the connection."""

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        super().start(cluster, commands, env)
        raise ConnectionResetError("connection reset by peer")


class Gated(LocalProcesses):
    """Creates nothing until the file `gate` is in the job's workdir."""

    def provision(self, job_dir: str) -> ClusterInfo:
        while not Path(self.spec.workdir, "gate").exists():
            time.sleep(0.01)
        return super().provision(job_dir)


class Unreachable(LocalProcesses):
    """Runs nodes but does not say how they are until it was told to stop them."""

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        if Path(self.spec.workdir, "told-to-stop").exists():
            return super().status(cluster)
        Path(self.spec.workdir, "asked").touch()
        raise TimeoutError("the status call timed out")

    def stop(self, cluster: ClusterInfo) -> None:
        super().stop(cluster)
        Path(self.spec.workdir, "told-to-stop").touch()


class Flaky(LocalProcesses):
    """Every second question of how its nodes are times out; all of them do while the file `dead` is there."""

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        asked = Path(self.spec.workdir, "asked")
        with asked.open("ab") as file:
            file.write(b".")
        if Path(self.spec.workdir, "dead").exists() or asked.stat().st_size % 2 == 0:
            raise TimeoutError("the status call timed out")
        return super().status(cluster)


class HangsOnceStarted(LocalProcesses):
    """Starts everything, and does not return before the file `gate` is in the job's workdir."""

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        super().start(cluster, commands, env)
        while not Path(self.spec.workdir, "gate").exists():
            time.sleep(0.01)


class KillsItsLauncherInStart(LocalProcesses):
    """The launcher is killed when the first rank runs and the second does not."""

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        first = ClusterInfo(cluster.job_name, cluster.engine, cluster.nodes[:1], cluster.meta)
        super().start(first, commands, env)
        os.kill(os.getpid(), signal.SIGKILL)


class KillsItsLauncherBeforeTheRecord(LocalProcesses):
    """The launcher is killed when every rank runs and iroh-tinker has written nothing down."""

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        super().start(cluster, commands, env)
        os.kill(os.getpid(), signal.SIGKILL)


class Plain(Engine):  # type: ignore[misc] # iroh-tinker ships no types
    """Starts what it is told on this machine and knows nothing of marks."""

    def provision(self, job_dir: str) -> ClusterInfo:
        nodes = [Node(rank, "127.0.0.1") for rank in range(self.spec.world_size)]
        return ClusterInfo(self.spec.name, "plain", nodes, {"job_dir": job_dir})

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        processes = [
            subprocess.Popen(commands[node.rank], env={**os.environ, **env}, cwd=self.spec.workdir)
            for node in cluster.nodes
        ]
        for process in processes:
            process.wait()

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        return {node.rank: "stopped" for node in cluster.nodes}

    def stop(self, cluster: ClusterInfo) -> None:
        pass

    def logs(self, cluster: ClusterInfo, rank: int, tail: int = 50) -> str:
        return ""
