"""Stands for `gcloud` or `az`, or in front of `aws`: answers as the real one does, from a folder that holds the cloud.

Its arguments are COMMAND FOLDER and those of the command. FOLDER has `machines/NAME.json` for each machine, `calls`, a
line for each call, and `failures.json`: what to say instead of doing a call that has certain words.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words else ""


def tags(words: list[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words[words.index(option) + 1 :]:
        if word.startswith("--"):
            break
        found |= dict(pair.split("=", 1) for pair in word.split(",") if "=" in pair)
    return found


def fail(text: str, code: int = 1) -> None:
    sys.stderr.write(text + "\n")
    sys.exit(code)


class Cloud:
    def __init__(self, folder: Path) -> None:
        self._machines = folder / "machines"
        self._groups = folder / "groups"
        self._addresses = folder / "addresses"

    def machine(self, name: str) -> Path:
        return self._machines / f"{name}.json"

    def group(self, name: str) -> Path:
        return self._groups / f"{name}.json"

    def add(self, name: str, labels: dict[str, str], **more: str) -> str:
        address = self._address()
        whole = {"name": name, "labels": labels, "address": address, "state": "RUNNING", **more}
        self.machine(name).write_text(json.dumps(whole))
        return address

    def _address(self) -> str:
        """One that no other call has, also of those that run now."""
        for number in range(10, 255):
            with contextlib.suppress(FileExistsError):
                (self._addresses / str(number)).touch(exist_ok=False)
                return f"203.0.113.{number}"
        raise SystemExit("no address is left")

    def read(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def all(self) -> list[dict[str, Any]]:
        return [self.read(path) for path in sorted(self._machines.iterdir())]

    def all_groups(self) -> list[dict[str, Any]]:
        return [self.read(path) for path in sorted(self._groups.iterdir())]


def gcloud(cloud: Cloud, words: list[str]) -> None:
    def shown(machine: dict[str, Any]) -> dict[str, object]:
        interface = {
            "accessConfigs": [{"name": "external-nat", "natIP": machine["address"]}],
            "networkIP": "10.128.0.2",
        }
        return {
            "kind": "compute#instance",
            "name": machine["name"],
            "status": machine["state"],
            "labels": machine["labels"],
            "networkInterfaces": [interface],
        }

    verb = words[2]
    if verb == "list":
        print(json.dumps([shown(machine) for machine in cloud.all()]))
        return
    names = [word for word in words[3:] if word.startswith("it-")]
    for name in names:
        path = cloud.machine(name)
        resource = f"projects/p/zones/{value(words, '--zone')}/instances/{name}"
        if verb == "create":
            if path.exists():
                fail(
                    "ERROR: (gcloud.compute.instances.create) Could not fetch resource:\n"
                    f" - The resource '{resource}' already exists"
                )
            cloud.add(name, tags(words, "--labels"))
        elif not path.exists():
            fail(
                f"ERROR: (gcloud.compute.instances.{verb}) Could not fetch resource:\n"
                f" - The resource '{resource}' was not found"
            )
        elif verb == "describe":
            print(json.dumps(shown(cloud.read(path))))
        elif verb == "delete":
            path.unlink()


def az(cloud: Cloud, words: list[str]) -> None:
    kind, verb = words[:2]
    name, group = value(words, "--name"), value(words, "--resource-group")
    if kind == "group" and verb == "list":
        print(json.dumps([each["labels"]["elasticgrid-launch"] for each in cloud.all_groups()]))
    elif kind == "group" and verb == "create":
        cloud.group(name).write_text(json.dumps({"name": name, "labels": tags(words, "--tags")}))
    elif kind == "group":
        if not cloud.group(name).exists():
            fail(f"ERROR: (ResourceGroupNotFound) Resource group '{name}' could not be found.", 3)
        for machine in cloud.all():
            if machine["group"] == name:
                cloud.machine(machine["name"]).unlink()
        cloud.group(name).unlink()
    elif verb == "create":
        address = cloud.add(name, tags(words, "--tags"), group=group, state="VM running")
        print(json.dumps({"powerState": "VM running", "publicIpAddress": address, "resourceGroup": group}))
    elif not cloud.machine(name).exists():
        fail(f"ERROR: (ResourceNotFound) The Resource 'Microsoft.Compute/virtualMachines/{name}' was not found.", 3)
    else:
        machine = cloud.read(cloud.machine(name))
        print(machine["address"] if value(words, "--query") == "publicIps" else machine["state"])


def main(command: str, folder: Path, words: list[str]) -> None:
    line = " ".join(words)
    with (folder / "calls").open("a") as calls:
        calls.write(f"{line}\n")
    for failure in json.loads((folder / "failures.json").read_text()):
        if all(part in line for part in failure["words"]):
            fail(failure["stderr"], failure["exit_code"])
    if command == "aws":
        real = (folder / "real").read_text()
        os.execv(real, [real, *words])
    elif command == "gcloud":
        gcloud(Cloud(folder), words)
    else:
        az(Cloud(folder), words)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
