"""Processes of this machine that carry the mark of a launch, or of a run without a grid, in their environment.

The mark is there from a process's first moment, its children inherit it, and no other process ever has it: so nothing
that was started can be lost, whatever was killed in between, and a process number that is used again cannot deceive.

This module is sent to nodes as it stands and runs there with Python 3.10 and nothing installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

#: `<launch>/<rank>` in the environment of everything that a launch runs on this machine.
LAUNCH_MARK: Final = "ELASTICGRID_LAUNCH"

#: How much longer than their runner's grace processes get, and how long what outlives them, before they are killed.
_SLACK_S: Final = 2.0
_REMAINS_S: Final = 1.0
_KILL_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05


class MarkedProcess(NamedTuple):
    """A process that runs: `session` is the session it is in, `rank` the node it belongs to."""

    pid: int
    session: int
    rank: int


def mark(launch: str, rank: int) -> str:
    """The value of `LAUNCH_MARK` for one node's processes."""
    return f"{launch}/{rank}"


def rank_of(pid: int, launch: str, variable: str = LAUNCH_MARK) -> int | None:
    """The rank that process `pid` has in the launch; None when it is gone, a zombie or somebody else's.

    Args:
        variable: the one that holds the mark, here as everywhere in this module.
    """
    prefix = f"{variable}={launch}/".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for each in variables:
        if each.startswith(prefix):
            rank = each.removeprefix(prefix)
            return int(rank) if rank.isdigit() else None
    return None


def find_marked(launch: str, variable: str = LAUNCH_MARK) -> list[MarkedProcess]:
    """Every process of the launch that runs now."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        rank = rank_of(pid, launch, variable)
        if rank is not None:
            with contextlib.suppress(ProcessLookupError):
                found.append(MarkedProcess(pid, os.getsid(pid), rank))
    return found


def in_sessions(launch: str, leaders: Mapping[int, int], variable: str = LAUNCH_MARK) -> list[MarkedProcess]:
    """Processes in the sessions that were started; of a rank whose session nobody noted, all there are.

    Args:
        launch: whose.
        leaders: the process that leads each rank's session, as far as it was noted.
    """
    return [each for each in find_marked(launch, variable) if leaders.get(each.rank) in (None, each.session)]


def running_ranks(launch: str, ranks: Iterable[int], leaders: Mapping[int, int]) -> set[int]:
    """Ranks of which anything in their own session runs; what a worker left behind elsewhere is no node."""
    running = {rank for rank, pid in leaders.items() if rank_of(pid, launch) == rank}
    if any(rank not in running for rank in ranks):
        running |= {process.rank for process in in_sessions(launch, leaders)}
    return running


def send_signal(
    processes: Iterable[MarkedProcess], launch: str, number: signal.Signals, variable: str = LAUNCH_MARK
) -> None:
    """Send each of them the signal; one that is gone is skipped, also when its number was given to another."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if rank_of(process.pid, launch, variable) == process.rank:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def end_processes(
    launch: str,
    leaders: Mapping[int, int],
    grace_s: float,
    reap: Callable[[], None],
    variable: str = LAUNCH_MARK,
) -> bool:
    """Ask all to end, wait as long as the grace says, and kill everything that is left.

    Args:
        launch: whose.
        leaders: as `in_sessions`.
        grace_s: how long those that are asked get.
        reap: waits for the caller's own children, so that none stays as a zombie.

    Returns:
        Whether nothing of the launch runs any more.
    """
    send_signal(in_sessions(launch, leaders, variable), launch, signal.SIGTERM, variable)
    if _wait_until_none(lambda: in_sessions(launch, leaders, variable), grace_s + _SLACK_S, reap) and _wait_until_none(
        lambda: find_marked(launch, variable), _REMAINS_S, reap
    ):
        return True
    deadline_s = time.monotonic() + _KILL_S
    while time.monotonic() < deadline_s:
        # A process may have forked while the list was read, so the list is read until it is empty.
        send_signal(find_marked(launch, variable), launch, signal.SIGKILL, variable)
        if _wait_until_none(lambda: find_marked(launch, variable), _LOOK_AGAIN_S, reap):
            return True
    return False


def _wait_until_none(find: Callable[[], list[MarkedProcess]], timeout_s: float, reap: Callable[[], None]) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while True:
        reap()
        if not find():
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_LOOK_AGAIN_S)
