"""Archives: a part of the log in one file that replays with no server.

`archive_format` says what is in the file, `archive_writer` writes it, `archive_frames` unpacks it and `archive_reader`
reads it; here are the two streams of one, each by itself, and the archive as a log that nothing can be appended to.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

from elasticgrid.core.errors import NotAllowed
from elasticgrid.core.events import Event, Recorded, UnknownEvent, type_of, writer_of
from elasticgrid.log.archive_format import (
    SUFFIX,
    ArchiveFilters,
    ArchiveFooter,
    ArchiveHeader,
    MissingRecords,
    SampleMessage,
    SampleRange,
)
from elasticgrid.log.archive_reader import ArchiveRecord, read_archive, read_header, read_pieces
from elasticgrid.log.archive_writer import ArchiveWriter
from elasticgrid.log.port import Expectation, Scope

__all__ = [
    "SUFFIX",
    "ArchiveFilters",
    "ArchiveFooter",
    "ArchiveHeader",
    "ArchiveLog",
    "ArchiveRecord",
    "ArchiveWriter",
    "ArchivedEvents",
    "ArchivedSamples",
    "MissingRecords",
    "SampleMessage",
    "SampleRange",
    "read_archive",
    "read_header",
]


class ArchivedEvents:
    """The events of an archive; each iteration reads the file anew.

    Args:
        salvage: leave out what cannot be proven instead of raising; `missing` then tells what that was.

    Raises:
        NotFound, ArchiveDamaged: while iterating, as `read_archive`.
    """

    def __init__(self, path: str | os.PathLike[str], *, salvage: bool = False) -> None:
        self.path = Path(path)
        self.salvage = salvage
        self.missing: list[MissingRecords] = []

    def __iter__(self) -> Iterator[Recorded]:
        self.missing = []
        for piece in read_pieces(self.path, salvage=self.salvage, only="events"):
            if isinstance(piece, list):
                yield from piece
            elif isinstance(piece, MissingRecords):
                self.missing.append(piece)


class ArchivedSamples:
    """The sample messages of an archive; each iteration reads the file anew. Arguments as `ArchivedEvents`."""

    def __init__(self, path: str | os.PathLike[str], *, salvage: bool = False) -> None:
        self.path = Path(path)
        self.salvage = salvage

    def __iter__(self) -> Iterator[SampleMessage]:
        for record in read_archive(self.path, salvage=self.salvage, only="samples"):
            if isinstance(record, SampleMessage):
                yield record


class ArchiveLog:
    """An archive as an event log: it can be read, and nothing can be appended to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.header = read_header(path)
        self._events = ArchivedEvents(path)

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """Refuse.

        Raises:
            NotAllowed: always.
        """
        raise NotAllowed(
            f"an archive is read-only; {len(events)} events were not appended"
            + (f" after event {expect.sequence}" if expect is not None else ""),
            where=str(self._events.path),
            hint="load it into a grid with `elasticgrid events import`",
        )

    async def read(
        self,
        *,
        after: int = 0,
        through: int | None = None,
        scope: Scope = Scope(),
    ) -> AsyncGenerator[Recorded]:
        """Yield the events that match with after < sequence <= through, in order.

        Raises:
            ArchiveDamaged: as `read_archive`.
        """
        for recorded in self._events:
            if through is not None and recorded.sequence > through:
                return
            if recorded.sequence > after and _matches(recorded, scope):
                yield recorded

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """As `read`: nothing ever follows the last event of an archive, so this ends."""
        async for recorded in self.read(after=after, scope=scope):
            yield recorded

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """The last sequence in `scope`, 0 when it is empty."""
        last = 0
        async for recorded in self.read(scope=scope):
            last = recorded.sequence
        return last


def _matches(recorded: Recorded, scope: Scope) -> bool:
    event = recorded.event
    if scope.tenant not in ("*", event.tenant) or scope.job not in ("*", event.job):
        return False
    if scope.writer is None:
        return True
    event_type = event.type if isinstance(event, UnknownEvent) else type_of(event.data)
    try:
        return writer_of(event_type) == scope.writer
    except KeyError:
        return False
