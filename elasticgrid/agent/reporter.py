"""Facts on their way into the log: in order, tried until they are in, never in the way of the training."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import nats.errors
import structlog

from elasticgrid.clock import Clock
from elasticgrid.core.errors import BusError, ElasticGridError
from elasticgrid.core.events import Event
from elasticgrid.log.port import EventLog

_log = structlog.get_logger("elasticgrid.agent")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class LogSource(Protocol):
    """Where the log is reached by now; it changes when a connection is made anew."""

    async def current(self) -> EventLog:
        """The log, as soon as there is a connection."""
        ...


class Reporter:
    """Appends facts one after the other.

    A fact keeps its id over all tries, so one that landed and whose answer was lost is not in the log twice.

    Attributes:
        refused: facts the log would not take; each was logged.
    """

    def __init__(self, source: LogSource, clock: Clock) -> None:
        self.refused = 0
        self._source = source
        self._clock = clock
        self._waiting: deque[tuple[Event, asyncio.Future[int]]] = deque()
        self._wake = asyncio.Event()

    def report(self, event: Event) -> asyncio.Future[int]:
        """Queue a fact. The future gives its sequence once it is in the log, 0 if the log refused it."""
        landed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, landed))
        self._wake.set()
        return landed

    async def run(self) -> None:
        """Append what is queued, for ever."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            event, landed = self._waiting[0]
            sequence = await self._append(event)
            self._waiting.popleft()
            if not landed.done():
                landed.set_result(sequence)

    async def _append(self, event: Event) -> int:
        pause_s = FIRST_PAUSE_S
        while True:
            log = await self._source.current()
            try:
                _, sequence = await log.append([event])
            except (BusError, nats.errors.Error, OSError, TimeoutError) as error:
                _log.info("a fact is not in the log yet", fact=event.id, error=str(error))
            except ElasticGridError as error:
                self.refused += 1
                _log.error("the log refused a fact", fact=event.id, error=str(error))
                return 0
            else:
                return sequence
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
