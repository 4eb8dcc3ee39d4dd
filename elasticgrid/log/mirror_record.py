"""What the mirror keeps of each message of the log, and the chain that ties it to everything before it."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from elasticgrid.core.errors import UndecodableEvent
from elasticgrid.core.events import Recorded, UnknownEvent, type_of
from elasticgrid.log.codec import decode
from elasticgrid.log.envelope import subject_of

CHAIN_START: Final = bytes(32)


class LogRecord(msgspec.Struct, frozen=True):
    """A message of the log, byte for byte.

    Attributes:
        sequence: its place, from 1.
        recorded_ms: when it was recorded first, Unix milliseconds.
        subject: what it was published to.
        data: its bytes.
        is_event: whether readers of the log get it; others are kept so that nothing moves when the log is restored.
    """

    sequence: int
    recorded_ms: int
    subject: str
    data: bytes
    is_event: bool = True


class Verified(msgspec.Struct, frozen=True):
    """What a comparison of stream and mirror found in order.

    Attributes:
        stream_last, mirror_last: where each of them ended.
        compared: events whose bytes were compared.
        full: whether these were all that both have.
        rebuilt: why the mirror was begun anew, empty when it was not.
    """

    stream_last: int
    mirror_last: int
    compared: int
    full: bool
    rebuilt: str = ""


def record_of(recorded: Recorded) -> LogRecord:
    """An event of the log as the mirror keeps it."""
    return LogRecord(recorded.sequence, recorded.recorded_ms, subject_of(recorded.event), recorded.raw)


def next_chain(previous: bytes, record: LogRecord) -> bytes:
    """The chain of a record: SHA-256 of the chain before it and all that the record holds."""
    head = b"%b%d %d %b " % (previous, record.sequence, record.recorded_ms, record.subject.encode())
    return hashlib.sha256(head + record.data).digest()


def describe(record: LogRecord | None) -> str:
    """A record in a few words, for an error."""
    if record is None:
        return "nothing"
    try:
        event = decode(record.data)
    except UndecodableEvent:
        return f"{len(record.data)} bytes that are no event, recorded at {record.recorded_ms}"
    event_type = event.type if isinstance(event, UnknownEvent) else type_of(event.data)
    return f"{event_type} {event.id} of {event.tenant}/{event.job}, recorded at {record.recorded_ms}"
