"""Telling workers that hang from workers that take their time.

A worker is stuck when it lives and completed no step for ten times as long as its steps take, and not before a time
that is set; or when something that it said would end in time has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import Final, Literal

import msgspec

#: So many times the usual step is no slow step any more.
STEPS: Final = 10
#: How many of the last steps "usual" is taken from.
REMEMBERED: Final = 64


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that do not get on.

    Attributes:
        ranks: which, the one that waits longest first.
        age_s: seconds since its last step, or since the part began that has not ended.
        detail: the same for people.
    """

    what: Literal["no_step", "expired"]
    ranks: tuple[int, ...]
    age_s: float
    detail: str


class _Seen:
    """What is known of one worker."""

    __slots__ = ("expiring", "moved_s", "step", "step_s", "stepped")

    def __init__(self, step: int, now_s: float) -> None:
        self.step = step
        self.stepped = False
        self.moved_s = now_s
        self.step_s: deque[float] = deque(maxlen=REMEMBERED)
        #: By number: when it is to have ended, the time it was given, and its name.
        self.expiring: dict[int, tuple[float, float, str]] = {}


class StuckWatch:
    """Follows the workers of one round. A worker of which nothing was ever heard is not judged.

    Args:
        resume_step: where the round began.
        after_s: without a step for less than this nobody is stuck; 0 never calls anybody stuck for it.
        at_start_s: the same before the first step, in which there is much to load.
        clock: seconds that only grow.
    """

    def __init__(
        self, resume_step: int, *, after_s: float, at_start_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._resume_step = resume_step
        self._after_s = after_s
        self._at_start_s = at_start_s
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._told: set[str] = set()

    def at(self, rank: int, step: int) -> None:
        """A worker had completed `step` steps."""
        seen, now_s = self._of(rank), self._clock()
        if step <= seen.step:
            return
        if seen.stepped:
            seen.step_s.append((now_s - seen.moved_s) / (step - seen.step))
        seen.step, seen.stepped, seen.moved_s = step, True, now_s
        self._told.clear()

    def moved(self, rank: int) -> None:
        """A worker got on with something other than a step."""
        self._of(rank).moved_s = self._clock()

    def expires(self, rank: int, number: int, after_s: float, name: str, *, limit_s: float | None = None) -> None:
        """Something is to have ended in `after_s` seconds, which are left of the `limit_s` that it was given."""
        given_s = after_s if limit_s is None else limit_s
        self._of(rank).expiring[number] = (self._clock() + after_s, given_s, name)

    def ended(self, rank: int, number: int) -> None:
        """It has."""
        seen = self._of(rank)
        if seen.expiring.pop(number, None) is not None:
            seen.moved_s = self._clock()
            self._told.discard("expired")

    def gone(self, rank: int) -> None:
        """A worker is no more."""
        self._seen.pop(rank, None)

    def look(self) -> Stall | None:
        """What is stuck now, told once until something moves."""
        for stall in (self._overrun(), self._without_step()):
            if stall is not None and stall.what not in self._told:
                self._told.add(stall.what)
                return stall
        return None

    def _of(self, rank: int) -> _Seen:
        seen = self._seen.get(rank)
        if seen is None:
            seen = self._seen[rank] = _Seen(self._resume_step, self._clock())
        return seen

    def _overrun(self) -> Stall | None:
        now_s = self._clock()
        over = sorted(
            (until_s - limit_s, rank, limit_s, name)
            for rank, seen in self._seen.items()
            for until_s, limit_s, name in seen.expiring.values()
            if now_s >= until_s
        )
        if not over:
            return None
        began_s, rank, limit_s, name = over[0]
        detail = f"{name or 'a part'} of rank {rank} was to end in {limit_s:g} s and has not"
        ranks = tuple(dict.fromkeys(each[1] for each in over))
        return Stall(what="expired", ranks=ranks, age_s=now_s - began_s, detail=detail)

    def _without_step(self) -> Stall | None:
        if self._after_s <= 0:
            return None
        now_s = self._clock()
        over = sorted(
            ((seen.moved_s, rank) for rank, seen in self._seen.items() if now_s - seen.moved_s >= self._limit_s(seen)),
        )
        if not over:
            return None
        moved_s, rank = over[0]
        age_s, limit_s = now_s - moved_s, self._limit_s(self._seen[rank])
        return Stall(
            what="no_step",
            ranks=tuple(each for _, each in over),
            age_s=age_s,
            detail=f"rank {rank} has taken no step for {age_s:.0f} s, the limit is {round(limit_s, 3):g} s",
        )

    def _limit_s(self, seen: _Seen) -> float:
        if not seen.stepped:
            return max(self._after_s, self._at_start_s)
        return max(self._after_s, STEPS * median(seen.step_s)) if seen.step_s else self._after_s
