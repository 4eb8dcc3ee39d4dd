"""What the launcher has to do about a job: a pure function of the job's fold and the time.

It acts on the fold, never on one event, so an assignment that was given up before it was launched is never launched.
"""

from __future__ import annotations

import msgspec

from elasticgrid.core.job import GONE, JobState, LaunchState

#: Agents that were told to leave get this long beyond the job's grace before their launch is stopped from outside.
STOP_SLACK_MS = 15_000


class Start(msgspec.Struct, frozen=True):
    """Launch the first `nodes` nodes of this assignment."""

    launch: LaunchState
    nodes: int


class Stop(msgspec.Struct, frozen=True):
    """Stop what is left of this launch."""

    launch: LaunchState
    reason: str


def launch_actions(state: JobState, as_of_ms: int) -> tuple[Start | Stop, ...]:
    """Launches to start and to stop now, in the order they were placed."""
    if state.spec is None:
        return ()
    actions: list[Start | Stop] = []
    for launch in state.launches.present.values():
        if launch.resolved:
            continue
        if launch.status == "planned":
            if not state.terminal and state.ending is None:
                wanted = [index for index, node in enumerate(launch.nodes) if state.nodes[node].status == "planned"]
                # A node in between that is not wanted any more leaves by itself: ids follow the order of the launch.
                actions.append(Start(launch, wanted[-1] + 1))
            continue
        reason = _stop_reason(state, launch, as_of_ms)
        if reason:
            actions.append(Stop(launch, reason))
    return tuple(actions)


def never_booted(state: JobState, launch: LaunchState) -> bool:
    """Whether nobody joined in all the time the job gives its nodes. One that was given up sooner is no failure."""
    assert state.spec is not None
    if any(state.nodes[node].joined_sequence for node in launch.nodes):
        return False
    given_up_ms = launch.released_ms or (state.drain_ms if state.ending is not None else 0)
    # The decider counts by another clock than the log does: a tenth is more than they differ.
    return given_up_ms - launch.placed_ms >= state.spec.join_timeout_ms * 9 // 10


def not_joined_text(state: JobState) -> str:
    """What a launch failed of that never booted."""
    assert state.spec is not None
    return f"its agents did not join in {state.spec.join_timeout_ms / 1000:g} s"


def _stop_reason(state: JobState, launch: LaunchState, as_of_ms: int) -> str:
    assert state.spec is not None
    if all(state.nodes[node].status in GONE for node in launch.nodes):
        return "its nodes are gone"
    given_up_ms = launch.released_ms or (state.drain_ms if state.ending is not None else 0)
    if not given_up_ms:
        return ""
    if all(not state.nodes[node].joined_sequence for node in launch.nodes):
        return "given up before its nodes joined"
    if as_of_ms - given_up_ms >= state.spec.grace_ms + STOP_SLACK_MS:
        return "its nodes did not leave in time"
    return ""
