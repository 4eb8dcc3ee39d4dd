"""The clock that shells are given; the core is only ever told a time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell takes the time from and how it waits."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return time.time_ns() // 1_000_000

    async def sleep(self, duration_s: float) -> None:
        """Wait that long."""
        await asyncio.sleep(duration_s)
