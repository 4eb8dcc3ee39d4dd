"""A part of the log, read as it comes through every lost connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import nats.errors
import structlog

from elasticgrid.agent.reporter import LogSource
from elasticgrid.clock import Clock
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.events import Recorded
from elasticgrid.log.port import Scope

_log = structlog.get_logger("elasticgrid.agent")

#: How long to wait with a log that cannot be followed before it is tried again.
AGAIN_S: Final = 1.0


async def follow_on(source: LogSource, scope: Scope, clock: Clock) -> AsyncGenerator[Recorded]:
    """Yield every event in `scope` in order, from the first one on, for ever."""
    after = 0
    while True:
        log = await source.current()
        try:
            async with contextlib.aclosing(log.follow(after=after, scope=scope)) as events:
                async for recorded in events:
                    after = recorded.sequence
                    yield recorded
        except (ElasticGridError, nats.errors.Error, OSError) as error:
            _log.warning("the log cannot be followed; trying again", of=scope.writer, error=str(error))
        await clock.sleep(AGAIN_S)
