"""What may happen to a real server's files: the log stops, says where, is restored from its mirror, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import struct
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.clock import SystemClock
from elasticgrid.core import events as ev
from elasticgrid.core.errors import LogDiverged, NotAllowed, NotFound
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.decider.service import Decider
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirrored import MirroredLog, mirrored_log
from elasticgrid.log.offline_check import check_offline
from elasticgrid.log.port import Scope
from elasticgrid.log.restore import mirror_source
from elasticgrid.log.restore_folder import restore_folder
from elasticgrid.testing.bus import bus_client, embedded_server
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.log_contract import a_decision, an_event, read_all, take
from elasticgrid.testing.samples import SampleStream

pytestmark = pytest.mark.server

EVENTS = 300


@contextlib.asynccontextmanager
async def opened(data_dir: Path) -> AsyncGenerator[MirroredLog]:
    """The log of the grid in this folder, as its services open it."""
    async with (
        embedded_server(data_dir) as server,
        bus_client(server) as client,
        await Mirror.open(data_dir / "mirror.sqlite") as mirror,
    ):
        yield mirrored_log(client, mirror, patience_s=0.2)


async def grow(log: MirroredLog, first: int, last: int) -> None:
    for number in range(first, last + 1, 10):
        await log.append([an_event(each) for each in range(number, number + 10)])


def stream(data_dir: Path) -> Path:
    return EmbeddedServer(data_dir).streams_folder / "GRID_EVENTS"


def forget_index(data_dir: Path) -> None:
    """As after a crash: the server looks at every block when it starts."""
    (stream(data_dir) / "msgs" / "index.db").unlink()


def flip_a_bit_of(data_dir: Path, at: Callable[[bytearray], int]) -> None:
    block = stream(data_dir) / "msgs" / "1.blk"
    data = bytearray(block.read_bytes())
    data[at(data)] ^= 1
    block.write_bytes(data)


def flip_a_bit_of_an_event(data_dir: Path) -> None:
    flip_a_bit_of(data_dir, lambda data: data.index(an_event(170).id.encode()))


def flip_a_bit_of_an_event_and_forget(data_dir: Path) -> None:
    flip_a_bit_of_an_event(data_dir)
    forget_index(data_dir)


def flip_a_bit_of_a_length_and_forget(data_dir: Path) -> None:
    # A record begins with its length, its sequence and its time.
    flip_a_bit_of(data_dir, lambda data: data.index(struct.pack("<Q", 170)) - 2)
    forget_index(data_dir)


def cut_the_block(data_dir: Path) -> None:
    block = stream(data_dir) / "msgs" / "1.blk"
    with block.open("r+b") as file:
        file.truncate(block.stat().st_size * 2 // 3)


def cut_the_block_and_forget(data_dir: Path) -> None:
    cut_the_block(data_dir)
    forget_index(data_dir)


def remove_the_stream(data_dir: Path) -> None:
    shutil.rmtree(stream(data_dir))


def remove_the_storage(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "bus" / "storage")


def bring_back_a_backup(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "bus" / "storage")
    shutil.copytree(data_dir / "backup", data_dir / "bus" / "storage")


DAMAGES = [
    flip_a_bit_of_an_event,
    flip_a_bit_of_an_event_and_forget,
    flip_a_bit_of_a_length_and_forget,
    cut_the_block,
    cut_the_block_and_forget,
    remove_the_stream,
    remove_the_storage,
    bring_back_a_backup,
]
ONE_EVENT = (flip_a_bit_of_an_event, flip_a_bit_of_an_event_and_forget)


@pytest.fixture
async def told(tmp_path: Path) -> list[ev.Recorded]:
    """A grid's folder with a log, its mirror, and a backup of the storage from when it was shorter."""
    async with opened(tmp_path) as log:
        await grow(log, 1, EVENTS // 2)
    shutil.copytree(tmp_path / "bus" / "storage", tmp_path / "backup")
    async with opened(tmp_path) as log:
        await grow(log, EVENTS // 2 + 1, EVENTS)
        return await read_all(log)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("goes_on", [False, True], ids=["seen at once", "after others wrote on"])
async def test_a_damaged_log_takes_no_appends_until_it_is_restored_and_is_then_the_same(
    tmp_path: Path, told: list[ev.Recorded], damage: Callable[[Path], None], goes_on: bool
) -> None:
    damage(tmp_path)
    if goes_on:
        # Agents know no mirror: what they append after the damage is given the old numbers again.
        async with embedded_server(tmp_path) as server, bus_client(server) as client:
            for number in range(10_000, 10_400):
                await JetStreamLog(client).append([an_event(number)])
    async with opened(tmp_path) as log:
        with pytest.raises(LogDiverged, match="nothing is appended") as raised:
            # One event that became unreadable in the middle is seen when everything is compared.
            await (log.verify(full=True) if damage in ONE_EVENT else log.append([an_event(20_000)]))
        first = int(raised.value.where.removeprefix("GRID_EVENTS "))
        assert 1 <= first <= EVENTS
        assert told[first - 1].event.id in str(raised.value)
        assert "restore --from mirror" in str(raised.value)
        with pytest.raises(LogDiverged):
            await log.append([an_event(20_001)])
        with pytest.raises(LogDiverged):
            await take(log.follow(), 1)

    result = await restore_folder(tmp_path, mirror_source(tmp_path / "mirror.sqlite"))
    assert result.restored.last_sequence == EVENTS

    async with opened(tmp_path) as log:
        assert (await log.verify(full=True)).compared == EVENTS
        assert await read_all(log) == told
        records = log.follow(after=EVENTS)
        assert await log.append([an_event(30_000)]) == (EVENTS + 1, EVENTS + 1)
        assert [record.sequence for record in await take(records, 1)] == [EVENTS + 1]
        await records.aclose()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_grid_that_does_not_run_is_looked_at_without_a_change_and_its_damage_found(
    tmp_path: Path, told: list[ev.Recorded], damage: Callable[[Path], None]
) -> None:
    mirror = tmp_path / "mirror.sqlite"
    assert (await check_offline(tmp_path, mirror)).compared == EVENTS
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(LogDiverged) as raised:
        await check_offline(tmp_path, mirror)
    first = int(raised.value.where.removeprefix("GRID_EVENTS "))
    assert told[first - 1].event.id in str(raised.value)
    assert contents(tmp_path) == before


async def test_a_mirror_that_was_changed_is_found_and_a_grid_that_runs_is_left_alone(
    tmp_path: Path, told: list[ev.Recorded]
) -> None:
    mirror = tmp_path / "mirror.sqlite"
    with contextlib.closing(sqlite3.connect(mirror)) as connection, connection:
        connection.execute("UPDATE records SET recorded_ms = recorded_ms + 1 WHERE sequence = ?", (len(told) // 2,))
    with pytest.raises(MirrorDamaged) as raised:
        await check_offline(tmp_path, mirror)
    assert raised.value.sequence == len(told) // 2
    async with embedded_server(tmp_path):
        with pytest.raises(NotAllowed):
            await check_offline(tmp_path, mirror)
    with pytest.raises(NotFound):
        await check_offline(tmp_path / "elsewhere", mirror)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_who_reads_a_damaged_log_gets_nothing_that_the_mirror_does_not_have(
    tmp_path: Path, told: list[ev.Recorded], damage: Callable[[Path], None]
) -> None:
    damage(tmp_path)
    async with opened(tmp_path) as log:
        got: list[ev.Recorded] = []
        with contextlib.suppress(LogDiverged):
            async for record in log.read():
                got.append(record)  # noqa: PERF401 # what came before the error counts
        assert got == told[: len(got)]
        with pytest.raises(LogDiverged):
            await log.append([an_event(20_000)])


async def test_a_server_that_loses_events_while_the_services_run_stops_them(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path) as server,
        bus_client(server) as client,
        await Mirror.open(tmp_path / "mirror.sqlite") as mirror,
    ):
        log = mirrored_log(client, mirror, patience_s=0.2)
        await grow(log, 1, EVENTS)
        assert await log.fill() == EVENTS
        records = log.follow(after=EVENTS)
        waiting = asyncio.create_task(take(records, 1, timeout_s=30))
        await server.stop()
        cut_the_block_and_forget(tmp_path)
        await server.start()
        with pytest.raises(LogDiverged, match="differ from event"):
            await waiting
        with pytest.raises(LogDiverged, match="differ from event"):
            await log.append([an_event(20_000)])


async def test_decisions_resume_on_a_restored_log(tmp_path: Path) -> None:
    samples = SampleStream(VirtualClock())

    async def decisions(log: MirroredLog, job: str) -> list[ev.EventData]:
        scope = Scope("default", job, "decision")
        return [r.event.data async for r in log.read(scope=scope) if isinstance(r.event, ev.Event)]

    async def submit(log: MirroredLog, job: str) -> list[ev.EventData]:
        """Have a job decided on."""
        decider = asyncio.create_task(Decider(log, samples.open, SystemClock()).run())
        try:
            spec = JobSpec(name=job, command=("train",), min_nodes=1, max_nodes=2)
            submitted = ev.JobSubmitted(spec=spec)
            await log.append([ev.Event(id=job, time_ms=1, tenant="default", job=job, actor="test", data=submitted)])
            records = log.follow(scope=Scope("default", job, "decision"))
            got = [record.event.data for record in await take(records, 2) if isinstance(record.event, ev.Event)]
            await records.aclose()
            return got
        finally:
            decider.cancel()
            await asyncio.gather(decider, return_exceptions=True)

    provider = ev.ProviderDeclared(provider=ProviderSpec(name="here", max_nodes=4, price_microdollars_per_hour=1))
    async with opened(tmp_path) as log:
        await log.append([ev.Event(id="p", time_ms=1, tenant="_grid", job="fleet", actor="test", data=provider)])
        first = await submit(log, "j1")
        assert [type(data) for data in first] == [ev.ScaleDecided, ev.PlacementDecided]
        await log.fill()
    remove_the_stream(tmp_path)
    async with opened(tmp_path) as log:
        decider = Decider(log, samples.open, SystemClock())
        with pytest.raises(LogDiverged):
            async with asyncio.timeout(20):
                await decider.run()
    await restore_folder(tmp_path, mirror_source(tmp_path / "mirror.sqlite"))
    async with opened(tmp_path) as log:
        second = await submit(log, "j2")
        assert [type(data) for data in second] == [ev.ScaleDecided, ev.PlacementDecided]
        assert await decisions(log, "j1") == first


async def test_what_was_not_mirrored_yet_is_taken_from_the_stream(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, bus_client(server) as client:
        for number in range(20):
            await JetStreamLog(client).append([a_decision(number)])
    async with opened(tmp_path) as log:
        assert (await log.verify()).mirror_last == 0
        assert len(await read_all(log)) == 20
        assert log.mirror.last == 20
