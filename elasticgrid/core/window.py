"""The window: the last completed steps of the current world, and the signals they give.

A step is completed when every rank of the round has reported it. Its duration is the slowest rank's, its queue and its
data wait are means over ranks, its tokens the sum. Which decisions are taken from a window depends on nothing but the
round's samples in the order of their sequences, so it can be rebuilt from the stream at any time.

After a gap in the round's samples its signals begin anew: what was before it says nothing of now, and the time without
samples is nobody's evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import force_setattr, replace

from elasticgrid.core.events import Signals
from elasticgrid.core.gaps import FLOOR_MS, Gap, gap_between, with_step
from elasticgrid.core.samples import AdmittedSample
from elasticgrid.core.spec import ScalingPolicy

#: Steps that may wait for their slower ranks' reports; an older one is given up when more are begun.
MAX_PENDING_STEPS = 1_024


class PendingStep(msgspec.Struct, frozen=True):
    """A step that some ranks have reported: `ranks` is the set of them as a bit mask."""

    step: int
    ranks: int
    reports: int
    slowest_us: int
    queue_us: int
    data_wait_us: int
    tokens: int


class CompletedStep(msgspec.Struct, frozen=True):
    """A step that every rank has reported. Durations are microseconds."""

    step: int
    duration_us: int
    queue_us: int
    data_wait_us: int
    tokens: int


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about one round.

    Attributes:
        size: how many completed steps are kept.
        warmup_left: completed steps still to be left out.
        pending: steps not yet reported by all ranks, by index.
        steps: the last completed steps, oldest first.
        round_steps: completed steps of the round, warm-up left out.
        first_ms, last_ms: server time of the first and the last of those.
        last_step: the highest completed step.
        clamped: samples whose queue was longer than their step.
        dropped: samples of this round that did not count: a second report of a step, or another node count.
        last_sample_ms: server time of the last sample of this round.
        warmup_us: the longest completed step of those that were left out.
        gap: the last gap in the samples of this round.
    """

    round: int
    nodes: int
    world_size: int
    size: int
    warmup_left: int
    pending: dict[int, PendingStep] = {}
    steps: tuple[CompletedStep, ...] = ()
    round_steps: int = 0
    first_ms: int = 0
    last_ms: int = 0
    last_step: int = -1
    clamped: int = 0
    dropped: int = 0
    last_sample_ms: int = 0
    warmup_us: int = 0
    gap: Gap | None = None


def open_window(round_number: int, nodes: int, world_size: int, policy: ScalingPolicy) -> Window:
    """An empty window for a round that begins."""
    return Window(
        round=round_number,
        nodes=nodes,
        world_size=world_size,
        size=policy.window_steps,
        warmup_left=policy.warmup_steps,
    )


def observe(window: Window, samples: Iterable[AdmittedSample], server_ms: int) -> Window:
    """The window after one message's samples, recorded at `server_ms`. Samples of other rounds are passed over."""
    pending = dict(window.pending)
    steps = window.steps
    round_steps, first_ms, last_ms = window.round_steps, window.first_ms, window.last_ms
    warmup_left, last_step = window.warmup_left, window.last_step
    clamped, dropped = window.clamped, window.dropped
    warmup_us, gap = window.warmup_us, window.gap
    if server_ms - window.last_sample_ms > FLOOR_MS and window.last_sample_ms:
        gap = gap_between(window.last_sample_ms, server_ms, _usual_us(window)) or gap
    seen_any = False
    for sample in samples:
        if sample.round != window.round:
            continue
        seen_any = True
        bit = 1 << sample.rank
        before = pending.get(sample.step)
        if (
            sample.nodes != window.nodes
            or sample.rank >= window.world_size
            or (before is None and sample.step <= last_step)
            or (before is not None and before.ranks & bit)
        ):
            dropped += 1
            continue
        clamped += sample.queue_clamped
        step = _merge(before, sample, bit)
        if step.reports < window.world_size:
            pending[sample.step] = step
            if len(pending) > MAX_PENDING_STEPS:
                del pending[min(pending)]
            continue
        pending.pop(sample.step, None)
        last_step = max(last_step, sample.step)
        if gap is not None:
            gap = with_step(gap, step.slowest_us, server_ms, warmup=warmup_left > 0)
        if warmup_left > 0:
            warmup_left -= 1
            warmup_us = max(warmup_us, step.slowest_us)
            continue
        completed = CompletedStep(
            step.step,
            step.slowest_us,
            step.queue_us // window.world_size,
            step.data_wait_us // window.world_size,
            step.tokens,
        )
        steps = (*steps[-(window.size - 1) :], completed)
        first_ms = first_ms if round_steps else server_ms
        last_ms = server_ms
        round_steps += 1
    if not seen_any:
        return window
    after = Window(
        round=window.round,
        nodes=window.nodes,
        world_size=window.world_size,
        size=window.size,
        warmup_left=warmup_left,
        pending=pending,
        steps=steps,
        round_steps=round_steps,
        first_ms=first_ms,
        last_ms=last_ms,
        last_step=last_step,
        clamped=clamped,
        dropped=dropped,
        last_sample_ms=max(window.last_sample_ms, server_ms),
        warmup_us=warmup_us,
    )
    if gap is not None:
        # Nobody else has this copy yet. A call with more than fifteen named arguments takes four times as long.
        force_setattr(after, "gap", gap)
    return after


def _usual_us(window: Window) -> int:
    """How long a step of the round takes: the median, or the longest that was seen as long as none has counted."""
    if window.steps:
        return median([step.duration_us for step in window.steps])
    return max([window.warmup_us, *(step.slowest_us for step in window.pending.values())])


def _merge(before: PendingStep | None, sample: AdmittedSample, bit: int) -> PendingStep:
    if before is None:
        return PendingStep(sample.step, bit, 1, sample.duration_us, sample.queue_us, sample.data_wait_us, sample.tokens)
    return PendingStep(
        before.step,
        before.ranks | bit,
        before.reports + 1,
        max(before.slowest_us, sample.duration_us),
        before.queue_us + sample.queue_us,
        before.data_wait_us + sample.data_wait_us,
        before.tokens + sample.tokens,
    )


def signals_of(window: Window) -> Signals:
    """What the window says, as values that a decision can carry."""
    steps, round_steps, first_ms, gap = window.steps, window.round_steps, window.first_ms, window.gap
    if gap is not None:
        steps = steps[len(steps) - min(gap.fresh_steps, len(steps)) :]
        round_steps, first_ms = gap.fresh_steps, gap.fresh_ms
    if not steps:
        signals = Signals(
            round=window.round,
            nodes=window.nodes,
            last_step=window.last_step,
            clamped=window.clamped,
            dropped=window.dropped,
            last_sample_ms=window.last_sample_ms,
        )
        return signals if gap is None else _with_gap(signals, gap)
    durations = [step.duration_us for step in steps]
    queues = [step.queue_us for step in steps]
    waits = [step.data_wait_us for step in steps]
    # A median is per signal and a mean rounds down, so a part may come out above its whole by a microsecond.
    step_us = median(durations)
    window_us = sum(durations)
    signals = Signals(
        round=window.round,
        nodes=window.nodes,
        steps=len(steps),
        round_steps=round_steps,
        evidence_ms=window.last_ms - first_ms,
        last_step=window.last_step,
        step_us=step_us,
        queue_us=min(median(queues), step_us),
        data_wait_us=min(median(waits), step_us),
        step_mean_us=window_us // len(steps),
        queue_mean_us=sum(queues) // len(steps),
        tokens=sum(step.tokens for step in steps),
        window_us=window_us,
        busy_us=window_us - sum(waits),
        clamped=window.clamped,
        dropped=window.dropped,
        last_sample_ms=window.last_sample_ms,
    )
    return signals if gap is None else _with_gap(signals, gap)


def _with_gap(signals: Signals, gap: Gap) -> Signals:
    return replace(
        signals,
        gap_from_ms=gap.from_ms,
        gap_until_ms=gap.until_ms,
        gap_threshold_ms=gap.threshold_ms,
        gap_steps=gap.steps,
        gap_work_us=gap.work_us,
        gap_longest_us=gap.longest_us,
    )


def median(values: list[int]) -> int:
    """The median, rounded down when it lies between two values; 0 of nothing."""
    if not values:
        return 0
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2
