"""Connecting: addresses, credentials, a bounded first connect, callbacks, a quick end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core.errors import BusUnavailable, InvalidInput
from elasticgrid.testing.bus import connection, free_ports


def test_the_address_comes_from_the_environment() -> None:
    url, file = "nats://127.0.0.1:4222", "/run/node.json"
    assert BusAddress.from_environment({"ELASTICGRID_NATS_URL": url}) == BusAddress(url)
    both = {"ELASTICGRID_NATS_URL": f" {url} ", "ELASTICGRID_CREDENTIALS": file}
    assert BusAddress.from_environment(both) == BusAddress(url, file)
    assert BusAddress.from_environment({"ELASTICGRID_NATS_URL": " ", "ELASTICGRID_CREDENTIALS": file}) is None


@pytest.mark.parametrize("text", [None, "", "{", '{"user": "service"}', '{"user": 1, "password": "x"}'])
def test_a_credential_file_that_is_none_is_named_in_the_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "service.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput, match=r"service\.json"):
        read_credentials(path)


async def test_the_first_connect_is_bounded_and_says_what_it_met() -> None:
    (port,) = free_ports(1)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(BusUnavailable, match="is a nats-server running there"):
        await connect(BusAddress(f"nats://127.0.0.1:{port}"), name="test", connect_timeout_s=0.3)
    assert loop.time() - begun < 2


@pytest.mark.parametrize("url", ["nats://127.0.0.1:notaport", "ftp://127.0.0.1:1"])
async def test_an_address_that_is_none_is_invalid(url: str) -> None:
    with pytest.raises(InvalidInput, match="nats://host:port"):
        await connect(BusAddress(url), name="test", connect_timeout_s=0.5)


@pytest.mark.server
async def test_a_wrong_or_missing_credential_is_named(embedded_server: EmbeddedServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"user": "service", "password": "guessed"}')
    for address in (BusAddress(embedded_server.address.url), BusAddress(embedded_server.address.url, str(wrong))):
        with pytest.raises(BusUnavailable, match="refused the credential"):
            await connect(address, name="test", connect_timeout_s=0.5)


@pytest.mark.server
async def test_callbacks_are_told_and_may_fail(embedded_server: EmbeddedServer) -> None:
    told: list[str] = []
    back = asyncio.Event()

    async def on_disconnect() -> None:
        told.append("disconnect")
        raise RuntimeError("the callback's own trouble")

    async def on_reconnect() -> None:
        told.append("reconnect")
        back.set()
        raise RuntimeError("the callback's own trouble")

    async def on_closed() -> None:
        told.append("closed")
        raise RuntimeError("the callback's own trouble")

    client = await connect(
        embedded_server.address,
        name="test",
        on_disconnect=on_disconnect,
        on_reconnect=on_reconnect,
        on_closed=on_closed,
    )
    await embedded_server.kill()
    async with asyncio.timeout(10):
        await back.wait()
    assert client.is_connected
    await disconnect(client)
    assert client.is_closed
    assert told == ["disconnect", "reconnect", "disconnect", "closed"]


@pytest.mark.server
async def test_a_server_that_ends_the_connection_for_good_is_told(embedded_server: EmbeddedServer) -> None:
    closed = asyncio.Event()

    async def on_closed() -> None:
        closed.set()

    client = await connect(embedded_server.address, name="test", on_closed=on_closed)
    await client.publish("grid.rounds.a.b.c", headers={"Large": "x" * (client.max_payload + 1)})
    async with asyncio.timeout(5):
        await closed.wait()
    await disconnect(client)


@pytest.mark.server
async def test_disconnecting_does_not_wait_for_a_stuck_callback(embedded_server: EmbeddedServer) -> None:
    stuck = asyncio.Event()

    async def never_ends(message: object) -> None:
        stuck.set()
        await asyncio.Event().wait()

    client = await connect(embedded_server.address, name="test")
    await client.subscribe("grid.rounds.a.b.c", cb=never_ends)
    await client.publish("grid.rounds.a.b.c")
    await stuck.wait()
    async with asyncio.timeout(1):
        await disconnect(client)
        await disconnect(client)


@pytest.mark.server
async def test_what_was_published_before_disconnecting_is_sent(embedded_server: EmbeddedServer) -> None:
    async with connection(embedded_server.address) as listener:
        subscription = await listener.subscribe("grid.rounds.a.b.c")
        await listener.flush()
        client = await connect(embedded_server.address, name="test")
        for number in range(1000):
            await client.publish("grid.rounds.a.b.c", str(number).encode())
        await disconnect(client)
        for number in range(1000):
            assert (await subscription.next_msg(timeout=5)).data == str(number).encode()


async def test_nothing_tries_to_reach_a_server_any_more_that_is_gone_when_its_clients_disconnect(
    embedded_server: EmbeddedServer,
) -> None:
    clients = [await connect(embedded_server.address, name=f"{number}") for number in range(40)]
    before = asyncio.all_tasks()
    await embedded_server.stop()

    async def leave(number: int) -> None:
        await asyncio.sleep(number * 0.007)  # at as many different moments of a try
        await disconnect(clients[number])

    await asyncio.gather(*(leave(number) for number in range(len(clients))))
    assert asyncio.all_tasks() <= before
    assert not any("_attempt_reconnect" in repr(task) for task in asyncio.all_tasks())
