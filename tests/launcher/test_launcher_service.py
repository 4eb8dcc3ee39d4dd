"""The launcher as a service: what is placed runs once, what runs is watched, what is given up is stopped."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from launcher_bench import Bench, eventually, running

from elasticgrid.core import events as ev
from elasticgrid.log.port import Scope
from elasticgrid.marked_processes import find_marked

pytestmark = pytest.mark.process


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


async def test_a_placement_is_launched_once_with_its_intent_before_it(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    launcher = bench.launcher()
    async with running(launcher):
        await bench.place(nodes=2)
        handle = await bench.handle()
        await bench.place("p2a1", job="j1")
        await bench.until(ev.LaunchStarted, 2)
        assert {process.rank for process in find_marked(handle)} == {0, 1}
    requested, started = (await bench.recorded())[:2]
    assert isinstance(requested, ev.LaunchRequested)
    assert (requested.attempt, requested.node_ids, requested.engine) == ("p1a1", ("p1a1-0", "p1a1-1"), "local")
    assert isinstance(started, ev.LaunchStarted)
    assert sorted(await bench.kinds()) == ["requested", "requested", "started", "started"]
    assert launcher.stats.facts == {"requested": 2, "started": 2}


async def test_facts_name_their_cause_and_the_submission(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place()
    async with running(bench.launcher()):
        await bench.handle()
    events = [r.event async for r in bench.log.read(scope=Scope("default", "j1"))]
    submitted, placed, requested, started = events
    assert isinstance(requested, ev.Event)
    assert isinstance(started, ev.Event)
    assert (requested.actor, requested.causation_id, requested.correlation_id) == ("launcher", placed.id, submitted.id)
    assert started.causation_id == requested.id


async def facts_by_cause(bench: Bench) -> dict[type[ev.EventData], ev.Event | None]:
    """Of each type, the event that the last fact of a launcher names as its cause."""
    events = [r.event async for r in bench.log.read(scope=Scope("default", "j1"))]
    told = {event.id: event for event in events if isinstance(event, ev.Event)}
    return {type(event.data): told.get(event.causation_id) for event in told.values() if event.actor == "launcher"}


async def test_facts_name_what_they_follow_from_whatever_else_was_recorded_last(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await bench.decide(ev.DrainDecided(round=7, reason="unrelated"))
    launcher = bench.launcher()
    async with running(launcher):
        await bench.handle()
        for node in ("p1a1-0", "p1a1-1"):
            await bench.joined(node)
        await bench.drop("p1a1", "p1a1-0", "p1a1-1")
        await bench.fact(ev.NodeLeft(node="p1a1-1", reason="resize"))
        await bench.fact(ev.NodeLeft(node="p1a1-0", reason="resize"))
        await bench.fact(ev.JobPauseRequested(reason="unrelated"))
        await bench.until(ev.LaunchStopped)
    causes = {kind: cause.data if cause is not None else None for kind, cause in (await facts_by_cause(bench)).items()}
    placed, asked = causes[ev.LaunchRequested], causes[ev.LaunchStopRequested]
    assert isinstance(placed, ev.PlacementDecided)
    assert [line.id for line in placed.assignments] == ["p1a1"]
    assert isinstance(causes[ev.LaunchStarted], ev.LaunchRequested)
    assert asked == ev.NodeLeft(node="p1a1-0", reason="resize")
    assert isinstance(causes[ev.LaunchStopped], ev.LaunchStopRequested)


async def test_a_launch_that_is_given_up_is_stopped_because_of_the_decision_that_gave_it_up(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        await bench.handle()
        await bench.decide(ev.DrainDecided(round=0, reason="cancelled", leaving=("p1a1-0", "p1a1-1")))
        await bench.decide(ev.DrainDecided(round=7, reason="unrelated"))
        await bench.until(ev.LaunchStopped)
    cause = (await facts_by_cause(bench))[ev.LaunchStopRequested]
    assert cause is not None
    assert cause.data == ev.DrainDecided(round=0, reason="cancelled", leaving=("p1a1-0", "p1a1-1"))


async def test_two_launchers_launch_a_placement_once(bench: Bench) -> None:
    await bench.provider()
    first, second = bench.launcher(), bench.launcher(data_dir=bench.folder / "other")
    async with running(first, second):
        await first.caught_up.wait()
        await second.caught_up.wait()
        for number in range(5):
            await bench.submit(f"j{number}")
            await bench.place(job=f"j{number}")
        for number in range(5):
            await bench.handle(f"j{number}")
    for number in range(5):
        assert await bench.kinds(f"j{number}") == ["requested", "started"]
    assert len({(process.session) for process in bench.processes()}) == 5


async def test_a_second_launcher_in_a_folder_waits_and_takes_over(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    first, second = bench.launcher(), bench.launcher()
    async with running(second):
        await second.caught_up.wait()
        async with running(first):
            await bench.place()
            handle = await bench.handle()
            assert not first.caught_up.is_set()
            await second.stop()
            await first.caught_up.wait()
            os.kill(find_marked(handle)[0].session, signal.SIGKILL)
            for process in find_marked(handle):
                os.kill(process.pid, signal.SIGKILL)
            (lost,) = await bench.until(ev.NodeLost)
            assert lost.evidence == "process_gone"


async def test_a_launch_whose_nodes_do_not_leave_is_stopped_and_leaves_no_process(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        handle = await bench.handle()
        assert find_marked(handle)
        await bench.drop("p1a1", "p1a1-0", "p1a1-1")
        (stopped,) = await bench.until(ev.LaunchStopped)
        assert find_marked(handle) == []
    assert stopped.reason == "given up before its nodes joined"
    assert await bench.kinds() == ["requested", "started", "stop_requested", "stopped"]


@pytest.mark.survive("B")
async def test_a_cancelled_job_leaves_no_process(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        await bench.handle()
        await bench.decide(ev.DrainDecided(round=0, reason="cancelled", leaving=("p1a1-0", "p1a1-1")))
        await bench.until(ev.LaunchStopped)
    assert bench.processes() == []


async def test_an_assignment_that_was_given_up_before_it_was_launched_is_never_launched(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    await bench.drop("p1a1", "p1a1-0", "p1a1-1")
    await bench.place("p3a1")
    async with running(bench.launcher()):
        await bench.handle()
    assert {data.attempt for data in await bench.recorded() if isinstance(data, ev.LaunchRequested)} == {"p3a1"}


async def test_a_placement_of_which_nodes_were_given_up_brings_the_ones_that_are_left(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=3)
    await bench.drop("p1a1", "p1a1-2")
    async with running(bench.launcher()):
        await bench.handle()
    requested = (await bench.recorded())[0]
    assert isinstance(requested, ev.LaunchRequested)
    assert requested.node_ids == ("p1a1-0", "p1a1-1")


@pytest.mark.parametrize(
    ("engine", "failure", "words"),
    [
        ("module=provider_engines:StockedOut", "stockout", "ZONE_RESOURCE_POOL_EXHAUSTED: the zone has no more"),
        ("module=provider_engines:Forbidden", "auth", "PERMISSION_DENIED: caller is not authorized"),
        ("module=provider_engines:FailsAfterCreate", "transient", "connection reset by peer"),
    ],
)
async def test_what_a_provider_says_is_kept_word_for_word_and_classified(
    bench: Bench, engine: str, failure: str, words: str
) -> None:
    await bench.provider("far", engine)
    await bench.submit()
    await bench.place(nodes=2, provider="far")
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
        assert bench.processes() == []
    assert failed.failure == failure
    assert failed.text.startswith(words)
    assert await bench.kinds() == ["requested", "failed"]


async def test_a_workdir_that_does_not_exist_is_the_jobs_fault(bench: Bench) -> None:
    await bench.provider()
    await bench.submit(workdir="/nowhere/at/all")
    await bench.place()
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert "/nowhere/at/all" in failed.text


async def test_a_provider_that_hangs_holds_up_no_other_job(bench: Bench) -> None:
    await bench.provider()
    await bench.provider("slow", "module=provider_engines:Gated")
    await bench.submit("stuck")
    await bench.place(provider="slow", job="stuck")
    await bench.submit("free")
    async with running(bench.launcher()):
        await bench.until(ev.LaunchRequested, job="stuck")
        await bench.place(job="free")
        await bench.handle("free")
        await bench.drop("p1a1", "p1a1-0", job="free")
        await bench.until(ev.LaunchStopped, job="free")
        assert await bench.kinds("stuck") == ["requested"]
        (bench.folder / "gate").touch()
        await bench.handle("stuck")


@pytest.mark.survive("kill-node")
async def test_a_node_that_is_killed_is_lost_once_and_the_others_go_on(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    async with running(bench.launcher()):
        handle = await bench.handle()
        await bench.joined("p1a1-0")
        await bench.joined("p1a1-1")
        for process in find_marked(handle):
            if process.rank == 1:
                os.kill(process.pid, signal.SIGKILL)
        (lost,) = await bench.until(ev.NodeLost)
        await bench.place("p2a1")
        await bench.until(ev.LaunchStarted, 2)
        assert {process.rank for process in find_marked(handle)} == {0}
    assert (lost.node, lost.attempt, lost.evidence) == ("p1a1-1", "p1a1", "process_gone")
    assert (await bench.kinds()).count("node_lost") == 1


async def test_a_node_whose_runner_alone_was_killed_still_runs(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place()
    launcher = bench.launcher()
    async with running(launcher):
        handle = await bench.handle()
        await eventually(lambda: len(find_marked(handle)) == 2)
        runner = next(process for process in find_marked(handle) if process.pid == process.session)
        os.kill(runner.pid, signal.SIGKILL)
        await eventually(lambda: len(find_marked(handle)) == 1)
        await bench.place("p2a1")
        await bench.until(ev.LaunchStarted, 2)
        assert "node_lost" not in await bench.kinds()
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)
        assert find_marked(handle) == []


async def test_agents_that_end_before_they_join_are_lost_with_their_last_words(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place(nodes=2)
    agent = (sys.executable, "-S", "-c", "raise SystemExit('no module named elasticgrid here')")
    async with running(bench.launcher(agent_command=agent)):
        lost = await bench.until(ev.NodeLost, 2)
        await bench.until(ev.LaunchStopped)
    assert {each.node for each in lost} == {"p1a1-0", "p1a1-1"}
    assert all("no module named elasticgrid here" in each.text for each in lost)


async def test_a_node_that_said_goodbye_is_not_lost(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place()
    agent = (sys.executable, "-S", "-c", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    async with running(bench.launcher(agent_command=agent)):
        await bench.handle()
        await bench.joined("p1a1-0")
        await bench.fact(ev.NodeLeft(node="p1a1-0", reason="completed"))
        (bench.folder / "go").touch()
        (stopped,) = await bench.until(ev.LaunchStopped)
    assert stopped.reason == "its nodes are gone"
    assert "node_lost" not in await bench.kinds()


@pytest.mark.survive("C")
async def test_a_launch_goes_on_when_its_launcher_ends_and_the_next_one_stops_it(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place()
    async with running(bench.launcher()):
        handle = await bench.handle()
    assert find_marked(handle)
    await bench.drop("p1a1", "p1a1-0")
    async with running(bench.launcher()):
        await bench.until(ev.LaunchStopped)
    assert find_marked(handle) == []


@pytest.mark.survive("A")
async def test_an_engine_that_does_not_answer_loses_no_node(bench: Bench) -> None:
    await bench.provider("far", "module=provider_engines:Unreachable")
    await bench.provider()
    await bench.submit()
    await bench.place(provider="far")
    async with running(bench.launcher(silent_after_s=0.0)):
        await bench.handle()
        await eventually((bench.folder / "asked").exists)
        await bench.place("p2a1")
        await bench.until(ev.LaunchStarted, 2)
    assert "node_lost" not in await bench.kinds()


async def test_no_secret_is_in_what_is_written_or_run(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    await bench.place()
    async with running(bench.launcher()):
        handle = await bench.handle()
        await eventually(lambda: len(find_marked(handle)) == 2)
        environments = [environment_of(process.pid) for process in find_marked(handle)]
    folder = bench.folder / "data" / "launches"
    assert all(f"ELASTICGRID_CREDENTIALS={folder / handle}/bus.json" in text for text in environments)
    assert not any("service.json" in text or "hunter2" in text for text in environments)
    assert folder.stat().st_mode & 0o077 == 0
