"""The processes of one grid on this machine, found by a mark in their environment, whoever started them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid import environment

#: Not one of the grid's own variables: a launcher keeps those from its nodes.
RUN_MARK: Final = "GRID_RUN_FOLDER"

_AGENT: Final = re.compile(r"\S+ -P -m elasticgrid\.agent ")


class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs.

    Attributes:
        parent: the process that started it, or that took it over.
        command: its words, separated by spaces.
        variables: its environment as it was started.
    """

    pid: int
    parent: int
    command: str
    variables: dict[str, str]

    @property
    def is_agent(self) -> bool:
        """Whether it is a node's agent."""
        return _AGENT.match(self.command) is not None

    @property
    def is_worker(self) -> bool:
        """Whether an agent started it, or one that an agent started: it has a rank in a world."""
        return environment.ROUND in self.variables

    @property
    def node(self) -> str:
        """The node it belongs to; empty for what belongs to none."""
        if self.is_worker:
            return self.variables.get(environment.NODE, "")
        if environment.ATTEMPT in self.variables:
            return f"{self.variables[environment.ATTEMPT]}-{self.variables.get('RANK', '0')}"
        return ""


def find_run(mark: str) -> list[RunProcess]:
    """Every process with this mark that runs now, by number, but not this one. Zombies run no more."""
    wanted = f"{RUN_MARK}={mark}"
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            variables = Path("/proc", name, "environ").read_bytes().decode(errors="replace").split("\0")
            if wanted not in variables:
                continue
            command = Path("/proc", name, "cmdline").read_bytes().decode(errors="replace")
            # The name of the program comes first, in parentheses, and may hold anything.
            state, parent = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z":
            continue
        pairs = dict(variable.split("=", 1) for variable in variables if "=" in variable)
        words = command.replace("\0", " ").strip()
        found.append(RunProcess(pid=int(name), parent=int(parent), command=words, variables=pairs))
    return sorted(found, key=lambda process: process.pid)
