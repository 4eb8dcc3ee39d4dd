"""A bench on a log in memory, and the environment that launchers run in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_bench import Bench

from elasticgrid.clock import SystemClock
from elasticgrid.log.memory import MemoryLog


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench on a log in memory."""
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    yield bench
    bench.kill_everything()


@pytest.fixture(autouse=True)
def launcher_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher itself is told by its environment, and its nodes must not inherit."""
    monkeypatch.setenv("ELASTICGRID_CREDENTIALS", "/secret/service.json")
    # Where launchers in processes of their own find the engines of `provider_engines`.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
