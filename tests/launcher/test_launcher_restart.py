"""A launcher that is killed between an intent and its outcome: the next one finds out what became of it."""

from __future__ import annotations

import asyncio

import pytest
from doomed_launchers import DoomedLaunchers
from launcher_bench import Bench, running

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.subjects import heartbeat_subject
from elasticgrid.core import events as ev
from elasticgrid.log.event_reader import event_reader
from elasticgrid.marked_processes import find_marked

pytestmark = [pytest.mark.process, pytest.mark.server]


async def test_an_intent_of_which_nothing_was_started_has_failed(bus_bench: Bench, doomed: DoomedLaunchers) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await doomed.run_until_killed("after launch.requested")
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert (failed.failure, failed.text) == ("transient", "the launcher was restarted before the launch was complete")
    assert await bench.kinds() == ["requested", "failed"]
    assert bench.processes() == []


async def test_a_launch_that_was_complete_is_adopted_and_watched(bus_bench: Bench, doomed: DoomedLaunchers) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await doomed.run_until_killed("before launch.started")
    survivors = {process.session for process in bench.processes()}
    assert len(survivors) == 2
    async with running(bench.launcher()):
        handle = await bench.handle()
        assert {process.session for process in find_marked(handle)} == survivors
        await bench.drop("p1a1", "p1a1-0", "p1a1-1")
        await bench.until(ev.LaunchStopped)
    assert await bench.kinds() == ["requested", "started", "stop_requested", "stopped"]
    assert bench.processes() == []


async def test_a_launch_that_runs_but_was_not_written_down_is_adopted(
    bus_bench: Bench, doomed: DoomedLaunchers
) -> None:
    bench = bus_bench
    await bench.provider("odd", "module=provider_engines:KillsItsLauncherBeforeTheRecord")
    await bench.submit()
    await bench.place(nodes=2, provider="odd")
    await doomed.run_until_killed("never")
    async with running(bench.launcher()):
        handle = await bench.handle()
        assert {process.rank for process in find_marked(handle)} == {0, 1}
        await bench.drop("p1a1", "p1a1-0", "p1a1-1", provider="odd")
        await bench.until(ev.LaunchStopped)
    assert await bench.kinds() == ["requested", "started", "stop_requested", "stopped"]
    assert bench.processes() == []


async def test_a_launch_that_was_half_started_is_cleaned_up(bus_bench: Bench, doomed: DoomedLaunchers) -> None:
    bench = bus_bench
    await bench.provider("odd", "module=provider_engines:KillsItsLauncherInStart")
    await bench.submit()
    await bench.place(nodes=2, provider="odd")
    await doomed.run_until_killed("never")
    assert {process.rank for process in bench.processes()} == {0}
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "transient"
    assert bench.processes() == []


async def test_a_failure_that_was_not_recorded_any_more_keeps_its_words(
    bus_bench: Bench, doomed: DoomedLaunchers
) -> None:
    bench = bus_bench
    await bench.provider("far", "module=provider_engines:StockedOut")
    await bench.submit()
    await bench.place(provider="far")
    await doomed.run_until_killed("before launch.failed")
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "stockout"
    assert failed.text.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")


@pytest.mark.parametrize("moment", ["after launch.stop_requested", "before launch.stopped"])
async def test_a_stop_that_was_not_seen_through_is_done_again(
    bus_bench: Bench, doomed: DoomedLaunchers, moment: str
) -> None:
    bench = bus_bench
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
    assert bench.processes() == []


@pytest.mark.survive("14")
async def test_a_node_that_neither_its_engine_nor_its_heart_speaks_of_is_lost_once(bus_bench: Bench) -> None:
    bench = bus_bench
    await bench.provider("far", "module=provider_engines:Unreachable")
    await bench.submit()
    await bench.place(nodes=2, provider="far")
    launcher = bench.launcher(silent_after_s=1.0)
    assert bench.client is not None
    async with running(launcher):
        await bench.handle()

        async def beat() -> None:
            assert bench.client is not None
            while True:
                await bench.client.publish(heartbeat_subject("default", "j1", "p1a1-0"), b"")
                await asyncio.sleep(0.1)

        beating = asyncio.create_task(beat())
        (lost,) = await bench.until(ev.NodeLost)
        assert (lost.node, lost.evidence) == ("p1a1-1", "silent")
        beating.cancel()
        _, lost = await bench.until(ev.NodeLost, 2)
        assert lost.node == "p1a1-0"
        await bench.until(ev.LaunchStopped)
    assert (await bench.kinds()).count("node_lost") == 2


async def test_heartbeats_of_nodes_that_nobody_knows_are_counted(bus_bench: Bench) -> None:
    bench = bus_bench
    launcher = bench.launcher()
    assert bench.client is not None
    async with running(launcher):
        await launcher.caught_up.wait()
        for _ in range(3):
            await bench.client.publish(heartbeat_subject("default", "ghost", "p1a1-0"), b"\xff")
        await bench.client.publish("grid.heartbeats.x", b"")
        await bench.client.flush()
        await bench.provider()
        await bench.submit()
        await bench.place()
        await bench.handle()
        assert launcher.stats.strange_heartbeats == 4


async def test_garbage_among_the_launchers_own_events_holds_up_no_launch(bus_bench: Bench) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    assert bench.client is not None
    await bench.client.jetstream().publish("grid.events.default.j1.launch.requested", b"\xff not an event")
    async with running(bench.launcher()):
        await bench.place()
        await bench.handle()
        await bench.client.jetstream().publish("grid.events.default.j1.launch.started", b"{}")
        await bench.place("p2a1")
        await bench.until(ev.LaunchStarted, 2)


async def test_a_launcher_whose_log_ends_in_garbage_still_catches_up(
    bus_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place()
    monkeypatch.setattr("elasticgrid.launcher.service.CATCH_UP_S", 0.1)
    assert bench.client is not None
    await bench.client.jetstream().publish("grid.events.default.j1.node.joined", b"\xff not an event")
    async with running(bench.launcher()):
        await bench.handle()


async def test_the_grids_own_agent_joins_whatever_the_jobs_folder_calls_its_modules(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    bench = bus_bench
    for module in ("argparse", "queue", "nats", "msgspec"):
        (bench.folder / f"{module}.py").write_text("raise ImportError('this is the job')")
    await bench.provider()
    await bench.submit()
    settings = {"nats_url": embedded_server.url, "authority": str(embedded_server.authority_file)}
    assert bench.client is not None
    async with event_reader(bench.client), running(bench.launcher(agent_command=(), node_credentials="", **settings)):
        await bench.place(nodes=2)
        joined = await bench.until(ev.NodeJoined, 2)
        assert {each.node for each in joined} == {"p1a1-0", "p1a1-1"}
        await bench.decide(ev.DrainDecided(round=0, reason="cancelled", leaving=("p1a1-0", "p1a1-1")))
        await bench.until(ev.NodeLeft, 2)
        await bench.until(ev.LaunchStopped)
    assert "node_lost" not in await bench.kinds()
    assert bench.processes() == []
