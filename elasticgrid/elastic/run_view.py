"""A run as its log tells it to one of its nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import Final

import nats.errors
import structlog

from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError
from elasticgrid.core.run_state import RUN_TENANT, RunState, evolve, initial
from elasticgrid.log.port import EventLog, Scope

#: How long to wait with a log that cannot be reached before it is tried again.
RETRY_S: Final = 0.5

_log = structlog.get_logger("elasticgrid.elastic")


class RunView:
    """What a node has read of its run.

    Args:
        run_id: the run's name.
        on_read: told of each event, with the run before it, after it was folded; nothing is to be decided by it.

    Attributes:
        scope: the run's part of the log.
        state: the run as of the last event that was read.
    """

    def __init__(self, run_id: str, on_read: Callable[[RunState, ev.EventData], None]) -> None:
        self.scope: Final = Scope(tenant=RUN_TENANT, job=run_id)
        self.state: RunState = initial(run_id)
        self._on_read = on_read
        self._read_at = monotonic()
        self._as_of_ms = 0
        self._changed = asyncio.Event()

    def now_ms(self) -> int:
        """The time by the log's clock: when its last event was recorded, and what has passed since it was read.

        The nodes' own clocks may differ by more than any wait here.
        """
        estimate_ms = self.state.recorded_ms + round((monotonic() - self._read_at) * 1000)
        self._as_of_ms = max(self._as_of_ms, estimate_ms)
        return self._as_of_ms

    async def catch_up(self, log: EventLog) -> None:
        """Read all that there is now."""
        async for recorded in log.read(after=self.state.sequence, scope=self.scope):
            self._fold(recorded)

    async def follow(self, log: EventLog) -> None:
        """Read what comes, for ever."""
        told = -1
        while True:
            try:
                async with contextlib.aclosing(log.follow(after=self.state.sequence, scope=self.scope)) as followed:
                    async for recorded in followed:
                        self._fold(recorded)
            except (BusError, nats.errors.Error, OSError) as error:
                if told < self.state.sequence:  # once, until something was read again
                    _log.warning("the run's log cannot be followed; trying on", error=str(error))
                told = self.state.sequence
            await asyncio.sleep(RETRY_S)

    async def news(self, timeout_s: float) -> None:
        """Wait until something more has been read, at most this long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def until(self, condition: Callable[[RunState], bool], timeout_s: float) -> None:
        """Wait until this holds of the run, at most this long."""
        end_s = monotonic() + timeout_s
        while not condition(self.state) and (left_s := end_s - monotonic()) > 0:
            await self.news(left_s)

    def _fold(self, recorded: ev.Recorded) -> None:
        before = self.state
        self.state = evolve(before, recorded)
        self._read_at = monotonic()
        self._changed.set()
        if isinstance(recorded.event, ev.Event):
            self._on_read(before, recorded.event.data)
