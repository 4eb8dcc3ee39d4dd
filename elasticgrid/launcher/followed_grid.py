"""The grid as the launcher knows it: the log, folded as it grows, and which launches were intended by whom."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors
import structlog

from elasticgrid.clock import Clock
from elasticgrid.core.direct_causes import DirectCauses
from elasticgrid.core.errors import BusError
from elasticgrid.core.events import (
    Event,
    EventData,
    LaunchFailed,
    LaunchRequested,
    LaunchStopped,
    OutcomeDecided,
    Recorded,
    type_of,
    writer_of,
)
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.names import submission_folder
from elasticgrid.log.port import EventLog

_log = structlog.get_logger("launcher")

FOLLOW_PAUSE_S: Final = 1.0


class Intent(msgspec.Struct, frozen=True):
    """A launch that was requested and is not over."""

    event_id: str
    recorded_ms: int


class FollowedGrid:
    """Follows the log and folds it.

    Args:
        log: what is followed.
        clock: paces tries when the bus is away.
        on_change: called with the job that an event concerned.
        on_launch_event: called with the job and the sequence of each event that a launcher wrote.
        on_launch_over: called with the job, the attempt and the time of each launch that ended.
    """

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        *,
        on_change: Callable[[JobKey], None],
        on_launch_event: Callable[[JobKey, int], None],
        on_launch_over: Callable[[JobKey, str, int], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._on_change = on_change
        self._on_launch_event = on_launch_event
        self._on_launch_over = on_launch_over
        # Nobody asks the launcher about the past.
        self._fold = GridFold(memory=1)
        self._causes = DirectCauses()
        self._intents: dict[tuple[JobKey, str], Intent] = {}
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def events(self) -> int:
        """How many events were folded."""
        return self._fold.events

    @property
    def sequence(self) -> int:
        """Everything through this sequence is folded."""
        return self._fold.sequence

    @property
    def fleet(self) -> FleetState:
        """The fleet as of now."""
        return self._fold.fleet

    @property
    def now_ms(self) -> int:
        """The time for questions to the fold: this machine's, but never before the last event."""
        return max(self._clock.now_ms(), self._fold.recorded_ms)

    def job(self, key: JobKey) -> JobState | None:
        """The job as of now."""
        return self._fold.job(key)

    def submissions(self) -> frozenset[str]:
        """The folders of the submissions that go on."""
        going_on = (state for state in self._fold.jobs() if not state.terminal)
        return frozenset(submission_folder(state.tenant, state.id, state.submitted_id) for state in going_on)

    def intent(self, key: JobKey, attempt: str) -> Intent | None:
        """The first intent to launch this attempt; None when there is none or it is over."""
        return self._intents.get((key, attempt))

    def cause_of(self, key: JobKey, data: EventData) -> str:
        """The id of the event that causes this fact about a job, if it is recorded now; empty when the log has none."""
        return self._causes.of(key, data)

    async def folded(self, sequence: int) -> None:
        """Wait until everything through `sequence` is folded."""
        if sequence <= self._fold.sequence:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (sequence, next(self._order), future))
        await future

    async def follow(self) -> None:
        """Fold the log as it grows, for ever.

        Raises:
            LogError: the log cannot be trusted.
        """
        while True:
            try:
                async with contextlib.aclosing(self._log.follow(after=self._fold.sequence)) as events:
                    async for recorded in events:
                        self._take(recorded)
            except (BusError, nats.errors.Error, OSError) as error:
                _log.warning("the log cannot be followed now", error=str(error))
            await self._clock.sleep(FOLLOW_PAUSE_S)

    def _take(self, recorded: Recorded) -> None:
        key = self._fold.apply(recorded)
        if key is not None:
            event = recorded.event
            if isinstance(event, Event):
                self._causes.take(event)
                if isinstance(event.data, OutcomeDecided):
                    self._causes.forget(key)
                elif writer_of(type_of(event.data)) == "launch":
                    self._note_intent(key, event, recorded.recorded_ms)
                    self._on_launch_event(key, recorded.sequence)
            self._on_change(key)
        while self._waiting and self._waiting[0][0] <= self._fold.sequence:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def _note_intent(self, key: JobKey, event: Event, recorded_ms: int) -> None:
        data = event.data
        if isinstance(data, LaunchRequested):
            self._intents.setdefault((key, data.attempt), Intent(event.id, recorded_ms))
        elif isinstance(data, LaunchFailed | LaunchStopped):
            self._intents.pop((key, data.attempt), None)
            self._on_launch_over(key, data.attempt, recorded_ms)
