"""kill -9 of each service in the middle of a run, started again: the run ends the same and verifies."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from deployment import Deployment, deployment, job_file, trainer

from elasticgrid.core import events as ev

pytestmark = [pytest.mark.server, pytest.mark.process]

STEPS = 200


@pytest.fixture
async def grid(tmp_path: Path) -> AsyncGenerator[Deployment]:
    with deployment(tmp_path) as running:
        async with running.connected():
            yield running


def submit(grid: Deployment) -> str:
    """A job that is two nodes big until its bounds say otherwise."""
    path = job_file(grid.box.folder, "long", trainer(STEPS), nodes={"min": 2, "max": 4, "initial": 2})
    return grid.submit(path)


def resize(grid: Deployment, job: str, low: int, high: int) -> None:
    answer = grid.box.run("jobs", "resize", job, "--min", low, "--max", high)
    assert answer.returncode == 0, answer.stderr


async def ends_the_same(grid: Deployment, job: str) -> None:
    """What the run comes to when nothing is killed."""
    outcome = await grid.outcome(job)
    assert (outcome.outcome, outcome.last_step) == ("completed", STEPS)
    summary, _ = await grid.review(job)
    assert summary.worlds == (2, 4, 2)
    assert (summary.steps, summary.duplicate_steps, summary.lost_steps) == (STEPS, 0, 0)
    assert (summary.nodes_lost, summary.failed_launches, summary.launches) == (0, 0, 2)
    state = await grid.state(job)
    assert (state.illegal, state.app_failures, state.infra_failures) == (0, 0, 0)


@pytest.mark.survive("C", "kill-decider")
async def test_the_decider_is_killed_while_a_growth_is_in_flight_and_again_while_the_job_drains(
    grid: Deployment,
) -> None:
    job = submit(grid)
    await grid.world(job, 2)
    resize(grid, job, 4, 4)
    await grid.event(job, lambda event: isinstance(event.data, ev.LaunchRequested) and event.data.provider == "beside")
    grid.restart("decider")
    await grid.world(job, 4)
    resize(grid, job, 2, 2)
    await grid.event(job, lambda event: isinstance(event.data, ev.DrainDecided) and event.data.round == 2)
    grid.kill("decider")
    await grid.event(job, lambda event: isinstance(event.data, ev.NodeLeft))
    grid.start("decider")
    await ends_the_same(grid, job)


@pytest.mark.survive("C", "bus-cut")
async def test_the_bus_is_killed_in_training_and_again_while_the_job_drains(grid: Deployment) -> None:
    job = submit(grid)
    await grid.world(job, 2)
    grid.restart("nats")
    resize(grid, job, 4, 4)
    await grid.event(job, lambda event: isinstance(event.data, ev.DrainDecided) and event.data.round == 1)
    grid.restart("nats")
    await grid.world(job, 4)
    resize(grid, job, 2, 2)
    await ends_the_same(grid, job)


@pytest.mark.survive("C", "kill-launcher")
async def test_launcher_and_gateway_are_killed_while_a_growth_is_in_flight_and_while_nodes_leave(
    grid: Deployment,
) -> None:
    job = submit(grid)
    await grid.world(job, 2)
    resize(grid, job, 4, 4)
    await grid.event(job, lambda event: isinstance(event.data, ev.LaunchStarted) and event.data.attempt != "p1a1")
    grid.restart("launcher")
    grid.restart("gateway")
    await grid.world(job, 4)
    resize(grid, job, 2, 2)
    grid.kill("launcher")
    await grid.event(job, lambda event: isinstance(event.data, ev.NodeLeft))
    grid.start("launcher")
    await ends_the_same(grid, job)
