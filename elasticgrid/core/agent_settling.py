"""What follows of itself once a node's workers are gone: how the round is recorded, the next world, the agent's end."""

from __future__ import annotations

import msgspec

from elasticgrid.core.agent_state import (
    AgentState,
    Cause,
    Departure,
    Instruction,
    Leave,
    NextWorld,
    Record,
    Round,
    StartWorkers,
    Worker,
    ended_for_another,
    exit_state,
)
from elasticgrid.core.events import NodeDrained, NodeFailed, NodeFinished, NodeLeft, WorkerExit
from elasticgrid.core.failures import ExitEvidence, app_or_infra
from elasticgrid.core.job_failures import DISRUPTION_MS


def settle(state: AgentState) -> tuple[AgentState, list[Instruction]]:
    """The state after everything that needs no further input, and what is to be done for it."""
    instructions: list[Instruction] = []
    current = state.current
    if current is not None and not current.running and current.checking == 0:
        current, facts = _round_end(state, current)
        state = msgspec.structs.replace(state, current=current)
        instructions.extend(facts)
    if current is not None and not current.over:
        return state, instructions
    if current is not None and state.departure is None and _fenced(current):
        # What such a worker holds, a device say, may be held for ever: no other round can begin beside it.
        state = msgspec.structs.replace(state, departure=Departure(reason="fenced", exit_code=1, cause=Cause()))
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
            current = msgspec.structs.replace(
                current, over=True, drained=True, blamed=failed.failure, failed_ms=failed.exits[0].time_ms
            )
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
            fenced=_fenced(current),
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


def _fenced(current: Round) -> tuple[int, ...]:
    return tuple(worker.rank for worker in current.workers if worker.fenced)


def _failed(state: AgentState, current: Round, published: int, dropped: int) -> NodeFailed:
    exits = tuple(
        WorkerExit(
            rank=worker.rank,
            code=worker.code or 0,
            last_lines=worker.last_lines,
            message=worker.message,
            error_file=worker.error_file,
            time_ms=worker.ended_ms,
            state=exit_state(current, worker, worker.code or 0),
        )
        for worker in sorted(current.workers, key=lambda worker: _cause_order(worker, current))
    )
    evidence = ExitEvidence(
        preemption_notice=_was_taken_away(state, exits[0].time_ms),
        oom_killed=any(worker.out_of_memory for worker in current.workers),
        last_lines=tuple(text for each in exits for text in (each.last_lines, each.message) if text),
    )
    return NodeFailed(
        node=state.node,
        round=current.world.round,
        last_step=current.last_step,
        exits=exits,
        failure=app_or_infra([each.code for each in exits], evidence),
        free_port=state.free_port,
        samples_published=published,
        samples_dropped=dropped,
        fenced=_fenced(current),
    )


def _cause_order(worker: Worker, current: Round) -> tuple[bool, bool, int, bool, int]:
    """Root cause first: who failed earliest, then who was ended because of it, then who ended with success."""
    is_first = worker.rank == current.first_failure
    return worker.code == 0, ended_for_another(current, worker), worker.ended_ms, not is_first, worker.rank


def _was_taken_away(state: AgentState, failed_ms: int) -> bool:
    """Whether a failure comes so soon after a notice, or before its deadline, that it is the notice's consequence."""
    until_ms = max(state.notice_ms, state.notice_deadline_ms) + DISRUPTION_MS
    return state.notice_ms > 0 and failed_ms <= until_ms


def _begin(state: AgentState, upcoming: NextWorld) -> tuple[AgentState, Instruction]:
    world = upcoming.world
    group_rank = next(member.group_rank for member in world.members if member.node == state.node)
    step = world.resume.step if world.resume is not None else 0
    first_rank = group_rank * world.nproc_per_node
    workers = tuple(Worker(rank=first_rank + local, step=step) for local in range(world.nproc_per_node))
    current = Round(world=world, group_rank=group_rank, cause=upcoming.cause, workers=workers)
    state = msgspec.structs.replace(state, current=current, upcoming=None)
    return state, StartWorkers(world=world, group_rank=group_rank)
