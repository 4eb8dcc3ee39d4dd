"""Three clouds at their command lines, and machines that are folders here, entered by an `ssh` that goes nowhere."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from elasticgrid.testing.bus import free_ports

COMMANDS: Final = {"aws": "aws", "gcp": "gcloud", "azure": "az"}
ENGINES: Final = {"aws": "aws/us-east-1", "gcp": "gcp/us-central1", "azure": "azure/eastus"}
REAL_AWS: Final = Path(sys.executable).with_name("aws")

_PROGRAM: Final = Path(__file__).with_name("provider_command.py")
_RECORDED: Final = Path(__file__).with_name("recorded")
_SSH: Final = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
machine={machines}/$2
if [ -e "$machine.off" ]; then echo "ssh: connect to host $2 port 22: Connection timed out" >&2; exit 255; fi
mkdir -p "$machine" && HOME=$machine exec sh -c "$3"
"""
_UP_S: Final = 30.0


def recorded(family: str) -> list[dict[str, Any]]:
    """What a cloud says when it does not create a machine."""
    found: list[dict[str, Any]] = json.loads((_RECORDED / f"{family}.json").read_text())
    return found


def why_no_aws() -> str:
    """Why there is no cloud for the real command `aws` here; empty when there is one."""
    if not REAL_AWS.exists() or importlib.util.find_spec("moto") is None:
        return "pip install 'elasticgrid[aws-tests]' for the command aws and a server for it"
    return ""


class Cloud:
    """One cloud: what is asked of it, what it has, and what it refuses."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        self.engine = ENGINES[family]
        self.bin = folder / "bin"
        self._folder = folder / family
        self._machines = folder / "ssh"
        for each in ("machines", "groups", "addresses"):
            (self._folder / each).mkdir(parents=True)
        for folder_here in (self.bin, self._machines):
            folder_here.mkdir()
        (self._folder / "real").write_text(str(REAL_AWS))
        self._install("ssh", _SSH.format(machines=self._machines))
        command = COMMANDS[family]
        self._install(command, f'#!/bin/sh\nexec {sys.executable} {_PROGRAM} {command} {self._folder} "$@"\n')
        self.refuse()

    @property
    def parameters(self) -> dict[str, str]:
        """What a provider of this cloud is configured with."""
        of_family = {"aws": {"key_name": "ours", "ami": "ami-12c6146b"}, "gcp": {"zone": "us-central1-a"}, "azure": {}}
        python = {"python": sys.executable, "node_python": sys.executable}
        return {**python, "boot_timeout_s": "20", **of_family[self.family]}

    def refuse(self, *words: str, stderr: str = "", exit_code: int = 1) -> None:
        """From now on say this instead of doing a call that has these words; without words do all calls."""
        failures = [{"words": words, "stderr": stderr, "exit_code": exit_code}] if words else []
        (self._folder / "failures.json").write_text(json.dumps(failures))

    def refuse_to_create(self, stderr: str, exit_code: int = 1, *, index: str = "") -> None:
        """The same for making a machine: any, or the one of this index."""
        verb = {"aws": "run-instances", "gcp": "instances create", "azure": "vm create"}[self.family]
        name = {"aws": f"-{index}}}", "gcp": f"-{index} --zone", "azure": f"-{index} --image"}[self.family]
        self.refuse(verb, *([name] if index else []), stderr=stderr, exit_code=exit_code)

    def calls(self) -> str:
        """All calls so far, a line each."""
        return (self._folder / "calls").read_text()

    def live(self) -> dict[str, dict[str, str]]:
        """The machines that run, by name, with their tags."""
        if self.family != "aws":
            found = [json.loads(path.read_text()) for path in (self._folder / "machines").iterdir()]
            return {each["name"]: each["labels"] for each in found if each["state"] in ("RUNNING", "VM running")}
        tags = [each["Tags"] for each in self._instances() if each["State"]["Name"] == "running"]
        by_key = [{tag["Key"]: tag["Value"] for tag in each} for each in tags]
        return {each["Name"]: each for each in by_key}

    def created(self) -> int:
        """How many machines there ever were."""
        return len(self._instances()) if self.family == "aws" else len(self.live())

    def groups(self) -> list[str]:
        """Resource groups that are there."""
        return [path.stem for path in (self._folder / "groups").iterdir()]

    def preempt(self, name: str) -> None:
        """The cloud takes a machine back."""
        if self.family == "aws":
            ids = [each["InstanceId"] for each in self._instances() if {"Key": "Name", "Value": name} in each["Tags"]]
            _aws("ec2", "terminate-instances", "--instance-ids", *ids)
        else:
            (self._folder / "machines" / f"{name}.json").unlink()

    def switch_off(self, host: str) -> None:
        """A machine does not answer any more."""
        (self._machines / f"{host}.off").touch()

    def machines(self) -> list[Path]:
        """The home folders of machines that were entered."""
        return [path for path in self._machines.iterdir() if path.is_dir()]

    def _instances(self) -> list[dict[str, Any]]:
        answer = json.loads(_aws("ec2", "describe-instances"))
        return [instance for reservation in answer["Reservations"] for instance in reservation["Instances"]]

    def _install(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(script)
        path.chmod(0o755)


def _aws(*words: str) -> str:
    command = [str(REAL_AWS), *words, "--region", "us-east-1", "--output", "json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def aws_environment(port: int, folder: Path) -> dict[str, str]:
    """What leads the command `aws` to a server of our own, and to nothing else."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_CONFIG_FILE": str(folder / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_PAGER": "",
    }


@contextlib.contextmanager
def moto_server(folder: Path) -> Iterator[int]:
    """A server that stands for AWS, until the block ends; yields its port."""
    (port,) = free_ports(1)
    with (folder / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + _UP_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "moto.log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def reset_moto(port: int) -> None:
    """An empty account."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def path_with(folder: Path) -> str:
    """The search path with a folder in front."""
    return os.pathsep.join([str(folder), os.environ["PATH"]])
