"""Turns: however many want to go on at once, others get most of the loop, and nobody is forgotten."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from elasticgrid.gateway.feed import EventFeed
from elasticgrid.gateway.service import GatewayService
from elasticgrid.gateway.turns import Turns
from elasticgrid.projections.results import EventView

CROWD = 500


def view(sequence: int, *, size: int = 10, job: str = "j") -> EventView:
    return EventView(
        sequence=sequence,
        recorded_ms=0,
        tenant="default",
        job=job,
        type="job.submitted",
        actor="test",
        known=True,
        took_effect=True,
        text="x" * size,
        event=msgspec.Raw(b"{}"),
    )


async def crowd(turns: Turns, timeout_s: float = 60.0) -> list[asyncio.Task[bool]]:
    """Many who wait for a change."""
    tasks = [asyncio.create_task(turns.changed_or(timeout_s)) for _ in range(CROWD)]
    await asyncio.sleep(0)
    return tasks


async def test_everybody_who_waits_for_a_change_gets_a_turn() -> None:
    turns = Turns()
    tasks = await crowd(turns)
    turns.change()
    async with asyncio.timeout(20):
        assert await asyncio.gather(*tasks) == [True] * CROWD


async def test_no_more_than_a_group_goes_on_in_one_round_of_the_loop() -> None:
    turns = Turns(group=5)
    tasks = await crowd(turns)
    turns.change()
    done, most = 0, 0
    async with asyncio.timeout(20):
        while done < CROWD:
            await asyncio.sleep(0)
            now = sum(task.done() for task in tasks)
            most = max(most, now - done)
            done = now
    assert 1 <= most <= 5


async def test_between_groups_the_loop_is_left_to_others_for_a_multiple_of_their_time() -> None:
    clock_s, rests_s = 0.0, []

    async def rest(duration_s: float) -> None:
        rests_s.append(duration_s)

    async def work(duration_s: float) -> None:
        nonlocal clock_s
        await turns.changed_or(60)
        clock_s += duration_s

    turns = Turns(group=10, share=0.2, now_s=lambda: clock_s, rest=rest)
    durations_s = [0.001] * 20 + [0.02] * 10 + [0.001] * 10
    tasks = [asyncio.create_task(work(duration_s)) for duration_s in durations_s]
    await asyncio.sleep(0)
    turns.change()
    await asyncio.gather(*tasks)
    # Four times what each group took, but not for ever; the last group has nobody to rest for.
    assert rests_s == pytest.approx([0.04, 0.04, 0.25])


async def test_without_a_change_a_turn_comes_when_the_time_is_up_and_says_so() -> None:
    turns = Turns()
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(turns.changed_or(0.02) for _ in range(50))) == [False] * 50
        # And again: the clock of the first has not been stopped for good.
        assert await turns.changed_or(0.01) is False


async def test_a_change_between_two_times_starts_the_time_anew() -> None:
    turns = Turns()
    first = asyncio.create_task(turns.changed_or(30))
    await asyncio.sleep(0)
    turns.change()
    assert await first is True
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(turns.changed_or(0.05))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await waiting is False


async def test_who_goes_away_while_waiting_keeps_nobody_from_going_on() -> None:
    turns = Turns(group=3)
    tasks = await crowd(turns)
    for task in tasks[::2]:
        task.cancel()
    turns.change()
    async with asyncio.timeout(20):
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(each is True for each in found) == CROWD // 2


async def test_soon_needs_no_change() -> None:
    async with asyncio.timeout(5):
        await Turns().soon()


async def test_events_that_come_between_two_turns_are_told_in_one_go(gateway: GatewayService) -> None:
    feed = EventFeed(gateway.views)
    frames = feed.frames(feed.last)
    await anext(frames)
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    assert feed.watchers == 1
    for sequence in range(1, 51):
        feed.publish([view(sequence)])
    told = await waiting
    assert [line for line in told.splitlines() if line.startswith(b"id: ")] == [b"id: %d" % n for n in range(1, 51)]
    assert feed.sent == 50
    feed.close()
    with pytest.raises(StopAsyncIteration):
        await anext(frames)
    assert feed.watchers == 0


async def test_what_is_given_to_a_watcher_at_once_is_bounded_in_bytes(gateway: GatewayService) -> None:
    feed = EventFeed(gateway.views)
    frames = feed.frames(feed.last)
    await anext(frames)
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    feed.publish([view(sequence, size=50_000) for sequence in range(1, 41)])
    parts = [await waiting]
    async with asyncio.timeout(20):
        while b"id: 40\n" not in parts[-1]:
            parts.append(await anext(frames))
    assert max(map(len, parts)) < 200_000
    ids = [line for part in parts for line in part.splitlines() if line.startswith(b"id: ")]
    assert ids == [b"id: %d" % sequence for sequence in range(1, 41)]
