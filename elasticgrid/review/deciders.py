"""Every version of the policy that a log may hold: decisions are re-taken by the one they were taken under."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from elasticgrid.core.decider import Decision, Reading, decide, decision_events
from elasticgrid.core.events import Event, Signals
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.gaps import without_gap
from elasticgrid.core.job import JobState
from elasticgrid.core.scaling import POLICY_NAME, POLICY_VERSION
from elasticgrid.core.window import Window, signals_of

Decide: TypeAlias = Callable[[JobState, FleetState, Signals, int], Decision]
MakeEvents: TypeAlias = Callable[[JobState, Decision, int, Reading], list[Event]]
ReadWindow: TypeAlias = Callable[[Window], Signals]


class DeciderVersion(msgspec.Struct, frozen=True):
    """One version: what it reads from a window, how it decides, and how its decisions become events."""

    signals_of: ReadWindow
    decide: Decide
    decision_events: MakeEvents


def _signals_of_1(window: Window) -> Signals:
    """Version 1 knew of no gaps: its evidence reached back behind them."""
    return signals_of(window if window.gap is None else msgspec.structs.replace(window, gap=None))


def _decide_1(state: JobState, fleet: FleetState, signals: Signals, as_of_ms: int) -> Decision:
    return decide(state, fleet, without_gap(signals), as_of_ms, policy_version=1)


CURRENT: Final = (POLICY_NAME, POLICY_VERSION)
#: By (policy, policy_version). A version that ever wrote a log stays.
DECIDERS: Final[dict[tuple[str, int], DeciderVersion]] = {
    ("elasticgrid", 1): DeciderVersion(_signals_of_1, _decide_1, partial(decision_events, policy_version=1)),
    ("elasticgrid", 2): DeciderVersion(signals_of, decide, decision_events),
}
