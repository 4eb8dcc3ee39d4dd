"""Fixtures of the bus's tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.log.event_reader import event_reader
from elasticgrid.testing.bus import connection, launch_address


@pytest.fixture
async def node_client(embedded_server: EmbeddedServer, bus_client: Client) -> AsyncGenerator[Client]:
    """A connection as a node of acme's job j1, with the streams there and somebody who answers its questions."""
    address = await launch_address(embedded_server, "acme", "j1")
    async with event_reader(bus_client), connection(address) as client:
        yield client
