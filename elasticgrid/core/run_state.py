"""A run without a grid as its log tells it: which nodes joined, which round they are in, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.names import content_digest
from elasticgrid.core.spec import OnStuck

#: Whose the runs are in a log that a grid may share: nobody else decides about a tenant of this form.
RUN_TENANT: Final = "_run"
RUN_POLICY: Final = "run"
RUN_POLICY_VERSION: Final = 1

NodeStatus = Literal["joined", "left", "lost"]


class StaticWorld(msgspec.Struct, frozen=True, kw_only=True):
    """A world that was agreed on before anything began: how many nodes, which one this is, and where rank 0 is."""

    node_rank: int
    nodes: int
    master_addr: str
    master_port: int


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes of a run have to agree on.

    Attributes:
        min_nodes, max_nodes: fewer than that do not begin, more than that do not take part.
        nproc_per_node: workers on each node.
        max_restarts: rounds that may fail by themselves before the run has failed.
        join_timeout_ms: how long a node waits for a world.
        last_call_ms: how long further nodes are waited for once there are enough.
        grace_ms: how long workers have to stop when the members change.
        on_stuck: what follows when workers live but do not get on: nothing but the fact, a new round at the cost of a
            restart, or the end of the run.
        static: the world, when it is not to be found out.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    max_restarts: int = 0
    join_timeout_ms: int = 600_000
    last_call_ms: int = 5_000
    grace_ms: int = 30_000
    on_stuck: OnStuck = "tell"
    static: StaticWorld | None = None

    @property
    def digest(self) -> str:
        """Tells apart runs of one name that are not one run. A wait is each node's own, so no wait is part of it."""
        agreed = (self.min_nodes, self.max_nodes, self.nproc_per_node, self.max_restarts, self.on_stuck)
        return content_digest(agreed)


class RunNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that joined.

    Attributes:
        joined_ms: when that was recorded; `joined_sequence` where.
        settled_round: the last round of which nothing runs on it any more; `finished_round` and `failed_round` how.
        last_round: the last round it was a member of; 0 while it was in none.
        noticed: it was said to be taken away.
        last_step: steps its workers had completed when they were last asked.
    """

    id: str
    attempt: str
    host: str
    free_port: int
    joined_sequence: int
    joined_ms: int
    status: NodeStatus = "joined"
    settled_round: int = 0
    finished_round: int = 0
    failed_round: int = 0
    last_round: int = 0
    noticed: bool = False
    last_step: int = 0


class NodeExits(msgspec.Struct, frozen=True):
    """How the workers of one node ended that failed."""

    node: str
    exits: tuple[ev.WorkerExit, ...]


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of a run.

    Attributes:
        recorded_ms: when the last event was recorded.
        decision_sequence: where the last decision stands, what the next one expects; `decisions` how many there were.
        first_decision_id: of the event the first decision was recorded with; empty before it. It tells this run from
            every other one of its name.
        digest: of the settings that the last decision was taken with; empty before the first.
        round, members: the last world; `draining` while or after it ends.
        drain_ms, drain_grace_ms: since when, and how long its workers have.
        failed_rounds: rounds in which a worker failed, or that were ended because workers did not get on;
            `disturbed_rounds` those that lost a member, which explains a failure.
        stuck: what a node first said of workers of the last round that live but do not get on.
        failures: what failed in the last round that failed, in the order recorded.
        outcome_sequence: where the end of the run stands; 0 while it goes on.
        unusable: why nothing can be decided from this log; empty while it can.
    """

    run: str
    sequence: int = 0
    recorded_ms: int = 0
    last_event_id: str = ""
    decision_sequence: int = 0
    decisions: int = 0
    first_decision_id: str = ""
    digest: str = ""
    nodes: dict[str, RunNode] = {}
    round: int = 0
    members: tuple[ev.Member, ...] = ()
    draining: bool = False
    drain_ms: int = 0
    drain_grace_ms: int = 0
    checkpoint: ev.CheckpointRef | None = None
    failed_rounds: tuple[int, ...] = ()
    disturbed_rounds: tuple[int, ...] = ()
    failures: tuple[NodeExits, ...] = ()
    failures_round: int = 0
    stuck: ev.NodeStuck | None = None
    outcome: ev.Outcome | None = None
    outcome_reason: str = ""
    outcome_sequence: int = 0
    unusable: str = ""

    @property
    def member_nodes(self) -> tuple[RunNode, ...]:
        """Members of the last round that joined here, by group rank."""
        return tuple(self.nodes[member.node] for member in self.members if member.node in self.nodes)

    @property
    def restarts_used(self) -> int:
        """Rounds that failed by themselves."""
        return len(set(self.failed_rounds) - set(self.disturbed_rounds))

    @property
    def last_step(self) -> int:
        """Steps that are known to be done."""
        return max((node.last_step for node in self.nodes.values()), default=0)


def initial(run: str) -> RunState:
    """A run of which nothing is known yet."""
    return RunState(run=run)


def evolve(state: RunState, recorded: ev.Recorded) -> RunState:
    """The run after one more event. An event that was folded already changes nothing, and neither does one after the
    end, but that nodes leave."""
    if recorded.sequence <= state.sequence:
        return state
    state = replace(state, sequence=recorded.sequence, recorded_ms=max(state.recorded_ms, recorded.recorded_ms))
    event = recorded.event
    if isinstance(event, ev.UnknownEvent):
        return replace(state, unusable=state.unusable or f"it holds an event of the unknown type {event.type}")
    state = replace(state, last_event_id=event.id)
    if event.basis is not None:
        state = replace(
            state,
            decision_sequence=recorded.sequence,
            decisions=event.basis.number,
            first_decision_id=state.first_decision_id or event.id,
            digest=event.basis.config_digest,
        )
        if event.basis.policy != RUN_POLICY or event.basis.policy_version != RUN_POLICY_VERSION:
            policy = f"{event.basis.policy} {event.basis.policy_version}"
            return replace(state, unusable=state.unusable or f"a decision in it was taken by the policy {policy}")
    handler = _HANDLERS.get(type(event.data))
    return handler(state, event.data, recorded) if handler is not None else state


# --------------------------------------------------------------------------------------------------------------------
# What each event means
# --------------------------------------------------------------------------------------------------------------------


def _submitted(state: RunState, _: ev.JobSubmitted, __: ev.Recorded) -> RunState:
    return replace(state, unusable=state.unusable or "a grid's job has this name")


def _joined(state: RunState, data: ev.NodeJoined, recorded: ev.Recorded) -> RunState:
    if data.node in state.nodes:
        return state
    node = RunNode(
        id=data.node,
        attempt=data.attempt,
        host=data.host,
        free_port=data.free_port,
        joined_sequence=recorded.sequence,
        joined_ms=recorded.recorded_ms,
    )
    return _with(state, node)


def _checkpointed(state: RunState, data: ev.NodeCheckpointed, _: ev.Recorded) -> RunState:
    last = state.checkpoint
    return (
        state if last is not None and data.checkpoint.step <= last.step else replace(state, checkpoint=data.checkpoint)
    )


def _drained(state: RunState, data: ev.NodeDrained, _: ev.Recorded) -> RunState:
    node = state.nodes.get(data.node)
    return state if node is None else _with(state, _settled(node, data))


def _finished(state: RunState, data: ev.NodeFinished, _: ev.Recorded) -> RunState:
    node = state.nodes.get(data.node)
    return state if node is None else _with(state, replace(_settled(node, data), finished_round=data.round))


def _failed(state: RunState, data: ev.NodeFailed, _: ev.Recorded) -> RunState:
    node = state.nodes.get(data.node)
    if node is None:
        return state
    state = _with(state, replace(_settled(node, data), failed_round=data.round))
    if data.round not in state.failed_rounds:
        state = replace(state, failed_rounds=(*state.failed_rounds, data.round))
    told = state.failures if state.failures_round == data.round else ()
    return replace(state, failures=(*told, NodeExits(data.node, data.exits)), failures_round=data.round)


def _left(state: RunState, data: ev.NodeLeft, _: ev.Recorded) -> RunState:
    return _gone(state, data.node, "left")


def _lost(state: RunState, data: ev.NodeLost, _: ev.Recorded) -> RunState:
    return _gone(state, data.node, "lost")


def _notice(state: RunState, data: ev.NodePreemptionNotice, _: ev.Recorded) -> RunState:
    node = state.nodes.get(data.node)
    return state if node is None else _with(state, replace(node, noticed=True))


def _stuck(state: RunState, data: ev.NodeStuck, _: ev.Recorded) -> RunState:
    is_news = state.stuck is None and data.node in state.nodes and data.round == state.round and not state.draining
    return replace(state, stuck=data) if is_news else state


def _started(state: RunState, data: ev.NodeStarted, _: ev.Recorded) -> RunState:
    node = state.nodes.get(data.node)
    return state if node is None else _with(state, replace(node, last_step=max(node.last_step, data.step)))


def _world(state: RunState, data: ev.WorldDecided, _: ev.Recorded) -> RunState:
    nodes = dict(state.nodes)
    for member in data.members:
        if member.node in nodes:
            nodes[member.node] = replace(nodes[member.node], last_round=data.round)
    return replace(state, round=data.round, members=data.members, draining=False, nodes=nodes, stuck=None)


def _drain(state: RunState, data: ev.DrainDecided, recorded: ev.Recorded) -> RunState:
    if data.round != state.round:
        return state
    if data.reason == "stuck" and data.round not in state.failed_rounds:
        # What failed in an earlier round says nothing of why this one did.
        failed = (*state.failed_rounds, data.round)
        state = replace(state, failed_rounds=failed, failures=(), failures_round=data.round)
    return replace(state, draining=True, drain_ms=recorded.recorded_ms, drain_grace_ms=data.grace_ms)


def _outcome(state: RunState, data: ev.OutcomeDecided, recorded: ev.Recorded) -> RunState:
    if state.outcome is not None:
        return state
    return replace(
        state, outcome=data.outcome, outcome_reason=data.reason, outcome_sequence=recorded.sequence, draining=True
    )


_HANDLERS: Final[dict[type[Any], Callable[[RunState, Any, ev.Recorded], RunState]]] = {
    ev.JobSubmitted: _submitted,
    ev.NodeJoined: _joined,
    ev.NodeCheckpointed: _checkpointed,
    ev.NodeDrained: _drained,
    ev.NodeFinished: _finished,
    ev.NodeFailed: _failed,
    ev.NodeLeft: _left,
    ev.NodeLost: _lost,
    ev.NodePreemptionNotice: _notice,
    ev.NodeStuck: _stuck,
    ev.NodeStarted: _started,
    ev.WorldDecided: _world,
    ev.DrainDecided: _drain,
    ev.OutcomeDecided: _outcome,
}


def _with(state: RunState, node: RunNode) -> RunState:
    return replace(state, nodes={**state.nodes, node.id: node})


def _settled(node: RunNode, data: ev.NodeDrained | ev.NodeFinished | ev.NodeFailed) -> RunNode:
    return replace(
        node,
        settled_round=max(node.settled_round, data.round),
        last_step=max(node.last_step, data.last_step),
        free_port=data.free_port or node.free_port,
    )


def _gone(state: RunState, name: str, how: NodeStatus) -> RunState:
    node = state.nodes.get(name)
    if node is None or node.status != "joined":
        return state
    # Its peers' workers fail when theirs are gone: whatever else fails in that round is not held against the run.
    disturbs = node.last_round == state.round > 0 and node.finished_round != state.round != node.failed_round
    if disturbs and state.outcome is None:
        state = replace(state, disturbed_rounds=(*state.disturbed_rounds, state.round))
    return _with(state, replace(node, status=how))
