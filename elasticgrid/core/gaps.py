"""Gaps in a round's samples: they came, then none did for long, then they came again.

What counts is when the log's server stored the messages, never a worker's clock. The steps that complete right behind a
gap tell what it was: many, if they were taken meanwhile and arrive late, or one that lasted for most of it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from elasticgrid.core.events import GapCause, GapDecided, Signals

#: Without a sample for less than this there is no gap, however short the steps are.
FLOOR_MS: Final = 300_000
#: So many times the usual step is no slow step any more.
STEPS: Final = 10
#: Steps that are completed so soon behind a gap belong to it; those behind them are evidence again.
SETTLE_MS: Final = 10_000


class Gap(msgspec.Struct, frozen=True):
    """The last gap of a round.

    Attributes:
        from_ms, until_ms: server time of the last sample before it and of the first one after it.
        threshold_ms: longer than this it had to be.
        steps, work_us, longest_us: steps completed within `SETTLE_MS` behind it: how many, how long they took together,
            and the longest.
        fresh_steps: completed steps after that, warm-up left out; `fresh_ms` server time of the first of them.
    """

    from_ms: int
    until_ms: int
    threshold_ms: int
    steps: int = 0
    work_us: int = 0
    longest_us: int = 0
    fresh_steps: int = 0
    fresh_ms: int = 0


def gap_between(from_ms: int, until_ms: int, usual_us: int) -> Gap | None:
    """The gap between two samples that follow each other; None when it is too short to be one.

    Args:
        usual_us: how long a step of the round takes.
    """
    threshold_ms = max(FLOOR_MS, STEPS * usual_us // 1_000)
    return Gap(from_ms, until_ms, threshold_ms) if until_ms - from_ms > threshold_ms else None


def with_step(gap: Gap, duration_us: int, server_ms: int, *, warmup: bool) -> Gap:
    """The gap after one more completed step behind it."""
    if server_ms <= gap.until_ms + SETTLE_MS:
        return replace(
            gap,
            steps=gap.steps + 1,
            work_us=gap.work_us + duration_us,
            longest_us=max(gap.longest_us, duration_us),
        )
    if warmup:
        return gap
    return replace(gap, fresh_steps=gap.fresh_steps + 1, fresh_ms=gap.fresh_ms if gap.fresh_steps else server_ms)


def without_gap(signals: Signals) -> Signals:
    """The signals as if no gap had been noted in them."""
    if not signals.gap_until_ms:
        return signals
    return replace(
        signals, gap_from_ms=0, gap_until_ms=0, gap_threshold_ms=0, gap_steps=0, gap_work_us=0, gap_longest_us=0
    )


def gap_cause(signals: Signals, stuck_ms: int) -> GapCause:
    """What the gap in the signals was, by what is on record.

    Args:
        stuck_ms: when a node last said that its workers were stuck; 0 when none did.
    """
    half_us = (signals.gap_until_ms - signals.gap_from_ms) * 1_000 // 2
    if signals.gap_longest_us >= half_us:
        return "long_step"
    if signals.gap_work_us >= half_us:
        return "late"
    if signals.gap_from_ms <= stuck_ms <= signals.gap_until_ms + SETTLE_MS:
        return "stuck"
    return "unknown"


_CAUSES: Final[dict[GapCause, str]] = {
    "late": "steps were taken meanwhile and their samples came later",
    "long_step": "one step lasted for most of it",
    "stuck": "a node said that its workers were stuck",
    "unknown": "nothing on record says why",
}


def cause_text(gap: GapDecided) -> str:
    """The cause of a gap in a sentence, with what it was judged by."""
    says = _CAUSES[gap.cause]
    if gap.cause == "late":
        return f"{says}: {gap.steps} steps of {gap.work_us / 1e6:.0f} s together"
    if gap.cause == "long_step":
        return f"{says}: {gap.longest_step_us / 1e6:.0f} s"
    return says
