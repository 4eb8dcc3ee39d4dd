"""The engine `ssh`: nodes on machines that are there already, each as often as the provider lists it.

A host is taken by one launch at a time for each time it is listed, and free again when the launch is seen to have
ended there. Hosts that do not answer are passed over for others that do.
"""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.engines.base import Node

from elasticgrid.core.errors import EngineError
from elasticgrid.launcher.engines.remote import RemoteNodes, read_hosts, write_hosts
from elasticgrid.launcher.launch_files import HOSTS_FILE

_LOCK: Final = ".ssh-hosts.lock"
_ANSWER_S: Final = 20.0
_AT_ONCE: Final = 16


class SshHosts(RemoteNodes):
    """Runs a launch on hosts of a list: parameter `hosts`, such as `u@one u@two u@two`."""

    name = "ssh"

    def provision(self, job_dir: str) -> ClusterInfo:
        """Take as many hosts as there are nodes.

        Raises:
            EngineError: no hosts are listed, too few are free, or too few of those answer; the text is ssh's.
        """
        listed = [str(host) for host in self._params().get("hosts") or []]
        if not listed:
            raise EngineError("invalid parameter hosts: the provider lists none", hint="params: {hosts: u@one u@two}")
        folder = Path(job_dir)
        with _claims_held(folder.parent):
            hosts = read_hosts(folder) or self._take(listed, folder)
        nodes = [Node(rank=rank, host=host) for rank, host in enumerate(hosts)]
        return ClusterInfo(self.spec.name, self.name, nodes, {"pids": {}, "job_dir": str(folder)})

    def stop(self, cluster: ClusterInfo) -> None:
        """As of remote nodes; then its hosts are free."""
        super().stop(cluster)
        folder = Path(cluster.meta["job_dir"])
        with _claims_held(folder.parent):
            (folder / HOSTS_FILE).unlink(missing_ok=True)

    def _take(self, listed: list[str], folder: Path) -> list[str]:
        wanted = self.spec.world_size
        taken = Counter(host for path in folder.parent.glob(f"*/{HOSTS_FILE}") for host in read_hosts(path.parent))
        free = []
        for host in listed:
            if taken[host] > 0:
                taken[host] -= 1
            else:
                free.append(host)
        if len(free) < wanted:
            raise EngineError(f"no capacity: {wanted} hosts are wanted and {len(free)} of {len(listed)} are free")
        problems = self._problems(free)
        answering = [host for host in free if host not in problems]
        if len(answering) < wanted:
            said = "\n".join(str(problem) for problem in problems.values())
            raise EngineError(f"{wanted} hosts are wanted and {len(answering)} of the free ones answer\n{said}")
        hosts = answering[:wanted]
        write_hosts(folder, hosts)
        return hosts

    def _problems(self, hosts: list[str]) -> dict[str, EngineError]:
        """Why hosts cannot be used, for those that cannot."""

        def problem(host: str) -> EngineError | None:
            try:
                self._call(host, "look", {}, timeout_s=_ANSWER_S)
            except EngineError as error:
                return error
            return None

        distinct = list(dict.fromkeys(hosts))
        with ThreadPoolExecutor(min(_AT_ONCE, len(distinct))) as threads:
            found = zip(distinct, threads.map(problem, distinct), strict=True)
            return {host: error for host, error in found if error is not None}


@contextmanager
def _claims_held(launches: Path) -> Iterator[None]:
    """Nobody else takes or frees hosts for the launches of this folder while the block runs."""
    launches.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (launches / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
