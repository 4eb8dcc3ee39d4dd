"""Simulated logs that several tests look at. They are made once: nothing changes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_jobs import job, providers

from elasticgrid.core.events import JobCancelRequested
from elasticgrid.log.archive import ArchiveWriter, SampleRange
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload


@pytest.fixture(scope="session")
def one_job() -> SimulatedGrid:
    """One job: it grows twice, loses a node, shrinks and completes."""
    grid = SimulatedGrid(providers())
    key = grid.submit(job(), Workload(total_steps=400, demand=((200_000, 4), (1, 1))))
    grid.at(190_000, lambda: grid.lose_node(key))
    grid.run()
    assert grid.job(key).phase == "completed"
    return grid


@pytest.fixture(scope="session")
def many_jobs() -> SimulatedGrid:
    """Several jobs on a narrow grid: launches fail, workers fail, one is cancelled, one fails for good."""
    grid = SimulatedGrid(providers())
    grid.fail_launches("spot", "stockout", "no more capacity in the zone", times=1)
    keys = [
        grid.submit(job(f"job{index}"), Workload(total_steps=400, demand=((100_000 * (index + 1), 3), (1, 1))))
        for index in range(4)
    ]
    grid.at(90_000, lambda: grid.fail_worker(keys[0]))
    grid.at(100_000, lambda: grid.fail_worker(keys[1]))
    grid.at(200_000, lambda: grid.fail_worker(keys[1]))
    grid.at(160_000, lambda: grid.request(keys[2], JobCancelRequested(reason="not needed")))
    grid.run()
    assert [grid.job(key).phase for key in keys] == ["completed", "failed", "cancelled", "completed"]
    return grid


@pytest.fixture
def archived(tmp_path: Path) -> Callable[[SimulatedGrid], Path]:
    """Writes a grid's log and samples to an archive."""

    def write(grid: SimulatedGrid, *, samples: bool = True) -> Path:
        path = tmp_path / "run.egz"
        held = SampleRange(0, grid.evidence.sequence) if samples else None
        with ArchiveWriter(path, created_ms=grid.now_ms, samples=held) as writer:
            for recorded in grid.recorded:
                writer.add_event(recorded)
            for message in grid.samples if samples else ():
                writer.add_samples(message)
        return path

    return write
