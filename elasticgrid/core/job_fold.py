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
from elasticgrid.core.scaling import Measured
from elasticgrid.core.spec import PPM

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
    if isinstance(event, ev.UnknownEvent):
        return replace(state, sequence=recorded.sequence, unknown_type=event.type)
    handler = _HANDLERS.get(type(event.data))
    if handler is None:
        return state
    if state.spec is None and not isinstance(event.data, ev.JobSubmitted):
        return _illegal(state, recorded, event, "the job was never submitted")
    if event.basis is not None and event.basis.number <= state.decisions and not _same_batch(state, event):
        return _illegal(state, recorded, event, f"decision {event.basis.number} is already there")
    after: JobState = handler(state, event.data, recorded, event)
    if after is state:
        after = replace(state)
    # Nobody else has this copy yet, so it may still be written to: much quicker than copying all fields once more.
    force_setattr(after, "sequence", recorded.sequence)
    force_setattr(after, "last_event_id", event.id)
    force_setattr(after, "last_event_ms", recorded.recorded_ms)
    if event.basis is not None:
        same = event.basis.number == state.decisions
        force_setattr(after, "decision_ids", (*state.decision_ids, event.id) if same else (event.id,))
        force_setattr(after, "decisions", event.basis.number)
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


def _move(state: JobState, event: ev.Event, recorded: ev.Recorded, to: Phase) -> JobState | None:
    """The state in phase `to`, or None when the transition is not legal."""
    if to not in TRANSITIONS[state.phase].get(ev.type_of(event.data), ()):
        return None
    return replace(state, phase=to)


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
    adds = any(line.action == "add" for line in data.assignments)
    to: Phase = "starting" if state.phase == "submitted" and adds else state.phase
    moved = _move(state, event, recorded, to)
    if moved is None:
        return _refuse(state, recorded, event)
    launches = dict(moved.launches)
    nodes = dict(moved.nodes)
    for line in data.assignments:
        if line.action == "add" and line.id not in launches:
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
        moved,
        launches=launches,
        nodes=nodes,
        target_nodes=data.placed_nodes,
        last_placement=data,
        placement_ms=recorded.recorded_ms,
    )


def _given_up(launch: LaunchState, nodes: dict[str, NodeState], at_ms: int) -> LaunchState:
    """The launch, released if none of its nodes is wanted any more."""
    if launch.released_ms or any(nodes[node].status in ("planned", "joined") for node in launch.nodes):
        return launch
    return replace(launch, released_ms=at_ms)


def _drain(state: JobState, data: ev.DrainDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    ending = ENDINGS.get(data.reason)
    ends_round = data.round == state.round
    to: Phase = "ending" if ending else "draining" if state.phase == "running" and ends_round else state.phase
    moved = _move(state, event, recorded, to)
    if moved is None:
        return _refuse(state, recorded, event)
    nodes = dict(moved.nodes)
    for node in data.leaving:
        if node in nodes and nodes[node].status not in GONE:
            nodes[node] = replace(nodes[node], status="leaving")
    released = {each.id: _given_up(each, nodes, recorded.recorded_ms) for each in moved.launches.values()}
    moved = replace(moved, nodes=nodes, launches=released if data.leaving else moved.launches)
    if not ends_round and not ending:
        return moved
    moved = health_counted(moved, recorded.recorded_ms)
    return replace(
        moved,
        drain_ms=recorded.recorded_ms,
        drain_reason=data.reason,
        drain_grace_ms=data.grace_ms,
        ending=ending or moved.ending,
        ending_reason=_ending_reason(moved, ending),
    )


def _ending_reason(state: JobState, ending: ev.Outcome | None) -> str:
    if ending == "cancelled":
        return state.cancel_requested or ""
    spent = budget_spent(state) if ending == "failed" else ""
    return "; ".join(part for part in (state.failure_text, spent) if part)


def _world(state: JobState, data: ev.WorldDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _move(state, event, recorded, "running")
    known = all(member.node in state.nodes for member in data.members)
    if moved is None or data.round <= state.round or not known:
        return _refuse(state, recorded, event)
    return replace(
        moved,
        round=data.round,
        members=data.members,
        previous_nodes=len(state.members),
        round_samples_after=event.basis.samples_through if event.basis is not None else 0,
        round_decided_ms=recorded.recorded_ms,
        round_active_ms=0,
        stuck="",
    )


def _outcome(state: JobState, data: ev.OutcomeDecided, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _move(state, event, recorded, data.outcome)
    if moved is None:
        return _refuse(state, recorded, event)
    return replace(moved, finished_ms=recorded.recorded_ms, ending=data.outcome, ending_reason=data.reason)


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
    **FACT_HANDLERS,
}
