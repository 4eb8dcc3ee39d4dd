"""The engine `aws/REGION`: EC2 instances, through the command `aws`.

Parameters: `key_name` (a key pair of the region; required), `ami`, `machine_type`, `subnet_id`, `security_group_ids` (a
list).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from iroh_tinker.cloud.engines.aws import AwsEngine

from elasticgrid.core.errors import EngineError
from elasticgrid.launcher.engines.cloud import LAUNCH_TAG, CloudNodes
from elasticgrid.launcher.engines.provider_cli import run_cli

#: States of an instance that costs nothing any more.
_GONE: Final = frozenset(("shutting-down", "terminated"))
_INSTANCES: Final = "Reservations[].Instances[].{id:InstanceId,state:State.Name,why:StateReason,tags:Tags}"
_TOKEN_LENGTH: Final = 64


class AwsInstances(CloudNodes, AwsEngine):  # type: ignore[misc] # iroh-tinker ships no types
    """The instances of one launch."""

    def launches(self) -> set[str]:
        """Names of the launches that have instances in the region."""
        found = self._instances(f"Name=tag-key,Values={LAUNCH_TAG}")
        return {_tag(each, LAUNCH_TAG) for each in found if each["state"] not in _GONE}

    def _create_one(self, name: str) -> str:
        if not self._params().get("key_name"):
            raise EngineError("invalid parameter key_name: an EC2 key pair is needed to enter the instances")
        found = self._find(name) or self._run_instances(name, bool(self.spec.resources.use_spot))
        if found is None:
            raise EngineError(f"aws created no instance for {name} and said nothing")
        self._ensure_running(found)
        return f"{self._ssh_user()}@{self._instance_ip(found)}"

    def _runs(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> str | None:
        ids = [each["id"] for each in self._ours() if _tag(each, "Name") == name and each["state"] not in _GONE]
        return str(ids[0]) if ids else None

    def _delete_instances(self) -> None:
        ids = [str(each["id"]) for each in self._ours() if each["state"] not in _GONE]
        if ids:
            self._aws("ec2", "terminate-instances", "--instance-ids", *ids, "--region", self.region_name)

    def _ours(self) -> list[dict[str, Any]]:
        return self._instances(f"Name=tag:{LAUNCH_TAG},Values={self.spec.name}")

    def _instances(self, wanted: str) -> list[dict[str, Any]]:
        asked = ("--filters", wanted, "--query", _INSTANCES, "--output", "json", "--region", self.region_name)
        answer = self._aws("ec2", "describe-instances", *asked).stdout
        try:
            return list(json.loads(answer or "[]"))
        except ValueError as error:
            raise EngineError(f"aws answered with something that is no JSON: {answer[:200]}") from error

    def _ensure_running(self, instance_id: str) -> None:
        """Wait until it runs; one that ends instead says why."""
        try:
            super()._ensure_running(instance_id)
        except EngineError as error:
            raise self._state_reason(instance_id) or error from error

    def _state_reason(self, instance_id: str) -> EngineError | None:
        found = next((each for each in self._ours() if each["id"] == instance_id), None)
        why = (found or {}).get("why") or {}
        return EngineError(f"{why.get('Code', '')}: {why['Message']}") if why.get("Message") else None

    def _aws(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run it; iroh-tinker's callers take a call that failed for one that found nothing, so it raises here."""
        words = list(args)
        if words[:2] == ["ec2", "run-instances"]:
            tags = words.index("--tag-specifications") + 1
            name = _between(words[tags], "Key=Name,Value=", "}")
            more = "".join(f",{{Key={key},Value={value}}}" for key, value in self._tags().items())
            words[tags] = f"{words[tags].removesuffix(']')}{more}]"
            # What was created a moment ago may not be found yet; with its token it is not created again all the same.
            words += ["--client-token", name[:_TOKEN_LENGTH]]
            if zone := self._params().get("zone"):
                words += ["--placement", f"AvailabilityZone={zone}"]
        return run_cli("aws", words)


def _tag(instance: dict[str, Any], key: str) -> str:
    return next((str(tag["Value"]) for tag in instance["tags"] or [] if tag["Key"] == key), "")


def _between(text: str, before: str, after: str) -> str:
    return text.split(before, 1)[1].split(after, 1)[0]
