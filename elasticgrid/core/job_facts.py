"""How facts of the launcher and of the agents change a job: the other half of its fold.

A fact about a node or launch that the job does not know, or one that comes a second time, is a stray: counted, no more.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.failures import is_device_error
from elasticgrid.core.job import GONE, JobState, LaunchStatus, NodeState, NodeStatus, node_charge
from elasticgrid.core.job_failures import (
    DISRUPTION_MS,
    Blame,
    charged,
    device_failed,
    health_counted,
    is_ambiguous,
    reclassified,
)
from elasticgrid.core.job_parts import Parts
from elasticgrid.core.scaling import AppliedChange
from elasticgrid.core.worker_exits import message_of

#: Applied changes that are remembered: more than can fall into the longest time a rule looks back.
MAX_CHANGES = 64

# --------------------------------------------------------------------------------------------------------------------
# Facts of the launcher
# --------------------------------------------------------------------------------------------------------------------

_LAUNCH_ORDER: Final[dict[LaunchStatus, int]] = {
    "planned": 0,
    "requested": 1,
    "started": 2,
    "stop_requested": 3,
    "failed": 4,
    "stopped": 4,
}


def _launch_moves(state: JobState, attempt: str, status: LaunchStatus, **changes: Any) -> JobState | None:
    """The state with the launch one or more steps further on; None for an unknown launch or a step back."""
    launch = state.launches.get(attempt)
    if launch is None or _LAUNCH_ORDER[status] <= _LAUNCH_ORDER[launch.status]:
        return None
    return replace(state, launches=state.launches.with_part(attempt, replace(launch, status=status, **changes)))


def _stray(state: JobState) -> JobState:
    return replace(state, strays=state.strays + 1)


def _launch_requested(state: JobState, data: ev.LaunchRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _launch_moves(state, data.attempt, "requested")
    return _stray(state) if moved is None else moved


def _launch_started(state: JobState, data: ev.LaunchStarted, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _launch_moves(state, data.attempt, "started", handle=data.handle)
    if moved is None:
        moved = _started_late(state, data)
    if moved is None:
        return _stray(state)
    nodes = moved.nodes.present.copy()
    for name in moved.launches[data.attempt].nodes:
        node = moved.nodes[name]
        if not node.charged_from_ms and node.status not in GONE:
            nodes[name] = replace(node, charged_from_ms=recorded.recorded_ms)
    return replace(moved, nodes=Parts(nodes, moved.nodes.past))


def _started_late(state: JobState, data: ev.LaunchStarted) -> JobState | None:
    """A launch whose stop was asked for while it was being made: it will be stopped, and costs until it is."""
    launch = state.launches.get(data.attempt)
    if launch is None or launch.status != "stop_requested" or launch.handle:
        return None
    return replace(state, launches=state.launches.with_part(launch.id, replace(launch, handle=data.handle)))


def _launch_failed(state: JobState, data: ev.LaunchFailed, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _launch_moves(state, data.attempt, "failed", failure=data.failure)
    if moved is None:
        return _stray(state)
    for node in moved.launches[data.attempt].nodes:
        moved = _gone(moved, node, "lost", recorded.recorded_ms)
    if data.failure == "invalid":
        return replace(moved, failure_text=data.text or "the launch was refused as invalid")
    return moved


def _launch_stop_requested(
    state: JobState, data: ev.LaunchStopRequested, recorded: ev.Recorded, event: ev.Event
) -> JobState:
    moved = _launch_moves(state, data.attempt, "stop_requested")
    return _stray(state) if moved is None else moved


def _launch_stopped(state: JobState, data: ev.LaunchStopped, recorded: ev.Recorded, event: ev.Event) -> JobState:
    moved = _launch_moves(state, data.attempt, "stopped")
    if moved is None:
        return _stray(state)
    for node in moved.launches[data.attempt].nodes:
        moved = _gone(moved, node, "lost" if moved.nodes[node].status != "leaving" else "left", recorded.recorded_ms)
    return moved


def _node_lost(state: JobState, data: ev.NodeLost, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = state.nodes.get(data.node)
    if node is None or node.status in GONE:
        return _stray(state)
    lost = _gone(state, data.node, "lost", recorded.recorded_ms)
    return lost if node.status == "leaving" else _member_gone(state, lost, node, f"{data.node} was lost", recorded)


def _member_gone(before: JobState, after: JobState, node: NodeState, text: str, recorded: ev.Recorded) -> JobState:
    """The job after a node of its round went without having been told to.

    One that had given notice is no failure, and a second one of the same round is none either. What was blamed on the
    application just before is not, after all.
    """
    if node.id not in before.member_nodes:
        return after
    after = reclassified(after, before.round, at_ms=recorded.recorded_ms, text=text)
    if before.phase != "running" or node.notice_ms or _round_failed(before):
        return after
    return charged(after, "infra_failed", at_ms=recorded.recorded_ms, text=text)


def _gone(state: JobState, node_id: str, status: NodeStatus, at_ms: int) -> JobState:
    node = state.nodes[node_id]
    if node.status in GONE:
        return state
    spent = node_charge(state, node, at_ms) if node.charged_from_ms else 0
    nodes = state.nodes.with_part(node_id, replace(node, status=status))
    return replace(state, nodes=nodes, spent_microdollars=state.spent_microdollars + spent)


# --------------------------------------------------------------------------------------------------------------------
# Facts of the agents
# --------------------------------------------------------------------------------------------------------------------


def _with_node(state: JobState, node: NodeState) -> JobState:
    return replace(state, nodes=state.nodes.with_part(node.id, node))


def _known(state: JobState, node_id: str) -> NodeState | None:
    node = state.nodes.present.get(node_id)
    return None if node is None or node.status in GONE else node


def _joined(state: JobState, data: ev.NodeJoined, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None or node.joined_sequence:
        return _stray(state)
    joined = replace(
        node,
        status="joined" if node.status == "planned" else node.status,
        host=data.host,
        free_port=data.free_port,
        joined_sequence=recorded.sequence,
        charged_from_ms=node.charged_from_ms or recorded.recorded_ms,
    )
    return _with_node(state, joined)


def _started(state: JobState, data: ev.NodeStarted, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None:
        return _stray(state)
    after = _with_node(state, replace(node, started_round=data.round, last_step=max(node.last_step, data.step)))
    if data.round != state.round or state.round_active_ms or state.phase != "running":
        return after
    present = after.nodes.present
    for member in state.members:
        each = present.get(member.node)
        if each is None or each.started_round != state.round:
            return after
    return _round_active(after, recorded.recorded_ms)


def _round_active(state: JobState, at_ms: int) -> JobState:
    """Every member of the round has taken a step: a change of size, if this was one, has taken effect."""
    if state.round == 1:
        return replace(state, round_active_ms=at_ms)
    change = AppliedChange(
        applied_ms=at_ms,
        from_nodes=state.previous_nodes,
        to_nodes=len(state.members),
        restart_ms=max(at_ms - state.drain_ms, 0),
        voluntary=state.drain_reason == "resize",
    )
    return replace(state, round_active_ms=at_ms, changes=(*state.changes[-(MAX_CHANGES - 1) :], change))


def _checkpointed(state: JobState, data: ev.NodeCheckpointed, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if data.round != state.round or _known(state, data.node) is None:
        return _stray(state)
    if state.checkpoint is not None and data.checkpoint.step <= state.checkpoint.step:
        return state
    return replace(state, checkpoint=data.checkpoint)


def _reported(state: JobState, data: ev.NodeDrained | ev.NodeFinished | ev.NodeFailed, node: NodeState) -> JobState:
    """The job after a node's workers ended: the node as it is now, and the samples they say that they had."""
    return replace(
        state,
        nodes=state.nodes.with_part(node.id, node),
        samples_published=state.samples_published + data.samples_published,
        samples_dropped=state.samples_dropped + data.samples_dropped,
    )


def _drained(state: JobState, data: ev.NodeDrained, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None or data.round <= node.drained_round:
        return _stray(state)
    last_step = max(node.last_step, data.last_step)
    drained = replace(node, drained_round=data.round, last_step=last_step, free_port=data.free_port)
    return _reported(state, data, drained)


def _finished(state: JobState, data: ev.NodeFinished, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None or data.round <= node.finished_round:
        return _stray(state)
    finished = replace(
        node,
        finished_round=data.round,
        drained_round=data.round,
        last_step=max(node.last_step, data.last_step),
        free_port=data.free_port or node.free_port,
    )
    return _reported(state, data, finished)


def _failed(state: JobState, data: ev.NodeFailed, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None or data.round <= node.failed_round:
        return _stray(state)
    failed = replace(
        node,
        failed_round=data.round,
        drained_round=data.round,
        last_step=max(node.last_step, data.last_step),
        free_port=data.free_port,
    )
    after = _reported(state, data, failed)
    if data.round != state.round or state.phase != "running" or _round_failed(state):
        # What breaks because another rank of the round broke first is no second failure.
        return after
    exits = data.exits[0] if data.exits else ev.WorkerExit(rank=-1, code=0)
    text = f"rank {exits.rank} on {data.node} ended with {_exit_text(exits.code)} in round {data.round}"
    # Decisions repeat this text: what was recorded before there were states is told as it was then.
    said = message_of(exits) if exits.state else (exits.message or exits.last_lines).strip().rsplit("\n", 1)[-1]
    text += f": {said[:MAX_FAILURE_TEXT]}" if said else ""
    if data.failure == "infra_failed" and is_device_error((exits.message, exits.last_lines)):
        return device_failed(after, after.nodes[node.id], at_ms=recorded.recorded_ms, text=text)
    on_spot = state.launches[node.assignment].market == "spot"
    blame: Blame = (
        "app_failed" if data.failure == "app_failed" and not _noticed_lately(state, recorded) else "infra_failed"
    )
    return charged(
        after, blame, at_ms=recorded.recorded_ms, text=text, open_to_notice=is_ambiguous(data, on_spot=on_spot)
    )


def _noticed_lately(state: JobState, recorded: ev.Recorded) -> bool:
    """Whether a member of the round gave notice just before: its workers' end breaks those of the others."""
    notices = [node.notice_ms for node in state.nodes.named(state.member_nodes)]
    return any(notice_ms and recorded.recorded_ms - notice_ms <= DISRUPTION_MS for notice_ms in notices)


def _round_failed(state: JobState) -> bool:
    members = state.nodes.named(state.member_nodes)
    return any(node.failed_round == state.round or node.status in GONE for node in members)


#: Of a worker's last line, what a job's failure text repeats.
MAX_FAILURE_TEXT: Final = 300


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _left(state: JobState, data: ev.NodeLeft, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None:
        return _stray(state)
    left = _gone(state, data.node, "left", recorded.recorded_ms)
    if node.status != "joined":
        return left
    return _member_gone(state, left, node, f"{data.node} left: {data.reason}", recorded)


def _preemption_notice(
    state: JobState, data: ev.NodePreemptionNotice, recorded: ev.Recorded, event: ev.Event
) -> JobState:
    node = _known(state, data.node)
    return _stray(state) if node is None else _noticed(state, node, data.deadline_ms, recorded)


def _noticed(state: JobState, node: NodeState, deadline_ms: int, recorded: ev.Recorded) -> JobState:
    """The job once it is known that the node will be taken away."""
    deadlines = [each for each in (node.notice_deadline_ms, deadline_ms) if each > 0]
    noticed = replace(
        node, notice_ms=node.notice_ms or recorded.recorded_ms, notice_deadline_ms=min(deadlines, default=0)
    )
    after = _with_node(state, noticed)
    if node.id not in state.member_nodes:
        return after
    return reclassified(after, state.round, at_ms=recorded.recorded_ms, text=f"{node.id} is being taken away")


def _interrupted(state: JobState, data: ev.JobInterruptRequested, recorded: ev.Recorded, event: ev.Event) -> JobState:
    """As if each of these nodes had given notice itself."""
    for name in data.nodes:
        node = _known(state, name)
        if node is not None:
            state = _noticed(state, node, data.deadline_ms, recorded)
    return state


def _reclassified(state: JobState, data: ev.NodeReclassified, recorded: ev.Recorded, event: ev.Event) -> JobState:
    node = _known(state, data.node)
    if node is None or node.failed_round < data.round:
        return _stray(state)
    if data.failure != "infra_failed":
        return state
    return reclassified(state, data.round, at_ms=recorded.recorded_ms, text=data.text)


def _stuck(state: JobState, data: ev.NodeStuck, recorded: ev.Recorded, event: ev.Event) -> JobState:
    if _known(state, data.node) is None:
        return _stray(state)
    if data.round != state.round or state.phase != "running" or _round_failed(state):
        return state
    if state.stuck:
        return replace(state, stuck_ms=recorded.recorded_ms)
    text = f"{data.node} is stuck after step {data.last_step} of round {data.round}"
    text += f": {data.detail}" if data.detail else ""
    after = replace(state, stuck=text, stuck_ms=recorded.recorded_ms)
    assert state.spec is not None
    if state.spec.on_stuck == "tell":
        return after
    if state.spec.on_stuck == "fail":
        return replace(after, failure_text=text)
    after = health_counted(after, data.since_ms)
    return charged(after, "infra_failed", at_ms=recorded.recorded_ms, text=text)


#: What each fact does to the job's state.
FACT_HANDLERS: Final[dict[type[Any], Any]] = {
    ev.LaunchRequested: _launch_requested,
    ev.LaunchStarted: _launch_started,
    ev.LaunchFailed: _launch_failed,
    ev.LaunchStopRequested: _launch_stop_requested,
    ev.LaunchStopped: _launch_stopped,
    ev.NodeLost: _node_lost,
    ev.NodeJoined: _joined,
    ev.NodeStarted: _started,
    ev.NodeCheckpointed: _checkpointed,
    ev.NodeDrained: _drained,
    ev.NodeFinished: _finished,
    ev.NodeFailed: _failed,
    ev.NodeLeft: _left,
    ev.NodePreemptionNotice: _preemption_notice,
    ev.JobInterruptRequested: _interrupted,
    ev.NodeReclassified: _reclassified,
    ev.NodeStuck: _stuck,
}
