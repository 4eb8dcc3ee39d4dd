"""Real agents on a real bus, and commands for them to run."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from agent_grid import JOB, STUBBORN, TENANT, TRAINER, Grid, Trainer
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.log.event_reader import event_reader
from elasticgrid.testing.bus import launch_address


@pytest.fixture
async def grid(embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path) -> AsyncGenerator[Grid]:
    """A bus and no agents yet; the agents that a test starts are ended with it."""
    address = await launch_address(embedded_server, TENANT, JOB)
    grid = Grid(embedded_server, bus_client, address, tmp_path)
    async with event_reader(bus_client):
        try:
            yield grid
        finally:
            await grid.end()


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    """The command of a trainer that takes so many steps of so many seconds."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    return lambda last, step_s: [sys.executable, str(script), str(last), str(step_s)]


@pytest.fixture
def stubborn(tmp_path: Path) -> list[str]:
    """The command of a worker that only SIGKILL ends."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    return [sys.executable, str(script)]
