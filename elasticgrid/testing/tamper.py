"""Forges archives: one field of one event is changed and the hash chain made good again.

What a forged archive is for: only taking the decisions again can tell it from the true one.
"""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from elasticgrid.core.errors import InvalidInput, NotFound, UndecodableEvent
from elasticgrid.core.events import Recorded
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.log.archive_reader import read_archive, read_header
from elasticgrid.log.archive_writer import ArchiveWriter
from elasticgrid.log.codec import decode

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def tamper(
    source: str | os.PathLike[str], target: str | os.PathLike[str], sequence: int, field: str, value: Any
) -> None:
    """Copy an archive with one field of the event at `sequence` changed.

    Args:
        field: its path as a verification names it, such as `data.checks[0].numbers.step_us`.
        value: anything JSON can say.

    Raises:
        NotFound: the archive has no such event.
        InvalidInput: the event has no such place, or would be no event any more.
        ArchiveDamaged: the source is damaged.
    """
    header = read_header(source)
    found = False
    with ArchiveWriter(target, created_ms=header.created_ms, filters=header.filters, samples=header.samples) as writer:
        for record in read_archive(source):
            if isinstance(record, SampleMessage):
                writer.add_samples(record)
            elif isinstance(record, Recorded):
                if record.sequence == sequence:
                    found = True
                    record = forged(record, field, value)
                writer.add_event(record)
        if not found:
            raise NotFound(f"the archive has no event {sequence}", where=str(source))


def forged(recorded: Recorded, field: str, value: Any) -> Recorded:
    """The recorded event with one field changed.

    Raises:
        InvalidInput: the event has no such place, or would be no event any more.
    """
    raw = msgspec.json.decode(recorded.raw)
    parts = [name or int(index) for name, index in _PART.findall(field)]
    place: Any = raw
    try:
        for part in parts[:-1]:
            place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
        place[parts[-1]] = value
    except (IndexError, KeyError, TypeError) as error:
        raise InvalidInput(f"event {recorded.sequence} has no field {field}", where=field) from error
    data = msgspec.json.encode(raw)
    try:
        event = decode(data)
    except UndecodableEvent as error:
        raise InvalidInput(f"with {field} = {value!r} this is no event: {error.what}", where=field) from error
    return Recorded(recorded.sequence, recorded.recorded_ms, event, data)
