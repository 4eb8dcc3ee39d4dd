"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class VirtualClock:
    """A `Clock` whose time is set by the test.

    Args:
        now_ms: where it begins, Unix milliseconds.
    """

    def __init__(self, now_ms: int = 1_750_000_000_000) -> None:
        self._now_us = now_ms * 1_000
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self._now_us // 1_000

    @property
    def sleepers(self) -> int:
        """How many tasks wait for the time to come."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, duration_s: float) -> None:
        """Wait until the clock was moved that far."""
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_us = self._now_us + round(duration_s * 1_000_000)
        heapq.heappush(self._sleepers, (due_us, next(self._order), future))
        await future

    def advance(self, duration_s: float) -> None:
        """Move the clock; who slept until then runs when the caller next awaits."""
        self._advance_to(self._now_us + round(duration_s * 1_000_000))

    async def run_for(self, duration_s: float) -> None:
        """Move the clock from one sleeper's time to the next and let each run, so that periodic tasks keep pace."""
        end_us = self._now_us + round(duration_s * 1_000_000)
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end_us:
            self._advance_to(self._sleepers[0][0])
            await _settle()
        self._advance_to(end_us)
        await _settle()

    def _advance_to(self, to_us: int) -> None:
        if to_us < self._now_us:
            raise ValueError("time does not go back")
        self._now_us = to_us
        while self._sleepers and self._sleepers[0][0] <= to_us:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)


async def _settle() -> None:
    """Let tasks that became ready run to their next wait; a chain of up to 20 hand-overs is seen through."""
    for _ in range(20):
        await asyncio.sleep(0)
