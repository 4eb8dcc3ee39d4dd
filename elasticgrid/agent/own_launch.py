"""The launch this node belongs to, read from the log: an agent whose launch is unknown or over is not to run."""

from __future__ import annotations

import contextlib

import nats.errors
import structlog

from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.log_following import AGAIN_S, follow_on
from elasticgrid.agent.reporter import LogSource
from elasticgrid.clock import Clock
from elasticgrid.core.agent_launch import OwnLaunch, saw
from elasticgrid.core.agent_state import Cause
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.port import Scope

_log = structlog.get_logger("elasticgrid.agent")


async def unwanted(source: LogSource, config: AgentConfig, clock: Clock) -> tuple[str, Cause]:
    """Why the node is not to join, after reading all of the log there is now; empty when it is wanted.

    Beside it the intent that the node was launched for.
    """
    while True:
        launch = OwnLaunch(attempt=config.attempt)
        intent = Cause()
        log = await source.current()
        try:
            async with contextlib.aclosing(log.read(scope=_scope(config))) as events:
                async for recorded in events:
                    after = _after(launch, recorded)
                    if after.requested and not launch.requested:
                        intent = _cause(recorded)
                    launch = after
        except (ElasticGridError, nats.errors.Error, OSError) as error:
            _log.warning("the log cannot be read; trying again", error=str(error))
            await clock.sleep(AGAIN_S)
        else:
            return launch.unwanted, intent


async def launch_over(source: LogSource, config: AgentConfig, clock: Clock) -> tuple[str, Cause]:
    """Why nothing of the launch is to run any more, as soon as the log says so, and the event that says it."""
    launch = OwnLaunch(attempt=config.attempt)
    end = Cause()
    async with contextlib.aclosing(follow_on(source, _scope(config), clock)) as events:
        async for recorded in events:
            launch = _after(launch, recorded)
            if launch.over:
                end = _cause(recorded)
                break
    return launch.over, end


def _scope(config: AgentConfig) -> Scope:
    return Scope(tenant=config.tenant, job=config.job, writer="launch")


def _cause(recorded: Recorded) -> Cause:
    event = recorded.event
    return Cause(event_id=event.id, correlation_id=event.correlation_id) if isinstance(event, Event) else Cause()


def _after(launch: OwnLaunch, recorded: Recorded) -> OwnLaunch:
    return saw(launch, recorded.event.data) if isinstance(recorded.event, Event) else launch
