"""Rendezvous without a grid, as pure functions: who trains together next, and what one node makes of what it reads.

Every node asks `decide`; whoever appends first has decided, because each decision expects the one before it to be the
last. `verdict` is for a node that waits: whether there is anything left to wait for.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.membership import ReadyNode, form_world
from elasticgrid.core.names import derived_id
from elasticgrid.core.run_state import (
    RUN_POLICY,
    RUN_POLICY_VERSION,
    RUN_TENANT,
    RunNode,
    RunSettings,
    RunState,
)
from elasticgrid.core.worker_exits import STOPPED, message_of

#: Beyond its grace a round that ends is waited for this long, for the facts to arrive.
DRAIN_SLACK_MS: Final = 30_000

#: Names of the signals that end processes, by their numbers on Linux.
SIGNALS: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    31: "SIGSYS",
}

Decision = tuple[ev.DrainDecided | ev.WorldDecided | ev.OutcomeDecided, ...]
NOTHING: Final[Decision] = ()


def decide(state: RunState, settings: RunSettings, as_of_ms: int) -> Decision:
    """What is to be done now, empty when nothing is.

    Args:
        as_of_ms: the time by the log's clock.
    """
    if state.outcome is not None or state.unusable or (state.digest and state.digest != settings.digest):
        return NOTHING
    members = state.member_nodes
    if members and all(node.finished_round == state.round for node in members):
        reason = "every worker ended with success"
        return (ev.OutcomeDecided(outcome="completed", reason=reason, last_step=state.last_step),)
    if state.round and not state.draining:
        return _watch_round(state, settings, as_of_ms)
    if state.draining and not _settled(state, as_of_ms):
        return NOTHING
    return _gather(state, settings, as_of_ms)


def decision_events(state: RunState, settings: RunSettings, decision: Decision, as_of_ms: int) -> list[ev.Event]:
    """The decision as events, numbered after the last one."""
    basis = ev.Basis(
        number=state.decisions + 1,
        as_of_ms=as_of_ms,
        events_through=state.sequence,
        samples_through=0,
        policy=RUN_POLICY,
        policy_version=RUN_POLICY_VERSION,
        config_digest=settings.digest,
    )
    return [
        ev.Event(
            id=derived_id(as_of_ms, RUN_TENANT, state.run, basis.number, ev.type_of(data), index, state.sequence),
            time_ms=as_of_ms,
            tenant=RUN_TENANT,
            job=state.run,
            causation_id=state.last_event_id,
            actor="run",
            basis=basis,
            data=data,
        )
        for index, data in enumerate(decision)
    ]


def next_nodes(state: RunState, settings: RunSettings) -> tuple[RunNode, ...]:
    """Nodes that could be the next world: survivors first and in their order, then as they joined; never too many."""
    ready = {node.id: node for node in state.nodes.values() if _is_ready(node)}
    order = [ready.pop(member.node) for member in state.members if member.node in ready]
    order += sorted(ready.values(), key=lambda node: node.joined_sequence)
    return tuple(order[: settings.max_nodes])


def turn_of(state: RunState, node: str) -> int:
    """How many nodes of the run are to act before this one, so that not all of them try at once."""
    here = sorted((each.joined_sequence, each.id) for each in state.nodes.values() if each.status == "joined")
    return next((place for place, (_, each) in enumerate(here) if each == node), len(here))


def _is_ready(node: RunNode) -> bool:
    return node.status == "joined" and not node.noticed and node.settled_round >= node.last_round


def _settled(state: RunState, as_of_ms: int) -> bool:
    """Whether nothing of the last round runs any more, or was waited for long enough."""
    if as_of_ms - state.drain_ms >= state.drain_grace_ms + DRAIN_SLACK_MS:
        return True
    return all(node.settled_round == state.round or node.status != "joined" for node in state.member_nodes)


def _watch_round(state: RunState, settings: RunSettings, as_of_ms: int) -> Decision:
    members = state.member_nodes
    unfinished = [node for node in members if node.finished_round != state.round]
    if any(node.status != "joined" for node in unfinished):
        return (ev.DrainDecided(round=state.round, reason="node_lost", grace_ms=settings.grace_ms),)
    if any(node.failed_round == state.round for node in unfinished):
        return (ev.DrainDecided(round=state.round, reason="failure", grace_ms=settings.grace_ms),)
    if state.stuck is not None and settings.on_stuck != "tell":
        return _end_stuck_round(state, settings)
    noticed = tuple(node.id for node in state.nodes.values() if node.noticed and node.status == "joined")
    if any(node.noticed for node in members):
        return (ev.DrainDecided(round=state.round, reason="preempted", leaving=noticed, grace_ms=settings.grace_ms),)
    late = [node for node in state.nodes.values() if _is_ready(node) and node not in members]
    room = settings.max_nodes - len(members)
    if settings.static is not None or not late or room <= 0 or len(unfinished) < len(members):
        return NOTHING
    called_ms = min(node.joined_ms for node in late) + settings.last_call_ms
    if len(late) < room and as_of_ms < called_ms:
        return NOTHING
    return (ev.DrainDecided(round=state.round, reason="resize", grace_ms=settings.grace_ms),)


def _end_stuck_round(state: RunState, settings: RunSettings) -> Decision:
    """Workers that do not get on cannot stop at a step: the round ends without one, or the run does."""
    if settings.on_stuck == "restart" and state.restarts_used < settings.max_restarts:
        return (ev.DrainDecided(round=state.round, reason="stuck", grace_ms=settings.grace_ms),)
    reason = stuck_summary(state)
    if settings.on_stuck == "restart":
        reason += f"; {_budget(state.restarts_used + 1, settings)}"
    return (ev.OutcomeDecided(outcome="failed", reason=reason, last_step=state.last_step),)


def stuck_summary(state: RunState) -> str:
    """What was said of workers of the last round that do not get on, in one line; empty when nothing was."""
    told = state.stuck
    if told is None:
        return ""
    text = f"{told.node} is stuck after step {told.last_step} of round {told.round}"
    return f"{text}: {told.detail}" if told.detail else text


def _budget(failed: int, settings: RunSettings) -> str:
    return f"rounds that failed: {failed}, restarts allowed: {settings.max_restarts}"


def _gather(state: RunState, settings: RunSettings, as_of_ms: int) -> Decision:
    """Nobody trains: begin the next round, if it may be and there are enough nodes for it."""
    if state.restarts_used > settings.max_restarts:
        reason = _budget(state.restarts_used, settings)
        failures = failures_of(state)
        if cause := failures[0].summary if failures else stuck_summary(state):
            reason = f"{cause}; {reason}"
        return (ev.OutcomeDecided(outcome="failed", reason=reason, last_step=state.last_step),)
    ready = next_nodes(state, settings)
    if settings.static is not None:
        return _static_world(state, settings) if ready else NOTHING
    if len(ready) < settings.min_nodes:
        return NOTHING
    enough_ms = sorted(node.joined_ms for node in ready)[settings.min_nodes - 1]
    if len(ready) < settings.max_nodes and as_of_ms < enough_ms + settings.last_call_ms:
        return NOTHING
    world = form_world(
        state.members,
        tuple(ReadyNode(node.id, node.host, node.free_port, node.joined_sequence) for node in ready),
        round=state.round + 1,
        nproc_per_node=settings.nproc_per_node,
        resume=state.checkpoint,
    )
    return (msgspec.structs.replace(world, restarts=state.restarts_used),)


def static_node(rank: int) -> str:
    """The id of a node of a static world."""
    return f"static-{rank}"


def _static_world(state: RunState, settings: RunSettings) -> Decision:
    static = settings.static
    assert static is not None
    return (
        ev.WorldDecided(
            round=state.round + 1,
            members=tuple(ev.Member(node=static_node(rank), group_rank=rank) for rank in range(static.nodes)),
            nproc_per_node=settings.nproc_per_node,
            master_addr=static.master_addr,
            master_port=static.master_port,
            resume=state.checkpoint,
            restarts=state.restarts_used,
        ),
    )


# --------------------------------------------------------------------------------------------------------------------
# What a node makes of it
# --------------------------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """That a node has nothing to wait for: which kind of end that is, and why."""

    kind: Literal["closed", "timed_out", "connection", "state", "graceful_exit", "exhausted"]
    why: str


def verdict(state: RunState, settings: RunSettings, node: str, as_of_ms: int) -> Verdict | None:
    """What ends the part of one node in the run; None while it takes part, may wait, or took part to the end."""
    if state.unusable:
        return Verdict("state", f"the log of the run {state.run} cannot be used: {state.unusable}")
    if state.digest and state.digest != settings.digest:
        return Verdict("state", f"the run {state.run} goes on with other settings than this node was started with")
    me = state.nodes.get(node)
    if state.outcome is not None:
        return _verdict_on_end(state, me)
    if me is None:
        return None
    if me.status == "lost":
        return Verdict("connection", f"the node {node} was not heard of for too long, and the run went on without it")
    is_member = any(member.node == node for member in state.members)
    if is_member and not state.draining:
        return None
    since_ms = max(me.joined_ms, state.drain_ms) if is_member else me.joined_ms
    if as_of_ms - since_ms < settings.join_timeout_ms or (is_member and not _settled(state, as_of_ms)):
        return None
    waited = f"waited {settings.join_timeout_ms / 1000:g} s"
    if state.round and not is_member and len(state.members) >= settings.max_nodes:
        return Verdict("exhausted", f"{waited}: all {settings.max_nodes} places of the run {state.run} are taken")
    there = len(next_nodes(state, settings))
    return Verdict("timed_out", f"{waited}: {there} of at least {settings.min_nodes} nodes joined the run {state.run}")


def _verdict_on_end(state: RunState, me: RunNode | None) -> Verdict | None:
    assert state.outcome is not None
    if me is None or me.joined_sequence > state.outcome_sequence:
        return Verdict("closed", f"the run {state.run} is over: {state.outcome}, {state.outcome_reason}")
    if me.last_round:
        return None
    if state.outcome == "completed":
        return Verdict("graceful_exit", f"the run {state.run} was completed and did not need this node")
    return Verdict("closed", f"the run {state.run} ended before this node took part: {state.outcome_reason}")


class WorkerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker failed.

    Attributes:
        rank: among all workers of its round; `local_rank` on its node.
        exit_code: what it ended with; negative for the number of a signal, which `signal` names.
        message: what went wrong, in one line; empty for one that was stopped.
        traceback: all that the worker said of it.
        error_file: where it said so, on its node; empty when it is from its output.
        time_ms: when it failed.
        stopped: it did not fail by itself, its agent ended it because another one had failed.
    """

    node: str
    rank: int
    local_rank: int
    round: int
    exit_code: int
    signal: str = ""
    message: str = ""
    traceback: str = ""
    error_file: str = ""
    time_ms: int = 0
    stopped: bool = False

    @property
    def summary(self) -> str:
        """The failure in one line."""
        if self.stopped:
            return f"rank {self.rank} on {self.node} was {STOPPED}"
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        said = f": {self.message}" if self.message else ""
        return f"rank {self.rank} on {self.node} failed in round {self.round} with {how}{said}"


def failures_of(state: RunState) -> tuple[WorkerFailure, ...]:
    """All that failed in the last round that failed, root cause first: who failed by itself, and earliest.

    Each node puts its own first failure first; of several nodes that of the earliest is the root.
    """
    nodes = sorted(state.failures, key=lambda told: (told.exits[0].time_ms if told.exits else 0, told.node))
    return tuple(
        _failure(told.node, state.failures_round, each, min(other.rank for other in told.exits))
        for told in nodes
        for each in told.exits
        if each.code != 0
    )


def _failure(node: str, round_number: int, told: ev.WorkerExit, first_rank: int) -> WorkerFailure:
    return WorkerFailure(
        node=node,
        rank=told.rank,
        local_rank=told.rank - first_rank,
        round=round_number,
        exit_code=told.code,
        signal=_signal_name(told.code),
        message=message_of(told),
        traceback=(told.message or told.last_lines).strip(),
        error_file=told.error_file,
        time_ms=told.time_ms,
        stopped=told.state == "STOPPED",
    )


def _signal_name(code: int) -> str:
    return "" if code >= 0 else SIGNALS.get(-code, str(-code))
