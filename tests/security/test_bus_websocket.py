"""The WebSocket listener: there only when it was asked for, and only for who has a credential for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from bus_users import ATTACKER, Users, refusal
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.server_config import Listening, WebSocket
from elasticgrid.bus.subjects import live_filter
from elasticgrid.log.asked import AskedLog
from elasticgrid.log.event_reader import event_reader
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.bus import bus_client, connection, free_ports
from elasticgrid.testing.log_contract import an_event, take

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'elasticgrid[websocket-tests]'")

pytestmark = [pytest.mark.server, pytest.mark.security]

PAGE = "https://grid.example.com"


class Open:
    """A bus with a WebSocket listener, and a service on it."""

    def __init__(self, users: Users, service: Client, port: int) -> None:
        self.users = users
        self.service = service
        self.url = f"ws://127.0.0.1:{port}"

    def by_websocket(self, address: BusAddress) -> BusAddress:
        return BusAddress(self.url, address.credentials)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncGenerator[Open]:
    (port,) = free_ports(1)
    listening = Listening(websocket=WebSocket(listen=("127.0.0.1", port), allowed_origins=(PAGE,)))
    (tmp_path / "users").mkdir()
    async with EmbeddedServer(tmp_path, listening=listening) as server, bus_client(server) as client:
        users = Users(server, tmp_path / "users")
        async with event_reader(client):
            await users.revoke(ATTACKER)
            yield Open(users, client, port)


async def test_a_dashboard_reads_and_follows_its_tenants_events_by_websocket(opened: Open) -> None:
    log = JetStreamLog(opened.service)
    await log.append([an_event(1, tenant=ATTACKER)])
    address = opened.by_websocket(opened.users.watcher(websocket=True))
    async with connection(address) as board:
        records = AskedLog(board).follow(scope=Scope(tenant=ATTACKER))
        assert [record.sequence for record in await take(records, 1)] == [1]
        heard = await board.subscribe(live_filter(ATTACKER))
        await board.flush()
        await log.append([an_event(2, tenant=ATTACKER)])
        live = await heard.next_msg(timeout=5)
        assert live.headers is not None
        assert live.headers["Nats-Sequence"] == "2"
        await records.aclose()


async def test_a_credential_for_the_websocket_listener_opens_nothing_else_and_others_do_not_open_it(
    opened: Open,
) -> None:
    users = opened.users
    assert "refused" in await refusal(users.watcher(websocket=True))
    for address in (users.watcher(), users.launch(), users.role("decider"), users.role("service")):
        assert "refused" in await refusal(opened.by_websocket(address))


async def test_a_page_of_another_origin_is_turned_away(opened: Open) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(opened.url, headers={"Origin": "https://evil.example"})
        assert caught.value.status == 403
        async with asyncio.timeout(5), session.ws_connect(opened.url, headers={"Origin": PAGE}) as socket:
            assert (await socket.receive()).data.startswith(b"INFO ")


async def test_there_is_no_such_listener_unless_it_is_asked_for(embedded_server: EmbeddedServer) -> None:
    assert embedded_server.websocket is None
    assert "websocket" not in (embedded_server.folder / "nats-server.conf").read_text()
