"""The workers' output files while they grow: kept to a size, and repeated on the agent's own output when wanted.

Workers write to their files themselves, so nothing they print ever waits for the agent. A file that has grown too large
is copied to `<name>.1` (the older ones move on) and emptied in place; the workers' descriptors append, so they go on at
its beginning. What a worker writes in the moment between the two is lost.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import structlog

from elasticgrid.core.spec import OutputSpec
from elasticgrid.output_files import older_name, passed_name, whole_characters, whole_lines

_log = structlog.get_logger("elasticgrid.agent")

#: How much of one file is repeated in one turn.
PIECE_BYTES: Final = 1024 * 1024
#: A line longer than this is repeated in pieces.
LINE_BYTES: Final = 64 * 1024
#: A line that has not ended is repeated as far as it is after this long: nobody who waits is to think that nothing
#: happens.
UNFINISHED_S: Final = 1.0
#: How long to try for a file that somebody reads just now, before it is left for the next turn.
LOCK_TRIES: Final = 20
LOCK_PAUSE_S: Final = 0.005

_DEFAULT: Final = OutputSpec()


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How output is kept.

    Attributes:
        max_bytes: of a file before a new one begins; 0 for no limit.
        files: older files that are kept.
        tee: whether the output is repeated on the agent's, each line behind the rank it is of.
        tee_local_ranks: of which of the node's workers, by their place on the node; None for all.
    """

    max_bytes: int = _DEFAULT.max_bytes
    files: int = _DEFAULT.files
    tee: bool = _DEFAULT.tee
    tee_local_ranks: frozenset[int] | None = None


class WorkerOutput:
    """The output of the workers of one round.

    Args:
        write: takes what is repeated; None where there is nobody to take it. Once it has raised, nothing is repeated
            any more.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        settings: OutputSettings,
        write: Callable[[bytes], object] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._write = write
        self._clock = clock
        self._paths: dict[int, Path] = {}
        self._read: dict[int, int] = {}
        #: By rank: what was read of a line that has not ended, and when that began.
        self._rest: dict[int, bytes] = {}
        self._rest_s: dict[int, float] = {}
        #: Ranks of whose last line a part was repeated as if it were whole.
        self._cut: set[int] = set()
        self._silent: set[int] = set()
        self._told: set[Path] = set()

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
                    self._repeat_unfinished(rank)
                if 0 < self._settings.max_bytes < path.stat().st_size:
                    self._rotate(rank, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if path not in self._told:
                    self._told.add(path)
                    _log.warning("a worker's output cannot be kept as wanted", path=str(path), error=str(error))
            else:
                self._told.discard(path)

    def finish(self) -> None:
        """Repeat everything that is left, a line without its end too."""
        self.turn()
        for rank, rest in self._rest.items():
            if rest:
                self._say(rank, rest + b"\n")
        self._rest.clear()

    # Repeating ------------------------------------------------------------------------------------------------------

    def _repeats(self, rank: int) -> bool:
        return self._settings.tee and self._write is not None and rank not in self._silent

    def _repeat(self, rank: int, path: Path) -> None:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read.get(rank, 0):
                self._read[rank] = 0  # somebody else emptied it
            while True:
                file.seek(self._read.get(rank, 0))
                data = file.read(PIECE_BYTES)
                if not data:
                    return
                self._read[rank] = file.tell()
                self._take(rank, data)

    def _take(self, rank: int, data: bytes) -> None:
        """Repeat the lines that end in `data`, and keep the rest."""
        before = self._rest.get(rank, b"")
        if rank in self._cut and not before:
            # The end of a line that was repeated already ends no other.
            data = data.removeprefix(b"\r\n") if data.startswith(b"\r\n") else data.removeprefix(b"\n")
        self._cut.discard(rank)
        data = before + data
        end = whole_lines(data)
        if end:
            self._say(rank, data[:end])
        rest = data[end:]
        if len(rest) > LINE_BYTES:
            rest = self._say_part(rank, rest)
        if end or not before:
            self._rest_s[rank] = self._clock()
        self._rest[rank] = rest

    def _repeat_unfinished(self, rank: int) -> None:
        rest = self._rest.get(rank, b"")
        if rest and self._clock() - self._rest_s[rank] >= UNFINISHED_S:
            self._rest[rank] = self._say_part(rank, rest)
            self._rest_s[rank] = self._clock()

    def _say_part(self, rank: int, part: bytes) -> bytes:
        """Repeat a line that has not ended, as far as its characters are whole; returns what is left of it."""
        end = whole_characters(part)
        if end:
            self._cut.add(rank)
            self._say(rank, part[:end] + b"\n")
        return part[end:]

    def _say(self, rank: int, lines: bytes) -> None:
        if self._write is None:
            return
        try:
            self._write(_prefixed(rank, lines))
        except (OSError, ValueError) as error:
            # Whoever read it is gone. That is no reason for training to fail, nor to say so for ever.
            self._write = None
            _log.warning("the workers' output is not repeated any more; it is in their files", error=str(error))

    # Keeping to a size ----------------------------------------------------------------------------------------------

    def _rotate(self, rank: int, path: Path) -> None:
        older = path.with_name(older_name(path.name, 1))
        with path.open("r+b") as file:
            if not _locked(file):
                return
            if self._settings.files > 0:
                size = self._copy(file, path, older)
            else:
                if self._repeats(rank):
                    self._repeat(rank, path)
                size = os.fstat(file.fileno()).st_size
            file.truncate(0)
            _count_passed(path, size)
        if self._settings.files > 0 and self._repeats(rank):
            self._repeat(rank, older)
        self._read[rank] = 0

    def _copy(self, file: BinaryIO, path: Path, older: Path) -> int:
        """Make what is in the file the newest of the older ones; returns how much that is."""
        draft = path.with_name(f"{path.name}.new")
        try:
            with draft.open("wb") as copy:
                shutil.copyfileobj(file, copy, PIECE_BYTES)
                copy.flush()
                # Moved only now: a copy that the disk has no room for costs none of the older ones.
                for number in range(self._settings.files, 1, -1):
                    before = path.with_name(older_name(path.name, number - 1))
                    if before.exists():
                        before.replace(path.with_name(older_name(path.name, number)))
                draft.replace(older)
                # What was written meanwhile.
                shutil.copyfileobj(file, copy, PIECE_BYTES)
                return copy.tell()
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _locked(file: BinaryIO) -> bool:
    """Whether the file is this process's alone until it is closed."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def _count_passed(path: Path, size: int) -> None:
    passed = path.with_name(passed_name(path.name))
    try:
        before = int(passed.read_text())
    except (OSError, ValueError):
        before = 0
    draft = passed.with_name(f"{passed.name}.new")
    draft.write_text(str(before + size))
    draft.replace(passed)


def _prefixed(rank: int, lines: bytes) -> bytes:
    """Each line behind its rank. A carriage return with nothing before it only goes back to a line's beginning."""
    prefix = b"[rank %d] " % rank
    return b"".join(prefix + line.rstrip(b"\r\n") + b"\n" for line in lines.splitlines(keepends=True) if line != b"\r")
