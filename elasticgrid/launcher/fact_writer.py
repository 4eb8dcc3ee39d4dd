"""The launcher's facts on their way into the log: in order for each job, tried until they are in."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import nats.errors
import stamina

from elasticgrid.clock import Clock
from elasticgrid.core.errors import BusError, Conflict
from elasticgrid.core.events import Event, EventData, type_of
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.names import derived_id
from elasticgrid.log.port import EventLog, Expectation, Scope

ACTOR: Final = "launcher"
#: What another try may help against.
_AWAY: Final = (BusError, nats.errors.Error, OSError)


class FactWriter:
    """Appends what a launcher saw and did.

    Args:
        log: where to.
        clock: gives the events' times.
        instance: differs between any two launchers, so that the same intent of two is never taken for one.
    """

    def __init__(self, log: EventLog, clock: Clock, instance: str) -> None:
        self._log = log
        self._clock = clock
        self._instance = instance
        self._turns: defaultdict[JobKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last: dict[JobKey, int] = {}

    def observe(self, key: JobKey, sequence: int) -> None:
        """An event of a launcher about this job stands at `sequence`; what comes next is decided knowing it."""
        self._last[key] = max(sequence, self._last.get(key, 0))

    def event(self, state: JobState, data: EventData, subject: str, *, cause: str) -> Event:
        """A fact about the job; `subject` tells facts of one type apart, `cause` is the id of what led to it."""
        now_ms = self._clock.now_ms()
        return Event(
            id=derived_id(now_ms, self._instance, state.tenant, state.id, type_of(data), subject),
            time_ms=now_ms,
            tenant=state.tenant,
            job=state.id,
            causation_id=cause,
            correlation_id=state.submitted_id,
            actor=ACTOR,
            data=data,
        )

    async def append(self, event: Event) -> int:
        """Append a fact and return its sequence, however long the bus is away."""
        async with self._turns[event.tenant, event.job]:
            return await self._append(event, None)

    async def append_if(self, event: Event, holds: Callable[[], bool]) -> int:
        """The same, but only if `holds` does, and no launcher wrote anything about the job that was not observed.

        Raises:
            Conflict: one of both is not so; nothing was appended.
        """
        key = (event.tenant, event.job)
        async with self._turns[key]:
            # Asked together with what was observed: what both speak of is then the same state of the log.
            if not holds():
                raise Conflict("it was done already", where=event.id)
            sequence = await self._append(event, Expectation(Scope(*key, writer="launch"), self._last.get(key, 0)))
            # It went through, so nothing unseen stands before it.
            self.observe(key, sequence)
        return sequence

    async def _append(self, event: Event, expect: Expectation | None) -> int:
        async for attempt in stamina.retry_context(on=_AWAY, attempts=None, timeout=None):
            with attempt:
                _, sequence = await self._log.append([event], expect=expect)
        return sequence

    async def newest_event(self, scope: Scope, *, after: int, through: int) -> int:
        """The sequence of the last event in the scope with after < sequence <= through; 0 when there is none.

        The last sequence in a scope may be that of a message that is no event, and such a one is never folded.
        """
        newest = 0
        async for attempt in stamina.retry_context(on=_AWAY, attempts=None, timeout=None):
            with attempt:
                async for recorded in self._log.read(after=after, through=through, scope=scope):
                    newest = recorded.sequence
        return newest

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """The last sequence in the scope, however long the bus is away."""
        async for attempt in stamina.retry_context(on=_AWAY, attempts=None, timeout=None):
            with attempt:
                sequence = await self._log.last_sequence(scope)
        return sequence
