"""Turns for many coroutines that all want to go on at once: a few at a time, and never for long.

A thousand watchers that are woken by one event would keep the loop, and with it whoever decides in the same process,
busy for a tenth of a second at a time. Here they go on in small groups. After each group the loop is left to others for
a multiple of the time that the group took, so that all of them together get a fixed share of it, and the less the
busier it is. Who waits its turn misses nothing: it reads everything that has come until then in one go.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

#: How many go on in one round of the loop.
GROUP: Final = 8
#: The share of the loop that all of them get.
SHARE: Final = 0.2
#: Rounds of the loop that one turn takes: it is woken, writes, and waits again.
_ROUNDS: Final = 3
#: The longest rest, however long a group seemed to take.
_LONGEST_REST_S: Final = 0.25


class Turns:
    """Lets those who wait in `changed_or` and `soon` go on, one small group after the other.

    Args:
        group: how many go on together.
        share: of the loop's time, for all of them; between 0 and 1.
        now_s, rest: what tells how long a group took, and how the loop is left to others for so many seconds.
    """

    def __init__(
        self,
        *,
        group: int = GROUP,
        share: float = SHARE,
        now_s: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._group = group
        self._now_s = now_s
        self._leave_to_others = rest
        self._rest = 1 / share - 1
        #: Those who wait for something to change, in the order they came, and from when on they go on without.
        self._waiting: dict[asyncio.Future[bool], float] = {}
        self._ready: deque[tuple[asyncio.Future[bool], bool]] = deque()
        self._pacing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def change(self) -> None:
        """Something has changed: everybody who waits for that gets a turn."""
        self._ready.extend((each, True) for each in self._waiting)
        self._waiting.clear()
        self._pace()

    async def changed_or(self, timeout_s: float) -> bool:
        """Wait for a turn after the next change, or after that time; whether there was a change."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        until = loop.time() + timeout_s
        self._waiting[turn] = until
        self._wake_by(until)
        try:
            return await turn
        finally:
            self._waiting.pop(turn, None)

    async def soon(self) -> None:
        """Wait for a turn, with no change needed."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ready.append((turn, False))
        self._pace()
        await turn

    def _wake_by(self, until: float) -> None:
        """Have a look at who has waited long enough no later than that."""
        if self._timer is not None and self._timer.when() > until:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(until, self._time_is_up)

    def _time_is_up(self) -> None:
        """Give a turn to those who have waited long enough."""
        now = asyncio.get_running_loop().time()
        self._timer = None
        over = [turn for turn, until in self._waiting.items() if until <= now]
        for turn in over:
            del self._waiting[turn]
            self._ready.append((turn, False))
        if self._waiting:
            self._wake_by(min(self._waiting.values()))
        self._pace()

    def _pace(self) -> None:
        if self._ready and (self._pacing is None or self._pacing.done()):
            self._pacing = asyncio.get_running_loop().create_task(self._let_go_on(), name="turns")

    async def _let_go_on(self) -> None:
        while self._ready:
            began_s = self._now_s()
            left = self._group
            while left and self._ready:
                turn, changed = self._ready.popleft()
                if not turn.done():  # it may have gone away meanwhile
                    turn.set_result(changed)
                    left -= 1
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            if self._ready:
                await self._leave_to_others(min((self._now_s() - began_s) * self._rest, _LONGEST_REST_S))
