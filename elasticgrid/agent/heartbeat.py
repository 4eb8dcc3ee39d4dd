"""What an agent says of itself every two seconds: a plain message, in no log."""

from __future__ import annotations

import msgspec

from elasticgrid.agent.config import AgentConfig
from elasticgrid.core.agent_state import AgentState, WorkerState, worker_state


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The node lives.

    Attributes:
        step: the last that its workers are known to have completed.
        workers: how each worker of the round is, by rank.
        notice_deadline_ms: by when the node will be taken away; 0 while nothing is known of that.
    """

    node: str
    attempt: str
    time_ms: int
    round: int
    step: int
    workers: dict[str, WorkerState] = {}
    notice_deadline_ms: int = 0


def heartbeat(config: AgentConfig, state: AgentState, now_ms: int) -> Heartbeat:
    """The heartbeat of a node in this state."""
    current = state.current
    return Heartbeat(
        node=config.node,
        attempt=config.attempt,
        time_ms=now_ms,
        round=current.world.round if current is not None else 0,
        step=current.last_step if current is not None else 0,
        workers={str(each.rank): worker_state(current, each) for each in current.workers}
        if current is not None
        else {},
        notice_deadline_ms=state.notice_deadline_ms,
    )
