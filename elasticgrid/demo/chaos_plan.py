"""What a run of the demonstration under chaos kills, and when: a pure function of its seed."""

from __future__ import annotations

import random
from typing import Final, Literal

import msgspec

What = Literal["decider", "launcher", "gateway", "bus", "agent", "worker"]
#: Every one of these is killed at least once.
KINDS: Final[tuple[What, ...]] = ("decider", "launcher", "gateway", "bus", "agent", "worker")
#: A second agent or worker would use up what a job may lose in a minute; services may die as often as they like.
_MORE: Final[tuple[What, ...]] = ("decider", "launcher", "gateway", "bus")
MOST_MORE: Final = 2

#: Seconds after the job was submitted, in the order of the kills: the first ones meet the job while it starts.
FIRST_S: Final = 1.0
LAST_S: Final = 42.0
#: Between two kills, so that what was killed is seen to come back.
GAP_S: Final = 4.0


class PlannedKill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill.

    Attributes:
        at_s: seconds after the job was submitted.
        pick: which of several, as a part of 1: of agents and workers there may be more than one.
    """

    at_s: float
    what: What
    pick: float


def chaos_plan(seed: int) -> tuple[PlannedKill, ...]:
    """The kills of this seed, in their order; the same seed always has the same."""
    dice = random.Random(seed)  # noqa: S311 - moments of a test, no secret
    kinds: list[What] = [*KINDS, *dice.sample(_MORE, dice.randint(0, MOST_MORE))]
    dice.shuffle(kinds)
    # Sorted draws from what is left of the time when all gaps are taken out, and then the gaps put back between them.
    room_s = LAST_S - FIRST_S - GAP_S * (len(kinds) - 1)
    draws = sorted(dice.uniform(0.0, room_s) for _ in kinds)
    return tuple(
        PlannedKill(at_s=round(FIRST_S + draw + GAP_S * index, 2), what=what, pick=dice.random())
        for index, (draw, what) in enumerate(zip(draws, kinds, strict=True))
    )
