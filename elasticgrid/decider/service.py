"""The decider: a thin shell that feeds the core and appends its decisions.

It folds the event log and the samples stream. Whenever an event concerned a job, a step of it was completed or the
timer ticked, the core is asked; what it decides is appended as one batch that expects the decision before it to be the
last. One append per job is under way at a time, and the job is asked about again when its own decision came back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn, Protocol

import msgspec
import structlog

from elasticgrid.bus.follower import BusMessage
from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.clock import Clock
from elasticgrid.core.decider import Decision, Reading, decide, decision_events, places_nodes
from elasticgrid.core.errors import BusUnavailable, Conflict, LogError
from elasticgrid.core.events import Event, GapDecided, Recorded, type_of
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.gaps import SETTLE_MS
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.names import is_record
from elasticgrid.decider.stats import DeciderStats
from elasticgrid.log.port import EventLog, Expectation, Scope
from elasticgrid.review.collector import rare_collections

log = structlog.get_logger("decider")

TICK_S = 0.5
RETRY_S = 0.5
#: How long decisions wait at most for windows that are built again.
REBUILDING_MS = 5_000


class SampleSource(Protocol):
    """Where sample messages come from, in order."""

    async def next_batch(self) -> list[BusMessage]:
        """The next messages, at least one; waits for them."""
        ...

    async def aclose(self) -> None:
        """Stop."""
        ...


class OpenSamples(Protocol):
    """Makes the source of sample messages that come after a sequence."""

    def __call__(self, *, after: int) -> SampleSource:
        """The messages after `after`."""
        ...


class _Rebuilding(msgspec.Struct, frozen=True):
    """Windows are being built again: they are whole once this sequence was read, and waited for until this time."""

    through: int
    until_ms: int


class Decider:
    """Takes every decision of a grid.

    Args:
        log: where events are followed and appended.
        open_samples: makes the follower of the samples stream; called once the log has been read.
        clock: for the time of timer decisions.
        grid: the fold of a first part of the log, when there is one already.
        on_decided: told of each decision in the log, how many milliseconds after what asked for it: an event, a
            completed step, the timer.
    """

    def __init__(
        self,
        log: EventLog,
        open_samples: OpenSamples,
        clock: Clock,
        *,
        grid: GridFold | None = None,
        on_decided: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._open_samples = open_samples
        self._clock = clock
        self._grid = grid if grid is not None else GridFold()
        self._evidence = EvidenceFold()
        self._sample_ms = 0
        #: The last message of samples that was read.
        self._read: BusMessage | None = None
        self._rebuilding: _Rebuilding | None = None
        self._appending: dict[JobKey, asyncio.Task[None]] = {}
        self._awaited: dict[JobKey, int] = {}
        self._dirty: set[JobKey] = set()
        self._broken: set[JobKey] = set()
        self._unreadable: dict[JobKey, int] = {}
        self._placing: JobKey | None = None
        self._held_back: set[JobKey] = set()
        self._said: set[str] = set()
        self._untrusted: asyncio.Queue[LogError] = asyncio.Queue()
        self._decisions = 0
        self._conflicts = 0
        self._on_decided = on_decided
        #: When something first asked about a job that has not been answered yet.
        self._asked_ms: dict[JobKey, int] = {}
        self._ticked_ms = 0

    @property
    def grid(self) -> GridFold:
        """What was folded so far."""
        return self._grid

    @property
    def stats(self) -> DeciderStats:
        """What was read and done so far."""
        jobs = [state for state in self._grid.jobs() if not state.terminal and not is_record(state.tenant)]
        training = [state for state in jobs if state.phase == "running" and state.round_active_ms]
        windows = [self._evidence.window((state.tenant, state.id)) for state in training]
        return DeciderStats(
            events=self._grid.events,
            sequence=self._grid.sequence,
            sample_messages=self._evidence.messages,
            samples=self._evidence.samples,
            samples_sequence=self._evidence.sequence,
            refused=dict(self._evidence.refused),
            decisions=self._decisions,
            conflicts=self._conflicts,
            broken_jobs=len(self._broken),
            stopped_jobs=sum(1 for state in jobs if state.unknown_type or (state.tenant, state.id) in self._broken),
            oldest_sample_ms=min(
                (
                    max(state.round_active_ms, window.last_sample_ms if window is not None else 0)
                    for state, window in zip(training, windows, strict=True)
                ),
                default=None,
            ),
            ticked_ms=self._ticked_ms,
        )

    async def run(self) -> None:
        """Decide until cancelled.

        Raises:
            ExceptionGroup: of LogError when the log cannot be trusted; nothing more is decided.
        """
        try:
            await self._catch_up()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_events(), name="decider-events")
                tasks.create_task(self._follow_samples(), name="decider-samples")
                tasks.create_task(self._tick(), name="decider-timer")
                tasks.create_task(self._wait_untrusted(), name="decider-trust")
        finally:
            for task in self._appending.values():
                task.cancel()
            await asyncio.gather(*self._appending.values(), return_exceptions=True)

    async def _wait_untrusted(self) -> NoReturn:
        """Raise what an append found out about the log."""
        raise await self._untrusted.get()

    async def _catch_up(self) -> None:
        """Fold what is there before the first decision: a decider that knows half of the log decides nonsense."""
        for state in self._grid.jobs():
            if not state.terminal:
                self._evidence.open(state)
        with rare_collections():
            async for recorded in self._log.read(after=self._grid.sequence):
                self._fold(recorded)
        log.info("caught up", sequence=self._grid.sequence, jobs=sum(1 for _ in self._grid.jobs()))

    async def _follow_events(self) -> None:
        for state in self._grid.jobs():
            self._consider((state.tenant, state.id))
        async for recorded in self._log.follow(after=self._grid.sequence):
            key = self._fold(recorded)
            if key is not None:
                self._consider(key, asked_ms=recorded.recorded_ms)
            else:
                for state in self._grid.jobs():
                    self._consider((state.tenant, state.id), asked_ms=recorded.recorded_ms)

    def _fold(self, recorded: Recorded) -> JobKey | None:
        key = self._grid.apply(recorded)
        state = self._grid.job(key) if key is not None else None
        if key is None or state is None:
            return None
        if self._awaited.get(key, 0) and recorded.sequence >= self._awaited[key]:
            del self._awaited[key]
            self._placed(key)
        if state.terminal:
            self._evidence.close(key)
        else:
            self._evidence.open(state)
        if state.unknown_type:
            self._say_once(
                f"unknown {key}", "an event of an unknown type; no more is decided", state, state.unknown_type
            )
        return key

    def _say_once(self, token: str, what: str, state: JobState, detail: str) -> None:
        if token not in self._said:
            self._said.add(token)
            log.error(what, tenant=state.tenant, job=state.id, sequence=state.sequence, detail=detail)

    async def _follow_samples(self) -> None:
        after = self._samples_begin()
        self._evidence.sequence = after
        while True:
            after = await self._read_samples(after)
            log.warning("the end of the samples stream was lost; windows are built again", after=after)

    async def _read_samples(self, after: int) -> int:
        """Fold the samples after a sequence, until the stream turns out to have been cut.

        A server that crashes may lose messages that were read from it already, and give their sequences to others.
        What was folded is then not what the stream holds, and a decision taken from it could not be verified: so the
        windows are built once more, from what is there, and no decision is taken meanwhile.

        Returns:
            The sequence after which to read again.
        """
        source = self._open_samples(after=after)
        last = after
        try:
            while True:
                for message in await source.next_batch():
                    if message.sequence <= last:
                        self._begin_rebuilding(message.sequence)
                        return min(self._samples_begin(), message.sequence - 1)
                    last = message.sequence
                    self._take(message)
        finally:
            await source.aclose()

    def _begin_rebuilding(self, through: int) -> None:
        before = self._evidence
        self._rebuilding = _Rebuilding(through, self._clock.now_ms() + REBUILDING_MS)
        self._evidence = EvidenceFold()
        self._evidence.messages, self._evidence.samples = before.messages, before.samples
        self._evidence.refused = before.refused
        for state in self._grid.jobs():
            if not state.terminal:
                self._evidence.open(state)

    def _samples_begin(self) -> int:
        """After which sequence the samples of all rounds that train come."""
        jobs = [state for state in self._grid.jobs() if not is_record(state.tenant)]
        running = [state.round_samples_after for state in jobs if not state.terminal and state.round]
        return min(running, default=self._samples_seen())

    def _samples_seen(self) -> int:
        """How far the samples had been read when the last decision of any job was taken: older ones are of no use."""
        jobs = (state for state in self._grid.jobs() if not is_record(state.tenant))
        return max((state.round_samples_after for state in jobs), default=0)

    def _take(self, message: BusMessage) -> None:
        key = parse_sample_subject(message.subject)
        if key is None:
            return
        self._sample_ms = max(self._sample_ms, message.time_ms)
        self._read = message
        refused = len(self._evidence.refused)
        completed = self._evidence.apply(key, message.sequence, message.time_ms, message.data)
        if len(self._evidence.refused) > refused:
            log.warning("samples refused", tenant=key[0], job=key[1], refused=self._evidence.refused)
        if self._rebuilding is not None and message.sequence >= self._rebuilding.through:
            self._rebuilding = None
            for state in self._grid.jobs():
                self._consider((state.tenant, state.id))
        elif completed:
            self._consider(key, asked_ms=message.time_ms)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self._ticked_ms = self._clock.now_ms()
            for state in self._grid.jobs():
                if not state.terminal:
                    self._consider((state.tenant, state.id))

    def _consider(self, key: JobKey, *, asked_ms: int | None = None) -> None:
        """Ask the core about a job, unless its last decision has not come back yet.

        Args:
            key: the job.
            asked_ms: when what asks happened; now when None.
        """
        state = self._grid.job(key)
        if state is None or state.terminal or is_record(state.tenant) or key in self._broken:
            self._asked_ms.pop(key, None)
            return
        self._asked_ms.setdefault(key, asked_ms if asked_ms is not None else self._clock.now_ms())
        if key in self._appending or key in self._awaited:
            self._dirty.add(key)
            return
        if self._rebuilding is not None and self._clock.now_ms() < self._rebuilding.until_ms:
            return
        as_of_ms = max(self._clock.now_ms(), self._grid.recorded_ms, self._sample_ms)
        try:
            decision = decide(state, self._grid.fleet, self._evidence.signals(key), as_of_ms)
        except Exception as error:  # a job whose decision cannot be taken must not stop the others'
            self._broken.add(key)
            log.exception("cannot decide", tenant=key[0], job=key[1], sequence=state.sequence, error=str(error))
            return
        if any(isinstance(data, GapDecided) and self._is_early(data) for data in decision):
            return  # the next tick asks again
        if decision and places_nodes(decision):
            if self._placing is not None:
                # What that placement takes is not in the fleet yet; two of them could take the same nodes.
                self._held_back.add(key)
                return
            self._placing = key
        asked = self._asked_ms.pop(key)
        if decision:
            reading = Reading(self._grid.sequence, self._evidence.sequence)
            events = decision_events(state, decision, as_of_ms, reading)
            self._appending[key] = asyncio.create_task(self._append(key, state, decision, events, asked))

    def _is_early(self, gap: GapDecided) -> bool:
        """Whether samples that the gap's cause is judged by are there and were not read yet, as after a restart."""
        read = self._read
        return read is not None and read.pending > 0 and read.time_ms <= gap.until_ms + SETTLE_MS

    async def _append(
        self, key: JobKey, state: JobState, decision: Decision, events: list[Event], asked_ms: int
    ) -> None:
        version = max(state.decision_sequence, self._unreadable.get(key, 0))
        expect = Expectation(Scope(*key, writer="decision"), version)
        try:
            while True:
                try:
                    _, last = await self._log.append(events, expect=expect)
                except BusUnavailable as error:
                    log.warning("the decision waits for the bus", tenant=key[0], job=key[1], error=str(error))
                    await self._clock.sleep(RETRY_S)
                except Conflict:
                    self._conflicts += 1
                    last = await self._last_decision(key)
                    log.warning("another decision came first", tenant=key[0], job=key[1], sequence=last)
                    break
                except LogError as error:
                    self._untrusted.put_nowait(error)
                    return
                else:
                    self._decisions += 1
                    self._on_decided(max(self._clock.now_ms() - asked_ms, 0))
                    types = [type_of(data) for data in decision]
                    log.info("decided", tenant=key[0], job=key[1], sequence=last, what=types)
                    break
            if last > self._grid.sequence:
                self._awaited[key] = last
        finally:
            del self._appending[key]
        self._placed(key)
        if key in self._dirty and key not in self._awaited:
            self._dirty.discard(key)
            self._consider(key)

    def _placed(self, key: JobKey) -> None:
        """Let the next job place nodes, once this one's placement has come back."""
        if self._placing != key or key in self._appending or key in self._awaited:
            return
        self._placing = None
        held_back, self._held_back = self._held_back, set()
        for each in held_back:
            self._consider(each)

    async def _last_decision(self, key: JobKey) -> int:
        """The sequence of the last decision, 0 when what stands there is no event: it counts, but it says nothing."""
        scope = Scope(*key, writer="decision")
        while True:
            with contextlib.suppress(BusUnavailable):
                last = await self._log.last_sequence(scope)
                async for recorded in self._log.read(after=last - 1, through=last, scope=scope):
                    return recorded.sequence
                self._unreadable[key] = last
                return 0
            await self._clock.sleep(RETRY_S)
