"""The fold of a job: `evolve`, and which phase may follow which.

The state is a fold over the job's events and nothing else. An event that the state does not allow is counted and
changes nothing, so that one bad event never takes a job, or another job, with it.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import force_setattr, replace

from elasticgrid.core import events as ev
from elasticgrid.core.job import GONE, JobState, LaunchState, NodeState, Phase
from elasticgrid.core.job_facts import FACT_HANDLERS
from elasticgrid.core.job_failures import budget_spent, health_counted
from elasticgrid.core.job_parts import Parts
from elasticgrid.core.scaling import Measured
from elasticgrid.core.spec import PPM

#: So many nodes are there besides a round's before it is looked which of them are gone for ever.
SETTLED_AT_ONCE: Final = 8

#: Reasons of a drain after which the job is over, and how.
ENDINGS: Final[dict[str, ev.Outcome]] = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}

#: phase -> event type -> the phases that may follow. What is not here is illegal.
TRANSITIONS: Final[dict[Phase, dict[str, tuple[Phase, ...]]]] = {
    "submitted": {
        "decision.placement": ("submitted", "starting"),
        "decision.drain": ("ending",),
    },
    "starting": {
        "decision.placement": ("starting",),
        "decision.world": ("running",),
        "decision.drain": ("starting", "ending"),
    },
    "running": {
        "decision.placement": ("running",),
        "decision.drain": ("running", "draining", "ending"),
        "decision.gap": ("running",),
    },
    "draining": {
        "decision.placement": ("draining",),
        "decision.drain": ("draining", "ending"),
        "decision.world": ("running",),
    },
    "ending": {
        "decision.placement": ("ending",),
        "decision.drain": ("ending",),
        "decision.outcome": ("completed", "failed", "cancelled"),
    },
    "completed": {},
    "failed": {},
    "cancelled": {},
}


def evolve(state: JobState, recorded: ev.Recorded) -> JobState:
    """The job after one more event of its own. Total: no event makes it raise."""
    event = recorded.event
    if not isinstance(event, ev.Event):
        return replace(state, sequence=recorded.sequence, unknown_type=event.type)
    data, basis = event.data, event.basis
    handler = _HANDLERS.get(type(data))
    if handler is None:
        return state
    if state.spec is None and not isinstance(data, ev.JobSubmitted):
        return _illegal(state, recorded, event, "the job was never submitted")
    if basis is not None and basis.number <= state.decisions and not _same_batch(state, event):
        return _illegal(state, recorded, event, f"decision {basis.number} is already there")
    after: JobState = handler(state, data, recorded, event)
    if after is state:
        after = replace(state)
    # Nobody else has this copy yet, so it may still be written to: much quicker than copying all fields once more.
    force_setattr(after, "sequence", recorded.sequence)
    force_setattr(after, "last_event_id", event.id)
    force_setattr(after, "last_event_ms", recorded.recorded_ms)
    if basis is not None:
        same = basis.number == state.decisions
        force_setattr(after, "decision_ids", (*state.decision_ids, event.id) if same else (event.id,))
        force_setattr(after, "decisions", basis.number)
        force_setattr(after, "decision_sequence", recorded.sequence)
    return after


def _same_batch(state: JobState, event: ev.Event) -> bool:
    """A decision's second and third event carry its number again."""
    assert event.basis is not None
    return event.basis.number == state.decisions and event.id not in state.decision_ids


def _illegal(state: JobState, recorded: ev.Recorded, event: ev.Event, why: str) -> JobState:
    changes: dict[str, Any] = {}
    if event.basis is not None:
        # A decision that changes nothing still is the last one under its subject, which the next append expects.
        changes["decision_sequence"] = recorded.sequence
    return replace(
        state,
        sequence=recorded.sequence,
        illegal=state.illegal + 1,
        last_illegal=f"{recorded.sequence} {ev.type_of(event.data)}: {why}",
        **changes,
    )


def _may_move(state: JobState, event: ev.Event, to: Phase) -> bool:
    """Whether the event may lead to phase `to`."""
    return to in TRANSITIONS[state.phase].get(ev.type_of(event.data), ())


def _refuse(state: JobState, recorded: ev.Recorded, event: ev.Event) -> JobState:
    return _illegal(state, recorded, event, f"not allowed in phase {state.phase}")


# --------------------------------------------------------------------------------------------------------------------
# Requests
# --------------------------------------------------------------------------------------------------------------------


def _submitted(state: JobState, data: ev.JobSubmitted, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if state.spec is not None:
        return _illegal(state, recorded, event, "submitted twice")
    return replace(
        state,
        spec=data.spec,
        submitted_ms=recorded.recorded_ms,
        submitted_id=event.id,
        idempotency_key=data.idempotency_key,
        metadata=data.metadata,
        band=data.spec.band,
        min_nodes=data.spec.min_nodes,
        max_nodes=data.spec.max_nodes,
    )


def _cancel(state: JobState, data: ev.JobCancelRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if state.terminal or state.cancel_requested is not None:
        return state
    return replace(state, cancel_requested=data.reason)


def _pause(state: JobState, data: ev.JobPauseRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    return state if state.terminal else replace(state, paused=data.reason or "paused")


def _resume(state: JobState, data: ev.JobResumeRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    return state if state.terminal else replace(state, paused="")


def _resize(state: JobState, data: ev.JobResizeRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if state.terminal or not 1 <= data.min_nodes <= data.max_nodes:
        return _illegal(state, recorded, event, f"bounds {data.min_nodes}..{data.max_nodes}")
    return replace(state, min_nodes=data.min_nodes, max_nodes=data.max_nodes)


def _prioritized(state: JobState, data: ev.JobPriorityRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    return state if state.terminal else replace(state, band=data.band)


# --------------------------------------------------------------------------------------------------------------------
# Decisions
# --------------------------------------------------------------------------------------------------------------------


def _scaled(state: JobState, data: ev.ScaleDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if state.terminal:
        return _refuse(state, recorded, event)
    signals = data.signals
    if not signals.steps or signals.round != state.round:
        return replace(state, last_scale=data)
    measured = dict(state.measured)
    measured[signals.nodes] = Measured(
        step_us=signals.step_us,
        tokens=signals.tokens,
        window_us=signals.window_us,
        busy_us=signals.busy_us,
        queue_bound=bool(signals.step_us)
        and state.spec is not None
        and signals.queue_us * PPM >= state.spec.scaling.target_queue_ppm * signals.step_us,
    )
    return replace(state, last_scale=data, measured=measured)


def _placed(state: JobState, data: ev.PlacementDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    to = state.phase
    if to == "submitted" and any(line.action == "add" for line in data.assignments):
        to = "starting"
    if not _may_move(state, event, to):
        return _refuse(state, recorded, event)
    launches = state.launches.present.copy()
    nodes = state.nodes.present.copy()
    for line in data.assignments:
        if line.action == "add" and line.id not in launches and line.id not in state.launches.past:
            ids = tuple(f"{line.id}-{index}" for index in range(line.nodes))
            launches[line.id] = LaunchState(
                id=line.id,
                provider=line.provider,
                nodes=ids,
                price_microdollars_per_hour=line.price_microdollars_per_hour,
                market=line.market,
                placed_ms=recorded.recorded_ms,
            )
            for node in ids:
                nodes[node] = NodeState(id=node, assignment=line.id, provider=line.provider)
        elif line.action == "drop":
            for node in line.leaving:
                if node in nodes and nodes[node].status not in GONE:
                    nodes[node] = replace(nodes[node], status="leaving")
            if line.id in launches:
                launches[line.id] = _given_up(launches[line.id], nodes, recorded.recorded_ms)
    return replace(
        state,
        phase=to,
        launches=Parts(launches, state.launches.past),
        nodes=Parts(nodes, state.nodes.past),
        target_nodes=data.placed_nodes,
        last_placement=data,
        placement_ms=recorded.recorded_ms,
    )


def _given_up(launch: LaunchState, nodes: dict[str, NodeState], at_ms: int) -> LaunchState:
    """The launch, released if none of its nodes is wanted any more.

    Args:
        nodes: those of the job that may still change; of the others none is wanted.
    """
    if launch.released_ms:
        return launch
    for node in launch.nodes:
        if node in nodes and nodes[node].status in ("planned", "joined"):
            return launch
    return replace(launch, released_ms=at_ms)


def _drain(state: JobState, data: ev.DrainDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    ending = ENDINGS.get(data.reason)
    ends_round = data.round == state.round
    to: Phase = "ending" if ending else "draining" if state.phase == "running" and ends_round else state.phase
    if not _may_move(state, event, to):
        return _refuse(state, recorded, event)
    nodes = state.nodes.present.copy()
    for node in data.leaving:
        if node in nodes and nodes[node].status not in GONE:
            nodes[node] = replace(nodes[node], status="leaving")
    launches = state.launches
    if data.leaving:
        present = {
            name: each if each.released_ms else _given_up(each, nodes, recorded.recorded_ms)
            for name, each in launches.present.items()
        }
        launches = Parts(present, launches.past)
    if not ends_round and not ending:
        return replace(state, phase=to, nodes=Parts(nodes, state.nodes.past), launches=launches)
    moved = health_counted(state, recorded.recorded_ms)
    return replace(
        moved,
        phase=to,
        nodes=Parts(nodes, state.nodes.past),
        launches=launches,
        drain_ms=recorded.recorded_ms,
        drain_reason=data.reason,
        drain_grace_ms=data.grace_ms,
        ending=ending or moved.ending,
        ending_reason=_ending_reason(moved, ending),
    )


def _ending_reason(state: JobState, ending: ev.Outcome | None) -> str:
    if ending is None:
        return state.failure_text
    if ending == "cancelled":
        return state.cancel_requested or ""
    spent = budget_spent(state) if ending == "failed" else ""
    return "; ".join(part for part in (state.failure_text, spent) if part)


def _world(state: JobState, data: ev.WorldDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    known = all(member.node in state.nodes for member in data.members)
    if not _may_move(state, event, "running") or data.round <= state.round or not known:
        return _refuse(state, recorded, event)
    nodes, launches = state.nodes, state.launches
    if len(nodes.present) >= len(data.members) + SETTLED_AT_ONCE:
        members = {member.node for member in data.members}
        nodes = nodes.settled(lambda node: node.status in GONE and node.id not in members)
        launches = launches.settled(lambda launch: launch.status == "stopped" and launch.released_ms > 0)
    return replace(
        state,
        phase="running",
        nodes=nodes,
        launches=launches,
        round=data.round,
        members=data.members,
        previous_nodes=len(state.members),
        round_samples_after=event.basis.samples_through if event.basis is not None else 0,
        round_decided_ms=recorded.recorded_ms,
        round_active_ms=0,
        stuck="",
        stuck_ms=0,
        gap_until_ms=0,
    )


def _gap(state: JobState, data: ev.GapDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if not _may_move(state, event, state.phase) or data.round != state.round:
        return _refuse(state, recorded, event)
    return replace(state, gap_until_ms=data.until_ms)


def _outcome(state: JobState, data: ev.OutcomeDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if not _may_move(state, event, data.outcome):
        return _refuse(state, recorded, event)
    return replace(
        state,
        phase=data.outcome,
        finished_ms=recorded.recorded_ms,
        ending=data.outcome,
        ending_reason=data.reason,
    )


_HANDLERS: Final[dict[type[Any], Any]] = {
    ev.JobSubmitted: _submitted,
    ev.JobCancelRequested: _cancel,
    ev.JobPauseRequested: _pause,
    ev.JobResumeRequested: _resume,
    ev.JobResizeRequested: _resize,
    ev.JobPriorityRequested: _prioritized,
    ev.ScaleDecided: _scaled,
    ev.PlacementDecided: _placed,
    ev.DrainDecided: _drain,
    ev.WorldDecided: _world,
    ev.OutcomeDecided: _outcome,
    ev.GapDecided: _gap,
    **FACT_HANDLERS,
}
