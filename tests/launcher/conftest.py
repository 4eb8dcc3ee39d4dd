"""Benches on a log in memory and on a real one, and the environment that launchers run in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from doomed_launchers import DoomedLaunchers
from launcher_bench import Bench
from nats.aio.client import Client

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.clock import SystemClock
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.memory import MemoryLog


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench on a log in memory."""
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    yield bench
    bench.kill_everything()


@pytest.fixture
def bus_bench(tmp_path: Path, bus_client: Client) -> Iterator[Bench]:
    """A bench on a real log."""
    bench = Bench(tmp_path, JetStreamLog(bus_client), bus_client)
    yield bench
    bench.kill_everything()


@pytest.fixture
def doomed(bus_bench: Bench, embedded_server: EmbeddedServer) -> Iterator[DoomedLaunchers]:
    """Launchers that are killed at a moment."""
    launchers = DoomedLaunchers(bus_bench, embedded_server)
    with contextlib.closing(launchers):
        yield launchers


@pytest.fixture(autouse=True)
def launcher_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher itself is told by its environment, and its nodes must not inherit."""
    monkeypatch.setenv("ELASTICGRID_CREDENTIALS", "/secret/service.json")
    # Where launchers in processes of their own find the engines of `provider_engines`.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
