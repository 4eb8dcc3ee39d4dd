"""What an incident report shows, gathered from a log in one pass over its events and one over its samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState, cost_microdollars
from elasticgrid.core.samples import admit, decode_batch
from elasticgrid.core.worker_exits import message_of
from elasticgrid.log.archive_format import SampleMessage, SampleRange
from elasticgrid.review.card import DecisionCard, decision_card
from elasticgrid.review.report import VerifyReport
from elasticgrid.review.report_lanes import Lane, LaneTracker
from elasticgrid.review.timeline import TimelineFilter, TimelineLine, timeline
from elasticgrid.review.verify import verify
from elasticgrid.review.whatif import WhatIf

#: What is shown of each kind at most; the report says what was left out.
MAX_LINES: Final = 4_000
MAX_CARDS: Final = 80
MAX_JOBS: Final = 12
MAX_POINTS: Final = 1_500


class Point(msgspec.Struct, frozen=True):
    """A value from a time on, Unix milliseconds."""

    time_ms: int
    value: float


class FailureCount(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one class in a job.

    Attributes:
        failure: its class, or how a node was seen to be gone.
        what: `launch`, `worker` or `node`.
        providers: where, and how often.
        last_ms, last_text: the last one.
    """

    tenant: str
    job: str
    failure: str
    what: str
    count: int
    providers: dict[str, int]
    last_ms: int
    last_text: str
    last_sequence: int

    @property
    def name(self) -> str:
        """The job, `<tenant>/<job>`."""
        return f"{self.tenant}/{self.job}"


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes:
        training: nodes in the world over time; `paid` nodes that cost something; `rate` USD per hour; `cost` USD.
        queue: share of the step spent waiting for a worker, 0 to 1; `queue_from` says whether from the raw samples or
            from the values in the decisions.
        gaps: in the samples of its rounds, as they are on record.
        cards: of every change of size, and of the last decision.
    """

    tenant: str
    job: str
    phase: str
    reason: str
    submitted_ms: int
    finished_ms: int | None
    deadline_ms: int | None
    min_nodes: int
    max_nodes: int
    steps: int
    cost_microdollars: int
    app_failures: int
    infra_failures: int
    illegal: int
    ups: int
    downs: int
    holds: int
    training: tuple[Point, ...]
    paid: tuple[Point, ...]
    rate: tuple[Point, ...]
    cost: tuple[Point, ...]
    queue: tuple[Point, ...]
    queue_from: str
    gaps: tuple[ev.GapDecided, ...]
    cards: tuple[DecisionCard, ...]
    cards_left_out: int

    @property
    def name(self) -> str:
        """`<tenant>/<job>`."""
        return f"{self.tenant}/{self.job}"


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """The report.

    Attributes:
        source: what the log was read from.
        first_ms, last_ms: recorded times of the first and the last event.
        lines: the timeline; `lines_left_out` of it, the last ones.
        skew_ms: the largest difference between a writer's clock and the log's, with its actor.
        silent_ms: the longest time between two samples while a round trained, and when it began.
        jobs_left_out: jobs that are not shown, the cheapest ones.
    """

    source: str
    software: str
    first_ms: int
    last_ms: int
    events: int
    has_samples: bool
    jobs: tuple[JobReport, ...]
    jobs_left_out: int
    lanes: tuple[Lane, ...]
    lines: tuple[TimelineLine, ...]
    lines_left_out: int
    failures: tuple[FailureCount, ...]
    verification: VerifyReport
    skew_ms: int
    skew_actor: str
    silent_ms: int
    silent_from_ms: int
    what_if: WhatIf | None = None


class _Job:
    """What is gathered of one job."""

    def __init__(self) -> None:
        self.decided: list[ev.Recorded] = []
        self.changed: list[int] = []
        self.ups = self.downs = self.holds = 0
        self.training: list[Point] = []
        self.told_queue: list[Point] = []
        self.queue: list[Point] = []
        self.gaps: list[ev.GapDecided] = []
        self.last_sample_ms = 0
        self.silent = (0, 0)

    def take(self, recorded: ev.Recorded, data: ev.EventData, state: JobState) -> None:
        at_ms = recorded.recorded_ms
        if isinstance(recorded.event, ev.Event) and recorded.event.basis is not None:
            self.decided.append(recorded)
        if isinstance(data, ev.ScaleDecided):
            self.ups += data.action == "up"
            self.downs += data.action == "down"
            self.holds += data.action == "hold"
            if data.action != "hold":
                self.changed.append(recorded.sequence)
            if data.signals.step_us:
                self.told_queue.append(Point(at_ms, data.signals.queue_us / data.signals.step_us))
        elif isinstance(data, ev.GapDecided):
            self.gaps.append(data)
        elif isinstance(data, ev.NodeStarted):
            if state.round_active_ms == at_ms and (not self.training or self.training[-1].value != len(state.members)):
                self.training.append(Point(at_ms, len(state.members)))
        elif isinstance(data, ev.DrainDecided | ev.OutcomeDecided) and self.training and self.training[-1].value:
            self.training.append(Point(at_ms, 0))

    def sample(self, message: SampleMessage) -> None:
        batch = decode_batch(message.data)
        if isinstance(batch, str) or not batch.samples:
            return
        gap_ms = message.time_ms - self.last_sample_ms
        if self.last_sample_ms and gap_ms > self.silent[0] and self._trained_on(message.time_ms):
            self.silent = (gap_ms, self.last_sample_ms)
        self.last_sample_ms = message.time_ms
        if batch.rank != 0:
            return
        admitted = [each for each in (admit(batch, sample) for sample in batch.samples) if not isinstance(each, str)]
        spent_us = sum(each.duration_us for each in admitted)
        if spent_us:
            self.queue.append(Point(message.time_ms, sum(each.queue_us for each in admitted) / spent_us))

    def _trained_on(self, until_ms: int) -> bool:
        """Whether one round trained from the last sample until then."""
        begun = bisect_right(self.training, self.last_sample_ms, key=lambda point: point.time_ms)
        ended = bisect_right(self.training, until_ms, key=lambda point: point.time_ms)
        return begun == ended and begun > 0 and self.training[begun - 1].value > 0


def gather(
    records: Iterable[ev.Recorded],
    samples: Iterable[SampleMessage] | None = None,
    *,
    source: str,
    software: str,
    samples_held: SampleRange | None = None,
    complete: bool = True,
    job: JobKey | None = None,
    what_if: WhatIf | None = None,
) -> ReportData:
    """Gather the report of a log; `records` and `samples` are read more than once.

    Args:
        samples_held: which part of the samples stream that is; all of it when absent.
        source, software: what it came from, and which version wrote that.
        complete: whether the log is there with nothing left out.
        job: only this job's part.

    Raises:
        NotFound: the log has no such job.
    """
    fold = GridFold(memory=1)
    jobs: dict[JobKey, _Job] = {}
    lanes = LaneTracker()
    failures: dict[tuple[JobKey, str, str], FailureCount] = {}
    first_ms = 0
    skew = (0, "")
    for recorded in records:
        key = fold.apply(recorded)
        first_ms = first_ms or recorded.recorded_ms
        event = recorded.event
        if isinstance(event, ev.UnknownEvent) or (job is not None and key != job):
            continue
        skew_ms = event.time_ms - recorded.recorded_ms
        if abs(skew_ms) > abs(skew[0]):
            skew = (skew_ms, event.actor)
        state = fold.job(key) if key is not None else None
        if key is None or state is None:
            continue
        jobs.setdefault(key, _Job()).take(recorded, event.data, state)
        lanes.take(key, recorded, event.data)
        _count_failure(failures, key, recorded, event.data, lanes.provider_of(key, event.data))
    for message in samples or ():
        found = jobs.get(parse_sample_subject(message.subject) or ("", ""))
        if found is not None:
            found.sample(message)
    last_ms = max(fold.recorded_ms, first_ms)
    states = [state for state in fold.jobs() if (state.tenant, state.id) in jobs and state.spec is not None]
    if job is not None and job not in jobs:
        raise NotFound(f"there is no job {'/'.join(job)} in this log")
    states.sort(key=lambda state: -cost_microdollars(state, last_ms))
    shown = states[:MAX_JOBS]
    made = lanes.lanes(last_ms)
    lines = list(islice(_lines(records, job, complete), MAX_LINES))
    silent = max([each.silent for each in jobs.values()], default=(0, 0))
    return ReportData(
        source=source,
        software=software,
        first_ms=first_ms,
        last_ms=last_ms,
        events=fold.events,
        has_samples=samples is not None,
        jobs=tuple(_job_report(state, jobs[state.tenant, state.id], made, last_ms) for state in shown),
        jobs_left_out=len(states) - len(shown),
        lanes=tuple(lane for lane in made if any((lane.tenant, lane.job) == (s.tenant, s.id) for s in shown)),
        lines=tuple(lines),
        lines_left_out=sum(1 for _ in _lines(records, job, complete)) - len(lines),
        failures=tuple(sorted(failures.values(), key=lambda each: -each.count)),
        verification=verify(records, samples, samples_held=samples_held, complete=complete),
        skew_ms=skew[0],
        skew_actor=skew[1],
        silent_ms=silent[0],
        silent_from_ms=silent[1],
        what_if=what_if,
    )


def _lines(records: Iterable[ev.Recorded], job: JobKey | None, complete: bool) -> Iterable[TimelineLine]:
    shown = TimelineFilter(tenant=job[0], job=job[1]) if job is not None else TimelineFilter()
    return timeline(records, shown, complete=complete)


def _count_failure(
    failures: dict[tuple[JobKey, str, str], FailureCount],
    key: JobKey,
    recorded: ev.Recorded,
    data: ev.EventData,
    provider: str,
) -> None:
    if isinstance(data, ev.LaunchFailed):
        what, failure, text = "launch", str(data.failure), data.text
    elif isinstance(data, ev.NodeFailed):
        first = data.exits[0] if data.exits else ev.WorkerExit(rank=-1, code=0)
        said = message_of(first)
        what, failure, text = "worker", str(data.failure), f"rank {first.rank} ended with {first.code}: {said}"
    elif isinstance(data, ev.NodeLost):
        what, failure, text = "node", str(data.evidence), f"{data.node} {data.text}".strip()
    elif isinstance(data, ev.NodeStuck):
        what, failure, text = "worker", f"stuck: {data.what}", f"{data.node}: {data.detail}"
    else:
        return
    before = failures.get((key, what, failure))
    providers = dict(before.providers) if before is not None else {}
    providers[provider] = providers.get(provider, 0) + 1
    failures[key, what, failure] = FailureCount(
        tenant=key[0],
        job=key[1],
        failure=failure,
        what=what,
        count=before.count + 1 if before is not None else 1,
        providers=providers,
        last_ms=recorded.recorded_ms,
        last_text=text,
        last_sequence=recorded.sequence,
    )


def _job_report(state: JobState, gathered: _Job, lanes: Iterable[Lane], last_ms: int) -> JobReport:
    assert state.spec is not None
    end_ms = state.finished_ms or last_ms
    mine = [lane for lane in lanes if (lane.tenant, lane.job) == (state.tenant, state.id)]
    paid, rate, cost = money_over_time(mine, state.submitted_ms, end_ms)
    cards, left_out = _cards(state, gathered)
    return JobReport(
        tenant=state.tenant,
        job=state.id,
        phase=state.phase,
        reason=state.ending_reason,
        submitted_ms=state.submitted_ms,
        finished_ms=state.finished_ms or None,
        deadline_ms=state.spec.deadline_ms,
        min_nodes=state.min_nodes,
        max_nodes=state.max_nodes,
        steps=max([node.last_step for node in state.nodes.values()], default=0),
        cost_microdollars=cost_microdollars(state, end_ms),
        app_failures=state.app_failures,
        infra_failures=state.infra_failures,
        illegal=state.illegal,
        ups=gathered.ups,
        downs=gathered.downs,
        holds=gathered.holds,
        training=(Point(state.submitted_ms, 0), *gathered.training, Point(end_ms, _last(gathered.training))),
        paid=paid,
        rate=rate,
        cost=cost,
        queue=thinned(gathered.queue or gathered.told_queue),
        queue_from="samples" if gathered.queue else "decisions",
        gaps=tuple(gathered.gaps),
        cards=cards,
        cards_left_out=left_out,
    )


def _last(points: list[Point]) -> float:
    return points[-1].value if points else 0


def _cards(state: JobState, gathered: _Job) -> tuple[tuple[DecisionCard, ...], int]:
    """Of every change of size, and of the decision that held at the end."""
    scales = [each.sequence for each in gathered.decided if _is_scale(each)]
    wanted = [*gathered.changed, *(scales[-1:] if scales[-1:] != gathered.changed[-1:] else [])]
    shown = wanted[:MAX_CARDS]
    cards = tuple(
        # What became of the last one is told as well.
        decision_card(gathered.decided, state.tenant, state.id, sequence=each if each != scales[-1] else None)
        for each in shown
    )
    return cards, len(wanted) - len(shown)


def _is_scale(recorded: ev.Recorded) -> bool:
    return isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, ev.ScaleDecided)


def money_over_time(
    lanes: Iterable[Lane], begin_ms: int, end_ms: int
) -> tuple[tuple[Point, ...], tuple[Point, ...], tuple[Point, ...]]:
    """Nodes that cost something, USD per hour and USD spent, over time."""
    changes: list[tuple[int, int, int]] = []
    for lane in lanes:
        if lane.charged_from_ms is not None:
            changes.append((lane.charged_from_ms, 1, lane.price_microdollars_per_hour))
            if lane.gone_ms is not None:
                changes.append((lane.gone_ms, -1, -lane.price_microdollars_per_hour))
    paid, rate, cost = [Point(begin_ms, 0)], [Point(begin_ms, 0.0)], [Point(begin_ms, 0.0)]
    nodes, price, spent, last_ms = 0, 0, 0.0, begin_ms
    for at_ms, more, dearer in sorted(changes):
        spent += price / 1e6 * (at_ms - last_ms) / 3_600_000
        nodes, price, last_ms = nodes + more, price + dearer, at_ms
        paid.append(Point(at_ms, nodes))
        rate.append(Point(at_ms, price / 1e6))
        cost.append(Point(at_ms, spent))
    spent += price / 1e6 * max(end_ms - last_ms, 0) / 3_600_000
    return (*paid, Point(end_ms, nodes)), (*rate, Point(end_ms, price / 1e6)), (*cost, Point(end_ms, spent))


def thinned(points: list[Point]) -> tuple[Point, ...]:
    """At most `MAX_POINTS` points: each the mean of its neighbours."""
    every = -(-len(points) // MAX_POINTS) if points else 1
    groups = [points[index : index + every] for index in range(0, len(points), every)]
    return tuple(Point(group[-1].time_ms, round(sum(p.value for p in group) / len(group), 6)) for group in groups)
