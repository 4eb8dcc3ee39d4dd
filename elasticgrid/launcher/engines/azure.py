"""The engine `azure/REGION`: virtual machines, through the command `az`, in a resource group for each launch.

The group is deleted with the launch, and all that was made for its machines with it. Parameters: `machine_type`.
"""

from __future__ import annotations

import json
import subprocess
from typing import Final

from iroh_tinker.cloud.engines.azure import AzureEngine

from elasticgrid.core.errors import EngineError
from elasticgrid.launcher.engines.cloud import LAUNCH_TAG, CloudNodes
from elasticgrid.launcher.engines.provider_cli import run_cli

_ABSENT: Final = ("ResourceNotFound", "ResourceGroupNotFound", "could not be found")
#: Power states in which nothing of a machine runs.
_GONE: Final = frozenset(("VM deallocated", "VM stopped"))


class AzureMachines(CloudNodes, AzureEngine):  # type: ignore[misc] # iroh-tinker ships no types
    """The machines of one launch, in a group of their own, so that nothing is left when it is deleted."""

    def provision(self, job_dir: str) -> object:
        """As of machines of a cloud, in a group that is made first."""
        if "resource_group" in self._params():
            raise EngineError("invalid parameter resource_group: each launch has a resource group of its own")
        self._ensure_group()
        return super().provision(job_dir)

    def launches(self) -> set[str]:
        """Names of the launches that have a group in the subscription."""
        answer = self._az("group", "list", "--query", f'[].tags."{LAUNCH_TAG}"', "--output", "json").stdout
        try:
            return {str(name) for name in json.loads(answer or "[]") if name}
        except (ValueError, TypeError) as error:
            raise EngineError(f"az answered with something that is no list: {answer[:200]}") from error

    def _create_one(self, name: str) -> str:
        address = self._vm_ip(name) or self._create_vm(name, bool(self.spec.resources.use_spot))
        if not address:
            raise EngineError(f"az created {name}, which has no address to enter it by")
        return f"{self._ssh_user()}@{address}"

    def _runs(self, name: str) -> bool:
        asked = ("--resource-group", self._resource_group, "--name", name, "--query", "powerState", "--output", "tsv")
        shown = self._az("vm", "show", "-d", *asked)
        return shown.returncode == 0 and shown.stdout.strip() not in _GONE

    def _az(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run it; iroh-tinker's callers take a call that failed for one that found nothing, so it raises here."""
        words = list(args)
        if words[:2] in (["group", "create"], ["vm", "create"]):
            words += ["--tags", *(f"{key}={value}" for key, value in self._tags().items())]
        if words[:2] == ["vm", "create"] and (zone := self._params().get("zone")):
            words += ["--zone", str(zone)]
        is_look = words[:2] in (["vm", "show"], ["group", "delete"])
        return run_cli("az", words, absent=_ABSENT if is_look else ())

    def _delete_instances(self) -> None:
        """Delete the group; one that is not there is deleted already."""
        self._az("group", "delete", "--name", self._resource_group, "--yes", "--output", "none")
