"""Fixtures of the tests that try what nobody may do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from bus_users import ATTACKER, VICTIM, Users
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.log.event_reader import event_reader


@pytest.fixture
async def users(embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path) -> AsyncGenerator[Users]:
    """Two tenants on a bus that a service answers questions on."""
    folder = tmp_path / "users"
    folder.mkdir()
    users = Users(embedded_server, folder)
    async with event_reader(bus_client):
        for tenant in (ATTACKER, VICTIM):
            await users.revoke(tenant)
        yield users
