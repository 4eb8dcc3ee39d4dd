"""Samples that wait for the bus in the node's folder: in order, bounded, stored once, and longer than a process."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_STREAM, sample_subject
from elasticgrid.core.samples import MAX_BATCH, SampleBatch, decode_batch
from elasticgrid.publish.spool import MAX_FRAME_BYTES, Batch, Spool, left_behind
from elasticgrid.testing.bus import launch_address, until


def batch(number: int, *, subject: str = "grid.samples.t.j.0", size: int = 3) -> Batch:
    return Batch(subject, f"id-{number}", size, bytes([number % 256]) * 40)


def drain(spool: Spool) -> list[str]:
    found = []
    while (first := spool.first()) is not None:
        found.append(first.msg_id)
        spool.remove_first()
    return found


@given(st.lists(st.sampled_from(["append", "remove", "reopen"]), max_size=40))
def test_batches_come_out_once_in_the_order_they_went_in_over_any_reopening(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    path = tmp_path_factory.mktemp("spool") / "a.spool"
    spool = Spool(path)
    expected: list[str] = []
    for number, move in enumerate(moves):
        if move == "append":
            spool.append(batch(number))
            expected.append(f"id-{number}")
        elif move == "remove":
            spool.remove_first()
            expected = expected[1:]
        else:
            spool.close()
            assert path.exists() == bool(expected)
            spool = Spool(path)
        assert spool.samples == 3 * len(expected)
    assert drain(spool) == expected
    spool.close()
    assert not path.exists()


@given(st.integers(0, 400), st.binary(max_size=20))
@example(8, b"\xff" * 8)
@example(8, b"\0" * 8)
def test_a_file_cut_or_damaged_anywhere_gives_whole_batches_from_the_first_on_and_takes_more(
    tmp_path_factory: pytest.TempPathFactory, place: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("spool") / "a.spool"
    spool = Spool(path)
    for number in range(5):
        spool.append(batch(number))
    spool.close()
    whole = path.read_bytes()
    place = min(place, len(whole))
    path.write_bytes(whole[:place] + junk)
    spool = Spool(path)
    spool.append(batch(9))
    found = drain(spool)
    spool.close()
    *before, last = found
    assert last == "id-9"
    assert before == [f"id-{number}" for number in range(len(before))]


def test_a_spool_has_room_up_to_its_bound_and_again_when_it_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    spool = Spool(path, max_bytes=2 * MAX_FRAME_BYTES)
    number = fill(spool)
    assert MAX_FRAME_BYTES < path.stat().st_size <= 2 * MAX_FRAME_BYTES
    assert len(drain(spool)) == number
    assert fill(spool) == number
    drain(spool)
    spool.close()


def test_a_spool_has_one_owner_and_what_is_left_behind_is_found_by_its_job(tmp_path: Path) -> None:
    mine, theirs, held = (Spool(tmp_path / f"{name}.spool") for name in ("mine", "theirs", "held"))
    mine.append(batch(1))
    theirs.append(batch(2, subject="grid.samples.t.other.0"))
    held.append(batch(3))
    with pytest.raises(BlockingIOError):
        Spool(tmp_path / "held.spool")
    mine.close()
    theirs.close()
    Spool(tmp_path / "empty.spool").close()
    (found,) = left_behind(tmp_path, "grid.samples.t.j.")
    assert drain(found) == ["id-1"]
    for spool in (found, held):
        spool.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.spool", "theirs.spool"]


def fill(spool: Spool) -> int:
    number = 0
    while spool.has_room:
        spool.append(batch(number))
        number += 1
    return number


async def stored(client: Client, samples: int) -> list[tuple[int, int]]:
    """(round, seq) of the first so many samples of rank 1, in the order they were stored."""
    found: list[tuple[int, int]] = []
    async with (
        asyncio.timeout(30),
        Follower(client, SAMPLES_STREAM, sample_subject("acme", "lm", 1), lossy=True) as follower,
    ):
        async for message in follower:
            received = decode_batch(message.data)
            assert isinstance(received, SampleBatch)
            found += [(received.round, sample.seq) for sample in received.samples]
            if len(found) >= samples and message.pending == 0:
                break
    return found


Publishers = Callable[[int], elasticgrid.Publisher]


@pytest.fixture
async def hooks(embedded_server: EmbeddedServer, tmp_path: Path) -> AsyncGenerator[Publishers]:
    """Makes the hook of rank 1 in a round; all of one node."""
    made: list[elasticgrid.Publisher] = []
    address = await launch_address(embedded_server, "acme", "lm")

    def make(round_number: int) -> elasticgrid.Publisher:
        pub = elasticgrid.publisher(
            {
                env.NATS_URL: address.url,
                env.CREDENTIALS: address.credentials,
                env.TENANT: "acme",
                env.JOB: "lm",
                "RANK": "1",
                env.ROUND: str(round_number),
                env.NODE_DIR: str(tmp_path / "node"),
            }
        )
        made.append(pub)
        return pub

    yield make
    for pub in made:
        await asyncio.to_thread(pub.close, 0.5)


@asynccontextmanager
async def stopped(server: EmbeddedServer) -> AsyncGenerator[None]:
    await server.stop()
    try:
        yield
    finally:
        await server.start()


def report(pub: elasticgrid.Publisher, steps: int) -> None:
    for _ in range(steps):
        pub.report(duration_s=1.0, tokens=1)


def settled(pub: elasticgrid.Publisher, samples: int) -> bool:
    """Whether memory holds no more than it should, and the rest is spooled."""
    stats = pub.stats
    return stats.buffered <= 4_096 + MAX_BATCH and stats.buffered + stats.spooled == samples


async def away(pub: elasticgrid.Publisher, server: EmbeddedServer, during: Callable[[], Awaitable[None]]) -> None:
    """The bus goes away after the first sample was stored, and comes back after `during`."""
    report(pub, 1)
    assert await asyncio.to_thread(pub.flush, 10.0)
    async with stopped(server):
        await during()


@pytest.mark.survive("D", "bus-cut")
@pytest.mark.server
async def test_more_samples_than_memory_holds_survive_an_outage_in_order_and_are_stored_once(
    hooks: Publishers, embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path
) -> None:
    pub = hooks(3)

    async def outage() -> None:
        for wave in range(1, 7):
            report(pub, 3_000)
            await until(partial(settled, pub, 3_000 * wave))
        assert pub.stats.dropped == 0

    await away(pub, embedded_server, outage)
    assert await asyncio.to_thread(pub.flush, 20.0)
    assert await stored(bus_client, 18_001) == [(3, seq) for seq in range(18_001)]
    assert pub.stats == elasticgrid.PublisherStats(
        published=18_001,
        dropped=0,
        refused=0,
        buffered=0,
        reconnects=pub.stats.reconnects,
        problem=pub.stats.problem,
        spooled=0,
    )
    await asyncio.to_thread(pub.close)
    assert list((tmp_path / "node/spool").iterdir()) == []


@pytest.mark.server
async def test_what_a_process_could_not_send_before_its_end_is_sent_by_the_next_on_the_node(
    hooks: Publishers, embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path
) -> None:
    pub = hooks(3)

    async def outage() -> None:
        report(pub, 700)
        await asyncio.to_thread(pub.close, 0.3)

    await away(pub, embedded_server, outage)
    assert (pub.stats.spooled, pub.stats.buffered, pub.stats.dropped) == (700, 0, 0)

    after = hooks(4)
    report(after, 2)
    assert await asyncio.to_thread(after.flush, 10.0)
    found = await stored(bus_client, 703)
    assert [each for each in found if each[0] == 3] == [(3, seq) for seq in range(701)]
    assert [each for each in found if each[0] == 4] == [(4, 0), (4, 1)]
    assert after.stats.published == 2
    await asyncio.to_thread(after.close)
    assert list((tmp_path / "node/spool").iterdir()) == []


@pytest.mark.server
async def test_a_folder_that_cannot_be_written_costs_samples_and_nothing_else(
    hooks: Publishers, embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path
) -> None:
    (tmp_path / "node").write_text("not a folder")
    pub = hooks(3)

    async def outage() -> None:
        report(pub, 10_000)
        await until(lambda: "spool" in pub.stats.problem)

    await away(pub, embedded_server, outage)
    assert await asyncio.to_thread(pub.flush, 20.0)
    stats = pub.stats
    assert (stats.published + stats.dropped, stats.spooled, stats.buffered) == (10_001, 0, 0)
    assert len(await stored(bus_client, stats.published)) == stats.published
    assert pub.steps_completed == 10_001


def test_a_disk_that_refuses_leaves_the_spool_as_it_was(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append(batch(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "a.spool").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, hard))
    try:
        with pytest.raises(OSError, match="large"):
            spool.append(batch(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a.spool").stat().st_size == size
    spool.append(batch(3))
    assert drain(spool) == ["id-1", "id-3"]
    spool.close()
