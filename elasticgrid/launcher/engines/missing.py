"""Engines that iroh-tinker's table names and its package does not have: refused in words."""

from __future__ import annotations

from typing import NoReturn

from iroh_tinker.cloud.engines import ClusterInfo, Engine

from elasticgrid.core.errors import EngineError


class MissingEngine(Engine):  # type: ignore[misc] # iroh-tinker ships no types
    """Stands for one of them: it creates nothing, so there is nothing to stop."""

    @classmethod
    def probe(cls) -> bool:
        """Never usable."""
        return False

    def provision(self, job_dir: str) -> NoReturn:  # noqa: ARG002 - the interface's
        """Say that there is no such engine.

        Raises:
            EngineError: always.
        """
        family = str(self.target).split("/", 1)[0]
        raise EngineError(
            f"the engine {family} is not supported: iroh-tinker names it and does not have it",
            hint="local, ssh, gcp/REGION, aws/REGION, azure/REGION or module=package.module:Class",
        )

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        """Nothing was created."""

    def status(self, cluster: ClusterInfo) -> dict[int, str]:  # noqa: ARG002 - the interface's
        """Nothing was created."""
        return {}

    def stop(self, cluster: ClusterInfo) -> None:
        """Nothing was created."""

    def logs(self, cluster: ClusterInfo, rank: int, tail: int = 50) -> str:  # noqa: ARG002 - the interface's
        """Nothing was created."""
        return ""
