"""Every version of the policy that a log may hold: decisions are re-taken by the one they were taken under."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from elasticgrid.core.decider import Decision, Reading, decide, decision_events
from elasticgrid.core.events import Event, Signals
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.job import JobState
from elasticgrid.core.scaling import POLICY_NAME, POLICY_VERSION

Decide: TypeAlias = Callable[[JobState, FleetState, Signals, int], Decision]
MakeEvents: TypeAlias = Callable[[JobState, Decision, int, Reading], list[Event]]


class DeciderVersion(msgspec.Struct, frozen=True):
    """One version: how it decides, and how its decisions become events."""

    decide: Decide
    decision_events: MakeEvents


CURRENT: Final = (POLICY_NAME, POLICY_VERSION)
#: By (policy, policy_version). A version that ever wrote a log stays.
DECIDERS: Final[dict[tuple[str, int], DeciderVersion]] = {
    ("elasticgrid", 1): DeciderVersion(decide, decision_events),
}
