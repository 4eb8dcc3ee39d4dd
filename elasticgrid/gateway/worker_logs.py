"""What workers and agents wrote, where their nodes are processes of this machine.

The files lie in folders that the job's own code can write to, so nothing in them is trusted: only names of a known form
are looked at, and a file is opened folder by folder without following symbolic links.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from elasticgrid.output_files import older_name, passed_name, whole_characters, whole_lines

#: How much of the end of one output is looked at, and how much of one is read at once when it is followed.
MAX_TAIL_BYTES: Final = 512 * 1024
MAX_PIECE_BYTES: Final = 64 * 1024
#: How many older files of one output are looked at.
MAX_OLDER: Final = 1_000
#: How long to wait while an agent begins a new file, and between two tries.
LOCK_PATIENCE_S: Final = 1.0
_LOCK_PAUSE_S: Final = 0.01

What = Literal["worker", "agent", "setup"]

_LAUNCH: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_ROUND: Final = re.compile(r"round-([0-9]{1,9})")
_RANK: Final = re.compile(r"rank-([0-9]{1,9})\.log")
_AGENT: Final = re.compile(r"rank_([0-9]{1,6})\.log")
_SETUP: Final = re.compile(r"setup\.log")
_NUMBER: Final = re.compile(rb"[0-9]{1,15}")
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe that somebody put there must not wait for its writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """Whose output it is.

    Attributes:
        node: the node's id; for the output of a setup, the launch's.
        round: of the worker; 0 for other output.
        rank: of the worker in its round; -1 for other output.
        what: whether a worker wrote it, a node's agent, or the setup command of a launch.
    """

    node: str
    round: int
    rank: int
    what: What = "worker"


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of somebody's output.

    Attributes:
        offset: where in the output it begins, in bytes, and `end` where the next piece begins. Both count from the
            output's beginning, whichever files it is kept in by now. An offset before the `end` of an earlier piece of
            the same stream says that the output was begun anew.
        what: whether a worker wrote it, a node's agent, or the setup command of a launch, whose id is `node` then.
    """

    node: str
    round: int
    rank: int
    offset: int
    end: int
    text: str
    what: What = "worker"

    @property
    def whose(self) -> str:
        """Who wrote it, in a word or two."""
        if self.what == "setup":
            return f"setup {self.node}"
        return f"agent {self.node}" if self.what == "agent" else f"rank {self.rank}"


class LogSource(msgspec.Struct, frozen=True):
    """A file that was found, by the names that lead to it from the folder of launches."""

    file: LogFile
    names: tuple[str, ...]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which output is asked for.

    Attributes:
        node: of one node; empty for all.
        rank: of one rank; None for all.
        round: of this round and later ones; 0 is the last round that there is.
        what: the workers' output, that of their agents, or that of setup commands.
    """

    node: str = ""
    rank: int | None = None
    round: int = 0
    what: What = "worker"


def find_logs(launches_dir: Path, handles: Iterable[tuple[str, str]], wanted: Wanted) -> tuple[LogSource, ...]:
    """The files there are, by round, rank and node.

    Args:
        launches_dir: the launcher's folder of launches.
        handles: (attempt, folder) of each launch of the job.
        wanted: what is asked for.
    """
    look = {"worker": _workers, "agent": _agents, "setup": _setups}[wanted.what]
    found: list[LogSource] = []
    with contextlib.ExitStack() as stack:
        root = _open(stack, launches_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, None)
        if root is None:
            return ()
        for attempt, folder in handles:
            if _LAUNCH.fullmatch(folder):
                with contextlib.ExitStack() as launch:
                    found += look(launch, root, attempt, folder)
    chosen = [source for source in found if _is_wanted(source.file, wanted)]
    if wanted.what == "worker":
        least = wanted.round or max((source.file.round for source in chosen), default=0)
        chosen = [source for source in chosen if source.file.round >= least]
    return tuple(sorted(chosen, key=lambda source: (source.file.round, source.file.rank, source.file.node)))


def _is_wanted(file: LogFile, wanted: Wanted) -> bool:
    if file.what == "setup":  # of all nodes of a launch
        return wanted.node in ("", file.node) or wanted.node.rpartition("-")[0] == file.node
    return wanted.node in ("", file.node) and wanted.rank in (None, file.rank)


def _workers(stack: contextlib.ExitStack, root: int, attempt: str, folder: str) -> Iterator[LogSource]:
    nodes = _descend(stack, root, (folder, "nodes"))
    for index in _names(nodes, _INDEX):
        node = _descend(stack, nodes, (index,))
        for round_name in _names(node, _ROUND):
            logs = _descend(stack, node, (round_name,))
            for name in _names(logs, _RANK):
                rank, number = _number(_RANK, name), _number(_ROUND, round_name)
                file = LogFile(node=f"{attempt}-{index}", round=number, rank=rank)
                yield LogSource(file, (folder, "nodes", index, round_name, name))


def _agents(stack: contextlib.ExitStack, root: int, attempt: str, folder: str) -> Iterator[LogSource]:
    logs = _descend(stack, root, (folder, "logs"))
    for name in _names(logs, _AGENT):
        file = LogFile(node=f"{attempt}-{_number(_AGENT, name)}", round=0, rank=-1, what="agent")
        yield LogSource(file, (folder, "logs", name))


def _setups(stack: contextlib.ExitStack, root: int, attempt: str, folder: str) -> Iterator[LogSource]:
    logs = _descend(stack, root, (folder, "logs"))
    for name in _names(logs, _SETUP):
        yield LogSource(LogFile(node=attempt, round=0, rank=-1, what="setup"), (folder, "logs", name))


def tail(launches_dir: Path, source: LogSource, lines: int) -> LogText:
    """The last lines of an output, at most `MAX_TAIL_BYTES`; an empty text when it cannot be read."""
    with _opened(launches_dir, source) as output:
        if output is None:
            return _text(source.file, 0, b"")
        if lines < 1:
            return _text(source.file, output.end, b"")
        start = output.reach_back_to(output.end - MAX_TAIL_BYTES)
        data = output.read(start, MAX_TAIL_BYTES)
    at = len(data)
    for _ in range(lines + data.endswith(b"\n")):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            break
    return _text(source.file, start + at + 1, data[at + 1 :])


def read_after(launches_dir: Path, source: LogSource, offset: int, *, to_end: bool) -> LogText:
    """What an output has after `offset`, at most `MAX_PIECE_BYTES`; nothing when it cannot be read just now.

    It ends where a line ends, or, where one line is longer than all that, with a whole character. What is not kept any
    more is left out: then the piece begins later than `offset`.

    Args:
        launches_dir: the launcher's folder of launches.
        source: which output.
        offset: where to begin, in bytes from the beginning of the output.
        to_end: a line at the end that has not ended is not left for the next time.
    """
    with _opened(launches_dir, source) as output:
        if output is None:
            return _text(source.file, offset, b"")
        if offset > output.end:
            offset = output.newest  # somebody else emptied the file
        offset = output.reach_back_to(offset)
        data = output.read(offset, MAX_PIECE_BYTES)
    is_full = len(data) == MAX_PIECE_BYTES
    length = len(data)
    if is_full or not to_end:
        length = whole_lines(data)
    if is_full and not length:
        length = whole_characters(data.removesuffix(b"\r"))
    return _text(source.file, offset, data[:length])


def _text(file: LogFile, offset: int, data: bytes) -> LogText:
    return LogText(
        node=file.node,
        round=file.round,
        rank=file.rank,
        what=file.what,
        offset=offset,
        end=offset + len(data),
        text=data.decode("utf-8", "replace"),
    )


# --------------------------------------------------------------------------------------------------------------------
# Folders of somebody else
# --------------------------------------------------------------------------------------------------------------------


def _open(stack: contextlib.ExitStack, name: str | Path, flags: int, folder: int | None) -> int | None:
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    stack.callback(os.close, descriptor)
    return descriptor


def _descend(stack: contextlib.ExitStack, folder: int | None, names: tuple[str, ...]) -> int | None:
    for name in names:
        if folder is None:
            return None
        folder = _open(stack, name, _OPEN_DIR, folder)
    return folder


def _names(folder: int | None, pattern: re.Pattern[str]) -> list[str]:
    if folder is None:
        return []
    return sorted(name for name in os.listdir(folder) if pattern.fullmatch(name))


def _number(pattern: re.Pattern[str], name: str) -> int:
    match = pattern.fullmatch(name)
    assert match is not None
    return int(match[1])


class _Part(NamedTuple):
    """A file that holds a part of an output, from `start` on."""

    start: int
    size: int
    descriptor: int


class _Output:
    """An output over all files that it is kept in, addressed from its beginning.

    Attributes:
        newest: where the file begins that still grows; `end` where it ended just now.
    """

    def __init__(self, stack: contextlib.ExitStack, folder: int, name: str, descriptor: int) -> None:
        self._stack = stack
        self._folder = folder
        self._name = name
        self.newest = _passed(stack, folder, name)
        size = os.fstat(descriptor).st_size
        self.end = self.newest + size
        self._parts = [_Part(self.newest, size, descriptor)]

    def reach_back_to(self, offset: int) -> int:
        """Open the older files that are needed to read from `offset`; returns from where on it can be read."""
        while self._parts[-1].start > max(offset, 0) and len(self._parts) <= MAX_OLDER:
            name = older_name(self._name, len(self._parts))
            descriptor = _open(self._stack, name, _OPEN_FILE, self._folder)
            if descriptor is None or not _is_plain(descriptor):
                break
            size = os.fstat(descriptor).st_size
            self._parts.append(_Part(self._parts[-1].start - size, size, descriptor))
        return max(self._parts[-1].start, offset, 0)

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from there on."""
        pieces: list[bytes] = []
        for part in reversed(self._parts):
            inside = max(offset, 0) - part.start
            if length > 0 and 0 <= inside < part.size:
                piece = os.pread(part.descriptor, min(length, part.size - inside), inside)
                pieces.append(piece)
                offset, length = part.start + inside + len(piece), length - len(piece)
        return b"".join(pieces)


@contextlib.contextmanager
def _opened(launches_dir: Path, source: LogSource) -> Iterator[_Output | None]:
    """An output whose files stay as they are in the block; None when it cannot be read, or not just now."""
    with contextlib.ExitStack() as stack:
        root = _open(stack, launches_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, None)
        folder = _descend(stack, root, source.names[:-1])
        name = source.names[-1]
        file = _open(stack, name, _OPEN_FILE, folder) if folder is not None else None
        if file is None or folder is None or not _is_plain(file) or not _shared(file):
            yield None
        else:
            yield _Output(stack, folder, name, file)


def _shared(descriptor: int) -> bool:
    """Whether nobody begins a new file until this one is closed."""
    until_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOCK_PAUSE_S)
        except OSError:
            return True  # a file system without locks
        else:
            return True


def _passed(stack: contextlib.ExitStack, folder: int, name: str) -> int:
    """How many bytes of an output came before the file that grows."""
    descriptor = _open(stack, passed_name(name), _OPEN_FILE, folder)
    text = os.pread(descriptor, 16, 0) if descriptor is not None and _is_plain(descriptor) else b""
    return int(text) if _NUMBER.fullmatch(text) else 0


def _is_plain(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
