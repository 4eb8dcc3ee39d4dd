"""Parts of the agent that need no other process: the stop agreement, step times, the configuration, the fact queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from elasticgrid import environment
from elasticgrid.agent.agreement import (
    MARGIN_STEPS,
    SILENCE_S,
    Abandon,
    AskStopAt,
    Condition,
    LeadMessage,
    LeadOutcome,
    Position,
    StopLead,
    margin_steps,
)
from elasticgrid.agent.config import AgentConfig, default_host, free_port
from elasticgrid.agent.progress import Progress
from elasticgrid.agent.reporter import Reporter
from elasticgrid.core.errors import BusUnavailable, InvalidInput
from elasticgrid.core.events import Event, NodeLeft, Recorded
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import EventLog, Expectation, Scope


class SteppingClock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1_000)

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        await asyncio.sleep(0)


class Workers:
    """A member whose workers take a step of 100 ms whenever they are asked."""

    def __init__(self, step: int = 0, *, step_us: int = 100_000) -> None:
        self.step = step
        self.step_us = step_us
        self.condition: Condition = "running"
        self.silent = False
        self.late_for = 0
        self.stop_at: int | None = None
        self.abandoned = False

    async def answer(self, message: LeadMessage) -> Position | None:
        if self.silent:
            return None
        if isinstance(message, Abandon):
            self.abandoned = True
        self.step += 1
        if isinstance(message, AskStopAt):
            self.stop_at = message.step
            if self.late_for:
                self.late_for -= 1
                self.step = message.step + 1
        return Position(
            round=message.round,
            condition=self.condition,
            step=self.step,
            step_us=self.step_us,
            past=isinstance(message, AskStopAt) and self.step > message.step,
        )


async def agree(members: dict[str, Workers], *, clock: SteppingClock | None = None) -> LeadOutcome:
    clock = clock or SteppingClock()

    async def ask(member: str, message: LeadMessage) -> Position | None:
        return await members[member].answer(message)

    lead = StopLead(1, list(members), ask, patience_s=5.0, pause=clock.sleep, clock=clock)
    async with asyncio.timeout(10):
        return await lead.run()


async def test_all_members_are_told_the_same_step_ahead_of_the_furthest() -> None:
    members = {"a": Workers(10), "b": Workers(12)}
    assert await agree(members) == "agreed"
    assert members["a"].stop_at == members["b"].stop_at == 13 + 3


async def test_a_member_that_is_late_makes_the_step_later_for_all() -> None:
    members = {"a": Workers(10), "b": Workers(10)}
    members["b"].late_for = 1
    assert await agree(members) == "agreed"
    assert members["a"].stop_at == members["b"].stop_at
    assert members["b"].stop_at is not None
    assert members["b"].stop_at > members["b"].step


async def test_a_member_with_broken_workers_ends_the_agreement_for_all() -> None:
    members = {"a": Workers(), "b": Workers()}
    members["b"].condition = "failed"
    assert await agree(members) == "broken"
    assert members["a"].abandoned


async def test_a_member_that_stays_silent_ends_the_agreement() -> None:
    members = {"a": Workers(), "b": Workers()}
    members["b"].silent = True
    clock = SteppingClock()
    assert await agree(members, clock=clock) == "broken"
    assert clock.now_s >= SILENCE_S


async def test_workers_that_ended_by_themselves_leave_nothing_to_agree_on() -> None:
    members = {"a": Workers(), "b": Workers()}
    members["b"].condition = "finished"
    assert await agree(members) == "over"
    assert not members["a"].abandoned


async def test_workers_whose_step_time_never_shows_are_stopped_after_some_patience() -> None:
    members = {"a": Workers(5, step_us=0)}
    clock = SteppingClock()
    assert await agree(members, clock=clock) == "agreed"
    assert clock.now_s >= 5.0
    assert members["a"].stop_at is not None


async def test_a_bus_that_is_away_ends_no_agreement() -> None:
    clock = SteppingClock()
    workers = Workers(5)

    async def ask(member: str, message: LeadMessage) -> Position | None:
        if clock.now_s < 10 * SILENCE_S:
            raise BusUnavailable("away")
        return await workers.answer(message)

    assert await StopLead(1, ["a"], ask, patience_s=5.0, pause=clock.sleep, clock=clock).run() == "agreed"


@pytest.mark.parametrize(
    ("step_us", "waited_s", "steps"),
    [(0, 0.0, MARGIN_STEPS), (10_000_000, 0.0, MARGIN_STEPS), (10_000, 0.0, 30), (10_000, 0.2, 50)],
)
def test_the_margin_covers_three_tenths_of_a_second_and_the_asking(step_us: int, waited_s: float, steps: int) -> None:
    assert margin_steps(step_us, waited_s=waited_s) == steps


def test_step_time_is_the_fastest_workers_over_the_recent_past() -> None:
    clock = SteppingClock()
    progress = Progress([0, 1], 100, clock=clock)
    assert (progress.step, progress.step_us) == (100, 0)
    for turn in range(1, 5):
        clock.now_s = turn * 0.1
        progress.at(0, 100 + turn)
        progress.at(1, 100 + 2 * turn)
    progress.at(7, 999)
    assert (progress.step, progress.step_us) == (108, 50_000)


async def test_waiting_for_answers_ends_when_all_have_answered_anew() -> None:
    progress = Progress([0, 1], 0)
    waiting = asyncio.create_task(progress.wait_for_answers([0, 1], 10.0))
    await asyncio.sleep(0)
    progress.at(0, 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    progress.at(1, 1)
    await asyncio.wait_for(waiting, 5)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        environment.NATS_URL: "nats://127.0.0.1:4222",
        environment.TENANT: "team",
        environment.JOB: "job",
        environment.PROVIDER: "local",
        environment.ATTEMPT: "a1",
        environment.NODE_DIR: str(tmp_path / "node"),
        environment.SHARED_DIR: str(tmp_path / "shared"),
        "RANK": "3",
    }


def test_the_node_is_named_by_its_attempt_and_its_place_in_it(environ: dict[str, str]) -> None:
    config = AgentConfig.from_environment(environ)
    assert (config.node, config.host, config.nproc_per_node, config.orphan_timeout_s) == ("a1-3", "127.0.0.1", 1, None)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (environment.NATS_URL, ""),
        (environment.TENANT, "No Name"),
        (environment.JOB, ""),
        (environment.ATTEMPT, "a.b"),
        (environment.NPROC_PER_NODE, "0"),
        (environment.NPROC_PER_NODE, "two"),
        ("RANK", "-1"),
        (environment.NODE_DIR, ""),
        (environment.SHARED_DIR, "/proc/none"),
        (environment.ORPHAN_TIMEOUT_S, "nan"),
        (environment.ORPHAN_TIMEOUT_S, "-3"),
    ],
)
def test_a_bad_variable_is_named_with_a_hint(environ: dict[str, str], variable: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        AgentConfig.from_environment(environ | {variable: value})
    assert caught.value.where == variable
    assert caught.value.hint


def test_the_host_is_the_loopback_address_when_the_bus_is_local_or_cannot_be_resolved() -> None:
    assert default_host("nats://127.0.0.1:4222") == "127.0.0.1"
    assert default_host("nats://no-such-host.invalid:4222") == "127.0.0.1"


def test_a_free_port_is_found_for_an_address_that_is_none_of_this_machines() -> None:
    assert free_port("192.0.2.1") > 0


def left(number: int) -> Event:
    return Event(id=f"{number:032x}", time_ms=1, tenant="t", job="j", actor="a", data=NodeLeft(node="n", reason=""))


class FlakyLog:
    """A log whose every answer is lost the first time, although the fact landed."""

    def __init__(self) -> None:
        self.inner = MemoryLog(SteppingClock())
        self._lost: set[str] = set()

    async def current(self) -> EventLog:
        return self

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        landed = await self.inner.append(events, expect=expect)
        if events[0].id not in self._lost:
            self._lost.add(events[0].id)
            raise BusUnavailable("the answer was lost")
        return landed

    def read(self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self.inner.read(after=after, through=through, scope=scope)

    def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self.inner.follow(after=after, scope=scope)

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        return await self.inner.last_sequence(scope)


async def test_facts_land_once_and_in_order_when_answers_are_lost() -> None:
    log = FlakyLog()
    reporter = Reporter(log, SteppingClock())
    landed = [reporter.report(left(number)) for number in range(5)]
    running = asyncio.create_task(reporter.run())
    sequences = await asyncio.wait_for(asyncio.gather(*landed), 10)
    running.cancel()
    assert sequences == [1, 2, 3, 4, 5]
    assert [recorded.event.id async for recorded in log.inner.read()] == [left(number).id for number in range(5)]
