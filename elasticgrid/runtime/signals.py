"""Running a service until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

INTERRUPTED = 130
TERMINATED = 143


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
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return INTERRUPTED if signal.SIGINT in received else terminated

    return asyncio.run(runner())
