"""Rebuilding the event log from its mirror or an archive: the same events at the same sequences, proven afterwards.

Every record is appended at the sequence it had, with its id, its headers and the time it was first recorded at; where
the source has nothing, a placeholder that no reader sees keeps the numbers. Then everything is read back and compared.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.follower import BusMessage, read_through
from elasticgrid.bus.subjects import EVENTS_ROOT, EVENTS_STREAM, event_filter
from elasticgrid.core.errors import ArchiveDamaged, BusUnavailable, InvalidInput, LogDiverged, UndecodableEvent
from elasticgrid.core.events import Recorded
from elasticgrid.log.archive import ArchiveFooter, ArchiveHeader, read_archive, read_header
from elasticgrid.log.codec import decode
from elasticgrid.log.envelope import MSG_ID, RECORDED_MS, headers_of, recorded_ms_of
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_record import LogRecord, describe, record_of

_log = structlog.get_logger("elasticgrid.log.restore")

BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 512 * 1024
#: More missing records in a row than this are no log.
MOST_MISSING: Final = 100_000
#: Where a record that the source does not have keeps its number.
PLACEHOLDER_SUBJECT: Final = f"{EVENTS_ROOT}._grid._none.job.placeholder"
_ACK_TIMEOUT_S: Final = 10.0
_DUPLICATE_IN_BATCH: Final = 10201

#: Gives the records from the beginning, each time it is called.
Source = Callable[[], AsyncGenerator[LogRecord]]


class RestoreProgress(msgspec.Struct, frozen=True):
    """How far a restore is: `records` of the log appended or proven so far, at that many a second."""

    doing: Literal["appending", "proving"]
    records: int
    records_per_s: float


class Restored(msgspec.Struct, frozen=True):
    """What was restored and proven.

    Attributes:
        last_sequence: where the log ends now.
        events: how many events it has.
        placeholders: how many sequences the source had nothing for.
    """

    last_sequence: int
    events: int
    placeholders: int


OnProgress = Callable[[RestoreProgress], None]


class _AppendReply(api.ApiReply, frozen=True, kw_only=True):
    seq: int = 0
    duplicate: bool = False


def mirror_source(path: Path) -> Source:
    """The records of the mirror at `path`, each proven against its chain.

    Raises, when it is read:
        NotFound, MirrorDamaged: there is no mirror that can be trusted; the error names the first bad record.
    """

    async def records() -> AsyncGenerator[LogRecord]:
        async with await Mirror.open(path, read_only=True) as mirror:
            async for record in mirror.read():
                yield record

    return records


def archive_source(path: Path) -> Source:
    """The events of the archive at `path`.

    Raises:
        InvalidInput: the archive holds a part of a log only.
        NotFound, ArchiveDamaged: as `read_archive`, also when it is read.
    """
    if not _whole(path).filters.everything:
        raise InvalidInput(
            "this archive holds a part of a log; a log is restored from all of it",
            where=str(path),
            hint="use one that was exported without --job, --tenant and --since",
        )

    async def records() -> AsyncGenerator[LogRecord]:
        try:
            for record in read_archive(path):
                if isinstance(record, Recorded):
                    yield record_of(record)
                elif isinstance(record, ArchiveFooter) and record.redacted:
                    _log.warning("credentials were taken out of events of this archive", events=record.redacted)
        except ArchiveDamaged as error:
            raise _unusable(error) from error

    return records


def _whole(path: Path) -> ArchiveHeader:
    try:
        return read_header(path)
    except ArchiveDamaged as error:
        raise _unusable(error) from error


def _unusable(error: ArchiveDamaged) -> ArchiveDamaged:
    """A log is never restored from a part of an archive, so nothing is to be salvaged here."""
    return ArchiveDamaged(error.what, where=error.where, hint="get the file again, or restore from the mirror")


async def restore(client: Client, source: Source, *, on_progress: OnProgress | None = None) -> Restored:
    """Rebuild `GRID_EVENTS` on a bus and prove it. What an interrupted restore appended is proven and gone on from.

    Args:
        client: a connection that may append everything; the stream is there, and nobody else appends.
        source: where the records come from; read twice, or three times to go on from what is there.
        on_progress: told after each batch.

    Raises:
        LogDiverged: the stream holds something else already, or does not hold what was appended.
        InvalidInput: the source is no whole log.
        BusUnavailable: the bus went away; call again to go on.
    """
    present = await _last_sequence(client)
    if present:
        await _prove(client, source, present, None)
    last = await _append_after(client, source, present, on_progress)
    return await _prove(client, source, last, on_progress, whole=True)


async def append_all(client: Client, source: Source, *, after: int = 0, on_progress: OnProgress | None = None) -> int:
    """The first half of `restore`, into a stream that ends at `after`; returns the last sequence."""
    return await _append_after(client, source, after, on_progress)


async def prove(client: Client, source: Source, *, on_progress: OnProgress | None = None) -> Restored:
    """The second half of `restore`: read everything back and compare it, sequence by sequence.

    Raises:
        LogDiverged: names the first sequence at which the stream is not as the source.
    """
    return await _prove(client, source, await _last_sequence(client), on_progress, whole=True)


class _Meter:
    """Tells of progress."""

    def __init__(self, doing: Literal["appending", "proving"], on_progress: OnProgress | None) -> None:
        self._doing: Literal["appending", "proving"] = doing
        self._on_progress = on_progress
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._records = 0

    def add(self, records: int) -> None:
        self._records += records
        if self._on_progress is not None:
            elapsed_s = max(self._clock() - self._started, 1e-6)
            self._on_progress(RestoreProgress(self._doing, self._records, self._records / elapsed_s))


async def _dense(records: AsyncIterator[LogRecord]) -> AsyncGenerator[LogRecord]:
    """The records with placeholders between them, so that there is one for each sequence."""
    expected = 1
    async for record in records:
        missing = record.sequence - expected
        if not 0 <= missing <= MOST_MISSING:
            raise InvalidInput(
                f"record {record.sequence} stands where {expected} should: this is no whole log",
                hint="restore from another source",
            )
        for sequence in range(expected, record.sequence):
            yield LogRecord(sequence, 0, PLACEHOLDER_SUBJECT, b"", is_event=False)
        yield record
        expected = record.sequence + 1


# --------------------------------------------------------------------------------------------------------------------
# Appending
# --------------------------------------------------------------------------------------------------------------------


async def _append_after(client: Client, source: Source, present: int, on_progress: OnProgress | None) -> int:
    """Append the source's records after `present` and return the last sequence."""
    meter = _Meter("appending", on_progress)
    last = present
    batch: list[LogRecord] = []
    size = 0
    async with aclosing(source()) as records:
        async for record in _dense(records):
            if record.sequence <= present:
                continue
            if batch and (len(batch) == BATCH_RECORDS or size + len(record.data) > BATCH_BYTES):
                last = await _append(client, batch, last)
                meter.add(len(batch))
                batch, size = [], 0
            batch.append(record)
            size += len(record.data)
    if batch:
        last = await _append(client, batch, last)
        meter.add(len(batch))
    return last


async def _append(client: Client, records: Sequence[LogRecord], after: int) -> int:
    reply = await _publish_batch(client, records, after)
    if reply.error is not None and reply.error.err_code == _DUPLICATE_IN_BATCH:
        # The log holds an event twice, and the server takes an id twice only when it comes without.
        for record in records:
            reply = await _request(client, record, _headers(record) | _expecting(record.sequence - 1))
            if reply.duplicate:
                unnamed = {name: value for name, value in _headers(record).items() if name != MSG_ID}
                reply = await _request(client, record, unnamed | _expecting(record.sequence - 1))
            _refuse(reply, record)
    _refuse(reply, records[-1])
    return reply.seq


async def _publish_batch(client: Client, records: Sequence[LogRecord], after: int) -> _AppendReply:
    if len(records) == 1:
        return await _request(client, records[0], _headers(records[0]) | _expecting(after))
    batch_id = secrets.token_hex(16)
    for number, record in enumerate(records, 1):
        headers = _headers(record) | {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
        if number == 1:
            begun = await _request(client, record, headers | _expecting(after))
            if begun.error is not None:
                return begun
        elif number < len(records):
            try:
                await client.publish(record.subject, record.data, headers=headers)
            except api.UNREACHABLE as error:
                raise _unreachable(record, error) from error
    return await _request(client, records[-1], headers | {"Nats-Batch-Commit": "1"})


def _headers(record: LogRecord) -> dict[str, str]:
    headers = {RECORDED_MS: str(record.recorded_ms)}
    if record.is_event:
        try:
            headers |= headers_of(decode(record.data))
        except UndecodableEvent:
            _log.warning("an event that this version cannot read is restored as it is", sequence=record.sequence)
    return headers


def _expecting(sequence: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Sequence": str(sequence)}


async def _request(client: Client, record: LogRecord, headers: dict[str, str]) -> _AppendReply:
    try:
        reply = await client.request(record.subject, record.data, timeout=_ACK_TIMEOUT_S, headers=headers)
    except api.UNREACHABLE as error:
        api.refuse_if_not_allowed(client, record.subject)
        raise _unreachable(record, error) from error
    return msgspec.json.decode(reply.data, type=_AppendReply) if reply.data else _AppendReply()


def _refuse(reply: _AppendReply, record: LogRecord) -> None:
    if reply.error is not None:
        raise api.ApiError(reply.error, where=f"{EVENTS_STREAM} {record.sequence}")
    if reply.seq != record.sequence:
        raise LogDiverged(
            f"record {record.sequence} was stored at {reply.seq}: somebody else appends to the stream",
            where=EVENTS_STREAM,
            hint="stop everything that writes to this bus, and begin again with an empty stream",
        )


def _unreachable(record: LogRecord, error: Exception) -> BusUnavailable:
    return BusUnavailable(
        f"the bus did not take record {record.sequence} ({type(error).__name__})",
        where=EVENTS_STREAM,
        hint="restore again; it goes on where it stopped",
    )


# --------------------------------------------------------------------------------------------------------------------
# Proving
# --------------------------------------------------------------------------------------------------------------------


async def _last_sequence(client: Client) -> int:
    message = await api.last_message(client, EVENTS_STREAM, event_filter())
    return message.seq if message is not None else 0


async def _prove(
    client: Client, source: Source, through: int, on_progress: OnProgress | None, *, whole: bool = False
) -> Restored:
    """Compare the stream up to `through` with the source; with `whole`, the source has to end there too."""
    meter = _Meter("proving", on_progress)
    events = placeholders = proven = 0
    async with aclosing(source()) as records, aclosing(_dense(records)) as expected:
        async for batch in read_through(client, EVENTS_STREAM, event_filter(), after=0, through=through):
            for message in batch:
                record = await anext(expected, None)
                if record is None or not _is_restored(message, record):
                    raise _not_as_the_source(proven + 1, message, record)
                proven += 1
                events += record.is_event
                placeholders += record.subject == PLACEHOLDER_SUBJECT
            meter.add(len(batch))
        if whole and (record := await anext(expected, None)) is not None:
            raise _not_as_the_source(proven + 1, None, record)
    return Restored(through, events, placeholders)


def _is_restored(message: BusMessage, record: LogRecord) -> bool:
    headers = message.headers or {}
    return (
        (message.sequence, message.subject, message.data) == (record.sequence, record.subject, record.data)
        and recorded_ms_of(message) == record.recorded_ms
        # An id that the log holds twice is the message's only once; the attribute has it always.
        and all(headers.get(name) == value for name, value in _headers(record).items() if name != MSG_ID)
    )


def _not_as_the_source(sequence: int, message: BusMessage | None, record: LogRecord | None) -> LogDiverged:
    found = (
        LogRecord(message.sequence, recorded_ms_of(message), message.subject, message.data)
        if message is not None
        else None
    )
    return LogDiverged(
        "the stream does not hold what it is restored from",
        where=f"{EVENTS_STREAM} {sequence}",
        hint="restore into an empty stream: set this one aside first",
        story=(f"the stream has {describe(found)}", f"the source has {describe(record)}"),
    )
