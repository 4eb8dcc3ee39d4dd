"""The event log in memory: for tests, replays and the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from elasticgrid.clock import Clock
from elasticgrid.core.errors import Conflict
from elasticgrid.core.events import Event, Recorded, type_of, writer_of
from elasticgrid.log.batch import check_batch
from elasticgrid.log.codec import encode
from elasticgrid.log.port import Expectation, Scope


class MemoryLog:
    """An `EventLog` that lives as long as this object; `clock` gives the recorded time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: list[Recorded] = []
        self._sequence_of: dict[str, int] = {}
        self._grown = asyncio.Event()

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """See `EventLog.append`."""
        check_batch(events)
        landed = [self._sequence_of[event.id] for event in events if event.id in self._sequence_of]
        if landed:
            if len(landed) == len(events) and landed == list(range(landed[0], landed[0] + len(events))):
                return landed[0], landed[-1]
            raise Conflict("some of these events are in the log already, but not as this batch", where=events[0].id)
        if expect is not None and (last := self._last(expect.scope)) != expect.sequence:
            raise Conflict(f"the last sequence is {last}, not {expect.sequence}", hint="read again and decide again")
        first = len(self._records) + 1
        recorded_ms = self._clock.now_ms()
        for sequence, event in enumerate(events, first):
            self._sequence_of[event.id] = sequence
            self._records.append(Recorded(sequence, recorded_ms, event, encode(event)))
        self._grown.set()
        self._grown = asyncio.Event()
        return first, len(self._records)

    async def read(
        self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()
    ) -> AsyncGenerator[Recorded]:
        """See `EventLog.read`."""
        end = len(self._records) if through is None else min(through, len(self._records))
        for record in self._records[max(after, 0) : end]:
            if _in_scope(record, scope):
                yield record

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """See `EventLog.follow`."""
        position = max(after, 0)
        while True:
            grown = self._grown
            while position < len(self._records):
                record = self._records[position]
                position += 1
                if _in_scope(record, scope):
                    yield record
            if position >= len(self._records) and grown is self._grown:
                await grown.wait()

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """See `EventLog.last_sequence`."""
        return self._last(scope)

    def _last(self, scope: Scope) -> int:
        return next((record.sequence for record in reversed(self._records) if _in_scope(record, scope)), 0)


def _in_scope(record: Recorded, scope: Scope) -> bool:
    event = record.event
    if scope.tenant not in ("*", event.tenant) or scope.job not in ("*", event.job):
        return False
    if scope.writer is None:
        return True
    return isinstance(event, Event) and writer_of(type_of(event.data)) == scope.writer
