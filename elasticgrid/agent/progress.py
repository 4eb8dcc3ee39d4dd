"""How far the workers of a round are and how long their steps take, as their hooks tell it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

#: Step times are measured over this much of the recent past.
WINDOW_S: Final = 10.0


class Progress:
    """Steps completed by each local worker of one round.

    Args:
        ranks: the round's workers on this node.
        resume_step: where they begin.
        clock: seconds that only grow.
    """

    def __init__(self, ranks: Sequence[int], resume_step: int, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._resume_step = resume_step
        self._seen: dict[int, deque[tuple[float, int]]] = {rank: deque() for rank in ranks}
        self._heard = asyncio.Event()

    def at(self, rank: int, step: int) -> None:
        """A worker had completed `step` steps."""
        seen = self._seen.get(rank)
        if seen is None:
            return
        now = self._clock()
        seen.append((now, step))
        while len(seen) > 2 and now - seen[0][0] > WINDOW_S:
            seen.popleft()
        heard, self._heard = self._heard, asyncio.Event()
        heard.set()

    @property
    def step(self) -> int:
        """The most steps that any of the workers completed."""
        return max((seen[-1][1] for seen in self._seen.values() if seen), default=self._resume_step)

    @property
    def step_us(self) -> int:
        """Microseconds a step takes, by the fastest worker; 0 while that cannot be said."""
        times = [
            (seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1])
            for seen in self._seen.values()
            if seen and seen[-1][1] > seen[0][1]
        ]
        return max(1, round(min(times) * 1e6)) if times else 0

    async def wait_for_answers(self, ranks: Sequence[int], timeout_s: float) -> None:
        """Return when each of `ranks` has said anew where it is, or after `timeout_s`."""
        asked = self._clock()
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._seen[rank] and self._seen[rank][-1][0] >= asked for rank in ranks):
                    await self._heard.wait()
        except TimeoutError:
            return
