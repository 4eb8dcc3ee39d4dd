"""Work that arrives by the clock, and how long it waits for a free place in a batch."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Schedule:
    """When each item arrives: phases of (seconds, items per second); the last phase goes on for ever."""

    def __init__(self, phases: Sequence[tuple[float, float]]) -> None:
        if not phases or any(seconds <= 0 or rate < 0 for seconds, rate in phases) or phases[-1][1] <= 0:
            raise ValueError("phases are SECONDS:ITEMS_PER_SECOND, and items go on arriving in the last one")
        self._phases = tuple(phases)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """A schedule such as `12:40,20:120,1:25`."""
        pairs = (part.split(":") for part in text.split(","))
        return cls([(float(seconds), float(rate)) for seconds, rate in pairs])

    def arrived(self, elapsed_s: float) -> int:
        """How many items have arrived after this time."""
        items, begins_s = 0.0, 0.0
        for index, (seconds, rate) in enumerate(self._phases):
            last = index == len(self._phases) - 1
            items += rate * max(0.0, elapsed_s - begins_s if last else min(seconds, elapsed_s - begins_s))
            begins_s += seconds
        return int(items + 1e-9)

    def arrival_s(self, item: int) -> float:
        """When item number `item` (from 0) arrives."""
        wanted, begins_s = float(item + 1), 0.0
        for seconds, rate in self._phases[:-1]:
            if wanted <= rate * seconds:
                return begins_s + wanted / rate
            wanted -= rate * seconds
            begins_s += seconds
        return begins_s + wanted / self._phases[-1][1]


class Taken(NamedTuple):
    """So many items from number `first` on, and the mean of the times they were passed over, in seconds."""

    first: int
    items: int
    queue_s: float


class WorkQueue:
    """Items in order of arrival. What it measures as waiting is being passed over because a batch was full.

    Args:
        schedule, started_s: arrivals, and the Unix time they count from.
        taken: items taken by earlier worlds.
        limit: at most so many items wait after a step boundary, as in a buffer that drops its oldest; `None`: all.
        passed: (items arrived, Unix time) of earlier step boundaries that left items behind.
    """

    def __init__(
        self,
        schedule: Schedule,
        started_s: float,
        *,
        taken: int = 0,
        limit: int | None = None,
        passed: Iterable[tuple[int, float]] = (),
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._schedule = schedule
        self._started_s = started_s
        self._now_s = now_s
        self._sleep = sleep
        self.taken = taken
        self._limit = limit
        self._passed: deque[tuple[int, float]] = deque((int(upto), float(when_s)) for upto, when_s in passed)

    @property
    def passed(self) -> list[tuple[int, float]]:
        """Step boundaries that left items behind which still wait; a checkpoint holds them."""
        return list(self._passed)

    def take(self, most: int, *, max_wait_s: float) -> Taken:
        """A step boundary: the oldest items, at most `most`, as soon as so many are there or `max_wait_s` is over.

        At least one item is taken, however long it takes to arrive. Where more would be left waiting than the limit,
        the oldest are dropped first: `taken` is the number of the next item.
        """
        opened_s = self._now_s()
        full_s = self._started_s + self._schedule.arrival_s(self.taken + most - 1)
        first_s = self._started_s + self._schedule.arrival_s(self.taken)
        until_s = max(first_s, min(full_s, opened_s + max_wait_s))
        while (now_s := self._now_s()) < until_s:
            self._sleep(until_s - now_s)
        arrived = max(self._schedule.arrived(now_s - self._started_s), self.taken + 1)
        if self._limit is not None:
            self.taken = max(self.taken, arrived - most - self._limit)
        first, count = self.taken, min(most, arrived - self.taken)
        waited_s = 0.0
        for item in range(first, first + count):
            while self._passed and self._passed[0][0] <= item:
                self._passed.popleft()
            if self._passed:
                waited_s += now_s - self._passed[0][1]
        self.taken += count
        while self._passed and self._passed[0][0] <= self.taken:
            self._passed.popleft()
        if arrived > max(self.taken, self._passed[-1][0] if self._passed else 0):
            self._passed.append((arrived, now_s))
        return Taken(first, count, waited_s / count)


def started_at(folder: str | os.PathLike[str], now_s: float) -> float:
    """When the job started, Unix seconds: `now_s` for who asks first in this folder, the same for all later ones."""
    path = Path(folder) / "started.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_name(f".started-{os.getpid()}.json")
        mine.write_text(json.dumps({"unix_s": now_s}))
        try:
            os.link(mine, path)  # unlike a rename this never replaces the first one
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return float(json.loads(path.read_text())["unix_s"])
