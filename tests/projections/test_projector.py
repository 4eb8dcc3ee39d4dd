"""The projector: whatever happens to the file or to the process, it ends up telling what the log tells."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, LogError, LogGap
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Scope
from elasticgrid.projections.projector import Projector
from elasticgrid.projections.schema import VIEW_VERSION
from elasticgrid.projections.views import Views
from elasticgrid.testing.clock import VirtualClock

History = Sequence[ev.Recorded]
Play = Callable[[MemoryLog, History], Awaitable[None]]


def dump(path: Path) -> bytes:
    """Everything in the file, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()
        return "\n".join([str(version), *connection.iterdump()]).encode()


async def project(log: MemoryLog, path: Path, *, batch_events: int = 500) -> Projector:
    """Bring the file up to the end of the log, and stop."""
    async with Projector(log, path, batch_events=batch_events) as projector:
        await projector.wait_for(await log.last_sequence())
    return projector


async def test_events_that_come_singly_and_events_in_batches_make_the_same_file(
    log: MemoryLog, path: Path, tmp_path: Path, history: History, play: Play
) -> None:
    async with Projector(log, path) as projector:
        for recorded in history:
            await play(log, [recorded])
            await projector.wait_for(recorded.sequence)
    assert projector.stats.commits == len(history)
    behind = await project(log, tmp_path / "behind.sqlite")
    assert behind.stats.commits < 5
    assert dump(path) == dump(tmp_path / "behind.sqlite")


async def test_a_crash_after_any_event_ends_in_the_same_file_as_an_uninterrupted_run(
    log: MemoryLog, path: Path, tmp_path: Path, history: History, play: Play
) -> None:
    await play(log, history)
    images: list[Path] = []

    def take_image(_views: Sequence[object]) -> None:
        image = tmp_path / f"image-{len(images)}" / path.name
        image.parent.mkdir()
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.with_name(name), image.with_name(name))
        images.append(image)

    async with Projector(log, path, batch_events=1, on_commit=take_image) as projector:
        await projector.wait_for(len(history))
    whole = dump(path)
    assert len(images) == len(history)
    for image in images:
        resumed = await project(log, image)
        assert not resumed.stats.rebuilt
        assert dump(image) == whole


async def test_a_projector_stopped_in_the_middle_goes_on_where_it_was(
    log: MemoryLog, path: Path, tmp_path: Path, history: History, play: Play
) -> None:
    half = len(history) // 2
    await play(log, history[:half])
    await project(log, path)
    await play(log, history[half:])
    resumed = await project(log, path)
    assert resumed.stats.commits == 1
    await project(log, tmp_path / "whole.sqlite")
    assert dump(path) == dump(tmp_path / "whole.sqlite")


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 400)


def scribble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8_192:24_576] = b"\xa5" * 16_384
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def drop_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE nodes")
        connection.execute("DROP TABLE progress")


DAMAGES = {
    "no database": overwrite,
    "garbage inside": scribble,
    "cut short": cut_short,
    "no tables": drop_tables,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_made_anew(
    log: MemoryLog, path: Path, history: History, play: Play, damage: str
) -> None:
    await play(log, history)
    await project(log, path)
    whole = dump(path)
    DAMAGES[damage](path)
    projector = await project(log, path)
    assert len(projector.stats.rebuilt) == 1
    assert dump(path) == whole


async def test_a_file_of_another_version_is_made_anew(log: MemoryLog, path: Path, history: History, play: Play) -> None:
    await play(log, history)
    await project(log, path)
    whole = dump(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE launches")
        connection.execute(f"PRAGMA user_version = {VIEW_VERSION + 1}")
    await project(log, path)
    assert dump(path) == whole


async def test_a_file_that_is_ahead_of_the_log_is_made_anew(
    log: MemoryLog, path: Path, history: History, play: Play, clock: VirtualClock
) -> None:
    await play(log, history)
    await project(log, path)
    shorter = MemoryLog(clock)
    await play(shorter, history[:20])
    projector = await project(shorter, path)
    assert projector.sequence == 20
    assert "which the log does not have" in projector.stats.rebuilt[0]


async def test_a_file_of_another_log_is_made_anew(
    log: MemoryLog, path: Path, tmp_path: Path, history: History, play: Play, clock: VirtualClock
) -> None:
    await play(log, history[:30])
    await project(log, path)
    other = MemoryLog(clock)
    await play(other, [*history[:10], *history[11:]])
    projector = await project(other, path)
    assert "another log" in projector.stats.rebuilt[0]
    await project(other, tmp_path / "other.sqlite")
    assert dump(path) == dump(tmp_path / "other.sqlite")


async def test_a_reader_sees_whole_transactions_while_they_are_written(
    log: MemoryLog, path: Path, history: History, play: Play, clock: VirtualClock
) -> None:
    async with Projector(log, path, batch_events=3) as projector, Views(path) as views:

        async def read_on() -> int:
            last = reads = 0
            while last < len(history):
                detail = await views.jobs(as_of_ms=clock.now_ms())
                sequence = await views.sequence()
                assert sequence >= last
                assert all(job.sequence <= sequence for job in detail.items)
                last = sequence
                reads += 1
            return reads

        reader = asyncio.create_task(read_on())
        for recorded in history:
            await play(log, [recorded])
            await asyncio.sleep(0)
        await projector.wait_for(len(history))
        assert await reader > 1


async def test_a_reader_goes_on_with_the_new_file_when_it_was_made_anew(
    log: MemoryLog, path: Path, history: History, play: Play, clock: VirtualClock
) -> None:
    await play(log, history)
    await project(log, path)
    async with Views(path) as views:
        assert await views.sequence() == len(history)
        shorter = MemoryLog(clock)
        await play(shorter, history[:20])
        await project(shorter, path)
        assert await views.sequence() == 20


async def test_an_event_can_be_read_within_50_ms_of_its_append(
    log: MemoryLog, path: Path, history: History, play: Play
) -> None:
    async with Projector(log, path) as projector:
        waits = []
        for recorded in history[:60]:
            await play(log, [recorded])
            began = time.perf_counter()
            await projector.wait_for(recorded.sequence)
            waits.append(time.perf_counter() - began)
    assert sorted(waits)[len(waits) // 2] < 0.05


class LogWith(MemoryLog):
    """A log whose follower also yields events that cannot be appended here."""

    def __init__(self, clock: VirtualClock, extra: Sequence[ev.Recorded], end: Exception | None = None) -> None:
        super().__init__(clock)
        self.extra = extra
        self.end = end

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[ev.Recorded]:
        for recorded in self.extra:
            yield recorded
        if self.end is not None:
            raise self.end
        await asyncio.Event().wait()

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        return self.extra[-1].sequence


async def test_unknown_types_are_carried_and_counted(clock: VirtualClock, path: Path, history: History) -> None:
    raw = b'{"id": "x",\n "data": {"type": "node.blessed"}}'
    unknown = ev.UnknownEvent(
        id="x", type="node.blessed", schema_version=3, time_ms=5, tenant="demo", job="elastic", raw=raw
    )
    foreign = ev.UnknownEvent(
        id="y", type="node.odd", schema_version=1, time_ms=5, tenant="nobody", job="nothing", raw=b'{"a": "\xff"}'
    )
    end = len(history)
    recorded = [*history, ev.Recorded(end + 1, 7, unknown, raw), ev.Recorded(end + 2, 8, foreign, foreign.raw)]
    async with Projector(LogWith(clock, recorded), path) as projector, Views(path) as views:
        await projector.wait_for(end + 2)
        assert projector.stats.unknown_events == 2
        events = (await views.events(after=end)).items
        assert [(each.type, each.known, each.took_effect) for each in events] == [
            ("node.blessed", False, False),
            ("node.odd", False, False),
        ]
        assert bytes(events[0].event) == b'{"id":"x","data":{"type":"node.blessed"}}'
        assert (await views.job("demo", "elastic", as_of_ms=0)).facts.unknown_type == "node.blessed"


async def test_numbers_that_no_column_can_hold_do_not_stop_the_views(
    clock: VirtualClock, path: Path, history: History
) -> None:
    submitted = next(each for each in history if each.event.job == "elastic")
    assert isinstance(submitted.event, ev.Event)
    resized = ev.Event(
        id="big",
        time_ms=10**40,
        tenant="demo",
        job="elastic",
        actor="key:x",
        data=ev.JobResizeRequested(min_nodes=1, max_nodes=10**40),
    )
    recorded = [ev.Recorded(1, 1, submitted.event), ev.Recorded(2, 2, resized)]
    async with Projector(LogWith(clock, recorded), path) as projector, Views(path) as views:
        await projector.wait_for(2)
        assert (await views.job_summary("demo", "elastic", as_of_ms=0)).max_nodes == 2**63 - 1


async def test_a_log_that_cannot_be_trusted_stops_the_projector_and_tells_who_waits(
    clock: VirtualClock, path: Path, history: History
) -> None:
    gap = LogGap("events 11 to 12 are missing")
    async with Projector(LogWith(clock, history[:10], gap), path) as projector:
        with pytest.raises(LogGap):
            await projector.wait_stopped()
        with pytest.raises(LogGap):
            await projector.wait_for(11)
        assert projector.sequence == 10
        assert not projector.running


async def test_waiting_for_an_event_that_does_not_come_ends(log: MemoryLog, path: Path) -> None:
    async with Projector(log, path) as projector:
        with pytest.raises(BusUnavailable, match="the views are at event 0"):
            await projector.wait_for(1, timeout_s=0.05)


async def test_a_second_writer_of_the_same_file_is_stopped(
    log: MemoryLog, path: Path, history: History, play: Play
) -> None:
    async with Projector(log, path) as first, Projector(log, path) as second:
        await play(log, history[:5])
        stopped, running = await asyncio.wait(
            [asyncio.create_task(each.wait_stopped()) for each in (first, second)],
            return_when=asyncio.FIRST_COMPLETED,
            timeout=5,
        )
        assert len(stopped) == 1
        with pytest.raises(LogError, match="another process writes"):
            await stopped.pop()
        for task in running:
            task.cancel()
