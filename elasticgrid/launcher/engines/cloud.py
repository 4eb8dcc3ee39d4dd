"""Nodes on machines of a cloud: created for one launch, tagged with it, and deleted with it.

iroh-tinker's own drop what the provider said and leave machines behind when only some could be created. Here the text
is kept, and what was created for a launch that did not come to be is deleted before that is said.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.engines.base import Node

from elasticgrid import environment
from elasticgrid.core.errors import EngineError
from elasticgrid.launcher.engines.remote import RemoteNodes, write_hosts
from elasticgrid.launcher.launch_files import HOSTS_FILE

#: On every machine: the name of its launch, and whose it is.
LAUNCH_TAG: Final = "elasticgrid-launch"
ATTEMPT_TAG: Final = "elasticgrid-attempt"
JOB_TAG: Final = "elasticgrid-job"
TENANT_TAG: Final = "elasticgrid-tenant"

_KNOWN_HOSTS: Final = "known_hosts"
_BOOT_S: Final = 300.0
_LOOK_AGAIN_S: Final = 2.0
_LOOK_S: Final = 20.0
_CALLS_AT_ONCE: Final = 8


class CloudNodes(RemoteNodes):
    """Creates the machines of one launch, and deletes them.

    Parameters of the provider, besides those of remote nodes: `machine_type`, `zone`, `ssh_user`, and
    `boot_timeout_s`, how long a machine may take until it can be entered.
    """

    def provision(self, job_dir: str) -> ClusterInfo:
        """Create a machine for each node, and wait until they can be entered.

        Raises:
            EngineError: that is not possible; the text is the provider's, and what was created is deleted.
        """
        self._folder = Path(job_dir)
        try:
            hosts = self._create_all()
            write_hosts(self._folder, hosts)
            self._wait_until_up(hosts)
        except EngineError as error:
            raise self._given_up(error) from error
        nodes = [Node(rank=rank, host=host) for rank, host in enumerate(hosts)]
        return ClusterInfo(self.spec.name, self.name, nodes, {"pids": {}, "job_dir": job_dir})

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        """As of remote nodes; a machine that does not answer is asked for at the provider: one that is gone stopped."""
        statuses = super().status(cluster)
        for rank, status in statuses.items():
            if status == "unknown" and self._is_gone(rank):
                statuses[rank] = "stopped"
        return statuses

    def stop(self, cluster: ClusterInfo) -> None:
        """End everything on the machines that answer, and delete all of them.

        Raises:
            EngineError: the provider does not delete them; the text is its own.
        """
        # A machine that does not answer is deleted all the same.
        with contextlib.suppress(EngineError):
            super().stop(cluster)
        self._delete_instances()
        (Path(cluster.meta["job_dir"]) / HOSTS_FILE).unlink(missing_ok=True)

    @abstractmethod
    def launches(self) -> set[str]:
        """Names of the launches that have machines here, of whatever launcher.

        Raises:
            EngineError: the provider does not say.
        """

    @abstractmethod
    def _create_one(self, name: str) -> str:
        """Create a machine of this name, or find the one there is; returns its ssh target."""

    @abstractmethod
    def _runs(self, name: str) -> bool:
        """Whether the machine of this name is there and runs."""

    def _tags(self) -> dict[str, str]:
        """What every machine of the launch is tagged with."""
        env: Mapping[str, str] = self.spec.envs
        return {
            LAUNCH_TAG: self.spec.name,
            ATTEMPT_TAG: env.get(environment.ATTEMPT, ""),
            JOB_TAG: env.get(environment.JOB, ""),
            TENANT_TAG: env.get(environment.TENANT, ""),
        }

    def _create_all(self) -> list[str]:
        names = [self._vm_name(index) for index in range(self.spec.num_nodes)]
        with ThreadPoolExecutor(min(_CALLS_AT_ONCE, len(names))) as threads:
            futures = [threads.submit(self._create_one, name) for name in names]
        # All calls are over, so that nothing is created any more when the first error is told.
        return [future.result() for future in futures]

    def _wait_until_up(self, hosts: list[str]) -> None:
        limit_s = float(self._params().get("boot_timeout_s") or _BOOT_S)
        deadline_s = time.monotonic() + limit_s

        def wait(host: str) -> None:
            while True:
                try:
                    self._call(host, "look", {}, timeout_s=_LOOK_S)
                except EngineError as error:
                    if time.monotonic() >= deadline_s:
                        raise EngineError(f"boot timed out after {limit_s:g} s: {error}") from error
                    time.sleep(_LOOK_AGAIN_S)
                else:
                    return

        with ThreadPoolExecutor(min(_CALLS_AT_ONCE, len(hosts))) as threads:
            futures = [threads.submit(wait, host) for host in hosts]
        for future in futures:
            future.result()

    def _given_up(self, error: EngineError) -> EngineError:
        try:
            self._delete_instances()
        except EngineError as problem:
            return EngineError(f"{error}\nnot cleaned up: {problem}")
        (self._folder / HOSTS_FILE).unlink(missing_ok=True)
        return error

    def _is_gone(self, rank: int) -> bool:
        try:
            return not self._runs(self._vm_name(rank))
        except EngineError:
            return False

    def _ssh_base(self) -> list[str]:
        # Addresses are used again for other machines, so what is known of one is known for one launch.
        known = ("-o", f"UserKnownHostsFile={self._folder / _KNOWN_HOSTS}", "-o", "GlobalKnownHostsFile=/dev/null")
        return [*super()._ssh_base(), *known]
