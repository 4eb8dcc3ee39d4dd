"""A job over time, as columns that a plot or a table is made of: size, steps, money, rounds, nodes, decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import US_PER_S, SampleBatch, admit
from elasticgrid.review.report_data import Point, money_over_time
from elasticgrid.review.report_lanes import Lane, LaneTracker

#: Points of a column of steps at most.
MAX_STEP_POINTS: Final = 1_200
#: The last decisions and lanes that are told; what is left out is counted.
MAX_DECISIONS: Final = 500
MAX_LANES: Final = 200


class Column(msgspec.Struct, frozen=True):
    """Values from times on, Unix milliseconds."""

    time_ms: tuple[int, ...] = ()
    value: tuple[float, ...] = ()


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Steps over time, each point the mean over neighbouring steps and over ranks.

    Attributes:
        source: `samples`, or `decisions` where no samples are there: then they are the signals that decisions carry.
        round: of each point; a line breaks where it changes.
        step_s: how long a step took.
        queue_share: of it spent waiting for a worker, 0 to 1.
        tokens_per_s: of all ranks together.
    """

    source: str = "samples"
    time_ms: tuple[int, ...] = ()
    round: tuple[int, ...] = ()
    step_s: tuple[float, ...] = ()
    queue_share: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()


class RoundSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A round of nodes that trained together; `to_ms` is None while they do."""

    round: int
    nodes: int
    from_ms: int
    to_ms: int | None
    resumed_step: int


class DecisionMark(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on the size, in a line."""

    sequence: int
    number: int
    time_ms: int
    action: str
    current_nodes: int
    target_nodes: int
    rule: str
    reason: str


class JobSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A job over time.

    Attributes:
        as_of_ms: until when what goes on is drawn; `sequence` is the last event in it.
        target: nodes decided on; `training` in the world; `paid` those that cost something.
        rate: USD per hour; `cost` USD so far.
        samples_behind: more samples are there than were read so far; ask again.
        decisions_left_out, lanes_left_out: older ones that are not told.
    """

    tenant: str
    job: str
    as_of_ms: int
    sequence: int
    submitted_ms: int
    finished_ms: int | None
    deadline_ms: int | None
    min_nodes: int
    max_nodes: int
    target: Column
    training: Column
    paid: Column
    rate: Column
    cost: Column
    steps: StepColumns
    rounds: tuple[RoundSpan, ...]
    lanes: tuple[Lane, ...]
    decisions: tuple[DecisionMark, ...]
    samples_behind: bool = False
    decisions_left_out: int = 0
    lanes_left_out: int = 0


class _Bucket:
    """Some neighbouring steps of one round."""

    __slots__ = ("duration_us", "last_ms", "nodes", "queue_us", "samples", "tokens")

    def __init__(self) -> None:
        self.last_ms = self.samples = self.duration_us = self.queue_us = self.tokens = self.nodes = 0

    def add(self, other: _Bucket) -> None:
        self.last_ms = max(self.last_ms, other.last_ms)
        self.samples += other.samples
        self.duration_us += other.duration_us
        self.queue_us += other.queue_us
        self.tokens += other.tokens
        self.nodes = other.nodes


class StepFold:
    """Folds a job's samples into columns; how long the job runs does not change how much is kept.

    Attributes:
        sequence: the last message taken in.
    """

    def __init__(self, nproc_per_node: int = 1) -> None:
        self.sequence = 0
        self._nproc = nproc_per_node
        self._every = 1
        self._buckets: dict[tuple[int, int], _Bucket] = {}

    def take(self, sequence: int, time_ms: int, batch: SampleBatch) -> None:
        """One message; a second time changes nothing, and neither do numbers that are none."""
        if sequence <= self.sequence:
            return
        self.sequence = sequence
        later_us = 0
        for sample in reversed(batch.samples):
            admitted = admit(batch, sample)
            if isinstance(admitted, str):
                continue
            bucket = self._buckets.setdefault((admitted.round, admitted.step // self._every), _Bucket())
            # The message came when its last step was done; the steps before ended one after the other until then.
            bucket.last_ms = max(bucket.last_ms, time_ms - later_us // 1_000)
            later_us += admitted.duration_us
            bucket.samples += 1
            bucket.duration_us += admitted.duration_us
            bucket.queue_us += admitted.queue_us
            bucket.tokens += admitted.tokens
            bucket.nodes = admitted.nodes
        while len(self._buckets) > MAX_STEP_POINTS:
            self._halve()

    def _halve(self) -> None:
        """Put neighbours together; rounds stay apart, so of many short rounds the oldest are forgotten."""
        self._every *= 2
        before, self._buckets = self._buckets, {}
        for (round_number, index), bucket in before.items():
            self._buckets.setdefault((round_number, index // 2), _Bucket()).add(bucket)
        if len(self._buckets) > MAX_STEP_POINTS and len(self._buckets) * 10 > len(before) * 9:
            for key in sorted(self._buckets)[: len(self._buckets) - MAX_STEP_POINTS // 2]:
                del self._buckets[key]

    def columns(self) -> StepColumns:
        """The columns so far."""
        found = [(key[0], bucket) for key, bucket in sorted(self._buckets.items()) if bucket.duration_us]
        return StepColumns(
            time_ms=tuple(bucket.last_ms for _, bucket in found),
            round=tuple(number for number, _ in found),
            step_s=tuple(round(bucket.duration_us / bucket.samples / US_PER_S, 6) for _, bucket in found),
            queue_share=tuple(round(bucket.queue_us / bucket.duration_us, 4) for _, bucket in found),
            tokens_per_s=tuple(
                round(bucket.tokens * US_PER_S / bucket.duration_us * bucket.nodes * self._nproc, 2)
                for _, bucket in found
            ),
        )


class _Rounds:
    """Rounds one after the other, and how many nodes train."""

    def __init__(self) -> None:
        self.training: list[Point] = []
        self.rounds: list[RoundSpan] = []

    def begin(self, world: ev.WorldDecided, at_ms: int) -> None:
        """A world trains; a second time changes nothing."""
        if self.rounds and self.rounds[-1].round == world.round:
            return
        self.end(at_ms)
        self.training.append(Point(at_ms, len(world.members)))
        resumed = world.resume.step if world.resume is not None else 0
        self.rounds.append(
            RoundSpan(round=world.round, nodes=len(world.members), from_ms=at_ms, to_ms=None, resumed_step=resumed)
        )

    def end(self, at_ms: int) -> None:
        """Nobody trains any more."""
        if self.rounds and self.rounds[-1].to_ms is None:
            self.rounds[-1] = msgspec.structs.replace(self.rounds[-1], to_ms=at_ms)
            self.training.append(Point(at_ms, 0))


class _Gathered:
    """What the events of the job say."""

    def __init__(self) -> None:
        self.target: list[Point] = []
        self._told = _Rounds()
        self._decided = _Rounds()
        self.decisions: list[DecisionMark] = []
        self.told: list[tuple[int, ev.Signals]] = []
        self._world: ev.WorldDecided | None = None

    @property
    def trained(self) -> _Rounds:
        """As its nodes told of it; where none ever did, as without the hook, from when a world was decided."""
        return self._told if self._told.rounds else self._decided

    def take(self, recorded: ev.Recorded, event: ev.Event, state: JobState) -> None:
        at_ms, data = recorded.recorded_ms, event.data
        if isinstance(data, ev.JobSubmitted):
            self.target.append(Point(at_ms, state.target_nodes))
        elif isinstance(data, ev.ScaleDecided):
            self._scale(recorded, event, data)
        elif isinstance(data, ev.WorldDecided):
            self._world = data
            self._decided.begin(data, at_ms)
        elif isinstance(data, ev.NodeStarted):
            if self._world is not None and data.round == self._world.round:
                self._told.begin(self._world, at_ms)
        elif isinstance(data, ev.DrainDecided | ev.OutcomeDecided):
            self._told.end(at_ms)
            self._decided.end(at_ms)
        if not self.target or self.target[-1].value != state.target_nodes:
            self.target.append(Point(at_ms, state.target_nodes))

    def _scale(self, recorded: ev.Recorded, event: ev.Event, data: ev.ScaleDecided) -> None:
        self.decisions.append(
            DecisionMark(
                sequence=recorded.sequence,
                number=event.basis.number if event.basis is not None else 0,
                time_ms=recorded.recorded_ms,
                action=data.action,
                current_nodes=data.current_nodes,
                target_nodes=data.target_nodes,
                rule=data.rule,
                reason=data.reason,
            )
        )
        if data.signals.step_us:
            self.told.append((recorded.recorded_ms, data.signals))


def job_series(
    records: Iterable[ev.Recorded], tenant: str, job: str, *, as_of_ms: int, steps: StepColumns | None = None
) -> JobSeries:
    """The series of one job.

    Args:
        records: its events, in order; those of others are left out.
        as_of_ms: the time now, for what goes on.
        steps: of its samples; what its decisions carry is told when there are none.

    Raises:
        NotFound: the log has no such job.
    """
    fold = GridFold(memory=1)
    key = (tenant, job)
    gathered = _Gathered()
    tracker = LaneTracker()
    for recorded in records:
        event = recorded.event
        if (event.tenant, event.job) != key:
            continue
        fold.apply(recorded)
        state = fold.job(key)
        if state is not None and isinstance(event, ev.Event):
            gathered.take(recorded, event, state)
            tracker.take(key, recorded, event.data)
    state = fold.job(key)
    if state is None or state.spec is None:
        raise NotFound(f"there is no job {job} of tenant {tenant}", where="job", hint="list jobs for their ids")
    end_ms = state.finished_ms or max(as_of_ms, fold.recorded_ms)
    lanes = tracker.lanes(end_ms)
    trained = gathered.trained
    paid, rate, cost = money_over_time(lanes, state.submitted_ms, end_ms)
    shown = sorted(lanes, key=lambda lane: lane.gone_ms is None)[-MAX_LANES:]
    return JobSeries(
        tenant=tenant,
        job=job,
        as_of_ms=end_ms,
        sequence=fold.sequence,
        submitted_ms=state.submitted_ms,
        finished_ms=state.finished_ms or None,
        deadline_ms=state.spec.deadline_ms,
        min_nodes=state.min_nodes,
        max_nodes=state.max_nodes,
        target=_column([*gathered.target, *_held(gathered.target, end_ms)]),
        training=_column([Point(state.submitted_ms, 0), *trained.training, *_held(trained.training, end_ms)]),
        paid=_column(paid),
        rate=_column(rate),
        cost=_column(cost),
        steps=steps if steps is not None and steps.time_ms else _told(gathered.told),
        rounds=tuple(trained.rounds),
        lanes=tuple(lane for lane in lanes if lane in shown) if len(shown) < len(lanes) else lanes,
        decisions=tuple(gathered.decisions[-MAX_DECISIONS:]),
        decisions_left_out=max(len(gathered.decisions) - MAX_DECISIONS, 0),
        lanes_left_out=len(lanes) - len(shown),
    )


def _held(points: list[Point], end_ms: int) -> tuple[Point, ...]:
    """The last value, which still holds at the end."""
    return (Point(end_ms, points[-1].value),) if points else ()


def _column(points: Iterable[Point]) -> Column:
    found = tuple(points)
    return Column(tuple(point.time_ms for point in found), tuple(round(point.value, 6) for point in found))


def _told(told: list[tuple[int, ev.Signals]]) -> StepColumns:
    return StepColumns(
        source="decisions",
        time_ms=tuple(at_ms for at_ms, _ in told),
        round=tuple(signals.round for _, signals in told),
        step_s=tuple(round(signals.step_us / US_PER_S, 6) for _, signals in told),
        queue_share=tuple(round(signals.queue_us / signals.step_us, 4) for _, signals in told),
        tokens_per_s=tuple(
            round(signals.tokens * US_PER_S / signals.window_us, 2) if signals.window_us else 0.0 for _, signals in told
        ),
    )
