"""Real agents, workers and bus: worlds begin, stop together, resume, fail, and leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from agent_grid import Grid, Trainer
from nats.aio.client import Client

from elasticgrid import environment
from elasticgrid.bus.subjects import heartbeat_subject, round_subject
from elasticgrid.core.events import (
    Event,
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeJoined,
    NodeLeft,
    NodeStarted,
    OutcomeDecided,
)
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

A, B = "a-0", "b-0"
FOR_EVER = 1_000_000


@pytest.mark.survive("resize")
async def test_two_agents_stop_at_one_step_and_the_next_world_goes_on_from_there(grid: Grid, trainer: Trainer) -> None:
    agents = [await grid.start_agent(name, trainer(FOR_EVER, 0.02)) for name in ("a", "b")]
    await grid.world(1, A, B, nproc=2)
    for node in (A, B):
        await grid.wait_for(NodeStarted, node=node, round=1)
    asked = await grid.drain(1)
    drained, event = await grid.wait_for(NodeDrained, node=A, round=1)
    other, _ = await grid.wait_for(NodeDrained, node=B, round=1)
    checkpointed, _ = await grid.wait_for(NodeCheckpointed, node=A, round=1)

    steps = grid.stopped_at(1)
    assert sorted(steps) == [0, 1, 2, 3]
    assert len(set(steps.values())) == 1
    assert drained.clean
    assert other.clean
    assert {drained.last_step, other.last_step, checkpointed.checkpoint.step} == set(steps.values())
    assert (event.causation_id, event.correlation_id, event.actor) == (asked.id, "story", f"agent:{A}")
    kinds = await grid.fact_types(A)
    assert kinds.index("node.checkpointed") < kinds.index("node.drained")

    await grid.world(2, A, resume=checkpointed.checkpoint)
    await grid.wait_for(NodeStarted, node=A, round=2)
    assert (grid.meeting_place(2) / "began-0").read_text() == str(drained.last_step)

    await grid.drain(2, leaving=(A, B))
    for node in (A, B):
        await grid.wait_for(NodeLeft, node=node)
    assert [await agent.wait() for agent in agents] == [0, 0]


@pytest.mark.parametrize("step_s", [0.001, 0.4])
async def test_quick_and_slow_steps_are_stopped_together(grid: Grid, trainer: Trainer, step_s: float) -> None:
    for name in ("a", "b"):
        await grid.start_agent(name, trainer(FOR_EVER, step_s))
    await grid.world(1, A, B)
    for node in (A, B):
        await grid.wait_for(NodeStarted, node=node)
    await grid.drain(1)
    for node in (A, B):
        drained, _ = await grid.wait_for(NodeDrained, node=node)
        assert drained.clean
    assert len(set(grid.stopped_at(1).values())) == 1


async def test_a_drain_before_the_first_step_stops_all_workers_together(grid: Grid, trainer: Trainer) -> None:
    for name in ("a", "b"):
        await grid.start_agent(name, trainer(FOR_EVER, 0.02))
    await grid.world(1, A, B)
    await grid.drain(1)
    for node in (A, B):
        drained, _ = await grid.wait_for(NodeDrained, node=node)
        assert drained.clean
    assert len(set(grid.stopped_at(1).values())) == 1


@pytest.mark.survive("bus-cut")
async def test_a_bus_that_dies_while_the_stop_is_agreed_costs_no_step(grid: Grid, trainer: Trainer) -> None:
    for name in ("a", "b"):
        await grid.start_agent(name, trainer(FOR_EVER, 0.02))
    await grid.world(1, A, B)
    for node in (A, B):
        await grid.wait_for(NodeStarted, node=node)
    await grid.drain(1)
    await grid.server.kill()
    await grid.server.wait_running()
    for node in (A, B):
        drained, _ = await grid.wait_for(NodeDrained, node=node)
        assert drained.clean
    assert len(set(grid.stopped_at(1).values())) == 1


async def test_workers_that_are_done_finish_and_the_outcome_ends_the_agent(grid: Grid, trainer: Trainer) -> None:
    agent = await grid.start_agent("a", trainer(5, 0.01))
    await grid.world(1, A, nproc=2)
    finished, _ = await grid.wait_for(NodeFinished, node=A)
    assert (finished.last_step, finished.samples_published, finished.samples_dropped) == (5, 10, 0)
    await grid.decide(OutcomeDecided(outcome="completed", reason="done", last_step=5))
    assert await agent.wait() == 0
    assert await grid.fact_types(A) == [
        "node.joined",
        "node.started",
        "node.checkpointed",
        "node.finished",
        "node.left",
    ]


async def test_a_worker_is_given_what_torchrun_gives(grid: Grid) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_PORT TORCHELASTIC_RUN_ID"
    script = f"import os; print(*(os.environ[name] for name in {names.split()!r}))"
    await grid.start_agent("a", [sys.executable, "-c", script])
    world = await grid.world(1, A, nproc=2)
    await grid.wait_for(NodeFinished, node=A)
    logs = grid.shared.parent / "a" / "round-1"
    assert [(logs / f"rank-{rank}.log").read_text().split() for rank in (0, 1)] == [
        [str(rank), "2", str(rank), "2", "0", "1", str(world.master_port), "job"] for rank in (0, 1)
    ]


@pytest.mark.survive("E", "kill-worker")
async def test_a_failing_worker_ends_its_neighbours_and_its_last_words_are_recorded(grid: Grid) -> None:
    script = "import os, sys, time; time.sleep(600) if os.environ['RANK'] == '0' else sys.exit('no such data')"
    await grid.start_agent("a", [sys.executable, "-c", script])
    await grid.world(1, A, nproc=2)
    failed, _ = await grid.wait_for(NodeFailed, node=A)
    assert failed.failure == "app_failed"
    assert [(each.rank, each.code) for each in failed.exits] == [(1, 1), (0, -signal.SIGTERM)]
    assert failed.exits[0].last_lines == "no such data"
    assert failed.free_port > 0


async def test_a_command_that_does_not_exist_is_a_failure_and_not_a_crash(grid: Grid) -> None:
    await grid.start_agent("a", ["/no/such/program"])
    await grid.world(1, A)
    failed, _ = await grid.wait_for(NodeFailed, node=A)
    assert failed.exits[0].code == 127
    assert "/no/such/program" in failed.exits[0].last_lines


async def test_a_stubborn_worker_is_killed_after_its_grace_and_its_children_with_it(
    grid: Grid, stubborn: list[str]
) -> None:
    await grid.start_agent("a", stubborn)
    await grid.world(1, A)
    pids = await grid.pids(1)
    await grid.drain(1, grace_ms=200)
    drained, _ = await grid.wait_for(NodeDrained, node=A)
    assert not drained.clean
    assert not any(running(pid) for pid in pids)


@pytest.mark.survive("kill-node")
async def test_an_agent_that_is_killed_leaves_no_worker_and_no_child_of_one(grid: Grid, stubborn: list[str]) -> None:
    agent = await grid.start_agent("a", stubborn)
    await grid.world(1, A)
    pids = await grid.pids(1)
    assert all(running(pid) for pid in pids)
    agent.kill()
    await agent.wait()
    await until(lambda: not any(running(pid) for pid in pids))


async def test_a_terminated_agent_ends_its_workers_and_says_that_it_left(grid: Grid, trainer: Trainer) -> None:
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02))
    await grid.world(1, A)
    await grid.wait_for(NodeStarted, node=A)
    agent.send_signal(signal.SIGTERM)
    left, _ = await grid.wait_for(NodeLeft, node=A)
    assert left.reason == "terminated"
    assert await agent.wait() == 128 + signal.SIGTERM


@pytest.mark.survive("bus-cut")
async def test_a_bus_that_dies_and_comes_back_stops_no_worker(grid: Grid, trainer: Trainer) -> None:
    await grid.start_agent("a", trainer(FOR_EVER, 0.02))
    await grid.start_agent("b", trainer(FOR_EVER, 0.02))
    await grid.world(1, A, B)
    for node in (A, B):
        await grid.wait_for(NodeStarted, node=node)
    await grid.server.kill()
    await grid.server.wait_running()
    await grid.drain(1)
    for node in (A, B):
        drained, _ = await grid.wait_for(NodeDrained, node=node)
        assert drained.clean
    assert len(set(grid.stopped_at(1).values())) == 1
    assert await grid.fact_types(B) == ["node.joined", "node.started", "node.drained"]


async def test_an_agent_that_starts_before_its_bus_joins_when_the_bus_is_there(grid: Grid, stubborn: list[str]) -> None:
    await grid.server.stop()
    agent = await grid.start_agent("a", stubborn)
    await until(lambda: (grid.shared.parent / "a" / "agent.sock").exists())
    await grid.server.start()
    joined, _ = await grid.wait_for(NodeJoined, node=A)
    assert joined.pid == agent.pid


async def test_a_node_without_its_bus_for_too_long_ends_itself(grid: Grid, stubborn: list[str]) -> None:
    agent = await grid.start_agent("a", stubborn, **{environment.ORPHAN_TIMEOUT_S: "1"})
    await grid.world(1, A)
    pids = await grid.pids(1)
    await grid.server.stop()
    assert await asyncio.wait_for(agent.wait(), 20) == 1
    assert not any(running(pid) for pid in pids)


async def test_garbage_on_the_bus_and_the_socket_changes_nothing(
    grid: Grid, bus_client: Client, trainer: Trainer
) -> None:
    await grid.start_agent("a", trainer(FOR_EVER, 0.02))
    await grid.world(1, A)
    await grid.wait_for(NodeStarted, node=A)
    for data in (b"", b"\xff\x00", b'{"type":"abandon","round":1}', b'{"type":"ask_where"}'):
        await bus_client.publish(round_subject("team", "job", A), data)
    reader, writer = await asyncio.open_unix_connection(grid.shared.parent / "a" / "agent.sock")
    writer.write(b"\xff\xfe garbage\n" + b"x" * 200_000)
    await reader.read()
    writer.close()
    await grid.drain(1)
    drained, _ = await grid.wait_for(NodeDrained, node=A)
    assert drained.clean


@pytest.mark.survive("O")
async def test_a_broken_checkpoint_is_not_announced(grid: Grid) -> None:
    script = (
        "import elasticgrid, os, pathlib\n"
        "pub = elasticgrid.publisher()\n"
        "with pub.step(tokens=1): pass\n"
        "pub.checkpointed(1, os.environ['ELASTICGRID_CHECKPOINT_DIR'] + '/not-there')\n"
        "pub.close()\n"
    )
    await grid.start_agent("a", [sys.executable, "-c", script])
    await grid.world(1, A)
    await grid.wait_for(NodeFinished, node=A)
    assert "node.checkpointed" not in await grid.fact_types(A)


async def test_an_agent_says_that_it_lives(grid: Grid, bus_client: Client, stubborn: list[str]) -> None:
    heard = await bus_client.subscribe(heartbeat_subject("team", "job", A))
    await grid.start_agent("a", stubborn)
    message = await heard.next_msg(timeout=20)
    assert b'"node":"a-0"' in message.data


async def test_facts_are_ordered_and_each_is_in_the_log_once(grid: Grid, trainer: Trainer) -> None:
    agent = await grid.start_agent("a", trainer(3, 0.01))
    await grid.world(1, A)
    await grid.wait_for(NodeFinished, node=A)
    agent.send_signal(signal.SIGTERM)
    await agent.wait()
    ids = [recorded.event.id for recorded in await grid.facts() if isinstance(recorded.event, Event)]
    assert len(ids) == len(set(ids))
