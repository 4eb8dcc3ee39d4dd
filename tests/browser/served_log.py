"""A gateway over a simulated log, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from watched_page import WatchedPage

Open = Callable[..., WatchedPage]


class Served(msgspec.Struct, frozen=True):
    """A gateway that listens at `url` and knows `key`."""

    url: str
    key: str
    events: int


@contextlib.contextmanager
def serving(what: str, folder: Path) -> Iterator[Served]:
    """A gateway over a simulated log in a process of its own; it ends with the block."""
    command = [sys.executable, str(Path(__file__).with_name("big_grid.py")), what, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield msgspec.json.decode(process.stdout.readline(), type=Served)
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
