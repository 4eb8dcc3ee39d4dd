"""The virtual clock moves when it is told to and wakes who waited."""

from __future__ import annotations

import asyncio

import pytest

from elasticgrid.testing.clock import VirtualClock


async def test_sleepers_wake_when_their_time_has_come_and_not_before() -> None:
    clock = VirtualClock(1_000)
    sleeper = asyncio.create_task(clock.sleep(2.0))
    await asyncio.sleep(0)
    assert clock.sleepers == 1
    clock.advance(1.999)
    await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(0.001)
    await sleeper
    assert clock.now_ms() == 3_000
    assert clock.sleepers == 0


async def test_running_for_a_while_keeps_the_pace_of_periodic_tasks() -> None:
    clock = VirtualClock(0)
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            await clock.sleep(0.5)
            ticks.append(clock.now_ms())

    task = asyncio.create_task(tick())
    await clock.run_for(2.2)
    assert ticks == [500, 1_000, 1_500, 2_000]
    assert clock.now_ms() == 2_200
    task.cancel()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock(0)
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert clock.sleepers == 0
    clock.advance(2)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        VirtualClock(0).advance(-1)
