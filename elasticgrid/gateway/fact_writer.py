"""How what the gateway is asked becomes facts in the log.

Each is appended on top of what answers contain, and is in them when the caller is answered. Where others were faster,
it is thought over again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import stamina
import structlog

from elasticgrid.clock import Clock
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, Conflict
from elasticgrid.core.grid import GridFold
from elasticgrid.core.names import content_digest, derived_id
from elasticgrid.gateway.conditions import require_unchanged
from elasticgrid.log.port import EventLog, Expectation, Scope
from elasticgrid.projections.projector import Projector

#: How often a request is made again when others were faster.
TRIES: Final = 8

MakeFact = Callable[[GridFold], ev.EventData | None]

_log = structlog.get_logger("gateway")


class FactWriter:
    """Appends for one gateway.

    Attributes:
        log: the grid's log.
    """

    def __init__(self, log: EventLog, projector: Projector, clock: Clock) -> None:
        self.log = log
        self._projector = projector
        self._clock = clock

    @property
    def grid(self) -> GridFold:
        """The grid as answers have it now."""
        return self._projector.grid

    def now_ms(self) -> int:
        """The gateway's clock, Unix milliseconds."""
        return self._clock.now_ms()

    async def caught_up(self, scope: Scope = Scope()) -> int:
        """Wait until answers contain what is in `scope` now, and return its last sequence.

        Raises:
            BusUnavailable: the log cannot be reached, or this takes too long.
        """
        last = await self.log.last_sequence(scope)
        await self.contain(last)
        return last

    async def contain(self, sequence: int) -> None:
        """Wait until answers contain this sequence. Raises BusUnavailable when this takes too long."""
        await self._projector.wait_for(sequence)

    async def write(self, data: ev.EventData, actor: str, expect: Expectation, *, correlation_id: str = "") -> None:
        """Append a fact about the job, or the part of the grid, of which it expects something, and wait for it.

        Raises:
            Conflict: what it expects does not hold.
            BusUnavailable: the log cannot be reached.
        """
        now_ms = self.now_ms()
        tenant, job = expect.scope.tenant, expect.scope.job
        event = ev.Event(
            id=derived_id(now_ms, tenant, job, ev.type_of(data), content_digest(data), actor, expect.sequence),
            time_ms=now_ms,
            tenant=tenant,
            job=job,
            correlation_id=correlation_id,
            actor=actor,
            data=data,
        )
        await self.contain(await self._append(event, expect))

    async def write_for_grid(self, scope: Scope, make: MakeFact, actor: str, if_match: int | None) -> None:
        """Append a fact about the grid itself, made from the grid as of the last one in `scope`.

        Args:
            scope: the facts of which it expects no other to have come first.
            make: gives the fact, or None when there is nothing to say. What it raises is raised.
            actor: who says so.
            if_match: the last fact in `scope` that the caller has seen; None for whichever there is.

        Raises:
            Outdated: the last fact is another than `if_match`.
            Conflict: others keep being faster.
            BusUnavailable: the log cannot be reached.
        """
        for _ in range(TRIES):
            sequence = await self.caught_up(scope)
            require_unchanged(if_match, sequence, "If-Match")
            data = make(self.grid)
            if data is None:
                return
            try:
                await self.write(data, actor, Expectation(scope, sequence))
            except Conflict:
                continue
            _log.info("grid_request", about=scope.job, type=ev.type_of(data), actor=actor)
            return
        raise Conflict(f"others change the grid's {scope.job} all the time", hint="try again")

    @stamina.retry(on=BusUnavailable, attempts=4, timeout=8.0, wait_initial=0.2, wait_jitter=0.1)
    async def _append(self, event: ev.Event, expect: Expectation) -> int:
        """Append it; where it is not known whether it landed, again, which is the same event."""
        _, last = await self.log.append([event], expect=expect)
        return last
