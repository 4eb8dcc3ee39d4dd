"""A run's figures, for the record and for what would have been: the same counts from the same kind of log."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.samples import US_PER_S, admit, decode_batch
from elasticgrid.core.scaling import AppliedChange
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.review.costs import CostLedger
from elasticgrid.review.summary import summarise

#: A voluntary change against the one before within this time is a reversal.
REVERSAL_MS: Final = 1_800_000
_HOUR_MS: Final = 3_600_000
#: At this price an hour a node costs one micro-dollar a millisecond: a ledger of it counts time.
_COUNTING_PRICE: Final = _HOUR_MS


class SizeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of size that took effect. `voluntary`: decided by a rule, not the answer to a loss."""

    time_ms: int
    from_nodes: int
    to_nodes: int
    voluntary: bool


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's run came to.

    Attributes:
        phase: where the job stood at the end of the log.
        node_ms: time of all nodes together, each from its launch until it was gone.
        finished_ms: when it ended; None when it had not.
        deadline: `none`, `met`, `missed`, or `open` while it may still be either.
        changes: voluntary changes of size that took effect; `reversals` those against the one before within 30 min.
        steps: the committed line's last step; `lost_steps` ran but were not kept.
        tokens: of the steps, each as it ran last.
        queue_s: how long steps waited for a worker, the mean over ranks, summed up.

    The last three are None when the samples that tell them are not all there.
    """

    phase: str
    cost_microdollars: int
    node_ms: int
    finished_ms: int | None
    deadline: str
    changes: int
    reversals: int
    steps: int
    lost_steps: int | None
    tokens: int | None
    queue_s: float | None
    history: tuple[SizeChange, ...]


class _Tally:
    """One job's events."""

    def __init__(self) -> None:
        self.cost = CostLedger()
        self.time = CostLedger()
        self.last: AppliedChange | None = None
        self.history: list[SizeChange] = []
        self.workers: dict[int, int] = {}
        self.queue_us = 0
        #: Of each step the round that took it last, and its tokens there.
        self.tokens: dict[int, tuple[int, int]] = {}
        self.records: list[ev.Recorded] = []
        self.messages: list[SampleMessage] = []

    def take(self, recorded: ev.Recorded, data: ev.EventData) -> None:
        self.records.append(recorded)
        recorded_ms = recorded.recorded_ms
        self.cost.observe(data, recorded_ms)
        if isinstance(data, ev.LaunchRequested):
            data = msgspec.structs.replace(data, price_microdollars_per_hour=_COUNTING_PRICE)
        self.time.observe(data, recorded_ms)
        if isinstance(data, ev.WorldDecided):
            self.workers[data.round] = data.world_size

    def applied(self, change: AppliedChange) -> None:
        if change is self.last:
            return
        self.last = change
        if change.from_nodes != change.to_nodes:
            self.history.append(
                SizeChange(
                    time_ms=change.applied_ms,
                    from_nodes=change.from_nodes,
                    to_nodes=change.to_nodes,
                    voluntary=change.voluntary,
                )
            )

    def sample(self, message: SampleMessage) -> None:
        self.messages.append(message)
        batch = decode_batch(message.data)
        if isinstance(batch, str) or batch.round not in self.workers:
            return
        for sample in batch.samples:
            admitted = admit(batch, sample)
            if not isinstance(admitted, str):
                self.queue_us += admitted.queue_us // self.workers[batch.round]
                taken_by, tokens = self.tokens.get(sample.step, (0, 0))
                if batch.round >= taken_by:
                    tokens = sample.tokens + (tokens if batch.round == taken_by else 0)
                    self.tokens[sample.step] = (batch.round, tokens)


def figures(
    records: Iterable[ev.Recorded],
    samples: Iterable[SampleMessage],
    jobs: Iterable[JobKey],
    *,
    end_ms: int,
    untold: Container[JobKey] = (),
) -> dict[JobKey, Figures]:
    """The figures of these jobs.

    Args:
        end_ms: until when nodes that still run cost something.
        untold: jobs whose samples are not all there.
    """
    tallies = {key: _Tally() for key in jobs}
    fold = GridFold(memory=1)
    for recorded in records:
        key = fold.apply(recorded)
        tally = tallies.get(key) if key is not None else None
        if key is None or tally is None or not isinstance(recorded.event, ev.Event):
            continue
        tally.take(recorded, recorded.event.data)
        state = fold.job(key)
        if state is not None and state.changes:
            tally.applied(state.changes[-1])
    for message in samples:
        tally = tallies.get(parse_sample_subject(message.subject) or ("", ""))
        if tally is not None:
            tally.sample(message)
    return {key: _figures(fold, key, tally, end_ms, told=key not in untold) for key, tally in tallies.items()}


def _figures(fold: GridFold, key: JobKey, tally: _Tally, end_ms: int, *, told: bool) -> Figures:
    state = fold.job(key)
    assert state is not None
    summary = summarise(tally.records, tally.messages, job=key)
    until_ms = state.finished_ms or end_ms
    voluntary = [each for each in tally.history if each.voluntary]
    return Figures(
        phase=state.phase,
        cost_microdollars=tally.cost.total_microdollars(until_ms),
        node_ms=tally.time.total_microdollars(until_ms),
        finished_ms=state.finished_ms or None,
        deadline=_deadline(state.spec.deadline_ms if state.spec is not None else None, state.finished_ms, end_ms),
        changes=len(voluntary),
        reversals=sum(
            1
            for before, after in pairwise(voluntary)
            if (after.to_nodes > after.from_nodes) != (before.to_nodes > before.from_nodes)
            and after.time_ms - before.time_ms < REVERSAL_MS
        ),
        steps=summary.steps,
        lost_steps=(summary.lost_steps or 0) if told else None,
        tokens=sum(tokens for step, (_, tokens) in tally.tokens.items() if step <= summary.steps) if told else None,
        queue_s=tally.queue_us / US_PER_S if told else None,
        history=tuple(tally.history),
    )


def _deadline(deadline_ms: int | None, finished_ms: int, end_ms: int) -> str:
    if deadline_ms is None:
        return "none"
    if (finished_ms or end_ms) > deadline_ms:
        return "missed"
    return "met" if finished_ms else "open"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Values are numbers in `unit`, words, or None where there is none."""

    figure: str
    unit: str
    recorded: Any
    what_if: Any
    extrapolated: bool


def compare(
    recorded: Figures, what_if: Figures | None, submitted_ms: int, *, extrapolated: bool
) -> tuple[Comparison, ...]:
    """The table: the record against what would have been; None when that cannot be told."""

    def lasted_s(run: Figures) -> float | None:
        return (run.finished_ms - submitted_ms) / 1_000 if run.finished_ms is not None else None

    lines = (
        ("cost", "USD", lambda run: run.cost_microdollars / 1e6),
        ("node-hours", "h", lambda run: run.node_ms / _HOUR_MS),
        ("finished after", "s", lasted_s),
        ("outcome", "", lambda run: run.phase),
        ("deadline", "", lambda run: run.deadline),
        ("steps", "", lambda run: run.steps),
        ("changes", "", lambda run: run.changes),
        ("reversals", "", lambda run: run.reversals),
        ("lost steps", "", lambda run: run.lost_steps),
        ("tokens", "", lambda run: run.tokens),
        ("queue time", "s", lambda run: run.queue_s),
    )
    return tuple(
        Comparison(
            figure=name,
            unit=unit,
            recorded=value(recorded),
            what_if=value(what_if) if what_if is not None else None,
            extrapolated=extrapolated,
        )
        for name, unit, value in lines
    )
