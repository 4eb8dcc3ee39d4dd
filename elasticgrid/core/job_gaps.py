"""Which gap in a job's samples has to be put on record."""

from __future__ import annotations

from elasticgrid.core import events as ev
from elasticgrid.core.gaps import SETTLE_MS, gap_cause
from elasticgrid.core.job import JobState


def gap_to_record(state: JobState, signals: ev.Signals, as_of_ms: int) -> ev.GapDecided | None:
    """The gap that the signals tell of, once all that its cause is judged by may be there; None when it is on record.

    A gap that overlaps one on record is the same: a server that crashed may have lost the sample that had ended it.
    """
    if state.phase != "running" or not signals.gap_until_ms or signals.round != state.round:
        return None
    if signals.gap_from_ms < state.gap_until_ms or as_of_ms <= signals.gap_until_ms + SETTLE_MS:
        return None
    return ev.GapDecided(
        round=signals.round,
        from_ms=signals.gap_from_ms,
        until_ms=signals.gap_until_ms,
        threshold_ms=signals.gap_threshold_ms,
        cause=gap_cause(signals, state.stuck_ms),
        steps=signals.gap_steps,
        work_us=signals.gap_work_us,
        longest_step_us=signals.gap_longest_us,
        signals=signals,
    )
