"""The node agent's state machine: decisions and observations in, instructions out.

A node is in one round at a time. Its workers end in one of four ways: stopped together at an agreed step (drained),
done with the training (finished), broken (failed), or terminated. What they end as is recorded once nothing of them
runs and every checkpoint they named was looked at, so `node.checkpointed` stands in the log before the round's end.
"""

from __future__ import annotations

from functools import singledispatch

import msgspec

from elasticgrid.core.agent_settling import settle
from elasticgrid.core.agent_state import (
    ANNOUNCED_KEPT,
    AgentInput,
    AgentState,
    AgreementFailed,
    AgreeOnStop,
    AwaitDeadline,
    Cause,
    CheckCheckpoint,
    CheckpointChecked,
    CheckpointNamed,
    DecisionRead,
    Departure,
    EndRequested,
    GraceOver,
    Ignored,
    Instruction,
    Joined,
    Leave,
    NextWorld,
    NoticeReceived,
    Record,
    Round,
    StartGrace,
    StopAgreed,
    TerminateWorkers,
    Unwanted,
    Worker,
    WorkerClosed,
    WorkerExited,
    WorkersStuck,
    WorkerStepped,
    WorkerStopping,
)
from elasticgrid.core.events import (
    DrainDecided,
    NodeCheckpointed,
    NodePreemptionNotice,
    NodeReclassified,
    NodeStarted,
    NodeStuck,
    OutcomeDecided,
    WorldDecided,
)
from elasticgrid.core.job_failures import DISRUPTION_MS

#: Reasons to end a round whose workers can no longer take a step together: nothing to agree on.
BROKEN_REASONS = frozenset({"failure", "node_lost", "stuck", "failed"})

Step = tuple[AgentState, list[Instruction]]


def initial(node: str, free_port: int = 0) -> AgentState:
    """The state of an agent that has just started."""
    return AgentState(node=node, free_port=free_port)


def evolve(state: AgentState, item: AgentInput) -> tuple[AgentState, tuple[Instruction, ...]]:
    """The next state and what is to be done, in order.

    Inputs that come twice, late or about another round change nothing and yield `Ignored`. After `Leave` all of
    them do.
    """
    if state.left:
        return state, (Ignored(what=type(item).__name__),)
    state, instructions = _take(item, state)
    state, settled = settle(state)
    return state, (*instructions, *settled)


# --------------------------------------------------------------------------------------------------------------------
# Taking one input in
# --------------------------------------------------------------------------------------------------------------------


@singledispatch
def _take(item: AgentInput, state: AgentState) -> Step:
    return state, [Ignored(what=type(item).__name__)]


@_take.register
def _(item: Joined, state: AgentState) -> Step:
    return msgspec.structs.replace(state, joined_sequence=item.sequence), []


@_take.register
def _(item: DecisionRead, state: AgentState) -> Step:
    if item.sequence <= state.applied_sequence:
        return state, [Ignored(what="repeated decision")]
    state = msgspec.structs.replace(state, applied_sequence=item.sequence)
    cause = Cause(event_id=item.event_id, correlation_id=item.correlation_id)
    of_this_life = 0 < state.joined_sequence < item.sequence
    match item.data:
        case WorldDecided():
            return _world(state, item.data, cause, of_this_life)
        case DrainDecided():
            return _drain(state, item.data, cause)
        case OutcomeDecided():
            return _depart(state, Departure(reason=item.data.outcome, exit_code=0, cause=cause), cause)


@_take.register
def _(item: WorkerStepped, state: AgentState) -> Step:
    found = _find(state, item.round, item.rank)
    if found is None:
        return state, [Ignored(what="step of another round")]
    current, worker = found
    if item.step > worker.step and current.stuck:
        current = msgspec.structs.replace(current, stuck=False)  # it gets on again; a next time is told anew
    current = _with_worker(current, _stepped(worker, item.step))
    instructions: list[Instruction] = []
    if not current.started and item.step > current.resume_step:
        current = msgspec.structs.replace(current, started=True)
        fact = NodeStarted(node=state.node, round=item.round, step=item.step)
        instructions.append(Record(data=fact, cause=current.cause))
    return msgspec.structs.replace(state, current=current), instructions


@_take.register
def _(item: WorkerStopping, state: AgentState) -> Step:
    found = _find(state, item.round, item.rank)
    if found is None:
        return state, [Ignored(what="stop of another round")]
    current, worker = found
    worker = msgspec.structs.replace(_stepped(worker, item.step), stopping=True)
    return msgspec.structs.replace(state, current=_with_worker(current, worker)), []


@_take.register
def _(item: WorkerClosed, state: AgentState) -> Step:
    found = _find(state, item.round, item.rank)
    if found is None:
        return state, [Ignored(what="goodbye of another round")]
    current, worker = found
    worker = msgspec.structs.replace(
        _stepped(worker, item.step),
        closed=True,
        samples_published=worker.samples_published + item.samples_published,
        samples_dropped=worker.samples_dropped + item.samples_dropped,
    )
    return msgspec.structs.replace(state, current=_with_worker(current, worker)), []


@_take.register
def _(item: CheckpointNamed, state: AgentState) -> Step:
    current = _open_round(state, item.round)
    named = (item.step, item.uri)
    if current is None or named in current.announced:
        return state, [Ignored(what="repeated or foreign checkpoint")]
    current = msgspec.structs.replace(
        current, announced=(*current.announced, named)[-ANNOUNCED_KEPT:], checking=current.checking + 1
    )
    instructions: list[Instruction] = [CheckCheckpoint(round=item.round, step=item.step, uri=item.uri)]
    return msgspec.structs.replace(state, current=current), instructions


@_take.register
def _(item: CheckpointChecked, state: AgentState) -> Step:
    current = _open_round(state, item.round)
    if current is None or current.checking == 0:
        return state, [Ignored(what="checkpoint of another round")]
    current = msgspec.structs.replace(current, checking=current.checking - 1)
    instructions: list[Instruction] = []
    if item.checkpoint is not None:
        fact = NodeCheckpointed(node=state.node, round=item.round, checkpoint=item.checkpoint)
        instructions.append(Record(data=fact, cause=current.cause))
    return msgspec.structs.replace(state, current=current), instructions


@_take.register
def _(item: StopAgreed, state: AgentState) -> Step:
    current = _open_round(state, item.round)
    if current is None:
        return state, [Ignored(what="agreement about another round")]
    step = max(item.step, current.stop_step or 0)
    return msgspec.structs.replace(state, current=msgspec.structs.replace(current, stop_step=step)), []


@_take.register
def _(item: AgreementFailed, state: AgentState) -> Step:
    current = _open_round(state, item.round)
    if current is None or current.drain is None:  # only the log can end a round, not another agent's word
        return state, [Ignored(what="agreement about another round")]
    return _terminate_if_open(state, item.round)


@_take.register
def _(item: GraceOver, state: AgentState) -> Step:
    return _terminate_if_open(state, item.round)


@_take.register
def _(item: WorkerExited, state: AgentState) -> Step:
    state = msgspec.structs.replace(state, free_port=item.free_port)
    found = _find(state, item.round, item.rank)
    if found is None or found[1].code is not None:
        return state, [Ignored(what="exit of another round")]
    current, worker = found
    worker = msgspec.structs.replace(
        worker,
        code=item.code,
        last_lines=item.last_lines,
        message=item.message,
        error_file=item.error_file,
        ended_ms=item.time_ms,
        out_of_memory=item.out_of_memory,
        fenced=item.fenced,
    )
    current = _with_worker(current, worker)
    instructions: list[Instruction] = []
    if item.code != 0 and not current.terminating and current.first_failure is None:
        current = msgspec.structs.replace(current, first_failure=item.rank)
        if current.running:
            instructions.append(TerminateWorkers(round=item.round))
    return msgspec.structs.replace(state, current=current), instructions


@_take.register
def _(item: NoticeReceived, state: AgentState) -> Step:
    sooner = item.deadline_ms > 0 and not 0 < state.notice_deadline_ms <= item.deadline_ms
    if state.notice_ms and not sooner:
        return state, [Ignored(what="repeated notice")]
    first_ms = state.notice_ms or item.time_ms
    state = msgspec.structs.replace(
        state, notice_ms=first_ms, notice_deadline_ms=item.deadline_ms or state.notice_deadline_ms
    )
    notice = NodePreemptionNotice(node=state.node, source=item.source, deadline_ms=item.deadline_ms, text=item.text)
    instructions: list[Instruction] = [Record(data=notice, cause=Cause())]
    if item.deadline_ms > 0:
        instructions.append(AwaitDeadline(deadline_ms=item.deadline_ms))
    current = state.current
    if current is None or current.blamed != "app_failed":
        return state, instructions
    after_ms = item.time_ms - current.failed_ms
    if after_ms > DISRUPTION_MS:
        return state, instructions
    again = NodeReclassified(
        node=state.node,
        round=current.world.round,
        failure="infra_failed",
        text=f"a notice of {item.source} came {after_ms // 1000} s after the exit",
    )
    current = msgspec.structs.replace(current, blamed="infra_failed")
    return msgspec.structs.replace(state, current=current), [*instructions, Record(data=again, cause=current.cause)]


@_take.register
def _(item: WorkersStuck, state: AgentState) -> Step:
    current = _open_round(state, item.round)
    if current is None or current.stuck or current.drain is not None or not current.running:
        return state, [Ignored(what="repeated or foreign stuck workers")]
    fact = NodeStuck(
        node=state.node,
        round=item.round,
        what=item.what,
        last_step=current.last_step,
        since_ms=item.since_ms,
        detail=item.detail,
        stacks=item.stacks,
    )
    current = msgspec.structs.replace(current, stuck=True)
    return msgspec.structs.replace(state, current=current), [Record(data=fact, cause=current.cause)]


@_take.register
def _(item: EndRequested, state: AgentState) -> Step:
    departure = Departure(reason=item.reason, exit_code=item.exit_code, cause=Cause())
    return _depart(state, departure, Cause())


@_take.register
def _(item: Unwanted, state: AgentState) -> Step:
    if not state.joined_sequence:
        # It never was a node of the job; a word of it would be one about a stranger.
        return msgspec.structs.replace(state, left=True), [Leave(exit_code=item.exit_code)]
    departure = Departure(reason=item.reason, exit_code=item.exit_code, cause=item.cause)
    return _depart(state, departure, Cause())


# --------------------------------------------------------------------------------------------------------------------
# Decisions
# --------------------------------------------------------------------------------------------------------------------


def _world(state: AgentState, world: WorldDecided, cause: Cause, of_this_life: bool) -> Step:
    if world.round <= state.latest_round or not of_this_life:
        latest = max(state.latest_round, world.round)
        return msgspec.structs.replace(state, latest_round=latest), [Ignored(what="old world")]
    state = msgspec.structs.replace(state, latest_round=world.round, upcoming=None)
    if any(member.node == state.node for member in world.members):
        state = msgspec.structs.replace(state, upcoming=NextWorld(world=world, cause=cause))
    if state.current is None:
        return state, []
    # The round this node was in is history; whatever of it still runs must not meet the new world.
    return _end_current(state, cause)


def _drain(state: AgentState, drain: DrainDecided, cause: Cause) -> Step:
    leaves = state.node in drain.leaving
    if leaves:
        departure = Departure(reason=drain.reason, exit_code=0, cause=cause)
        state = msgspec.structs.replace(state, departure=state.departure or departure)
    current = state.current
    if current is None or current.world.round != drain.round or current.drained:
        if not leaves:
            return state, [Ignored(what="drain of another round")]
        return (state, []) if current is None else _end_current(state, cause)
    first = current.drain is None
    current = msgspec.structs.replace(
        current,
        drain=drain if first or drain.reason in BROKEN_REASONS else current.drain,
        drain_cause=cause if first else current.drain_cause,
    )
    state = msgspec.structs.replace(state, current=current)
    if not current.running:
        return state, []
    if drain.reason in BROKEN_REASONS or drain.grace_ms <= 0 or current.first_failure is not None:
        return _terminate_if_open(state, drain.round)
    # A later drain of the same round may leave less time; the timer that ends first counts.
    instructions: list[Instruction] = [StartGrace(round=drain.round, grace_ms=drain.grace_ms)]
    if first and current.stop_step is None:
        members = tuple(member.node for member in current.world.members)
        leads = current.group_rank == 0
        agree = AgreeOnStop(round=drain.round, leads=leads, members=members, patience_ms=drain.grace_ms // 2)
        instructions.append(agree)
    return state, instructions


def _depart(state: AgentState, departure: Departure, cause: Cause) -> Step:
    state = msgspec.structs.replace(state, departure=departure, upcoming=None)
    return (state, []) if state.current is None else _end_current(state, cause)


def _end_current(state: AgentState, cause: Cause) -> Step:
    """Terminate what runs of the round; it then ends as drained, for `cause` unless a drain was decided before."""
    current = state.current
    assert current is not None
    if current.over:
        return state, []
    if current.drain is None:
        state = msgspec.structs.replace(state, current=msgspec.structs.replace(current, drain_cause=cause))
    return _terminate_if_open(state, current.world.round)


def _terminate_if_open(state: AgentState, round_number: int) -> Step:
    current = _open_round(state, round_number)
    if current is None or not current.running:
        return state, []
    if current.terminating or current.first_failure is not None:
        return state, []
    current = msgspec.structs.replace(current, terminating=True)
    return msgspec.structs.replace(state, current=current), [TerminateWorkers(round=round_number)]


# --------------------------------------------------------------------------------------------------------------------
# Finding and replacing parts of the round
# --------------------------------------------------------------------------------------------------------------------


def _open_round(state: AgentState, round_number: int) -> Round | None:
    current = state.current
    if current is None or current.world.round != round_number or current.over:
        return None
    return current


def _find(state: AgentState, round_number: int, rank: int) -> tuple[Round, Worker] | None:
    current = _open_round(state, round_number)
    if current is None:
        return None
    for worker in current.workers:
        if worker.rank == rank:
            return current, worker
    return None


def _with_worker(current: Round, worker: Worker) -> Round:
    workers = tuple(worker if other.rank == worker.rank else other for other in current.workers)
    return msgspec.structs.replace(current, workers=workers)


def _stepped(worker: Worker, step: int) -> Worker:
    return msgspec.structs.replace(worker, step=max(worker.step, step), heard=True)
