"""What the agents of a round say to each other over the bus when it is to stop: one node's ear and mouth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.agent.agreement import (
    ANSWER_TIMEOUT_S,
    RETRY_PAUSE_S,
    SILENCE_S,
    Abandon,
    LeadMessage,
    Position,
    StopLead,
    lead_decoder,
    position_decoder,
)
from elasticgrid.agent.bus_link import BusLink
from elasticgrid.agent.config import AgentConfig
from elasticgrid.bus.subjects import round_subject
from elasticgrid.clock import Clock
from elasticgrid.core import agent_state as plan

_log = structlog.get_logger("elasticgrid.agent")


class Answering(Protocol):
    """The round that runs here, as far as its stop is concerned."""

    async def answer(self, message: LeadMessage) -> Position:
        """What this node says to the round's lead."""
        ...


class StopTalk:
    """Answers the lead of a round, and leads where this node does.

    Args:
        config: who this node is.
        running: the round that runs here, None before the first.
        put: hands an input to the state machine.
        spawn: runs a task that the agent watches.
        ignore: counts what meant nothing.
        clock: how to wait.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        running: Callable[[], Answering | None],
        put: Callable[[plan.AgentInput], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        ignore: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._running = running
        self._put = put
        self._spawn = spawn
        self._ignore = ignore
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._lead_heard_s = 0.0
        self._told_round = 0

    async def subscribe(self, client: Client) -> None:
        """Listen to the leads of this node's rounds on a new connection."""

        async def on_message(message: Msg) -> None:
            # In a task of its own: a callback that waits would hold up the subscription.
            self._spawn(self._answer(message))

        await client.subscribe(self._subject(self._config.node), cb=on_message)

    def begin(self, instruction: plan.AgreeOnStop, link: BusLink) -> None:
        """Lead the agreement, or see to it that the lead is heard."""
        self.end()
        self._task = self._spawn(
            self._lead(instruction, link) if instruction.leads else self._await_lead(instruction, link)
        )

    def end(self) -> None:
        """Stop leading or waiting."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def on_told(self, round_number: int) -> Callable[[int], None]:
        """What to call when the workers of that round were told at which step to stop."""

        def told(step: int) -> None:
            self._told_round = round_number
            self._put(plan.StopAgreed(round=round_number, step=step))

        return told

    def _subject(self, node: str) -> str:
        return round_subject(self._config.tenant, self._config.job, node)

    async def _answer(self, message: Msg) -> None:
        try:
            question = lead_decoder.decode(message.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._ignore("bad round message")
            return
        answer = await self._position(question)
        if message.reply:
            with contextlib.suppress(nats.errors.Error, OSError):  # the lead asks again
                await message.respond(msgspec.json.encode(answer))

    async def _position(self, question: LeadMessage) -> Position:
        self._lead_heard_s = asyncio.get_running_loop().time()
        running = self._running()
        if running is None:
            return Position(round=question.round, condition="elsewhere")
        if isinstance(question, Abandon):
            self._put(plan.AgreementFailed(round=question.round))
        return await running.answer(question)

    async def _lead(self, instruction: plan.AgreeOnStop, link: BusLink) -> None:
        async def ask(member: str, message: LeadMessage) -> Position | None:
            if member == self._config.node:
                return await self._position(message)
            data = await link.request(self._subject(member), msgspec.json.encode(message), ANSWER_TIMEOUT_S)
            try:
                return None if data is None else position_decoder.decode(data)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                self._ignore("bad round message")
                return None

        patience_s = instruction.patience_ms / 1000
        lead = StopLead(instruction.round, instruction.members, ask, patience_s=patience_s, pause=self._clock.sleep)
        outcome = await lead.run()
        _log.info("stop agreement", round=instruction.round, outcome=outcome)
        if outcome == "broken":
            self._put(plan.AgreementFailed(round=instruction.round))

    async def _await_lead(self, instruction: plan.AgreeOnStop, link: BusLink) -> None:
        """Give up on a lead that says nothing although the bus is there."""
        now = asyncio.get_running_loop().time
        self._lead_heard_s = now()
        while now() - self._lead_heard_s < SILENCE_S:
            await self._clock.sleep(RETRY_PAUSE_S)
            if self._told_round == instruction.round:
                return
            if not link.connected:
                self._lead_heard_s = now()
        _log.warning("the round's lead is silent", round=instruction.round)
        self._put(plan.AgreementFailed(round=instruction.round))
