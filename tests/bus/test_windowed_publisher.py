"""The windowed publisher: each message once in the stream, bounded, and nothing left waiting."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.connect import disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import read_through
from elasticgrid.bus.subjects import SAMPLES_STREAM
from elasticgrid.bus.windowed_publisher import WindowedPublisher
from elasticgrid.core.errors import BusUnavailable, InvalidInput
from elasticgrid.testing.bus import Proxy, bus_client, connection, launch_address, until

pytestmark = pytest.mark.server

SUBJECT = "grid.samples.acme.j1.0"
SYNCED = "SYNCED"


@pytest.fixture
async def client(embedded_server: EmbeddedServer) -> AsyncGenerator[Client]:
    """A connection, with the streams and one that is synced to disk before it acknowledges."""
    async with bus_client(embedded_server) as client:
        config = {"name": SYNCED, "subjects": ["synced.>"], "storage": "file"}
        await api.call(client, f"STREAM.CREATE.{SYNCED}", config, api.StreamInfo)
        yield client


def acked_more_than(publisher: WindowedPublisher, count: int) -> bool:
    return publisher.acked > count


async def stored_ids(client: Client, stream: str) -> Counter[str]:
    """How often each message id stands in the stream."""
    last = (await api.stream_info(client, stream)).state.last_seq
    ids: Counter[str] = Counter()
    async for batch in read_through(client, stream, ">", after=0, through=last):
        ids.update(message.headers["Nats-Msg-Id"] for message in batch if message.headers)
    return ids


async def test_everything_is_acknowledged_and_stored_once(client: Client) -> None:
    async with WindowedPublisher(client) as publisher:
        for number in range(5_000):
            await publisher.publish(SUBJECT, b"x", msg_id=f"m{number}")
        assert await publisher.flush(10) == 0
        assert (publisher.published, publisher.acked, publisher.retried, publisher.failed) == (5_000, 5_000, 0, 0)
    assert await stored_ids(client, SAMPLES_STREAM) == Counter(f"m{number}" for number in range(5_000))


async def test_the_same_message_id_is_stored_once(client: Client) -> None:
    async with WindowedPublisher(client) as publisher:
        for _ in range(3):
            await publisher.publish(SUBJECT, b"x", msg_id="same")
        assert await publisher.flush(10) == 0
        assert publisher.acked == 3
    assert await stored_ids(client, SAMPLES_STREAM) == Counter({"same": 1})


async def test_through_restarts_every_message_is_stored_exactly_once(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    published = 0
    async with WindowedPublisher(client) as publisher:

        async def restart() -> None:
            for acked in (500, 1_000, 1_500):
                await until(functools.partial(acked_more_than, publisher, acked))
                await embedded_server.kill()
                await embedded_server.wait_running()

        restarting = asyncio.create_task(restart())
        while not restarting.done():
            await publisher.publish("synced.x", b"x", msg_id=f"m{published}")
            published += 1
        await restarting
        assert await publisher.flush(10) == 0
        assert (publisher.acked, publisher.failed) == (published, 0)
        assert publisher.retried > 0
    assert await stored_ids(client, SYNCED) == Counter(f"m{number}" for number in range(published))


async def test_lost_acknowledgements_make_no_message_twice(embedded_server: EmbeddedServer, client: Client) -> None:
    async with (
        Proxy(embedded_server.address) as proxy,
        connection(proxy.address) as through_proxy,
        WindowedPublisher(through_proxy, window=50) as publisher,
    ):
        for number in range(50):
            if number == 20:
                proxy.swallow_answers_after(b"m30")
            await publisher.publish("synced.x", b"x", msg_id=f"m{number}")
        await proxy.swallowed.wait()
        assert publisher.unacknowledged > 0
        proxy.cut()
        assert await publisher.flush(10) == 0
        assert (publisher.acked, publisher.failed) == (50, 0)
        assert publisher.retried > 0
    assert await stored_ids(client, SYNCED) == Counter(f"m{number}" for number in range(50))


async def test_an_acknowledgement_that_does_not_come_in_time_is_asked_for_again(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    async with (
        Proxy(embedded_server.address) as proxy,
        connection(proxy.address) as through_proxy,
        WindowedPublisher(through_proxy, ack_timeout_s=0.1) as publisher,
    ):
        await publisher.publish("synced.x", b"x", msg_id="first")
        assert await publisher.flush(5) == 0
        proxy.swallow_answers_after(b"second")
        await publisher.publish("synced.x", b"x", msg_id="second")
        await until(lambda: publisher.retried >= 2)
        proxy.cut()
        assert await publisher.flush(5) == 0
    assert await stored_ids(client, SYNCED) == Counter(["first", "second"])


async def test_a_full_window_makes_publishing_wait_and_holds_no_more(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    async with WindowedPublisher(client, window=10) as publisher:
        await publisher.publish("synced.x", b"x", msg_id="m0")
        assert await publisher.flush(5) == 0
        await embedded_server.stop()
        await until(lambda: not client.is_connected)
        for number in range(1, 11):
            await publisher.publish("synced.x", b"x", msg_id=f"m{number}")
        waiting = asyncio.create_task(publisher.publish("synced.x", b"x", msg_id="m11"))
        assert await publisher.flush(0.1) == 10
        assert not waiting.done()
        assert publisher.unacknowledged == 10
        await embedded_server.start()
        await asyncio.wait_for(waiting, 10)
        assert await publisher.flush(10) == 0
        assert publisher.acked == 12
    assert await stored_ids(client, SYNCED) == Counter(f"m{number}" for number in range(12))


async def test_what_no_stream_takes_is_given_up_after_its_attempts(client: Client) -> None:
    async with WindowedPublisher(client, ack_timeout_s=0.05, max_attempts=3) as publisher:
        await publisher.publish("nobody.listens", b"x", msg_id="m")
        assert await publisher.flush(5) == 0
        assert (publisher.failed, publisher.retried, publisher.acked) == (1, 2, 0)
        assert "3 attempts" in publisher.last_failure


async def test_what_the_stream_refuses_or_the_credential_forbids_is_given_up(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    config = {"name": "FULL", "subjects": ["full.>"], "storage": "file", "max_msg_size": 10}
    await api.call(client, "STREAM.CREATE.FULL", config, api.StreamInfo)
    async with WindowedPublisher(client) as publisher:
        await publisher.publish("full.x", b"x" * 1000, msg_id="m")
        assert await publisher.flush(5) == 0
        assert publisher.failed == 1
        assert "size" in publisher.last_failure
    async with (
        connection(await launch_address(embedded_server, "acme", "j1")) as node,
        WindowedPublisher(node, ack_timeout_s=0.1) as publisher,
    ):
        await publisher.publish("grid.events.acme.j1.decision.scale", b"x", msg_id="m")
        assert await publisher.flush(5) == 0
        assert (publisher.failed, publisher.retried) == (1, 0)


async def test_a_message_larger_than_the_server_takes_is_refused_and_the_connection_lives(client: Client) -> None:
    async with WindowedPublisher(client) as publisher:
        for size in (client.max_payload + 1, client.max_payload):
            with pytest.raises(InvalidInput):
                await publisher.publish(SUBJECT, b"x" * size, msg_id="large")
        await publisher.publish(SUBJECT, b"x" * (client.max_payload - 100), msg_id="fits")
        assert await publisher.flush(5) == 0
        assert publisher.acked == 1


async def test_closing_ends_waiting_publishers_and_counts_what_is_lost(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    publisher = WindowedPublisher(client, window=1)
    await publisher.publish(SUBJECT, b"x", msg_id="m0")
    assert await publisher.flush(5) == 0
    await embedded_server.stop()
    await until(lambda: not client.is_connected)
    await publisher.publish(SUBJECT, b"x", msg_id="m1")
    waiting = [asyncio.create_task(publisher.publish(SUBJECT, b"x", msg_id=f"m{n}")) for n in (2, 3)]
    await asyncio.sleep(0)
    await publisher.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 2)
    assert [type(outcome) for outcome in outcomes] == [BusUnavailable, BusUnavailable]
    assert (publisher.acked, publisher.failed, publisher.unacknowledged) == (1, 1, 0)
    assert await publisher.flush(1) == 0
    with pytest.raises(BusUnavailable):
        await publisher.publish(SUBJECT, b"x", msg_id="m4")


async def test_a_connection_that_was_closed_for_good_leaves_nobody_waiting(
    embedded_server: EmbeddedServer, client: Client
) -> None:
    async with connection(embedded_server.address) as short, WindowedPublisher(short, window=1) as publisher:
        await publisher.publish("nobody.listens", b"x", msg_id="m1")
        waiting = asyncio.create_task(publisher.publish(SUBJECT, b"x", msg_id="m2"))
        await asyncio.sleep(0)
        await disconnect(short)
        with pytest.raises(BusUnavailable):
            await asyncio.wait_for(waiting, 2)
        assert await publisher.flush(2) == 0
        assert publisher.failed == 1


async def test_a_tight_loop_lets_others_run(client: Client) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    async with WindowedPublisher(client, window=10_000) as publisher:
        await publisher.publish(SUBJECT, b"x", msg_id="m")
        before = turns
        for number in range(1_000):
            await publisher.publish(SUBJECT, b"x", msg_id=f"m{number}")
        assert turns - before >= 20
        assert await publisher.flush(10) == 0
    task.cancel()


def test_a_window_holds_something() -> None:
    with pytest.raises(InvalidInput):
        WindowedPublisher(Client(), window=0)
