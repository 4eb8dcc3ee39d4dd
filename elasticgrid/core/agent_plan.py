"""The node agent's state machine: decisions and observations in, instructions out.

A node is in one round at a time. Its workers end in one of four ways: stopped together at an agreed step (drained),
done with the training (finished), broken (failed), or terminated. What they end as is recorded once nothing of them
runs and every checkpoint they named was looked at, so `node.checkpointed` stands in the log before the round's end.
"""

from __future__ import annotations

from functools import singledispatch

import msgspec

from elasticgrid.core.agent_state import (
    ANNOUNCED_KEPT,
    AgentInput,
    AgentState,
    AgreementFailed,
    AgreeOnStop,
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
    Record,
    Round,
    StartGrace,
    StartWorkers,
    StopAgreed,
    TerminateWorkers,
    Worker,
    WorkerClosed,
    WorkerExited,
    WorkerStepped,
    WorkerStopping,
)
from elasticgrid.core.events import (
    DrainDecided,
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeLeft,
    NodeStarted,
    OutcomeDecided,
    WorkerExit,
    WorldDecided,
)
from elasticgrid.core.failures import ExitEvidence, app_or_infra

#: Reasons to end a round whose workers can no longer take a step together: nothing to agree on.
BROKEN_REASONS = frozenset({"failure", "node_lost", "failed"})

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
    state, settled = _settle(state)
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
    worker = msgspec.structs.replace(worker, code=item.code, last_lines=item.last_lines)
    current = _with_worker(current, worker)
    instructions: list[Instruction] = []
    if item.code != 0 and not current.terminating and current.first_failure is None:
        current = msgspec.structs.replace(current, first_failure=item.rank)
        if current.running:
            instructions.append(TerminateWorkers(round=item.round))
    return msgspec.structs.replace(state, current=current), instructions


@_take.register
def _(item: EndRequested, state: AgentState) -> Step:
    departure = Departure(reason=item.reason, exit_code=item.exit_code, cause=Cause())
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
    instructions: list[Instruction] = []
    if first:
        instructions.append(StartGrace(round=drain.round, grace_ms=drain.grace_ms))
        if current.stop_step is None:
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
# What follows of itself: the end of a round, the next world, the agent's end
# --------------------------------------------------------------------------------------------------------------------


def _settle(state: AgentState) -> Step:
    instructions: list[Instruction] = []
    current = state.current
    if current is not None and not current.running and current.checking == 0:
        current, facts = _round_end(state, current)
        state = msgspec.structs.replace(state, current=current)
        instructions.extend(facts)
    if current is not None and not current.over:
        return state, instructions
    if state.departure is not None:
        fact = NodeLeft(node=state.node, reason=state.departure.reason)
        instructions.append(Record(data=fact, cause=state.departure.cause))
        instructions.append(Leave(exit_code=state.departure.exit_code))
        return msgspec.structs.replace(state, left=True), instructions
    if state.upcoming is not None:
        state, start = _begin(state, state.upcoming)
        instructions.append(start)
    return state, instructions


def _round_end(state: AgentState, current: Round) -> tuple[Round, list[Instruction]]:
    """Record how a round ended whose workers are all gone.

    A failure and a completion say that nothing of the round runs any more, so the drain that answers them needs no
    answer; any other drain that is decided later is answered as soon as it is read.
    """
    instructions: list[Instruction] = []
    published = sum(worker.samples_published for worker in current.workers)
    dropped = sum(worker.samples_dropped for worker in current.workers)
    number = current.world.round
    if not current.over:
        if current.first_failure is not None:
            failed = _failed(state, current, published, dropped)
            instructions.append(Record(data=failed, cause=current.cause))
            current = msgspec.structs.replace(current, over=True, drained=True)
        elif not current.terminating and all(_completed(worker, current) for worker in current.workers):
            finished = NodeFinished(
                node=state.node,
                round=number,
                last_step=current.last_step,
                free_port=state.free_port,
                samples_published=published,
                samples_dropped=dropped,
            )
            instructions.append(Record(data=finished, cause=current.cause))
            current = msgspec.structs.replace(current, over=True, clean_end=True, drained=True)
        elif current.drain is not None or current.terminating:
            clean = not current.terminating and all(worker.code == 0 for worker in current.workers)
            current = msgspec.structs.replace(current, over=True, clean_end=clean)
        else:
            return current, []  # stopped as agreed, but the decision it was agreed for is still to be read
    # Where the round ended for a reason outside the log, there is no drain to answer: the node only leaves.
    asked = current.drain is not None or (current.terminating and current.drain_cause.event_id != "")
    if asked and not current.drained:
        drained = NodeDrained(
            node=state.node,
            round=number,
            last_step=current.last_step,
            clean=current.clean_end,
            free_port=state.free_port,
            samples_published=published,
            samples_dropped=dropped,
        )
        instructions.append(Record(data=drained, cause=current.drain_cause))
        current = msgspec.structs.replace(current, drained=True)
    return current, instructions


def _completed(worker: Worker, current: Round) -> bool:
    """Whether a worker that exited with success was done with the training, rather than stopped because it was asked.

    One that was told to stop counts as done only when its hook's goodbye says it ended before that step: mistaking a
    stop for completion would end the job early, the other mistake costs one short round.
    """
    if worker.code != 0 or worker.stopping:
        return False
    return current.stop_step is None or (worker.closed and worker.step < current.stop_step)


def _failed(state: AgentState, current: Round, published: int, dropped: int) -> NodeFailed:
    order = sorted(current.workers, key=lambda worker: (worker.rank != current.first_failure, worker.rank))
    exits = tuple(WorkerExit(rank=worker.rank, code=worker.code or 0, last_lines=worker.last_lines) for worker in order)
    return NodeFailed(
        node=state.node,
        round=current.world.round,
        last_step=current.last_step,
        exits=exits,
        failure=app_or_infra(
            [exit_.code for exit_ in exits], ExitEvidence(last_lines=tuple(exit_.last_lines for exit_ in exits))
        ),
        free_port=state.free_port,
        samples_published=published,
        samples_dropped=dropped,
    )


def _begin(state: AgentState, upcoming: NextWorld) -> tuple[AgentState, Instruction]:
    world = upcoming.world
    group_rank = next(member.group_rank for member in world.members if member.node == state.node)
    step = world.resume.step if world.resume is not None else 0
    first_rank = group_rank * world.nproc_per_node
    workers = tuple(Worker(rank=first_rank + local, step=step) for local in range(world.nproc_per_node))
    current = Round(world=world, group_rank=group_rank, cause=upcoming.cause, workers=workers)
    state = msgspec.structs.replace(state, current=current, upcoming=None)
    return state, StartWorkers(world=world, group_rank=group_rank)


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
    return msgspec.structs.replace(worker, step=max(worker.step, step))
