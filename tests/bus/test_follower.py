"""The one follower: nothing lost, nothing twice, always in order, whatever happens on the way."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.connect import disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import CREDITS, BusMessage, Follower, read_through
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM
from elasticgrid.core.errors import BusUnavailable, LogDiverged, LogGap, NotFound
from elasticgrid.testing.bus import Proxy, bus_client, connection, until

pytestmark = pytest.mark.server

ALL = "grid.events.>"


async def publish(client: Client, count: int, *, first: int = 1, subject: str = "grid.events.a.j.node.left") -> None:
    """Store messages whose bytes are their numbers, quickly: only the last one's acknowledgement is waited for."""
    for number in range(first, first + count - 1):
        await client.publish(f"{subject}", str(number).encode())
        if number % 1000 == 0:
            await client.flush()
    await client.request(subject, str(first + count - 1).encode(), timeout=10)


async def take(follower: Follower, count: int, timeout_s: float = 20.0) -> list[BusMessage]:
    """At least `count` further messages."""
    messages: list[BusMessage] = []
    async with asyncio.timeout(timeout_s):
        while len(messages) < count:
            messages += await follower.next_batch()
    return messages


class _Names(api.ApiReply, frozen=True, kw_only=True):
    consumers: tuple[str, ...] = ()


class _Delivered(msgspec.Struct, frozen=True):
    consumer_seq: int = 0


class _Consumer(api.ApiReply, frozen=True, kw_only=True):
    delivered: _Delivered = _Delivered()


async def consumer_names(client: Client) -> tuple[str, ...]:
    return (await api.call(client, f"CONSUMER.NAMES.{EVENTS_STREAM}", {}, _Names)).consumers


async def test_messages_come_with_their_place_time_headers_and_what_follows(bus_client: Client) -> None:
    await bus_client.request("grid.events.a.j.node.left", b"one", timeout=2)
    await bus_client.request("grid.events.a.j.node.joined", b"two", headers={"Key": "value"}, timeout=2)
    async with Follower(bus_client, EVENTS_STREAM, ALL) as follower:
        messages = follower.__aiter__()
        first, second = await anext(messages), await anext(messages)
        await messages.aclose()
    assert (first.sequence, first.subject, first.headers, first.data) == (1, "grid.events.a.j.node.left", None, b"one")
    assert (second.sequence, second.headers, second.data, second.pending) == (2, {"Key": "value"}, b"two", 0)
    stored = await api.message_at(bus_client, EVENTS_STREAM, 2)
    assert stored is not None
    assert 0 < first.time_ms <= second.time_ms


async def test_a_backlog_of_50_000_is_read_with_nothing_lost(bus_client: Client) -> None:
    await publish(bus_client, 50_000, subject="grid.samples.a.j.0")
    async with Follower(bus_client, SAMPLES_STREAM, "grid.samples.>") as follower:
        expected = 0
        while expected < 50_000:
            for message in await follower.next_batch():
                expected += 1
                assert message.sequence == expected
                assert message.data == str(expected).encode()
    assert (follower.recoveries, follower.gaps) == (0, 0)


async def test_a_filter_leaves_holes_that_are_no_gaps(bus_client: Client) -> None:
    for number in range(1, 31):
        await publish(bus_client, 1, first=number, subject=f"grid.events.a.j{number % 3}.node.left")
    async with Follower(bus_client, EVENTS_STREAM, "grid.events.a.j0.>", after=6) as follower:
        assert [message.sequence for message in await take(follower, 8)] == list(range(9, 31, 3))
    assert follower.gaps == 0


async def test_a_bounded_read_ends_where_it_was_told_to(bus_client: Client) -> None:
    await publish(bus_client, 3_000)
    for after, through in ((0, 3_000), (0, 1), (1_499, 1_500), (2_999, 3_000), (500, 2_500), (7, 7)):
        batches = [batch async for batch in read_through(bus_client, EVENTS_STREAM, ALL, after=after, through=through)]
        assert [m.sequence for batch in batches for m in batch] == list(range(after + 1, through + 1))


async def test_a_reader_that_pauses_holds_back_the_server_and_loses_nothing(bus_client: Client) -> None:
    await publish(bus_client, 5 * CREDITS)
    async with Follower(bus_client, EVENTS_STREAM, ALL) as follower:
        messages = follower.__aiter__()
        assert (await anext(messages)).sequence == 1
        (name,) = await consumer_names(bus_client)
        for _ in range(3):
            await bus_client.flush()
        info = await api.call(bus_client, f"CONSUMER.INFO.{EVENTS_STREAM}.{name}", {}, _Consumer)
        assert info.delivered.consumer_seq <= 2 * CREDITS
        for expected in range(2, 5 * CREDITS + 1):
            assert (await anext(messages)).sequence == expected
            if expected % 1_000 == 0:
                await asyncio.sleep(0.05)
        await messages.aclose()
    assert (follower.recoveries, follower.gaps) == (0, 0)


async def test_messages_that_somebody_else_took_from_its_consumer_are_read_again(bus_client: Client) -> None:
    async with Follower(bus_client, EVENTS_STREAM, ALL) as follower:
        await publish(bus_client, 1)
        await take(follower, 1)
        (name,) = await consumer_names(bus_client)
        thief = await bus_client.subscribe("_INBOX_service.thief")
        request = msgspec.json.encode({"batch": 20, "expires": 5_000_000_000})
        await bus_client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.{name}", request, reply="_INBOX_service.thief"
        )
        await bus_client.flush()
        await publish(bus_client, 200, first=2)
        assert [message.sequence for message in await take(follower, 200)] == list(range(2, 202))
        assert (await thief.next_msg(timeout=2)).reply.startswith("$JS.ACK")
        assert follower.recoveries > 0


async def test_a_consumer_that_was_deleted_is_made_again(bus_client: Client) -> None:
    async with Follower(bus_client, EVENTS_STREAM, ALL) as follower:
        for number in range(1, 4):
            await publish(bus_client, 1, first=number)
            assert [message.sequence for message in await take(follower, 1)] == [number]
            for name in await consumer_names(bus_client):
                await api.call(bus_client, f"CONSUMER.DELETE.{EVENTS_STREAM}.{name}", {}, api.ApiReply)
        await publish(bus_client, 1, first=4)
        assert [message.sequence for message in await take(follower, 1, timeout_s=5)] == [4]


async def test_a_connection_that_breaks_again_and_again_loses_nothing(embedded_server: EmbeddedServer) -> None:
    async with bus_client(embedded_server) as publisher, Proxy(embedded_server.address) as proxy:
        await publish(publisher, 20_000, subject="grid.samples.a.j.0")
        async with (
            connection(proxy.address) as client,
            Follower(client, SAMPLES_STREAM, "grid.samples.>") as follower,
        ):
            expected = 0
            next_cut = 3_000
            async with asyncio.timeout(20):
                while expected < 20_000:
                    for message in await follower.next_batch():
                        expected += 1
                        assert message.sequence == expected
                    if expected >= next_cut:
                        next_cut += 5_000
                        proxy.cut()
            assert follower.recoveries >= 3


async def test_following_goes_on_at_once_when_the_server_was_restarted(
    embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    loop = asyncio.get_running_loop()
    async with Follower(bus_client, EVENTS_STREAM, ALL) as follower:
        for restart in range(3):
            await until(lambda: bus_client.is_connected)
            await publish(bus_client, 1)
            assert [message.sequence for message in await take(follower, 1)] == [2 * restart + 1]
            waiting = asyncio.create_task(take(follower, 1))
            await embedded_server.kill()
            await embedded_server.wait_running()
            running_since = loop.time()
            async with connection(embedded_server.address) as other:
                await publish(other, 1)
            assert [message.sequence for message in await waiting] == [2 * restart + 2]
            assert loop.time() - running_since < 2


async def test_closing_ends_a_waiting_reader(bus_client: Client) -> None:
    follower = Follower(bus_client, EVENTS_STREAM, ALL)

    async def read() -> list[BusMessage]:
        return [message async for message in follower]

    reading = asyncio.create_task(read())
    await publish(bus_client, 1)
    await until(lambda: follower.last_sequence == 1)
    await follower.aclose()
    assert [message.sequence for message in await asyncio.wait_for(reading, 1)] == [1]
    assert await follower.next_batch() == []


async def test_a_connection_that_was_closed_for_good_is_an_error(embedded_server: EmbeddedServer) -> None:
    async with bus_client(embedded_server) as client:
        follower = Follower(client, EVENTS_STREAM, ALL)
        await publish(client, 1)
        await take(follower, 1)
        waiting = asyncio.create_task(follower.next_batch())
        await asyncio.sleep(0)
        await disconnect(client)
        with pytest.raises(BusUnavailable):
            await asyncio.wait_for(waiting, 5)


async def test_a_stream_that_does_not_exist_is_an_error_after_some_patience(bus_client: Client) -> None:
    with pytest.raises(NotFound):
        await Follower(bus_client, "NOWHERE", ALL, patience_s=0.1).next_batch()


async def test_a_log_that_ends_before_what_was_read_is_an_error(bus_client: Client) -> None:
    await publish(bus_client, 3)
    with pytest.raises(LogDiverged, match="ends at 3, but 5 was read"):
        await Follower(bus_client, EVENTS_STREAM, ALL, after=5, patience_s=0.1).next_batch()


async def test_a_log_whose_next_messages_are_gone_is_an_error(embedded_server: EmbeddedServer) -> None:
    async with connection(embedded_server.address) as client:
        config = {"name": EVENTS_STREAM, "subjects": [ALL], "max_msgs": 10, "storage": "file"}
        await api.call(client, f"STREAM.CREATE.{EVENTS_STREAM}", config, api.StreamInfo)
        await publish(client, 30)
        with pytest.raises(LogGap, match="begins at 21, but 6 was not read"):
            await Follower(client, EVENTS_STREAM, ALL, after=5, patience_s=0.1).next_batch()
        async with Follower(client, EVENTS_STREAM, ALL, after=5, lossy=True) as follower:
            assert [message.sequence for message in await take(follower, 10)] == list(range(21, 31))
            assert follower.skipped == 15


class Damage:
    """Puts a server's storage back to an earlier state, as lost blocks or a lost disk cache do."""

    def __init__(self, folder: Path) -> None:
        self._storage = folder / "storage"
        self._copy = folder.parent / "copy"

    def remember(self) -> None:
        shutil.copytree(self._storage, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self._storage)
        shutil.copytree(self._copy, self._storage)


async def cut_stream(server: EmbeddedServer, client: Client, follower: Follower, *, subject: str, again: int) -> None:
    """Read 20 messages, lose the last 10 in a restart, and store `again` new ones."""
    damage = Damage(server.folder)
    await publish(client, 10, subject=subject)
    await server.stop()
    damage.remember()
    await server.start()
    await until(lambda: client.is_connected)
    await publish(client, 10, first=11, subject=subject)
    assert len(await take(follower, 20)) == 20
    await server.stop()
    damage.restore()
    await server.start()
    async with connection(server.address) as other:
        if again:
            await publish(other, again, first=1001, subject=subject)


@pytest.mark.parametrize("again", [0, 15], ids=["shorter", "grown past what was read"])
async def test_a_log_that_lost_its_end_is_an_error_even_when_it_grew_again(
    embedded_server: EmbeddedServer, bus_client: Client, again: int
) -> None:
    follower = Follower(bus_client, EVENTS_STREAM, ALL, patience_s=0.2)
    await cut_stream(embedded_server, bus_client, follower, subject="grid.events.a.j.node.left", again=again)
    with pytest.raises(LogDiverged):
        await asyncio.wait_for(follower.next_batch(), 10)
    await follower.aclose()


@pytest.mark.parametrize("again", [5, 15], ids=["shorter", "grown past what was read"])
async def test_a_lossy_stream_that_lost_its_end_is_followed_on_with_what_is_new(
    embedded_server: EmbeddedServer, bus_client: Client, again: int
) -> None:
    async with Follower(bus_client, SAMPLES_STREAM, "grid.samples.>", lossy=True) as follower:
        await cut_stream(embedded_server, bus_client, follower, subject="grid.samples.a.j.0", again=again)
        messages = await take(follower, again)
        assert [message.data for message in messages] == [str(1000 + n).encode() for n in range(1, again + 1)]
        assert messages[0].sequence == 11
        assert follower.cuts == 1


async def test_a_lossy_stream_that_is_shorter_than_a_remembered_place_is_followed_from_its_end(
    bus_client: Client,
) -> None:
    await publish(bus_client, 3, subject="grid.samples.a.j.0")
    async with Follower(bus_client, SAMPLES_STREAM, "grid.samples.>", after=9, lossy=True) as follower:
        waiting = asyncio.create_task(take(follower, 1))
        await until(lambda: follower.cuts == 1)
        await publish(bus_client, 1, first=4, subject="grid.samples.a.j.0")
        assert [message.sequence for message in await waiting] == [4]
