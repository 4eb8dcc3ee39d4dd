"""A gateway over a log in memory, asked without sockets, and one that listens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from callers import PROVIDERS

from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.server import RunningGateway, serve_gateway
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder asks the gateway."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gateway)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def log(clock: VirtualClock) -> MemoryLog:
    return MemoryLog(clock)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def gateway(log: MemoryLog, clock: VirtualClock, data_dir: Path) -> AsyncGenerator[GatewayService]:
    async with open_gateway(log, data_dir, providers=PROVIDERS, clock=clock, heartbeat_s=0.2) as service:
        yield service


@pytest.fixture
def key(gateway: GatewayService) -> str:
    return gateway.key_file.read_text().strip()


@pytest.fixture
async def client(gateway: GatewayService, key: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Asks the application itself; an exception in it would fail the test."""
    app = create_app(gateway)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type] # Litestar names every message's type, httpx any mapping
    async with httpx.AsyncClient(transport=transport, base_url="http://grid/v1", headers={"X-API-Key": key}) as asking:
        yield asking


@pytest.fixture
async def running(gateway: GatewayService) -> AsyncGenerator[RunningGateway]:
    async with await serve_gateway(gateway) as server:
        yield server


@pytest.fixture
async def browser(running: RunningGateway, key: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Asks the gateway that listens."""
    async with httpx.AsyncClient(
        base_url=f"{running.url}/v1", headers={"X-API-Key": key}, timeout=httpx.Timeout(10.0)
    ) as asking:
        yield asking
