"""Real agents that a launcher started: they run for as long as the log wants their launch to, and no longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agent_grid import JOB, TENANT, Grid, Trainer

from elasticgrid import environment
from elasticgrid.core import events as ev
from elasticgrid.core.names import derived_id
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

FOR_EVER = 1_000_000
LAUNCHED = {environment.LAUNCHED: "1"}
END_S = 30.0


async def launcher_says(grid: Grid, *told: ev.EventData) -> None:
    for data in told:
        event_id = derived_id(1, JOB, ev.type_of(data), data)
        await grid.log.append(
            [ev.Event(id=event_id, time_ms=1, tenant=TENANT, job=JOB, correlation_id="s", actor="launcher", data=data)]
        )


def requested(attempt: str) -> ev.LaunchRequested:
    return ev.LaunchRequested(
        attempt=attempt,
        assignment=attempt,
        provider="local",
        engine="local",
        nodes=1,
        node_ids=(f"{attempt}-0",),
        price_microdollars_per_hour=0,
    )


def over(attempt: str) -> list[ev.EventData]:
    return [
        ev.LaunchFailed(attempt=attempt, failure="boot_failed", text="the machine does not boot"),
        ev.LaunchStopRequested(attempt=attempt, reason="given up before its nodes joined"),
        ev.LaunchStopped(attempt=attempt, reason="given up before its nodes joined"),
    ]


async def test_an_agent_whose_launch_the_log_does_not_know_ends_itself_before_it_joins(
    grid: Grid, trainer: Trainer
) -> None:
    await launcher_says(grid, requested("another"))
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **LAUNCHED)
    assert await asyncio.wait_for(agent.wait(), END_S) == 1
    assert await grid.facts() == []


@pytest.mark.parametrize("end", [0, 1, 2], ids=["failed", "stop-requested", "stopped"])
async def test_an_agent_whose_launch_is_over_when_it_comes_up_ends_itself_before_it_joins(
    grid: Grid, trainer: Trainer, end: int
) -> None:
    await launcher_says(grid, requested("a"), over("a")[end])
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **LAUNCHED)
    assert await asyncio.wait_for(agent.wait(), END_S) == 1
    assert await grid.facts() == []


@pytest.mark.parametrize("end", [0, 1, 2], ids=["failed", "stop-requested", "stopped"])
async def test_an_agent_at_work_ends_its_workers_and_leaves_when_its_launch_is_over(
    grid: Grid, stubborn: list[str], end: int
) -> None:
    await launcher_says(grid, requested("a"))
    agent = await grid.start_agent("a", stubborn, **LAUNCHED)
    await grid.world(1, "a-0")
    pids = await grid.pids(1)
    await launcher_says(grid, over("another")[end], over("a")[end])
    left, _ = await grid.wait_for(ev.NodeLeft, node="a-0", timeout_s=END_S)
    assert left.reason == "launch_over"
    assert await asyncio.wait_for(agent.wait(), END_S) == 0
    await until(lambda: not any(running(pid) for pid in pids))


async def test_facts_of_a_launched_node_name_the_intent_it_was_launched_for_and_its_end(
    grid: Grid, trainer: Trainer
) -> None:
    await launcher_says(grid, requested("another"), requested("a"))
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **LAUNCHED)
    _, joined = await grid.wait_for(ev.NodeJoined, node="a-0")
    await launcher_says(grid, over("another")[1], over("a")[1])
    _, left = await grid.wait_for(ev.NodeLeft, node="a-0", timeout_s=END_S)
    assert await asyncio.wait_for(agent.wait(), END_S) == 0
    said = {
        event.data: event.id
        async for recorded in grid.log.read()
        if isinstance(event := recorded.event, ev.Event) and event.actor == "launcher"
    }
    assert (joined.causation_id, joined.correlation_id) == (said[requested("a")], "s")
    assert (left.causation_id, left.correlation_id) == (said[over("a")[1]], "s")


async def test_an_agent_that_waits_for_its_world_leaves_when_its_launch_is_stopped_after_the_bus_was_away(
    grid: Grid, trainer: Trainer
) -> None:
    await launcher_says(grid, requested("a"))
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **LAUNCHED)
    await grid.wait_for(ev.NodeJoined, node="a-0")
    await grid.server.kill()
    await grid.server.wait_running()
    await launcher_says(grid, over("a")[2])
    assert await asyncio.wait_for(agent.wait(), END_S) == 0


async def test_an_agent_that_a_person_started_needs_no_launch_and_is_not_ended_by_one(
    grid: Grid, trainer: Trainer, tmp_path: Path
) -> None:
    agent = await grid.start_agent("a", trainer(20, 0.02))
    await grid.wait_for(ev.NodeJoined, node="a-0")
    await launcher_says(grid, over("a")[2])
    await grid.world(1, "a-0")
    await grid.wait_for(ev.NodeFinished, node="a-0")
    assert agent.returncode is None
