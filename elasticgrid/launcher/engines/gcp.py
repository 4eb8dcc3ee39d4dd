"""The engine `gcp/REGION`: Compute Engine instances, through the command `gcloud`.

Their zone is the provider's `zone`. Parameters: `machine_type`, `project`.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Final

from iroh_tinker.cloud.engines.gcp import GcpEngine

from elasticgrid.core.errors import EngineError
from elasticgrid.launcher.engines.cloud import LAUNCH_TAG, CloudNodes
from elasticgrid.launcher.engines.provider_cli import run_cli

#: States in which nothing of an instance runs.
_GONE: Final = frozenset(("TERMINATED", "STOPPED", "SUSPENDED"))
_LABEL: Final = re.compile(r"[^a-z0-9_-]")
_LABEL_LENGTH: Final = 63


class GcpInstances(CloudNodes, GcpEngine):  # type: ignore[misc] # iroh-tinker ships no types
    """The instances of one launch. A name is used once in a zone, so none is created twice."""

    def launches(self) -> set[str]:
        """Names of the launches that have instances in the zone."""
        words = ("--filter", f"labels.{LAUNCH_TAG}:*", "--zones", self._zone(), "--format=json")
        answer = self._gcloud("compute", "instances", "list", *words).stdout
        try:
            return {str(each["labels"][LAUNCH_TAG]) for each in json.loads(answer or "[]")}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"gcloud answered with something that is no list: {answer[:200]}") from error

    def _zone(self) -> str:
        return str(self._params().get("zone") or self.region_name)

    def _create_one(self, name: str) -> str:
        address = self._create_vm(name, bool(self.spec.resources.use_spot))
        if not address:
            raise EngineError(f"gcloud created {name}, which has no address to enter it by")
        return f"{self._ssh_user()}@{address}"

    def _runs(self, name: str) -> bool:
        found = self._describe(name)
        return found is not None and found.get("status") not in _GONE

    def _gcloud(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run it; iroh-tinker's callers take a call that failed for one that found nothing, so it raises here."""
        words = list(args)
        if words[:3] == ["compute", "instances", "create"]:
            labels = words.index("--labels") + 1
            words[labels] += "".join(f",{key}={_label(value)}" for key, value in self._tags().items())
        if project := self._params().get("project"):
            words += ["--project", str(project)]
        # Of a zone or a project that does not exist it says nearly the same.
        absent = (f"/instances/{words[3]}' was not found",) if words[2] == "describe" else ()
        return run_cli("gcloud", words, absent=absent)


def _label(value: str) -> str:
    return _LABEL.sub("-", value.lower())[:_LABEL_LENGTH]
