"""Agreeing on the step at which all workers of a round stop.

The agent of group rank 0 leads. It asks every member where its workers are, chooses a step far enough ahead for all of
them to hear of it in time, and tells every member. A member whose workers were already past it says so, and the lead
chooses a later one. When a member's workers are broken there is no step that all could reach: the round is abandoned.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, Literal, TypeAlias

import msgspec
import structlog

from elasticgrid.core.errors import BusError

_log = structlog.get_logger("elasticgrid.agent")

#: The step to stop at lies at least this far ahead, in time and in steps.
MARGIN_S: Final = 0.3
MARGIN_STEPS: Final = 2
#: How long a member may take to answer, and how long all of a member's silence is borne while the bus is there.
ANSWER_TIMEOUT_S: Final = 2.0
SILENCE_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.2


Condition: TypeAlias = Literal["running", "finished", "failed", "elsewhere"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What agents of one round say to each other."""


class AskWhere(_Message, frozen=True, kw_only=True, tag="ask_where"):
    """Lead: how far are your workers?"""

    round: int


class AskStopAt(_Message, frozen=True, kw_only=True, tag="ask_stop_at"):
    """Lead: tell your workers to stop after `step` steps."""

    round: int
    step: int


class Abandon(_Message, frozen=True, kw_only=True, tag="abandon"):
    """Lead: there will be no agreement."""

    round: int


class Position(_Message, frozen=True, kw_only=True, tag="position"):
    """Member: where its workers are.

    Attributes:
        condition: `running`; `finished` when all of them ended with success; `failed` when any ended otherwise;
            `elsewhere` when the node is not in that round (not yet, or no more).
        step: the most steps any of them completed.
        step_us: microseconds a step takes; 0 while not known.
        past: some had gone beyond the step they were told to stop at.
    """

    round: int
    condition: Condition
    step: int = 0
    step_us: int = 0
    past: bool = False


LeadMessage: TypeAlias = AskWhere | AskStopAt | Abandon
lead_decoder: Final = msgspec.json.Decoder(LeadMessage)
position_decoder: Final = msgspec.json.Decoder(Position)

#: Ask one member (by its node id); None when it did not answer in time. Raises BusError while the bus is away.
Ask: TypeAlias = Callable[[str, LeadMessage], Awaitable[Position | None]]
#: `over`: workers ended by themselves, so there is nothing to agree on any more.
LeadOutcome: TypeAlias = Literal["agreed", "broken", "over"]


class StopLead:
    """The lead's side of one agreement.

    While the bus is away it goes on trying: that hurts no worker, and the caller bounds the whole. A member that is
    silent although the bus is there, or whose workers are broken, ends it.

    Args:
        round_number: the round that ends.
        members: all nodes of the round, the lead's own too.
        ask: how a member is asked.
        patience_s: how long to wait for workers that have not shown yet how long their steps take.
        pause: how to wait.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        round_number: int,
        members: Sequence[str],
        ask: Ask,
        *,
        patience_s: float,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._round = round_number
        self._members = tuple(members)
        self._ask = ask
        self._patience_s = patience_s
        self._pause = pause
        self._clock = clock
        self._heard: dict[str, float] = {}

    async def run(self) -> LeadOutcome:
        """Agree with all members, or find out that it cannot be done or need not be done."""
        began = self._clock()
        self._heard = dict.fromkeys(self._members, began)
        stretch = 1
        while True:
            asked = self._clock()
            positions = await self._ask_all(AskWhere(round=self._round), self._members)
            if self._broken(positions, self._members):
                await self._abandon()
                return "broken"
            if any(position.condition == "finished" for position in positions.values()):
                return "over"
            step_us = self._step_us(positions, patient=self._clock() - began < self._patience_s)
            if step_us is None:
                await self._pause(RETRY_PAUSE_S)
                continue
            margin = stretch * margin_steps(step_us, waited_s=self._clock() - asked)
            step = max(position.step for position in positions.values()) + margin
            outcome = await self._tell_all(step)
            if outcome == "broken":
                await self._abandon()
            if outcome != "past":
                return outcome
            stretch *= 2
            _log.info("workers were past the step to stop at; a later one is chosen", round=self._round, step=step)

    def _step_us(self, positions: dict[str, Position], *, patient: bool) -> int | None:
        """How long a step takes, 0 when that is not to be found out, None when the members are to be asked again."""
        running = [position for position in positions.values() if position.condition == "running"]
        if len(running) < len(self._members):
            return None
        known = [position.step_us for position in running if position.step_us > 0]
        if len(known) < len(running) and patient:
            return None
        return min(known, default=0)

    async def _tell_all(self, step: int) -> Literal["agreed", "past", "broken"]:
        waiting = self._members
        while True:
            answers = await self._ask_all(AskStopAt(round=self._round, step=step), waiting)
            if self._broken(answers, waiting):
                return "broken"
            if any(answer.past for answer in answers.values()):
                return "past"
            # Workers that ended by themselves before that step are no obstacle: nothing of them is left to stop.
            waiting = tuple(m for m in waiting if m not in answers or answers[m].condition == "elsewhere")
            if not waiting:
                return "agreed"
            await self._pause(RETRY_PAUSE_S)

    async def _ask_all(self, message: LeadMessage, members: Sequence[str]) -> dict[str, Position]:
        """The answers that came, by member. While the bus is away nobody's silence counts."""
        answers = await asyncio.gather(*(self._ask(member, message) for member in members), return_exceptions=True)
        found: dict[str, Position] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, BusError):
                self._heard = dict.fromkeys(self._members, self._clock())
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                found[member] = answer
                self._heard[member] = self._clock()
        return found

    def _broken(self, positions: dict[str, Position], asked: Sequence[str]) -> bool:
        """Whether some member's workers are broken, or a member was silent for too long."""
        if any(position.condition == "failed" for position in positions.values()):
            return True
        now = self._clock()
        return any(now - self._heard[member] > SILENCE_S for member in asked if member not in positions)

    async def _abandon(self) -> None:
        """Tell all members that there will be no agreement, as far as they can be reached."""
        message = Abandon(round=self._round)
        await asyncio.gather(*(self._ask(member, message) for member in self._members), return_exceptions=True)


def margin_steps(step_us: int, *, waited_s: float) -> int:
    """How many steps ahead the stop lies, `waited_s` after the workers were asked; `step_us` 0 means not known."""
    if step_us <= 0:
        return MARGIN_STEPS
    return max(MARGIN_STEPS, math.ceil((MARGIN_S + waited_s) * 1e6 / step_us))
