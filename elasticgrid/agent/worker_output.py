"""The workers' output files while they grow: kept to a size, and repeated on the agent's own output when wanted.

Workers write to their files themselves, so nothing they print ever waits for the agent. A file that has grown too large
is copied to `<name>.1` (the older ones move on) and emptied in place; the workers' descriptors append, so they go on at
its beginning. What a worker writes in the moment between the two is lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

_log = structlog.get_logger("elasticgrid.agent")

#: How much of one file is repeated in one turn.
PIECE_BYTES: Final = 1024 * 1024
#: A line longer than this is repeated in pieces.
LINE_BYTES: Final = 64 * 1024


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How output is kept.

    Attributes:
        max_bytes: of a file before a new one begins; 0 for no limit.
        files: older files that are kept.
        tee: whether the output is repeated on the agent's, each line behind the rank it is of.
        tee_local_ranks: of which of the node's workers, by their place on the node; None for all.
    """

    max_bytes: int = 256 * 1024 * 1024
    files: int = 3
    tee: bool = False
    tee_local_ranks: frozenset[int] | None = None


class WorkerOutput:
    """The output of the workers of one round.

    Args:
        write: takes what is repeated.
    """

    def __init__(self, settings: OutputSettings, write: Callable[[bytes], object]) -> None:
        self._settings = settings
        self._write = write
        self._paths: dict[int, Path] = {}
        self._read: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}
        self._silent: set[int] = set()

    def add(self, rank: int, path: Path, *, repeat: bool = True) -> None:
        """Follow one more file; without `repeat` it is only kept to its size."""
        self._paths[rank] = path
        if not repeat:
            self._silent.add(rank)

    def turn(self) -> None:
        """Repeat what is new and begin new files where it is time. Does file I/O; never raises for a file."""
        for rank, path in self._paths.items():
            try:
                if self._repeats(rank):
                    self._repeat(rank, path)
                if 0 < self._settings.max_bytes < path.stat().st_size:
                    self._rotate(rank, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("a worker's output cannot be kept as wanted", path=str(path), error=str(error))

    def finish(self) -> None:
        """Repeat everything that is left, a line without its end too."""
        self.turn()
        for rank, rest in self._rest.items():
            if rest:
                self._write(_prefixed(rank, rest + b"\n"))
        self._rest.clear()

    def _repeats(self, rank: int) -> bool:
        return self._settings.tee and rank not in self._silent

    def _repeat(self, rank: int, path: Path) -> None:
        with path.open("rb") as file:
            while True:
                file.seek(self._read.get(rank, 0))
                data = file.read(PIECE_BYTES)
                if not data:
                    return
                self._read[rank] = file.tell()
                whole, _, rest = (self._rest.get(rank, b"") + data).rpartition(b"\n")
                if whole:
                    self._write(_prefixed(rank, whole + b"\n"))
                if len(rest) > LINE_BYTES:
                    self._write(_prefixed(rank, rest + b"\n"))
                    rest = b""
                self._rest[rank] = rest

    def _rotate(self, rank: int, path: Path) -> None:
        for number in range(self._settings.files, 1, -1):
            older = path.with_name(f"{path.name}.{number - 1}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))
        if self._settings.files > 0:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        if self._repeats(rank):
            self._repeat(rank, path)
        os.truncate(path, 0)
        self._read[rank] = 0


def _prefixed(rank: int, lines: bytes) -> bytes:
    prefix = b"[rank %d] " % rank
    return b"".join(prefix + line + b"\n" for line in lines.splitlines())
