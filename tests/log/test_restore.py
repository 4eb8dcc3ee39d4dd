"""A restored log is the log that was: the same bytes, headers and times at the same sequences, and it says so."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM, event_subject, sample_subject
from elasticgrid.core.errors import InvalidInput, LogDiverged, NotAllowed, NotFound
from elasticgrid.core.events import Recorded, UnknownEvent
from elasticgrid.core.spec import JobSpec
from elasticgrid.log.archive import ArchiveFilters, ArchiveWriter
from elasticgrid.log.codec import encode
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirror_record import LogRecord, record_of
from elasticgrid.log.mirrored import mirrored_log
from elasticgrid.log.restore import RestoreProgress, Source, archive_source, mirror_source, restore
from elasticgrid.log.restore_folder import restore_folder
from elasticgrid.testing.bus import bus_client, embedded_server
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.log_contract import a_decision, an_event, read_all

pytestmark = pytest.mark.server


async def headers_at(client: Client, sequence: int) -> dict[str, str]:
    stored = await api.message_at(client, EVENTS_STREAM, sequence)
    assert stored is not None
    lines = [line.split(": ", 1) for line in stored.hdrs.decode().split("\r\n") if ": " in line]
    return {name: value for name, value in lines if not name.startswith("Nats-Batch") and "Expected" not in name}


def source_of(records: list[LogRecord]) -> Source:
    async def give() -> AsyncGenerator[LogRecord]:
        for record in records:
            yield record

    return give


async def a_mirrored_log(data_dir: Path, mirror_path: Path) -> tuple[list[Recorded], list[dict[str, str]]]:
    """A log of singles, batches, strangers and events of unknown types, mirrored; what it held, and the headers."""
    async with embedded_server(data_dir) as server, bus_client(server) as client:
        async with await Mirror.open(mirror_path) as mirror:
            log = mirrored_log(client, mirror)
            subject = event_subject("acme", "j1", "node.left")
            for number in range(0, 300, 10):
                await log.append([an_event(number)])
                await log.append([a_decision(number + each) for each in range(1, 6)])
                await client.request(subject, b"strange", timeout=2)
                await log.append([an_event(number + 7, job="j2")])
            unknown = {**msgspec.to_builtins(an_event(900)), "data": {"type": "audit.seen", "by": "nobody"}}
            await client.request("grid.events.acme.j1.audit.seen", msgspec.json.encode(unknown), timeout=2)
            await log.append([an_event(901)])
            await client.request(sample_subject("acme", "j1", 0), b"a sample", timeout=2)
            await log.fill()
            recorded = await read_all(log)
        return recorded, [await headers_at(client, record.sequence) for record in recorded]


async def test_a_log_restored_from_its_mirror_is_the_same_to_the_last_header(tmp_path: Path) -> None:
    told, headers = await a_mirrored_log(tmp_path / "lost", tmp_path / "mirror")
    progress: list[RestoreProgress] = []
    result = await restore_folder(tmp_path / "new", mirror_source(tmp_path / "mirror"), on_progress=progress.append)
    assert (result.restored.last_sequence, result.restored.events) == (242, 212)
    assert (result.restored.placeholders, result.kept_stream, result.kept_mirror) == (0, "", "")
    async with embedded_server(tmp_path / "new") as server, bus_client(server) as client:
        restored = await read_all(JetStreamLog(client))
        assert restored == told
        assert any(isinstance(record.event, UnknownEvent) for record in restored)
        for record, had in zip(restored, headers, strict=True):
            # What was published without headers gets those of its event.
            assert (await headers_at(client, record.sequence)).items() >= had.items()
        async with await Mirror.open(tmp_path / "mirror") as mirror:
            log = mirrored_log(client, mirror)
            assert (await log.verify(full=True)).compared == 212
            assert await log.append([an_event(1_000)]) == (243, 243)
    for doing in ("appending", "proving"):
        told_of = [each for each in progress if each.doing == doing]
        assert told_of[-1].records == 242
        assert all(each.records_per_s > 0 for each in told_of)


async def test_a_restored_log_knows_its_events_when_they_are_appended_again(bus_client: Client) -> None:
    events = [a_decision(n) for n in range(1, 4)]
    records = [
        LogRecord(n, 5_000 + n, event_subject("acme", "j1", "decision.outcome"), encode(event))
        for n, event in enumerate(events, 1)
    ]
    await restore(bus_client, source_of(records))
    log = JetStreamLog(bus_client)
    assert await log.append(events) == (1, 3)
    assert [record.recorded_ms for record in await read_all(log)] == [5_001, 5_002, 5_003]


async def test_an_event_that_the_log_holds_twice_is_restored_twice(bus_client: Client) -> None:
    subject = event_subject("acme", "j1", "node.left")
    numbers = [1, 2, 3, 2, 4, 2]
    records = [LogRecord(n, n, subject, encode(an_event(number))) for n, number in enumerate(numbers, 1)]
    assert (await restore(bus_client, source_of(records))).events == 6
    assert [record.event for record in await read_all(JetStreamLog(bus_client))] == [an_event(n) for n in numbers]


async def test_what_the_source_lacks_keeps_its_number(bus_client: Client, tmp_path: Path) -> None:
    subject = event_subject("acme", "j1", "node.left")
    records = [LogRecord(n, n, subject, encode(an_event(n))) for n in (3, 4, 700, 1_300)]
    result = await restore(bus_client, source_of(records))
    assert (result.last_sequence, result.events, result.placeholders) == (1_300, 4, 1_296)
    assert [record.sequence for record in await read_all(JetStreamLog(bus_client))] == [3, 4, 700, 1_300]
    async with await Mirror.open(tmp_path / "mirror") as mirror:
        await mirror.append(records)
        assert (await mirrored_log(bus_client, mirror).verify(full=True)).compared == 4


@pytest.mark.parametrize("sequences", [[1, 3, 2], [1, 1], [0, 1], [1, 10**15]])
async def test_what_is_no_whole_log_is_refused(bus_client: Client, sequences: list[int]) -> None:
    subject = event_subject("acme", "j1", "node.left")
    records = [LogRecord(sequence, 1, subject, encode(an_event(n))) for n, sequence in enumerate(sequences)]
    with pytest.raises(InvalidInput, match="no whole log"):
        await restore(bus_client, source_of(records))


async def test_an_interrupted_restore_is_gone_on_with(bus_client: Client) -> None:
    subject = event_subject("acme", "j1", "node.left")
    records = [LogRecord(n, n, subject, encode(an_event(n))) for n in range(1, 1_801)]

    def interrupt(progress: RestoreProgress) -> None:
        if progress.records >= 1_000:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        await restore(bus_client, source_of(records), on_progress=interrupt)
    assert await JetStreamLog(bus_client).last_sequence() == 1_000
    assert (await restore(bus_client, source_of(records))).last_sequence == 1_800
    assert (await restore(bus_client, source_of(records))).last_sequence == 1_800


@pytest.mark.parametrize("change", ["bytes", "time", "subject", "more", "headers"])
async def test_a_stream_that_holds_something_else_is_not_touched(bus_client: Client, change: str) -> None:
    subject = event_subject("acme", "j1", "node.left")
    records = [LogRecord(n, n, subject, encode(an_event(n))) for n in range(1, 21)]
    other = [*records]
    match change:
        case "bytes":
            other[6] = LogRecord(7, 7, subject, encode(an_event(999)))
        case "time":
            other[6] = LogRecord(7, 8, subject, encode(an_event(7)))
        case "subject":
            other[6] = LogRecord(7, 7, "grid.events.acme.j1.node.right", encode(an_event(7)))
        case "more":
            del other[6:]
        case "headers":
            other[6] = msgspec.structs.replace(records[6], is_event=False)
    await restore(bus_client, source_of(records[:12] if change != "headers" else other[:12]))
    with pytest.raises(LogDiverged, match="GRID_EVENTS 7"):
        await restore(bus_client, source_of(other if change != "headers" else records))
    assert await JetStreamLog(bus_client).last_sequence() == 12


async def test_a_grid_is_restored_from_an_archive_and_its_mirror_follows(tmp_path: Path) -> None:
    grid = SimulatedGrid()
    grid.submit(JobSpec(name="train", command=("train",), min_nodes=1, max_nodes=2))
    grid.run()
    events = grid.recorded
    assert len(events) > 10
    with ArchiveWriter(tmp_path / "log.egz", created_ms=0) as archive:
        for recorded in events:
            archive.add_event(recorded)
    async with await Mirror.open(tmp_path / "mirror") as mirror:
        await mirror.append([LogRecord(1, 1, "grid.events.acme.j1.node.left", encode(an_event(1)))])
    result = await restore_folder(tmp_path, archive_source(tmp_path / "log.egz"), replaced_mirror=tmp_path / "mirror")
    assert result.kept_mirror == str(tmp_path / "mirror.replaced-1")
    async with (
        embedded_server(tmp_path) as server,
        bus_client(server) as client,
        await Mirror.open(tmp_path / "mirror") as mirror,
    ):
        assert await read_all(mirrored_log(client, mirror)) == events
        assert [record async for record in mirror.read()] == [record_of(recorded) for recorded in events]


async def test_an_archive_of_a_part_of_a_log_is_refused(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "part.egz", created_ms=0, filters=ArchiveFilters(job="j1")):
        pass
    with pytest.raises(InvalidInput, match="a part of a log"):
        archive_source(tmp_path / "part.egz")


async def test_a_source_that_cannot_be_trusted_leaves_everything_as_it_was(tmp_path: Path) -> None:
    told, _ = await a_mirrored_log(tmp_path, tmp_path / "mirror")
    shutil.copy(tmp_path / "mirror", tmp_path / "bad")
    with contextlib.closing(sqlite3.connect(tmp_path / "bad")) as connection, connection:
        connection.execute("UPDATE records SET data = x'00' WHERE sequence = 100")
    before = sorted(path.name for path in (tmp_path / "bus").iterdir())
    with pytest.raises(MirrorDamaged, match="record 100"):
        await restore_folder(tmp_path, mirror_source(tmp_path / "bad"))
    with pytest.raises(NotFound):
        await restore_folder(tmp_path, mirror_source(tmp_path / "nowhere"))
    assert sorted(path.name for path in (tmp_path / "bus").iterdir()) == before
    async with embedded_server(tmp_path) as server, bus_client(server) as client:
        assert await read_all(JetStreamLog(client)) == told


async def test_the_damaged_stream_is_kept_and_the_samples_stay(tmp_path: Path) -> None:
    await a_mirrored_log(tmp_path, tmp_path / "mirror")
    first = await restore_folder(tmp_path, mirror_source(tmp_path / "mirror"))
    second = await restore_folder(tmp_path, mirror_source(tmp_path / "mirror"))
    assert first.kept_stream != second.kept_stream
    assert (Path(first.kept_stream) / "msgs" / "1.blk").stat().st_size > 0
    async with embedded_server(tmp_path) as server, bus_client(server) as client:
        assert (await api.stream_info(client, SAMPLES_STREAM)).state.messages == 1
        assert (await api.stream_info(client, EVENTS_STREAM)).state.messages == 242


async def test_a_grid_that_runs_is_not_restored(embedded_server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="runs on this folder"):
        await restore_folder(tmp_path, source_of([]))
    assert embedded_server.pid
