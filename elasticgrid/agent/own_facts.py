"""What an agent says in the log of its own node."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import structlog

from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.reporter import Reporter
from elasticgrid.clock import Clock
from elasticgrid.core import agent_state as plan
from elasticgrid.core.events import Event, NodeJoined, type_of
from elasticgrid.core.names import derived_id

_log = structlog.get_logger("elasticgrid.agent")

#: How long an agent that ends because the log says so waits for its last facts to land.
FLUSH_S: Final = 60.0
#: The same for one that ends because of a signal or a lost bus.
HASTY_FLUSH_S: Final = 3.0


class OwnFacts:
    """The facts of one node, on their way into the log through a reporter that somebody else runs.

    Attributes:
        story: the event that all of it began with, the job's submission; empty while it is not known.
    """

    def __init__(self, config: AgentConfig, reporter: Reporter, clock: Clock) -> None:
        self.story = ""
        self._config = config
        self._reporter = reporter
        self._clock = clock
        self._said = 0
        self._last: asyncio.Future[int] | None = None

    def say(self, data: plan.NodeFact | NodeJoined, cause: plan.Cause) -> asyncio.Future[int]:
        """Queue a fact. The future gives its sequence once it is in the log, 0 if the log refused it."""
        now_ms, config = self._clock.now_ms(), self._config
        self._said += 1
        event = Event(
            id=derived_id(now_ms, config.job, config.node, type_of(data), os.getpid(), self._said),
            time_ms=now_ms,
            tenant=config.tenant,
            job=config.job,
            causation_id=cause.event_id,
            correlation_id=cause.correlation_id or self.story,
            actor=f"agent:{config.node}",
            data=data,
        )
        _log.info("fact", type=type_of(data), node=config.node)
        self._last = self._reporter.report(event)
        return self._last

    async def flush(self, hasty: asyncio.Event) -> None:
        """Wait for the last fact to land; briefly when, or as soon as, there is haste."""
        if self._last is None:
            return
        haste = asyncio.create_task(hasty.wait())
        try:
            ends: set[asyncio.Future[Any]] = {self._last, haste}
            await asyncio.wait(ends, timeout=FLUSH_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._last.done():
                await asyncio.wait({self._last}, timeout=HASTY_FLUSH_S)
        finally:
            haste.cancel()
        if not self._last.done():
            _log.warning("not all facts are in the log", node=self._config.node)
