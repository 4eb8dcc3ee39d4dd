"""A real history of a job that grows, shrinks and completes, beside one that is cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

History = Sequence[ev.Recorded]
Play = Callable[[MemoryLog, History], Awaitable[None]]

START_MS = 1_750_000_000_000
PROVIDERS = (
    ProviderSpec(name="cheap", max_nodes=3, price_microdollars_per_hour=1_000_001),
    ProviderSpec(name="large", max_nodes=8, price_microdollars_per_hour=3_700_000, market="spot"),
)


@pytest.fixture(scope="session")
def history() -> History:
    """Some hundred events."""
    grid = SimulatedGrid(PROVIDERS, start_ms=START_MS)
    scaling = ScalingPolicy(cooldown_up_ms=60_000, cooldown_down_ms=120_000, reversal_ms=120_000)
    job = grid.submit(
        JobSpec(name="elastic", command=("train",), min_nodes=2, max_nodes=4, scaling=scaling),
        Workload(total_steps=900, demand=((60_000, 2), (1, 8)), checkpoint_steps=200),
    )
    grid.at(500_000, lambda: grid.request(job, ev.JobResizeRequested(min_nodes=2, max_nodes=2)))
    other = grid.submit(JobSpec(name="other", command=("train",), scaling=scaling), tenant="second")
    grid.at(200_000, lambda: grid.request(other, ev.JobCancelRequested(reason="a test")))
    grid.run()
    return tuple(grid.recorded)


@pytest.fixture
def clock() -> VirtualClock:
    """The log's clock."""
    return VirtualClock(START_MS)


@pytest.fixture
def log(clock: VirtualClock) -> MemoryLog:
    """An empty log."""
    return MemoryLog(clock)


@pytest.fixture
def play(clock: VirtualClock) -> Play:
    """How a history gets into a log."""

    async def append(log: MemoryLog, recorded: History) -> None:
        for each in recorded:
            assert isinstance(each.event, ev.Event)
            clock.advance(max(each.recorded_ms - clock.now_ms(), 0) / 1_000)
            await log.append([each.event])

    return append


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the views are."""
    return tmp_path / "views" / "views.sqlite"
