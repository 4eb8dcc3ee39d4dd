"""A log with a mirror is a log, and one that notices when it is told another story than before."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from nats.aio.client import Client

from elasticgrid.bus.subjects import event_subject
from elasticgrid.core.errors import LogDiverged
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import MirroredLog, mirrored_log
from elasticgrid.log.port import EventLog, Expectation, Scope
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.log_contract import (
    DECISIONS,
    EVERYTHING,
    JOB,
    EventLogContract,
    a_decision,
    an_event,
    read_all,
    take,
)


@pytest.fixture
async def mirror(tmp_path: Path) -> AsyncGenerator[Mirror]:
    async with await Mirror.open(tmp_path / "mirror.sqlite") as mirror:
        yield mirror


class TestMirroredMemoryLog(EventLogContract):
    @pytest.fixture
    async def log(self, mirror: Mirror) -> EventLog:
        return MirroredLog(MemoryLog(VirtualClock()), mirror)


@pytest.mark.server
class TestMirroredJetStreamLog(EventLogContract):
    @pytest.fixture
    async def log(self, bus_client: Client, mirror: Mirror) -> EventLog:
        return mirrored_log(bus_client, mirror)


async def memory_log(*events: Event) -> MemoryLog:
    log = MemoryLog(VirtualClock())
    for event in events:
        await log.append([event])
    return log


class ReplacedLog:
    """A log that can become another one under whoever uses it."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        return await self.log.append(events, expect=expect)

    def read(
        self, *, after: int = 0, through: int | None = None, scope: Scope = EVERYTHING
    ) -> AsyncGenerator[Recorded]:
        return self.log.read(after=after, through=through, scope=scope)

    def follow(self, *, after: int = 0, scope: Scope = EVERYTHING) -> AsyncGenerator[Recorded]:
        return self.log.follow(after=after, scope=scope)

    async def last_sequence(self, scope: Scope = EVERYTHING) -> int:
        return await self.log.last_sequence(scope)


def over(log: EventLog, mirror: Mirror) -> MirroredLog:
    """As a new process would open it."""
    return MirroredLog(log, mirror, patience_s=0)


def damage(mirror: Mirror, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(mirror.path)) as connection, connection:
        connection.execute(statement)


async def test_an_event_is_in_the_mirror_before_anybody_gets_it(mirror: Mirror) -> None:
    base = await memory_log(*(an_event(n) for n in range(1, 8)))
    log = over(base, mirror)
    records = log.follow()
    async with await Mirror.open(mirror.path, read_only=True) as seen:
        for number in range(1, 10):
            if number > 7:
                await log.append([an_event(number)])
            (record,) = await take(records, 1)
            stored = await seen.records(after=record.sequence - 1, limit=1)
            assert [(each.sequence, each.data) for each in stored] == [(number, record.raw)]
    await records.aclose()


async def test_reading_a_part_of_the_log_mirrors_all_of_it_up_to_there(mirror: Mirror) -> None:
    base = await memory_log(
        an_event(1, job="j2"), a_decision(2), an_event(3, tenant="other"), a_decision(4), an_event(5)
    )
    log = over(base, mirror)
    assert [record.sequence for record in await read_all(log, scope=DECISIONS)] == [2, 4]
    assert [record.sequence for record in await mirror.records()] == [1, 2, 3, 4]
    records = log.follow(scope=JOB)
    assert [record.sequence for record in await take(records, 3)] == [2, 4, 5]
    await records.aclose()
    assert mirror.last == 5


async def test_several_readers_at_once_share_a_mirror(mirror: Mirror) -> None:
    log = over(await memory_log(*(an_event(n) for n in range(1, 2_001))), mirror)
    whole, late, part = await asyncio.gather(
        read_all(log), read_all(log, after=1_500), read_all(log, scope=JOB, after=10)
    )
    assert [len(whole), len(late), len(part)] == [2_000, 500, 1_990]
    assert mirror.last == 2_000
    assert await mirror.check() is None


async def test_other_bytes_at_a_sequence_that_was_mirrored_stop_reading_and_appending(mirror: Mirror) -> None:
    told = [an_event(n) for n in range(1, 301)]
    await read_all(over(await memory_log(*told), mirror))
    for first, retold in ((251, told[:250]), (17, told[:16])):
        again = await memory_log(*retold, *(an_event(1_000 + n) for n in range(len(retold) + 1, 401)))
        log = over(again, mirror)
        for attempt in (log.append([an_event(9_999)]), log.verify(), log.verify(full=True), read_all(log)):
            with pytest.raises(LogDiverged) as raised:
                await attempt
            message = str(raised.value)
            assert raised.value.where == f"GRID_EVENTS {first}"
            assert f"differ from event {first} on" in message
            assert an_event(first).id in message
            assert "it ends at 400" in message
            assert "it ends at 300" in message
            assert "elasticgrid events restore --from mirror" in message
        assert await again.last_sequence() == 400
    assert mirror.last == 300
    assert not mirror.put_aside


async def test_one_changed_event_in_the_middle_is_found_by_a_full_comparison_and_by_reading(mirror: Mirror) -> None:
    told = [an_event(n) for n in range(1, 501)]
    await read_all(over(await memory_log(*told), mirror))
    retold = await memory_log(*told[:122], an_event(9_999), *told[123:])
    quick = await over(retold, mirror).verify()
    assert (quick.compared, quick.full) == (71, False)
    with pytest.raises(LogDiverged, match="event 123 on"):
        await over(retold, mirror).verify(full=True)
    log = over(retold, mirror)
    with pytest.raises(LogDiverged, match="event 123 on"):
        await read_all(log)
    with pytest.raises(LogDiverged, match="event 123 on"):
        await log.append([an_event(10_000)])


@pytest.mark.parametrize("left", [0, 1, 150, 299])
async def test_a_log_that_ends_before_its_mirror_takes_no_appends(mirror: Mirror, left: int) -> None:
    told = [an_event(n) for n in range(1, 301)]
    await read_all(over(await memory_log(*told), mirror))
    short = await memory_log(*told[:left])
    with pytest.raises(LogDiverged, match=rf"event {left + 1} on[^$]*the stream has nothing; it ends at {left}"):
        await over(short, mirror).append([an_event(9_999)])
    assert await short.last_sequence() == left


async def test_an_append_that_is_given_a_number_again_is_told_so(mirror: Mirror) -> None:
    told = [an_event(n) for n in range(1, 5)]
    await read_all(over(await memory_log(*told), mirror))
    base = ReplacedLog(await memory_log(*told))
    log = over(base, mirror)
    await log.verify()
    assert await log.append(told[1:2]) == (2, 2)
    base.log = await memory_log()
    with pytest.raises(LogDiverged, match="event 1 on"):
        await log.append([an_event(100)])


async def test_a_comparison_that_finds_them_equal_says_what_it_compared(mirror: Mirror) -> None:
    log = over(await memory_log(*(an_event(n) for n in range(1, 1_001))), mirror)
    empty = await log.verify()
    assert (empty.stream_last, empty.mirror_last, empty.compared) == (1_000, 0, 0)
    assert await log.fill() == 1_000
    quick, full = await log.verify(), await log.verify(full=True)
    assert (quick.compared, quick.full, quick.rebuilt) == (71, False, "")
    assert (full.compared, full.full, full.rebuilt) == (1_000, True, "")


async def test_an_expectation_is_passed_on(mirror: Mirror) -> None:
    log = over(await memory_log(a_decision(1)), mirror)
    assert await log.append([a_decision(2)], expect=Expectation(DECISIONS, 1)) == (2, 2)


@pytest.mark.parametrize(
    ("statement", "full"),
    [
        ("UPDATE records SET data = x'00' WHERE sequence = 290", False),
        ("UPDATE records SET data = x'00' WHERE sequence = 7", True),
        ("UPDATE records SET recorded_ms = 1 WHERE sequence IN (7, 8, 200)", True),
        ("DELETE FROM records WHERE sequence = 290", False),
        ("DROP TABLE records", False),
    ],
)
async def test_a_damaged_mirror_of_an_intact_log_is_set_aside_and_filled_again(
    mirror: Mirror, statement: str, full: bool
) -> None:
    base = await memory_log(*(an_event(n) for n in range(1, 301)))
    await over(base, mirror).fill()
    chain = await mirror.chain_at(300)
    damage(mirror, statement)
    log = over(base, mirror)
    verified = await log.verify(full=full)
    assert verified.rebuilt
    assert len(mirror.put_aside) == 1
    assert await log.append([an_event(301)]) == (301, 301)
    assert await log.fill() == 301
    assert await mirror.check() is None
    assert await mirror.chain_at(300) == chain


async def test_a_mirror_that_turns_out_damaged_while_it_is_read_along_is_filled_again(mirror: Mirror) -> None:
    base = await memory_log(*(an_event(n) for n in range(1, 301)))
    log = over(base, mirror)
    await log.fill()
    damage(mirror, "UPDATE records SET data = x'00' WHERE sequence = 7")
    assert len(await read_all(log)) == 300
    damage(mirror, "DROP TABLE records")
    assert len(await read_all(log, after=200)) == 100
    assert len(mirror.put_aside) == 2
    assert await log.fill() == 300
    assert await mirror.check() is None


async def test_damage_of_the_mirror_does_not_hide_that_the_log_differs(mirror: Mirror) -> None:
    told = [an_event(n) for n in range(1, 301)]
    await over(await memory_log(*told), mirror).fill()
    damage(mirror, "UPDATE records SET data = x'00' WHERE sequence = 7")
    retold = await memory_log(*told[:200], *(an_event(1_000 + n) for n in range(200)))
    with pytest.raises(LogDiverged, match="event 201 on"):
        await over(retold, mirror).append([an_event(9_999)])
    assert not mirror.put_aside


async def test_a_lost_mirror_is_filled_from_the_log(mirror: Mirror, tmp_path: Path) -> None:
    base = await memory_log(*(an_event(n) for n in range(1, 301)))
    await over(base, mirror).fill()
    async with await Mirror.open(tmp_path / "new.sqlite") as new:
        records = over(base, new).follow(after=250)
        assert [record.sequence for record in await take(records, 1)] == [251]
        await records.aclose()
        assert await new.chain_at(250) == await mirror.chain_at(250)


@pytest.mark.server
async def test_bytes_that_are_no_event_are_mirrored_as_well(bus_client: Client, mirror: Mirror, tmp_path: Path) -> None:
    log = mirrored_log(bus_client, mirror)
    subject = event_subject("acme", "j1", "node.left")
    records = log.follow()
    for number in range(1, 4):
        await bus_client.request(subject, b"\xff strange", timeout=2)
        await log.append([an_event(number)])
    await take(records, 3)
    await records.aclose()
    stored = await mirror.records()
    assert [(record.sequence, record.is_event) for record in stored] == [(n, n % 2 == 0) for n in range(1, 7)]
    assert {record.data for record in stored if not record.is_event} == {b"\xff strange"}
    assert (await log.verify(full=True)).compared == 3
    async with await Mirror.open(tmp_path / "new.sqlite") as new:
        assert await mirrored_log(bus_client, new).fill() == 6
        assert await new.chain_at(6) == await mirror.chain_at(6)
