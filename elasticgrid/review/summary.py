"""A run in a few figures: what a job did, whether any step ran twice, and what it cost.

The committed line of a job are the steps that its result rests on. A round takes it from the checkpoint it resumed
from to the one the next round resumed from; the last round, to its last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import cost_microdollars
from elasticgrid.core.samples import decode_batch
from elasticgrid.log.archive_format import SampleMessage

#: Losses are averaged over so many steps at each end.
_LOSS_STEPS = 5


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job's run.

    Attributes:
        phase: where it stands at the end of the log; `outcome_reason` why, if it is over.
        worlds: sizes of its rounds in order, in nodes.
        steps: length of the committed line.
        duplicate_steps: reports of a step of the committed line beyond its first.
        lost_steps: reports of steps that are not in the committed line: work that was done again or for nothing.
        unreported_steps: steps of the committed line of which no sample is there.
        loss_first, loss_last: mean loss of its first and last five steps with a loss; None when there are none.
            These five are None when there are no samples.
        decisions, scale_ups, scale_downs: decisions in all, and those that changed the size.
        launches, failed_launches: launches asked for, and those that failed.
        nodes_by_provider: nodes that joined.
        nodes_lost: nodes that went without a word.
        duration_s: from the submission to the outcome, or to the job's last event.
    """

    tenant: str
    job: str
    phase: str
    outcome_reason: str
    worlds: tuple[int, ...]
    steps: int
    duplicate_steps: int | None
    lost_steps: int | None
    unreported_steps: int | None
    loss_first: float | None
    loss_last: float | None
    decisions: int
    scale_ups: int
    scale_downs: int
    launches: int
    failed_launches: int
    nodes_lost: int
    nodes_by_provider: dict[str, int]
    duration_s: float
    cost_usd: float


class _Facts:
    """What is counted of a job's events."""

    def __init__(self) -> None:
        self.rounds: list[ev.WorldDecided] = []
        self.scale_ups = self.scale_downs = 0
        self.launches = self.failed_launches = self.nodes_lost = 0
        self.nodes_by_provider: dict[str, int] = {}
        #: By round, the highest step that an event of it names.
        self.reached: dict[int, int] = {}

    def take(self, data: ev.EventData) -> None:
        """Count an event."""
        if isinstance(data, ev.WorldDecided):
            self.rounds.append(data)
        elif isinstance(data, ev.ScaleDecided):
            self.scale_ups += data.action == "up"
            self.scale_downs += data.action == "down"
        elif isinstance(data, ev.LaunchRequested):
            self.launches += 1
        elif isinstance(data, ev.LaunchFailed):
            self.failed_launches += 1
        elif isinstance(data, ev.NodeLost):
            self.nodes_lost += 1
        elif isinstance(data, ev.NodeJoined):
            self.nodes_by_provider[data.provider] = self.nodes_by_provider.get(data.provider, 0) + 1
        elif isinstance(data, ev.NodeStarted):
            self._reach(data.round, data.step)
        elif isinstance(data, ev.NodeCheckpointed):
            self._reach(data.round, data.checkpoint.step)
        elif isinstance(data, ev.NodeDrained | ev.NodeFinished | ev.NodeFailed):
            self._reach(data.round, data.last_step)

    def _reach(self, round_number: int, step: int) -> None:
        self.reached[round_number] = max(self.reached.get(round_number, 0), step)

    def committed(self) -> dict[int, tuple[int, int]]:
        """Of each round, the steps of the committed line: (after, through)."""
        line: dict[int, tuple[int, int]] = {}
        for index, world in enumerate(self.rounds):
            after = _resumed_from(world)
            if index + 1 < len(self.rounds):
                through = _resumed_from(self.rounds[index + 1])
            else:
                through = max(self.reached.get(world.round, 0), after)
            line[world.round] = (after, through)
        return line


def _resumed_from(world: ev.WorldDecided) -> int:
    return world.resume.step if world.resume is not None else 0


def summarise(
    records: Iterable[ev.Recorded], samples: Iterable[SampleMessage] | None = None, *, job: JobKey | None = None
) -> RunSummary:
    """The figures of a job's run.

    Args:
        job: (tenant, job); may be left out when the log has only one.

    Raises:
        NotFound: the log has no such job.
        InvalidInput: `job` was left out and there are several.
    """
    fold = GridFold(memory=1)
    facts: dict[JobKey, _Facts] = {}
    for recorded in records:
        key = fold.apply(recorded)
        if key is not None and isinstance(recorded.event, ev.Event):
            facts.setdefault(key, _Facts()).take(recorded.event.data)
    if job is None:
        if len(facts) > 1:
            raise InvalidInput(f"the log has {len(facts)} jobs", hint="say which one is meant")
        job = next(iter(facts), None)
    state = fold.job(job) if job is not None else None
    if job is None or state is None:
        raise NotFound("there is no such job in this log", hint="`elasticgrid jobs list` shows the jobs")
    counted = facts[job]
    steps = _Steps(counted.committed(), open_end=not state.terminal) if samples is not None else None
    for message in samples or ():
        if steps is not None and parse_sample_subject(message.subject) == job:
            steps.take(message.data)
    first, last = steps.losses() if steps is not None else (None, None)
    end_ms = state.finished_ms or max(state.last_event_ms, state.submitted_ms)
    return RunSummary(
        tenant=state.tenant,
        job=state.id,
        phase=state.phase,
        outcome_reason=state.ending_reason,
        worlds=tuple(len(world.members) for world in counted.rounds),
        steps=steps.last if steps is not None else max((each[1] for each in counted.committed().values()), default=0),
        duplicate_steps=steps.duplicates if steps is not None else None,
        lost_steps=steps.lost if steps is not None else None,
        unreported_steps=steps.unreported() if steps is not None else None,
        loss_first=first,
        loss_last=last,
        decisions=state.decisions,
        scale_ups=counted.scale_ups,
        scale_downs=counted.scale_downs,
        launches=counted.launches,
        failed_launches=counted.failed_launches,
        nodes_lost=counted.nodes_lost,
        nodes_by_provider=counted.nodes_by_provider,
        duration_s=(end_ms - state.submitted_ms) / 1000,
        cost_usd=cost_microdollars(state, end_ms) / 1e6,
    )


class _Steps:
    """The steps that rank 0 reported."""

    def __init__(self, line: dict[int, tuple[int, int]], *, open_end: bool) -> None:
        self._line = line
        self._open_round = max(line, default=0) if open_end else 0
        self._losses: dict[int, float] = {}
        self.duplicates = 0
        self.lost = 0

    def take(self, data: bytes) -> None:
        """One message; what is no batch of rank 0 is passed over."""
        batch = decode_batch(data)
        if isinstance(batch, str) or batch.rank != 0:
            return
        after, through = self._line.get(batch.round, (0, 0))
        if batch.round == self._open_round and batch.samples:
            # The round goes on: what is reported of it is part of the line so far.
            through = max(through, max(sample.step for sample in batch.samples))
            self._line[batch.round] = (after, through)
        for sample in batch.samples:
            if not after < sample.step <= through:
                self.lost += 1
            elif sample.step in self._losses:
                self.duplicates += 1
            else:
                self._losses[sample.step] = sample.loss

    @property
    def last(self) -> int:
        """The last step of the line."""
        return max((through for _, through in self._line.values()), default=0)

    def unreported(self) -> int:
        """Steps of the committed line without a sample."""
        return sum(max(through - after, 0) for after, through in self._line.values()) - len(self._losses)

    def losses(self) -> tuple[float | None, float | None]:
        """Mean losses at both ends of the line."""
        known = [loss for _, loss in sorted(self._losses.items()) if math.isfinite(loss)]
        if not known:
            return None, None
        first, last = known[:_LOSS_STEPS], known[-_LOSS_STEPS:]
        return sum(first) / len(first), sum(last) / len(last)
