"""Running a service until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from elasticgrid.core.errors import ElasticGridError

INTERRUPTED = 130
TERMINATED = 143


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def run_until_signalled(main: Coroutine[Any, Any, int], *, terminated: int = 0) -> int:
    """Run `main` and return its exit code; the first SIGINT or SIGTERM cancels it, so that it cleans up.

    The exit code is 130 then after SIGINT, and `terminated` after SIGTERM: 0 for a service, which is ended in no other
    way. A second signal cancels the cleaning up, too.
    """

    async def runner() -> int:
        received: list[signal.Signals] = []
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        try:
            return await task
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:
            # Of what failed together, what was raised on purpose says best what to do.
            told, _ = group.split(ElasticGridError)
            raise _first(told if told is not None else group) from group
        return INTERRUPTED if signal.SIGINT in received else terminated

    return asyncio.run(runner())
