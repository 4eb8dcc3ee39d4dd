"""What happens around a node, as inputs of its state machine."""

from __future__ import annotations

from elasticgrid.agent.hook_server import HookMessage
from elasticgrid.agent.notices.notice import Notice
from elasticgrid.agent.running_round import WorkerEnd
from elasticgrid.agent.stuck import Stall
from elasticgrid.core import agent_state as plan
from elasticgrid.publish.channel import At, Checkpointed, Closed, Stopping


def of_hook(number: int, rank: int, message: HookMessage) -> plan.AgentInput | None:
    """What a worker of round `number` said; None for what only the round itself needs to know."""
    match message:
        case Checkpointed():
            return plan.CheckpointNamed(round=number, step=message.step, uri=message.uri)
        case At():
            return plan.WorkerStepped(round=number, rank=rank, step=message.step)
        case Stopping():
            return plan.WorkerStopping(round=number, rank=rank, step=message.step)
        case Closed():
            return plan.WorkerClosed(
                round=number,
                rank=rank,
                step=message.step,
                samples_published=message.samples_published,
                samples_dropped=message.samples_dropped,
            )
        case _:
            return None


def of_exit(number: int, end: WorkerEnd, free_port: int) -> plan.AgentInput:
    """A worker of round `number` is gone."""
    worker, error = end.worker, end.error
    return plan.WorkerExited(
        round=number,
        rank=worker.rank,
        code=worker.code,
        last_lines=worker.last_lines,
        free_port=free_port,
        time_ms=error.time_ms if error is not None else worker.time_ms,
        message=error.message if error is not None else "",
        error_file=error.file if error is not None else "",
        out_of_memory=end.out_of_memory,
        fenced=worker.fenced,
    )


def of_stall(number: int, stall: Stall, stacks: str, now_ms: int) -> plan.AgentInput:
    """Workers of round `number` live but do not get on."""
    since_ms = now_ms - round(stall.age_s * 1000)
    return plan.WorkersStuck(round=number, what=stall.what, since_ms=since_ms, detail=stall.detail, stacks=stacks)


def of_notice(notice: Notice, now_ms: int) -> plan.AgentInput:
    """The node will be taken away."""
    return plan.NoticeReceived(source=notice.source, deadline_ms=notice.deadline_ms, text=notice.text, time_ms=now_ms)
