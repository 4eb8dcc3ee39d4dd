"""What workers and agents wrote, where their nodes are processes of this machine.

The files lie in folders that the job's own code can write to, so nothing in them is trusted: only names of a known form
are looked at, and a file is opened folder by folder without following symbolic links.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

#: How much of the end of one file is looked at, and how much of one is read at once when it is followed.
MAX_TAIL_BYTES: Final = 512 * 1024
MAX_PIECE_BYTES: Final = 64 * 1024

_LAUNCH: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_ROUND: Final = re.compile(r"round-([0-9]{1,9})")
_RANK: Final = re.compile(r"rank-([0-9]{1,9})\.log")
_AGENT: Final = re.compile(r"rank_([0-9]{1,6})\.log")
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe that somebody put there must not wait for its writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """Whose output it is.

    Attributes:
        node: the node's id.
        round: of the worker; 0 for an agent's own output.
        rank: of the worker in its round; -1 for an agent.
    """

    node: str
    round: int
    rank: int


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of somebody's output.

    Attributes:
        offset: where in the output it begins, in bytes; `end` where the next piece begins.
    """

    node: str
    round: int
    rank: int
    offset: int
    end: int
    text: str


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
        agents: the agents' own output instead of the workers'.
    """

    node: str = ""
    rank: int | None = None
    round: int = 0
    agents: bool = False


def find_logs(launches_dir: Path, handles: Iterable[tuple[str, str]], wanted: Wanted) -> tuple[LogSource, ...]:
    """The files there are, by round, rank and node.

    Args:
        launches_dir: the launcher's folder of launches.
        handles: (attempt, folder) of each launch of the job.
        wanted: what is asked for.
    """
    found: list[LogSource] = []
    with contextlib.ExitStack() as stack:
        root = _open(stack, launches_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, None)
        if root is None:
            return ()
        for attempt, folder in handles:
            if _LAUNCH.fullmatch(folder):
                look = _agents if wanted.agents else _workers
                with contextlib.ExitStack() as launch:
                    found += look(launch, root, attempt, folder)
    chosen = [
        source for source in found if wanted.node in ("", source.file.node) and wanted.rank in (None, source.file.rank)
    ]
    if not wanted.agents:
        least = wanted.round or max((source.file.round for source in chosen), default=0)
        chosen = [source for source in chosen if source.file.round >= least]
    return tuple(sorted(chosen, key=lambda source: (source.file.round, source.file.rank, source.file.node)))


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
        file = LogFile(node=f"{attempt}-{_number(_AGENT, name)}", round=0, rank=-1)
        yield LogSource(file, (folder, "logs", name))


def tail(launches_dir: Path, source: LogSource, lines: int) -> LogText:
    """The last lines of a file, at most `MAX_TAIL_BYTES`; an empty text when it cannot be read."""
    with contextlib.ExitStack() as stack:
        file = _open_source(stack, launches_dir, source)
        size = os.fstat(file).st_size if file is not None else 0
        if file is None or lines < 1:
            return _text(source.file, size, b"")
        start = max(0, size - MAX_TAIL_BYTES)
        data = os.pread(file, size - start, start)
        at = len(data)
        for _ in range(lines + data.endswith(b"\n")):
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                break
        return _text(source.file, start + at + 1, data[at + 1 :])


def read_after(launches_dir: Path, source: LogSource, offset: int, *, whole_lines: bool) -> LogText:
    """What a file has after `offset`, at most `MAX_PIECE_BYTES`.

    Args:
        launches_dir: the launcher's folder of launches.
        source: which file.
        offset: where to begin, in bytes.
        whole_lines: leave a line that has not ended yet for the next time.
    """
    with contextlib.ExitStack() as stack:
        file = _open_source(stack, launches_dir, source)
        if file is not None and os.fstat(file).st_size < offset:
            offset = 0  # the file has begun anew
        data = os.pread(file, MAX_PIECE_BYTES, offset) if file is not None else b""
    if whole_lines and len(data) < MAX_PIECE_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    return _text(source.file, offset, data)


def _text(file: LogFile, offset: int, data: bytes) -> LogText:
    return LogText(
        node=file.node,
        round=file.round,
        rank=file.rank,
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


def _open_source(stack: contextlib.ExitStack, launches_dir: Path, source: LogSource) -> int | None:
    root = _open(stack, launches_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, None)
    folder = _descend(stack, root, source.names[:-1])
    file = _open(stack, source.names[-1], _OPEN_FILE, folder) if folder is not None else None
    return file if file is not None and stat.S_ISREG(os.fstat(file).st_mode) else None
