"""A launcher that is killed at any step: after its restart what runs is what the log says, once or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest
from doomed_launchers import DoomedLaunchers
from fault_points import FAULT_POINTS
from launcher_bench import Bench, running

from elasticgrid.core import events as ev
from elasticgrid.marked_processes import find_marked

pytestmark = [pytest.mark.process, pytest.mark.server]

Scenario = Callable[[Bench, DoomedLaunchers, str], Awaitable[None]]
OUTCOMES: Final = (ev.LaunchStarted, ev.LaunchFailed, ev.LaunchStopped)


async def launching(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it launches two nodes with a bundle and a setup command."""
    await bench.provider()
    await bench.submit(bundle=True, setup="echo set up")
    await bench.place(nodes=2)
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until_any(OUTCOMES)


async def launching_in_vain(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it deals with a provider that has nothing."""
    await bench.provider("here", "module=provider_engines:StockedOut")
    await bench.submit()
    await bench.place(nodes=2)
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until_any(OUTCOMES)
    assert (await bench.kinds())[-1] == "failed"


async def resolving(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it finds out what became of a launch whose launcher was killed half way."""
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await doomed.run_until_killed("during engine.start")
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until_any(OUTCOMES)
    assert (await bench.kinds())[-1] == "failed"


async def adopting(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it takes over a launch that was complete and not recorded."""
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await doomed.run_until_killed("after manager.save")
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until_any(OUTCOMES)
    assert (await bench.kinds())[-1] == "started"


async def stopping(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it stops two nodes."""
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        await bench.handle()
    await bench.drop("p1a1", "p1a1-0", "p1a1-1")
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until(ev.LaunchStopped)
    assert await bench.kinds() == ["requested", "started", "stop_requested", "stopped"]


async def losing(bench: Bench, doomed: DoomedLaunchers, moment: str) -> None:
    """It is killed while it records that a node is gone."""
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        handle = await bench.handle()
    for process in find_marked(handle):
        os.kill(process.pid, signal.SIGKILL)
    await doomed.run_until_killed(moment)
    async with running(bench.launcher()):
        await bench.until(ev.LaunchStopped)
    kinds = await bench.kinds()
    assert (kinds.count("node_lost"), kinds[-1]) == (2, "stopped")


def around(scenario: Scenario, *steps: str) -> dict[str, Scenario]:
    return {f"{when} {step}": scenario for step in steps for when in ("before", "after")}


#: Each moment, and what a launcher is doing then.
POINTS: Final[dict[str, Scenario]] = {
    **around(launching, "job.prepare", "job.discard", "launch.requested", "job.start", "store.bundle"),
    **around(launching, "engine.provision", "engine.sync", "engine.setup", "engine.start", "manager.save"),
    **around(launching, "credentials.issue", "launch.started"),
    "before job.bundle_sha256": launching,
    "during engine.start": launching,
    "during manager.save": launching,
    **around(launching_in_vain, "launch.failed"),
    "before job.failure": resolving,
    **around(resolving, "job.release"),
    "before job.request_id": adopting,
    **around(adopting, "job.adopt"),
    "before job.statuses": stopping,
    "before engine.status": stopping,
    **around(stopping, "launch.stop_requested", "job.stop", "engine.stop", "launch.stopped"),
    **around(stopping, "credentials.ended"),
    "before job.tail": losing,
    "before engine.logs": losing,
    **around(losing, "launch.node_lost"),
}


def test_there_is_a_story_for_every_moment_at_which_a_launcher_can_be_killed() -> None:
    assert POINTS.keys() == FAULT_POINTS


@pytest.fixture
async def settled(bus_bench: Bench) -> AsyncIterator[Bench]:
    """A bench on which at the end there is one live launch or none, as its log says, and nothing else."""
    yield bus_bench
    kinds = await bus_bench.kinds()
    assert kinds.count("requested") == 1
    assert kinds.count("started") <= 1
    live = bus_bench.processes()
    if kinds[-1] == "started":
        assert {process.rank for process in live} == {0, 1}
        assert len({process.session for process in live}) == 2
    else:
        assert live == []


@pytest.mark.survive("B", "kill-launcher")
@pytest.mark.parametrize("moment", sorted(POINTS))
async def test_a_launcher_that_is_killed_at_any_moment_leaves_what_the_log_says(
    settled: Bench, doomed: DoomedLaunchers, moment: str
) -> None:
    await POINTS[moment](settled, doomed, moment)
