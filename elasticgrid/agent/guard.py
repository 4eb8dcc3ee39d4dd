"""The guard: a small process that outlives its agent just long enough to kill what the agent left behind.

The agent writes `+<process group>` when it starts a worker and `-<process group>` when that worker is gone. When the
pipe ends, whatever is still listed is killed: also the children of a worker, which the kernel's parent-death signal
does not reach.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable


def watch(lines: Iterable[bytes]) -> None:
    """Keep the list until `lines` ends, then kill every process group on it."""
    groups: set[int] = set()
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if number.isdigit() and sign in b"+-":
            (groups.add if sign == b"+" else groups.discard)(int(number))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


#: The pipes to guards of this process. A copy of one in a forked child would keep its guard from ever seeing the end.
_pipes: set[int] = set()


def close_in_fork() -> None:
    """For a child that was forked and goes on running Python: let go of what guards watch."""
    for descriptor in _pipes:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _pipes.clear()


class Guard:
    """The agent's side of its guard process."""

    def __init__(self) -> None:
        # A session of its own: signals meant for the agent's group must not end the guard first.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        if self._process.stdin is not None:
            _pipes.add(self._process.stdin.fileno())

    def add(self, group: int) -> None:
        """Kill this process group when the agent dies."""
        self._write(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """The process group is gone."""
        self._write(b"-%d\n" % group)

    def close(self) -> None:
        """End the guard; it kills what is still listed."""
        if self._process.stdin is not None:
            _pipes.discard(self._process.stdin.fileno())
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: bytes) -> None:
        if self._process.stdin is not None:
            # A guard that somebody killed is a safety net less, no reason to end the training.
            with contextlib.suppress(OSError):
                self._process.stdin.write(line)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.stdin.buffer)
