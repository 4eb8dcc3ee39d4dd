"""Running a service until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

INTERRUPTED = 130


def run_until_signalled(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` and return its exit code; SIGINT and SIGTERM cancel it, so that it cleans up, and give 130 and 0."""

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
        return INTERRUPTED if signal.SIGINT in received else 0

    return asyncio.run(runner())
