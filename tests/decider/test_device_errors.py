"""A node whose hardware breaks jobs is replaced and no job pays; a job that breaks node after node pays itself."""

from __future__ import annotations

import msgspec
import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job_failures import DEVICE_ERRORS, DEVICE_ERRORS_WITHIN_MS
from elasticgrid.core.spec import PPM, JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

pytestmark = pytest.mark.survive("22")

HERE = ProviderSpec(name="here", max_nodes=16, price_microdollars_per_hour=500_000)
BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BASE = JobSpec(
    name="a",
    command=("python", "train.py"),
    min_nodes=2,
    max_nodes=2,
    grace_ms=5_000,
    max_infra_restarts=0,
    scaling=ScalingPolicy(max_restart_ppm=PPM),
)


def submit(grid: SimulatedGrid, name: str, steps: int = 3_000) -> JobKey:
    return grid.submit(msgspec.structs.replace(BASE, name=name), Workload(total_steps=steps, demand=((1, 2),)))


def break_hardware(grid: SimulatedGrid, key: JobKey) -> str:
    """The first node of the job fails as broken hardware does; which one that was."""
    node = grid.job(key).member_nodes[0]
    grid.fail_worker(key, failure="infra_failed", last_lines=BROKEN)
    return node


def require_sound(grid: SimulatedGrid) -> None:
    report = verify(grid.recorded, grid.samples)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions


def test_the_node_is_replaced_and_no_job_is_charged_although_their_budgets_are_nothing() -> None:
    grid = SimulatedGrid((HERE,))
    jobs = [submit(grid, name) for name in ("a", "b", "c")]
    grid.advance(120_000)
    for key in jobs:
        broken = break_hardware(grid, key)
        grid.advance(120_000)
        state = grid.job(key)
        assert (state.phase, len(state.members)) == ("running", 2)
        assert broken not in state.member_nodes
        assert state.nodes[broken].status == "left"
    grid.run()
    for key in jobs:
        state = grid.job(key)
        assert (state.phase, state.app_failures, state.infra_failures) == ("completed", 0, 0)
    require_sound(grid)


def test_a_job_on_which_node_after_node_breaks_is_what_breaks_them() -> None:
    grid = SimulatedGrid((HERE,))
    key = submit(grid, "a", steps=50_000)
    broken = []
    for _ in range(DEVICE_ERRORS):
        grid.advance(120_000)
        broken.append(break_hardware(grid, key))
    assert len(set(broken)) == DEVICE_ERRORS
    grid.run()
    state = grid.job(key)
    assert (state.phase, state.app_failures) == ("failed", 1)
    assert f"{DEVICE_ERRORS} nodes of this job had an error of their hardware" in state.ending_reason
    require_sound(grid)


def test_hardware_that_breaks_now_and_then_in_a_long_job_is_never_the_jobs_fault() -> None:
    grid = SimulatedGrid((HERE,))
    key = submit(grid, "a", steps=200_000)
    for _ in range(2 * DEVICE_ERRORS):
        grid.advance(DEVICE_ERRORS_WITHIN_MS // 2 + 60_000)
        break_hardware(grid, key)
    grid.advance(120_000)
    state = grid.job(key)
    assert (state.phase, state.app_failures, state.infra_failures) == ("running", 0, 0)


def test_memory_that_is_used_up_is_no_error_of_the_hardware() -> None:
    grid = SimulatedGrid((HERE,))
    key = submit(grid, "a")
    grid.advance(120_000)
    grid.fail_worker(key, last_lines=f"{BROKEN}\ntorch.cuda.OutOfMemoryError: CUDA out of memory")
    grid.run()
    assert (grid.job(key).phase, grid.job(key).app_failures) == ("failed", 1)


def test_an_infrastructure_failure_with_other_words_is_charged_as_ever() -> None:
    grid = SimulatedGrid((HERE,))
    key = submit(grid, "a")
    grid.advance(120_000)
    grid.fail_worker(key, code=75, failure="infra_failed")
    grid.run()
    assert (grid.job(key).phase, grid.job(key).infra_failures) == ("failed", 1)
    assert {type(recorded.event) for recorded in grid.recorded} == {ev.Event}
