"""Real text that is on every machine: the licence and the library sources that ship with Python."""

from __future__ import annotations

import sysconfig
from pathlib import Path

MODULES = 60


class Text:
    """Windows of bytes, in an order that does not depend on who asks: item `i` is the same window on every rank."""

    def __init__(self, window_bytes: int) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        paths = [*sorted(library.glob("LICENSE*")), *sorted(library.glob("*.py"))[:MODULES]]
        self._bytes = b"\n".join(path.read_bytes() for path in paths)
        self._window_bytes = window_bytes
        self._windows = (len(self._bytes) - 1) // window_bytes
        # A stride without a common divisor visits every window once before any comes again, neighbours far apart.
        self._stride = next(step for step in range(7_919, 10_000, 2) if self._windows % step)

    def window(self, item: int) -> tuple[list[int], list[int]]:
        """Input and target bytes of item number `item`: each byte is to predict the next one."""
        begin = (item * self._stride) % self._windows * self._window_bytes
        piece = self._bytes[begin : begin + self._window_bytes + 1]
        return list(piece[:-1]), list(piece[1:])
