"""Fixtures of the bus's tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.testing.bus import connection


@pytest.fixture
async def node_client(embedded_server: EmbeddedServer, bus_client: Client) -> AsyncGenerator[Client]:
    """A connection as a node, with the streams there."""
    async with connection(embedded_server.node_address) as client:
        yield client
