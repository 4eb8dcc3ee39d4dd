"""The event log with its mirror: nothing is read that the mirror does not have, nothing is appended while they differ.

A server that finds a flipped bit in its storage forgets everything behind it and uses the numbers again, without a
word. So every event is in the mirror before anybody acts on it, and what is read again is compared with it. Stream and
mirror are compared when the log is first used and after every reconnect; a difference stops all appending for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, Literal, TypeAlias

import structlog
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.subjects import EVENTS_STREAM
from elasticgrid.core.errors import (
    BusUnavailable,
    Conflict,
    ElasticGridError,
    LogDiverged,
    LogGap,
    NotFound,
    UndecodableEvent,
)
from elasticgrid.core.events import Event, Recorded, type_of, writer_of
from elasticgrid.log.codec import decode
from elasticgrid.log.event_batches import in_batches
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Difference, Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirror_record import LogRecord, Verified, describe, record_of
from elasticgrid.log.mirror_strays import Strays
from elasticgrid.log.port import EventLog, Expectation, Scope

_log = structlog.get_logger("elasticgrid.log.mirrored")

BATCH_EVENTS: Final = 500
#: How many of the last records are compared at the start, and how many before them, evenly spread.
TAIL_RECORDS: Final = 64
SAMPLED_RECORDS: Final = 8
#: How long a stream may seem to differ from its mirror: a server that has just become the leader may be catching up.
PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.1

RESTORE_HINT: Final = "stop the grid and run `elasticgrid events restore --from mirror`"

AppendOutcome: TypeAlias = Literal["appended", "conflict", "unavailable", "refused"]
#: Told of each append: who wrote, what came of it, and how long it took, seconds.
OnAppend: TypeAlias = Callable[[str, AppendOutcome, float], None]


class MirroredLog:
    """An `EventLog` over another one, kept true by a mirror. One for all that read and write in a process.

    Args:
        log: the log.
        mirror: its mirror, open for writing.
        strays: collects what `log` passes over because it is no event.
        connections: how often `log` has been connected to its server; stream and mirror are compared again before the
            first append after it changed.
        patience_s: how long they may seem to differ before that is believed.
        on_append: told of each append.
    """

    def __init__(
        self,
        log: EventLog,
        mirror: Mirror,
        *,
        strays: Strays | None = None,
        connections: Callable[[], int] = lambda: 0,
        patience_s: float = PATIENCE_S,
        on_append: OnAppend | None = None,
    ) -> None:
        self._log = log
        self._mirror = mirror
        self._strays = strays if strays is not None else Strays()
        self._connections = connections
        self._patience_s = patience_s
        self._on_append = on_append
        self._lock = asyncio.Lock()
        self._verified_at: int | None = None
        self._diverged: LogDiverged | None = None

    @property
    def mirror(self) -> Mirror:
        """The mirror."""
        return self._mirror

    @property
    def diverged(self) -> bool:
        """Whether stream and mirror were found to differ, so that nothing is appended."""
        return self._diverged is not None

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """See `EventLog.append`.

        Raises:
            LogDiverged: stream and mirror differ.
        """
        if self._on_append is None or not events:
            return await self._append(events, expect)
        began = time.perf_counter()
        outcome: AppendOutcome = "refused"
        try:
            appended = await self._append(events, expect)
            outcome = "appended"
        except Conflict:
            outcome = "conflict"
            raise
        except BusUnavailable:
            outcome = "unavailable"
            raise
        finally:
            self._on_append(writer_of(type_of(events[0].data)), outcome, time.perf_counter() - began)
        return appended

    async def _append(self, events: Sequence[Event], expect: Expectation | None) -> tuple[int, int]:
        await self._ready()
        mirrored = self._mirror.last
        first, last = await self._log.append(events, expect=expect)
        if first <= mirrored:
            await self._refuse_reused(events, first)
        return first, last

    def read(self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """See `EventLog.read`.

        Raises:
            LogDiverged: stream and mirror differ.
        """
        source = self._log.read(after=after, through=through, scope=scope)
        return self._mirrored(source, max(after, 0), scope, patient=False)

    def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """See `EventLog.follow`.

        Raises:
            LogDiverged: stream and mirror differ.
        """
        return self._mirrored(self._log.follow(after=after, scope=scope), max(after, 0), scope, patient=True)

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """See `EventLog.last_sequence`."""
        return await self._log.last_sequence(scope)

    async def fill(self) -> int:
        """Mirror what the stream has and the mirror does not have yet; return the mirror's last sequence.

        Raises:
            LogDiverged: stream and mirror differ.
        """
        await self._ready()
        async with self._lock:
            await self._fill(await self._log.last_sequence())
        return self._mirror.last

    async def verify(self, *, full: bool = False) -> Verified:
        """Compare stream and mirror: their ends, the last records and some before them, or with `full` everything.

        A mirror whose own copy was damaged, while the stream has what its chain says, is set aside and begun anew.

        Raises:
            LogDiverged: they differ; it names the first event that does, and both sides. Nothing can be appended from
                then on until a comparison finds them equal.
            BusUnavailable: the stream could not be asked.
        """
        async with self._lock:
            return await self._verify(full)

    # ----------------------------------------------------------------------------------------------------------------
    # Reading through the mirror
    # ----------------------------------------------------------------------------------------------------------------

    async def _mirrored(
        self, source: AsyncGenerator[Recorded], after: int, scope: Scope, *, patient: bool
    ) -> AsyncGenerator[Recorded]:
        try:
            await self._ready()
        except BusUnavailable:
            # Who follows waits for the bus, and each batch is compared anyway.
            if not patient:
                raise
        whole = scope == Scope()
        async with aclosing(in_batches(source, BATCH_EVENTS)) as batches:
            while True:
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    return
                except (LogDiverged, LogGap, NotFound) as error:
                    raise await self._diagnosed(error) from error
                await self._keep(batch, after if whole else None)
                after = batch[-1].sequence
                for recorded in batch:
                    yield recorded

    async def _keep(self, batch: Sequence[Recorded], after: int | None) -> None:
        """Have a batch, and all before it, in the mirror. `after`: the batch is everything that follows this."""
        records: Sequence[LogRecord] = [record_of(recorded) for recorded in batch]
        async with self._lock:
            for last_try in (False, True):
                try:
                    await self._fill(records[-1].sequence if after is None else after)
                    complete = records if after is None else self._strays.merge(records, after=self._mirror.last)
                    difference = await self._mirror.keep(complete, after=after)
                except MirrorDamaged as damaged:
                    if last_try:
                        raise
                    await self._mirror.start_anew(damaged.what)
                    continue
                if difference is None:
                    self._strays.forget(through=self._mirror.last)
                    return
                if last_try or not difference.mirror_damaged:
                    raise await self._diagnosed(difference)
                await self._verify(full=True)

    async def _fill(self, through: int) -> None:
        """Mirror everything up to `through`, when the mirror is new or its readers are not the first."""
        previous = self._mirror.last
        if previous >= through:
            return
        source = self._log.read(after=previous, through=through)
        async with aclosing(in_batches(source, BATCH_EVENTS)) as batches:
            async for batch in batches:
                records = self._strays.merge([record_of(recorded) for recorded in batch], after=previous)
                await self._mirror.append(records)
                previous = self._mirror.last
                self._strays.forget(through=previous)

    # ----------------------------------------------------------------------------------------------------------------
    # Comparing
    # ----------------------------------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """Raise unless stream and mirror were found equal over this connection."""
        if self._diverged is not None:
            error = self._diverged
            raise LogDiverged(error.what, where=error.where, hint=error.hint, story=error.story)
        if self._verified_at == self._connections():
            return
        async with self._lock:
            # Somebody else may have done it meanwhile.
            if self._verified_at != self._connections():
                await self._verify(full=False)

    async def _verify(self, full: bool) -> Verified:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        connections = self._connections()
        while True:
            try:
                verified = await self._compare(full)
            except MirrorDamaged as damaged:
                await self._mirror.start_anew(damaged.what)
                verified = Verified(await self._log.last_sequence(), 0, 0, full, damaged.what)
            if isinstance(verified, Verified):
                break
            if loop.time() > deadline:
                raise await self._diagnosed(verified)
            await asyncio.sleep(_PAUSE_S)
        self._verified_at = connections
        self._diverged = None
        return verified

    async def _compare(self, full: bool) -> Verified | Difference:
        """One comparison. When a sample of it shows that the mirror is damaged, everything is compared.

        Raises:
            MirrorDamaged: the stream has everything as it was mirrored, and the mirror has not.
        """
        mirror_last = self._mirror.last
        stream_last = await self._stream_last()
        if stream_last is None:
            if mirror_last == 0:
                raise NotFound("there is no such stream", where=EVENTS_STREAM, hint="start a service first")
            stream_last = 0
        compared = 0
        damaged: list[Difference] = []
        for after, through in [(0, mirror_last)] if full else await self._samples():
            count, differences = await self._walk(after, through)
            compared += count
            if differences and not differences[-1].mirror_damaged:
                return differences[-1]
            damaged += differences
        if not damaged:
            return Verified(stream_last, mirror_last, compared, full)
        if not full:
            return await self._compare(full=True)
        raise MirrorDamaged(
            f"record {damaged[0].sequence} of the mirror is not what was written, and the stream is intact",
            where=str(self._mirror.path),
            sequence=damaged[0].sequence,
        )

    async def _samples(self) -> list[tuple[int, int]]:
        """Ranges (after, through) to look at: the last records, and single ones before."""
        tail = await self._mirror.tail(TAIL_RECORDS)
        if not tail:
            return []
        begin = tail[0].sequence - 1
        places = {begin * number // SAMPLED_RECORDS for number in range(1, SAMPLED_RECORDS)} - {0}
        return [(begin, tail[-1].sequence), *((place - 1, place) for place in sorted(places))]

    async def _walk(self, after: int, through: int) -> tuple[int, list[Difference]]:
        """How many events of a range were compared, and the differences: damaged copies, then at most one other."""
        compared = 0
        differences: list[Difference] = []
        try:
            async with aclosing(in_batches(self._log.read(after=after, through=through), BATCH_EVENTS)) as batches:
                async for batch in batches:
                    last = batch[-1].sequence
                    records = [record_of(recorded) for recorded in batch]
                    differences += await self._mirror.compare(records, after=after, through=last)
                    if differences and not differences[-1].mirror_damaged:
                        return compared, differences
                    compared += len(batch)
                    after = last
        except (LogDiverged, LogGap, NotFound):
            pass  # what the stream does not give is what it lacks
        missing = await self._mirror.first_event(after=after, through=through)
        if missing is not None:
            differences.append(Difference(missing.sequence, None, missing))
        return compared, differences

    async def _stream_last(self) -> int | None:
        """The stream's last sequence; None when there is no stream."""
        try:
            return await self._log.last_sequence()
        except api.ApiError as error:
            if error.err_code == api.STREAM_NOT_FOUND:
                return None
            raise

    async def _refuse_reused(self, events: Sequence[Event], first: int) -> None:
        """Events that were given numbers the mirror knows are there already, or the stream lost what had them."""
        records = await self._mirror.records(after=first - 1, limit=len(events))
        for record, event in zip(records, events, strict=False):
            if _event_id(record) != event.id:
                raise await self._diagnosed(Difference(record.sequence, None, record))

    async def _diagnosed(self, found: Difference | LogDiverged | LogGap | NotFound) -> ElasticGridError:
        """The error to raise, with the first difference there is; from now on nothing is appended."""
        if self._mirror.last == 0 and not isinstance(found, Difference):
            return found
        try:
            _, differences = await self._walk(0, self._mirror.last)
            end = await self._stream_last()
        except ElasticGridError:
            # It cannot be looked at further; what was found stands.
            differences, end = [], None
        first = next((each for each in differences if not each.mirror_damaged), None)
        if first is None and isinstance(found, Difference):
            first = found
        if first is not None:
            ends = "there is no stream" if end is None else f"it ends at {end}"
            error = LogDiverged(
                f"the event log and its mirror differ from event {first.sequence} on; nothing is appended any more",
                where=f"{EVENTS_STREAM} {first.sequence}",
                hint=RESTORE_HINT,
                story=(
                    f"the stream has {describe(first.stream)}; {ends}",
                    f"the mirror has {describe(first.mirror)}; it ends at {self._mirror.last}",
                ),
            )
        else:
            assert isinstance(found, ElasticGridError)
            error = LogDiverged(found.what, where=found.where, hint=RESTORE_HINT)
        self._diverged = error
        _log.error("the event log cannot be trusted", error=str(error))
        return error


def mirrored_log(
    client: Client,
    mirror: Mirror,
    *,
    patience_s: float = PATIENCE_S,
    on_append: OnAppend | None = None,
    on_stray: Callable[[], None] | None = None,
) -> MirroredLog:
    """The event log on the bus with its mirror. Arguments as `MirroredLog` and `Strays`."""
    strays = Strays(on_stray)
    return MirroredLog(
        JetStreamLog(client, on_undecodable=strays.keep),
        mirror,
        strays=strays,
        connections=lambda: client.stats["reconnects"],
        patience_s=patience_s,
        on_append=on_append,
    )


def _event_id(record: LogRecord) -> str:
    try:
        return decode(record.data).id
    except UndecodableEvent:
        return ""
