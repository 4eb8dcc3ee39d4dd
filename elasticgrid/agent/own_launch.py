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
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.port import Scope

_log = structlog.get_logger("elasticgrid.agent")


async def unwanted(source: LogSource, config: AgentConfig, clock: Clock) -> str:
    """Why the node is not to join, after reading all of the log there is now; empty when it is wanted."""
    while True:
        launch = OwnLaunch(attempt=config.attempt)
        log = await source.current()
        try:
            async with contextlib.aclosing(log.read(scope=_scope(config))) as events:
                async for recorded in events:
                    launch = _after(launch, recorded)
        except (ElasticGridError, nats.errors.Error, OSError) as error:
            _log.warning("the log cannot be read; trying again", error=str(error))
            await clock.sleep(AGAIN_S)
        else:
            return launch.unwanted


async def launch_over(source: LogSource, config: AgentConfig, clock: Clock) -> str:
    """Why nothing of the launch is to run any more, as soon as the log says so."""
    launch = OwnLaunch(attempt=config.attempt)
    async with contextlib.aclosing(follow_on(source, _scope(config), clock)) as events:
        async for recorded in events:
            launch = _after(launch, recorded)
            if launch.over:
                break
    return launch.over


def _scope(config: AgentConfig) -> Scope:
    return Scope(tenant=config.tenant, job=config.job, writer="launch")


def _after(launch: OwnLaunch, recorded: Recorded) -> OwnLaunch:
    return saw(launch, recorded.event.data) if isinstance(recorded.event, Event) else launch
