"""What is missing from a damaged archive: records, and with that which parts of the two streams."""

from __future__ import annotations

import os

import msgspec

from elasticgrid.core.events import Recorded
from elasticgrid.log.archive_format import ArchiveHeader, MissingRecords, SampleMessage, SequenceGap
from elasticgrid.log.archive_reader import read_archive


class ArchiveDamage(msgspec.Struct, frozen=True, kw_only=True):
    """What a salvage of an archive does not find; nothing in one that is whole.

    Attributes:
        missing: the records, in order.
        event_gaps, sample_gaps: between which sequences events and sample messages may be among them.
    """

    missing: tuple[MissingRecords, ...] = ()
    event_gaps: tuple[SequenceGap, ...] = ()
    sample_gaps: tuple[SequenceGap, ...] = ()


def look_for_damage(path: str | os.PathLike[str]) -> ArchiveDamage:
    """Read an archive through and say what is missing.

    Raises:
        NotFound, ArchiveDamaged: as `read_archive` with `salvage`.
    """
    missing: list[MissingRecords] = []
    events, samples = _Stream(), _Stream()
    lost = 0
    for record in read_archive(path, salvage=True):
        if isinstance(record, MissingRecords):
            missing.append(record)
            lost = 0 if record.last is None else record.last - record.first + 1
            if record.last is None:
                events.lose()
                samples.lose()
        elif isinstance(record, Recorded | SampleMessage):
            stream, other = (events, samples) if isinstance(record, Recorded) else (samples, events)
            if lost:
                # Where the stream lacks exactly as many, they were all its own.
                if record.sequence - stream.last - 1 != lost:
                    other.lose()
                stream.lose()
                lost = 0
            stream.take(record.sequence)
        elif isinstance(record, ArchiveHeader):
            samples.last = record.samples.after if record.samples is not None else 0
        else:
            if lost:
                events.lose()
                samples.lose()
            events.ended(record.events)
            samples.ended(record.samples)
    return ArchiveDamage(missing=tuple(missing), event_gaps=events.gaps(), sample_gaps=samples.gaps())


class _Stream:
    """One of the two streams, as far as it was read."""

    def __init__(self) -> None:
        self.last = 0
        self._count = 0
        self._gaps: list[SequenceGap] = []
        #: Where it stood before records that are missing.
        self._lost_after: int | None = None

    def take(self, sequence: int) -> None:
        """A record of it."""
        if self._lost_after is not None and sequence > self._lost_after + 1:
            self._gaps.append(SequenceGap(self._lost_after, sequence))
        self._lost_after = None
        self.last = sequence
        self._count += 1

    def lose(self) -> None:
        """Records of it may be missing here."""
        if self._lost_after is None:
            self._lost_after = self.last

    def ended(self, count: int) -> None:
        """So many records of it were written."""
        if self._count == count:
            self._gaps, self._lost_after = [], None

    def gaps(self) -> tuple[SequenceGap, ...]:
        """Between which sequences records of it may be missing."""
        end = () if self._lost_after is None else (SequenceGap(self._lost_after),)
        return (*self._gaps, *end)
