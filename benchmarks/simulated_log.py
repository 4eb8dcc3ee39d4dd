"""A long log of many jobs to measure with: simulated, and written to an archive."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Final

from elasticgrid.core.events import Event, Recorded
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.log.archive import ArchiveWriter
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

_HOUR_MS: Final = 3_600_000
_SCALING: Final = ScalingPolicy(target_tokens_per_s=400, cooldown_down_ms=300_000, reversal_ms=300_000)


class _EnoughError(Exception):
    """The log is long enough."""


def write_log(path: Path, events: int, jobs: int) -> int:
    """Simulate a grid until its log has about `events` events, and write it to an archive; returns how many."""
    with ArchiveWriter(path, created_ms=0) as writer:

        def keep(recorded: Recorded) -> None:
            if recorded.sequence > events and isinstance(recorded.event, Event) and recorded.event.basis is None:
                raise _EnoughError  # never within a decision
            writer.add_event(recorded)

        providers = [
            ProviderSpec(name="spot", max_nodes=3 * jobs, market="spot", price_microdollars_per_hour=700_000),
            ProviderSpec(name="reserved", max_nodes=4 * jobs, price_microdollars_per_hour=2_000_000),
        ]
        grid = SimulatedGrid(providers, report_ms=300_000, on_event=keep, on_samples=lambda _: None)
        with contextlib.suppress(_EnoughError):
            _simulate(grid, jobs)
        return writer.events


def _simulate(grid: SimulatedGrid, jobs: int) -> None:
    """Jobs whose load goes up and down all day, one after another in each of `jobs` places."""
    numbers = itertools.count()

    def submit() -> None:
        number = next(numbers)
        spec = JobSpec(name=f"job{number}", command=("python", "train.py"), max_nodes=6, scaling=_SCALING)
        demand = ((1_800_000 + number % 7 * 120_000, 4 + number % 3), (2_400_000 + number % 5 * 120_000, 1))
        workload = Workload(
            total_steps=4_000, step_ms=60_000, demand=demand, repeat=True, begin_ms=grid.now_ms, checkpoint_steps=30
        )
        key = grid.submit(spec, workload)

        def look() -> None:
            if grid.job(key).terminal:
                submit()
            else:
                grid.at(_HOUR_MS, look)

        grid.at(_HOUR_MS, look)

    for place in range(jobs):
        grid.at(place * 997, submit)
    while True:
        grid.advance(_HOUR_MS)
