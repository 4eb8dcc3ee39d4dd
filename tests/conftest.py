"""Fixtures for everyone: a real bus in the test's own folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.testing import bus


@pytest.fixture
async def embedded_server(tmp_path: Path) -> AsyncGenerator[EmbeddedServer]:
    """A running nats-server of the test's own."""
    async with bus.embedded_server(tmp_path) as server:
        yield server


@pytest.fixture
async def bus_client(embedded_server: EmbeddedServer) -> AsyncGenerator[Client]:
    """A connection to it as a service, with both streams there."""
    async with bus.bus_client(embedded_server) as client:
        yield client
