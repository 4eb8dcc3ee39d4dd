"""Processes of this machine that carry the mark of a launch in their environment.

The mark is there from a process's first moment, its children inherit it, and no other process ever has it: so nothing
that was started can be lost, whatever was killed in between, and a process number that is used again cannot deceive.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

#: `<launch>/<rank>` in the environment of everything that a launch runs on this machine.
LAUNCH_MARK: Final = "ELASTICGRID_LAUNCH"


class MarkedProcess(msgspec.Struct, frozen=True):
    """A process that runs: `session` is the session it is in, `rank` the node it belongs to."""

    pid: int
    session: int
    rank: int


def mark(launch: str, rank: int) -> str:
    """The value of `LAUNCH_MARK` for one node's processes."""
    return f"{launch}/{rank}"


def rank_of(pid: int, launch: str) -> int | None:
    """The rank that process `pid` has in the launch; None when it is gone, a zombie or somebody else's."""
    prefix = f"{LAUNCH_MARK}={launch}/".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for variable in variables:
        if variable.startswith(prefix):
            rank = variable.removeprefix(prefix)
            return int(rank) if rank.isdigit() else None
    return None


def find_marked(launch: str) -> list[MarkedProcess]:
    """Every process of the launch that runs now."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        rank = rank_of(pid, launch)
        if rank is not None:
            with contextlib.suppress(ProcessLookupError):
                found.append(MarkedProcess(pid, os.getsid(pid), rank))
    return found


def send_signal(processes: Iterable[MarkedProcess], launch: str, number: signal.Signals) -> None:
    """Send each of them the signal; one that is gone is skipped, also when its number was given to another."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if rank_of(process.pid, launch) == process.rank:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
