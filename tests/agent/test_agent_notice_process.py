"""Real agents and workers: a notice is told and obeyed in time, hangs are found, failures and output are kept."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
from agent_grid import Grid, Trainer
from metadata_server import Aws, MetadataServer
from nats.aio.client import Client

from elasticgrid import environment
from elasticgrid.agent.heartbeat import Heartbeat
from elasticgrid.bus.subjects import heartbeat_subject
from elasticgrid.core.events import (
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeLeft,
    NodePreemptionNotice,
    NodeReclassified,
    NodeStarted,
    NodeStuck,
)
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

A, B = "a-0", "b-0"
FOR_EVER = 1_000_000

HANGS = """
import time
import elasticgrid

pub = elasticgrid.publisher()

def wait_for_the_others():
    time.sleep(600)

for _ in range(3):
    with pub.step(tokens=1):
        time.sleep(0.02)
{hang}
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.survive("M", "notice")
@pytest.mark.parametrize("source", ["file", "aws"])
async def test_a_node_with_a_notice_is_gone_before_its_deadline_and_its_last_step_is_saved(
    grid: Grid, trainer: Trainer, tmp_path: Path, source: str
) -> None:
    server = MetadataServer(Aws)
    server.set(token="t")
    with server.running():
        file = tmp_path / "notice"
        variables = {
            environment.NOTICES: "aws" if source == "aws" else f"file:{file}",
            environment.AWS_METADATA_URL: server.url,
        }
        agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **variables)
        await grid.start_agent("b", trainer(FOR_EVER, 0.02))
        await grid.world(1, A, B)
        for node in (A, B):
            await grid.wait_for(NodeStarted, node=node)
        deadline_ms = (now_ms() // 1000 + 30) * 1000
        if source == "aws":
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline_ms // 1000))
            server.set(action=msgspec.json.encode({"action": "terminate", "time": at}).decode())
        else:
            file.write_bytes(msgspec.json.encode({"deadline_ms": deadline_ms, "text": "the machine is sold"}))
        notice, _ = await grid.wait_for(NodePreemptionNotice, node=A)
        assert (notice.source, notice.deadline_ms) == (source, deadline_ms)

        await grid.drain(1, reason="preempted", leaving=(A,), grace_ms=20_000)
        await grid.wait_for(NodeLeft, node=A, reason="preempted")
        assert now_ms() < deadline_ms
        assert await agent.wait() == 0
    checkpoint, _ = await grid.wait_for(NodeCheckpointed, node=A)
    for node in (A, B):
        drained, _ = await grid.wait_for(NodeDrained, node=node)
        assert (drained.clean, drained.last_step) == (True, checkpoint.checkpoint.step)


@pytest.mark.survive("notice")
async def test_a_signal_may_be_the_notice_and_a_second_one_ends_the_node(grid: Grid, trainer: Trainer) -> None:
    agent = await grid.start_agent("a", trainer(FOR_EVER, 0.02), **{environment.NOTICES: "signal"})
    await grid.world(1, A)
    await grid.wait_for(NodeStarted, node=A)
    agent.send_signal(signal.SIGTERM)
    notice, _ = await grid.wait_for(NodePreemptionNotice, node=A)
    assert notice.source == "signal"
    assert 20_000 < notice.deadline_ms - now_ms() <= 30_000
    agent.send_signal(signal.SIGTERM)
    await grid.wait_for(NodeLeft, node=A, reason="terminated")
    assert await agent.wait() == 128 + signal.SIGTERM


@pytest.mark.survive("M", "notice")
async def test_without_a_decision_the_node_ends_its_workers_and_leaves_in_time(
    grid: Grid, stubborn: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "notice"
    agent = await grid.start_agent("a", stubborn, **{environment.NOTICES: f"file:{file}"})
    await grid.world(1, A)
    pids = await grid.pids(1)
    deadline_ms = now_ms() + 6_000
    file.write_bytes(msgspec.json.encode({"deadline_ms": deadline_ms}))
    await grid.wait_for(NodeLeft, node=A, reason="preempted")
    assert now_ms() < deadline_ms
    assert await agent.wait() == 0
    assert not any(running(pid) for pid in pids)


@pytest.mark.survive("20")
async def test_a_notice_right_after_a_failure_reclassifies_it(grid: Grid, tmp_path: Path) -> None:
    file = tmp_path / "notice"
    command = [sys.executable, "-c", "import sys; sys.exit(1)"]
    await grid.start_agent("a", command, **{environment.NOTICES: f"file:{file}"})
    await grid.world(1, A)
    failed, _ = await grid.wait_for(NodeFailed, node=A)
    assert failed.failure == "app_failed"
    file.touch()
    again, _ = await grid.wait_for(NodeReclassified, node=A)
    assert (again.round, again.failure) == (1, "infra_failed")


@pytest.mark.survive("D")
@pytest.mark.parametrize(
    ("hang", "what", "after_s"),
    [
        ("wait_for_the_others()", "no_step", "1"),
        ("with pub.expires(0.5, 'all-reduce'): wait_for_the_others()", "expired", "0"),
    ],
)
async def test_a_hang_is_recorded_with_the_place_where_it_is(
    grid: Grid, bus_client: Client, hang: str, what: str, after_s: str
) -> None:
    command = [sys.executable, "-c", HANGS.format(hang=hang)]
    await grid.start_agent("a", command, **{environment.STUCK_AFTER_S: after_s})
    heard = await bus_client.subscribe(heartbeat_subject("team", "job", A))
    await grid.world(1, A)
    stuck, _ = await grid.wait_for(NodeStuck, node=A)
    assert (stuck.what, stuck.round, stuck.last_step) == (what, 1, 3)
    assert "wait_for_the_others" in stuck.stacks
    assert 0 < now_ms() - stuck.since_ms < 15_000
    async with asyncio.timeout(10):
        while (beat := msgspec.json.decode((await heard.next_msg(10)).data, type=Heartbeat)).workers != {
            "0": "UNHEALTHY"
        }:
            assert beat.node == A
    await grid.drain(1, reason="stuck", grace_ms=0)
    drained, _ = await grid.wait_for(NodeDrained, node=A)
    assert not drained.clean


async def test_the_first_cause_of_a_failure_is_told_from_its_error_file(grid: Grid) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "first = os.environ['RANK'] == '1'\n"
        "there = Path(os.environ['ELASTICGRID_RENDEZVOUS_DIR']) / 'said'\n"
        "while not first and not there.exists(): time.sleep(0.01)\n"
        "assert os.environ['ELASTICGRID_ERROR_FILE'] == os.environ['TORCHELASTIC_ERROR_FILE']\n"
        "said = '{\"message\": \"KeyError: loss\"}' if first else 'peer gone'\n"
        "Path(os.environ['ELASTICGRID_ERROR_FILE']).write_text(said)\n"
        "there.touch()\n"
        "time.sleep(600) if first else sys.exit(1)\n"
    )
    await grid.start_agent("a", [sys.executable, "-c", script])
    await grid.world(1, A, nproc=2)
    failed, _ = await grid.wait_for(NodeFailed, node=A)
    assert [(each.rank, each.message) for each in failed.exits] == [(1, "KeyError: loss"), (0, "peer gone")]
    assert 0 < failed.exits[0].time_ms <= failed.exits[1].time_ms
    assert failed.exits[0].error_file == str(grid.shared.parent / "a" / "round-1" / "rank-1.error")


async def test_macros_output_and_rotation_reach_real_workers(grid: Grid, tmp_path: Path) -> None:
    words = "${rank} ${local_rank} ${world_size} ${round} ${node} ${checkpoint_dir}"
    script = "import sys, time\nfor line in range(40): print(line, *sys.argv[1:], flush=True); time.sleep(0.02)"
    out = tmp_path / "out"
    variables = {environment.TEE: "1", environment.LOG_BYTES: "600", environment.LOG_FILES: "1"}
    with out.open("wb") as file:
        agent = await grid.start_agent("a", [sys.executable, "-c", script, *words.split()], file, **variables)
    await grid.world(1, A, nproc=2)
    await grid.wait_for(NodeFinished, node=A)
    agent.send_signal(signal.SIGTERM)
    await agent.wait()
    said = out.read_text().splitlines()
    for rank in (0, 1):
        lines = [line for line in said if line.startswith(f"[rank {rank}] ")]
        checkpoints = grid.shared / "checkpoints"
        assert lines == [f"[rank {rank}] {line} {rank} {rank} 2 1 {A} {checkpoints}" for line in range(40)]
    folder = tmp_path / "a" / "round-1"
    assert (folder / "rank-0.log.1").exists()
    assert not (folder / "rank-0.log.2").exists()


async def test_heartbeats_tell_how_every_worker_is(grid: Grid, bus_client: Client, trainer: Trainer) -> None:
    heard = await bus_client.subscribe(heartbeat_subject("team", "job", A))
    await grid.start_agent("a", trainer(FOR_EVER, 0.02))
    await grid.world(1, A, nproc=2)
    await grid.wait_for(NodeStarted, node=A)
    seen: set[str] = set()
    async with asyncio.timeout(20):
        while "HEALTHY" not in seen:
            beat = msgspec.json.decode((await heard.next_msg(10)).data, type=Heartbeat)
            seen |= set(beat.workers.values())
    await grid.drain(1)
    await grid.wait_for(NodeDrained, node=A)
    async with asyncio.timeout(20):
        while set(beat.workers.values()) != {"STOPPED"}:
            beat = msgspec.json.decode((await heard.next_msg(10)).data, type=Heartbeat)
    await until(lambda: not grid.stopped_at(1).keys() ^ {0, 1})
