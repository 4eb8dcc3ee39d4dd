"""Several nodes of a run, as real processes on a real bus: they come, they are killed, and the others go on."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from nats.aio.client import Client
from run_nodes import Nodes

from elasticgrid.bus.embedded import find_nats_server
from elasticgrid.core.events import Event, NodeFailed, NodeJoined, NodeLeft, NodeLost, WorldDecided
from elasticgrid.core.run_state import RUN_TENANT
from elasticgrid.elastic import flags
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.review.verify import verify
from elasticgrid.testing.bus import free_ports
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

QUICK = ["--last-call-s", "0.2", "--rdzv-conf", "node_timeout_s=5,grace_s=20"]


async def events_of(client: Client, run: str = "trial") -> list[Event]:
    scope = Scope(tenant=RUN_TENANT, job=run)
    return [each.event async for each in JetStreamLog(client).read(scope=scope) if isinstance(each.event, Event)]


async def test_a_late_node_joins_at_a_step_boundary_and_the_loss_of_the_first_node_is_a_loss_like_any_other(
    nodes: Nodes, meet: list[str], bus_client: Client
) -> None:
    elastic = ["--nnodes", "2:3", *QUICK, *meet]
    first = await nodes.train(*elastic)
    second = await nodes.train(*elastic)
    began = await nodes.whole(1, 2)
    assert [began[rank].world for rank in (0, 1)] == [2, 2]
    assert [began[rank].step for rank in (0, 1)] == [0, 0]

    third = await nodes.train(*elastic)
    grown = await nodes.whole(2, 3)
    assert [grown[rank].node for rank in (0, 1)] == [began[rank].node for rank in (0, 1)]
    assert {grown[rank].step for rank in range(3)} != {0}

    killed = {each.process.pid: each for each in (first, second)}
    said = [event.data for event in await events_of(bus_client)]
    joined = {data.pid: data.node for data in said if isinstance(data, NodeJoined)}
    leader = next(each for pid, each in killed.items() if joined[pid] == began[0].node)
    leader.process.kill()
    shrunk = await nodes.whole(3, 2)
    assert [shrunk[rank].node for rank in (0, 1)] == [grown[1].node, grown[2].node]
    assert [shrunk[rank].world for rank in (0, 1)] == [2, 2]
    assert [shrunk[rank].step for rank in (0, 1)] == [grown[0].step] * 2

    nodes.finish()
    survivor = second if leader is first else first
    assert await survivor.ended() == 0
    assert await third.ended() == 0
    assert "completed: trial, 2 nodes" in third.said
    await until(lambda: not any(map(running, nodes.pids)))
    worlds = [event.data for event in await events_of(bus_client) if isinstance(event.data, WorldDecided)]
    assert [len(world.members) for world in worlds] == [2, 3, 2]


async def test_a_run_in_a_grids_log_is_nothing_that_the_grid_has_to_answer_for(
    nodes: Nodes, meet: list[str], bus_client: Client
) -> None:
    node = await nodes.run(*meet, "--no-python", "true")
    assert await node.ended() == 0
    report = verify([recorded async for recorded in JetStreamLog(bus_client).read()])
    assert report.decisions == report.unverifiable == 2
    assert (report.diverged, report.law_breaches, report.missing_sequences) == (0, 0, 0)


async def test_nodes_meet_at_an_endpoint_that_one_of_them_serves_until_the_last_has_left(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    meet = ["--nnodes", "2", *QUICK, "--rdzv-backend", "c10d", "--rdzv-id", "drop-in"]
    host = await nodes.train(*meet, "--rdzv-endpoint", f"127.0.0.1:{port}")
    await until(lambda: flags.listens("127.0.0.1", port))
    guest = await nodes.train(*meet, "--rdzv-endpoint", f"127.0.0.1:{port}")
    await nodes.whole(1, 2)
    nodes.finish()
    assert await guest.ended() == 0
    assert await host.ended() == 0
    assert "completed: drop-in, 2 nodes" in guest.said
    assert not flags.listens("127.0.0.1", port)


async def test_a_bus_that_is_served_with_a_credential_lets_nobody_else_in(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    secret = nodes.folder / "run.json"
    meet = ["--nnodes", "2", *QUICK, "--run-id", "closed"]
    host = await nodes.train(*meet, "--host-bus", str(port), "--credentials", str(secret))
    await until(lambda: flags.listens("127.0.0.1", port))
    assert secret.stat().st_mode & 0o077 == 0
    elsewhere = [*meet, "--bus", f"nats://127.0.0.1:{port}"]
    stranger = await nodes.train(*elsewhere, "--rdzv-conf", "bus_timeout_s=1")
    assert await stranger.ended() == 1
    assert "credential" in stranger.said
    guest = await nodes.train(*elsewhere, "--credentials", str(secret))
    await nodes.whole(1, 2)
    nodes.finish()
    assert [await guest.ended(), await host.ended()] == [0, 0]


async def test_failures_count_for_the_whole_run_whichever_node_they_are_on(
    nodes: Nodes, meet: list[str], bus_client: Client
) -> None:
    script = nodes.folder / "fails.py"
    script.write_text(
        "import os, sys, time\n"
        "number, rank = int(os.environ['ELASTICGRID_ROUND']), int(os.environ['RANK'])\n"
        "if rank == number % 2:\n    raise ValueError(f'round {number}')\n"
        "time.sleep(600)\n"
    )
    words = ["--nnodes", "2", "--max-restarts", "2", *QUICK, *meet, str(script)]
    first, second = await nodes.run(*words), await nodes.run(*words)
    assert [await first.ended(), await second.ended()] == [1, 1]
    for node in (first, second):
        assert "failed in round 3 with exit code 1: ValueError: round 3" in node.said
        assert "rounds that failed: 3, restarts allowed: 2" in node.said
    failed = [event.data.exits[0].rank for event in await events_of(bus_client) if isinstance(event.data, NodeFailed)]
    assert [failed[0], failed[-1]] == [1, 1]
    assert 0 in failed


async def test_a_node_that_is_told_to_stop_leaves_and_the_others_go_on(
    nodes: Nodes, meet: list[str], bus_client: Client
) -> None:
    elastic = ["--nnodes", "1:2", *QUICK, *meet]
    first = await nodes.train(*elastic)
    second = await nodes.train(*elastic)
    await until(lambda: any(len(nodes.began(number)) == 2 for number in (1, 2)))
    number = 1 if len(nodes.began(1)) == 2 else 2
    began = nodes.began(number)
    second.process.send_signal(signal.SIGTERM)
    assert await second.ended() == 143
    alone = await nodes.whole(number + 1, 1)
    assert alone[0].node in {each.node for each in began.values()}
    nodes.finish()
    assert await first.ended() == 0
    said = [event.data for event in await events_of(bus_client)]
    assert "terminated" in [data.reason for data in said if isinstance(data, NodeLeft)]
    assert not any(isinstance(data, NodeLost) for data in said)


async def test_a_nats_server_of_anybodys_is_a_place_to_meet(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    server = await asyncio.create_subprocess_exec(
        *(find_nats_server(), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", nodes.folder / "storage"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        words = ["--nnodes", "2", *QUICK, "--run-id", "plain", "--bus", f"nats://127.0.0.1:{port}"]
        both = [await nodes.run(*words, "--no-python", "echo", "${rank} of ${world_size}") for _ in range(2)]
        assert [await node.ended() for node in both] == [0, 0]
        assert sorted(node.printed for node in both) == ["[rank 0] 0 of 2\n", "[rank 1] 1 of 2\n"]
    finally:
        server.terminate()
        await server.wait()


async def test_nodes_of_a_static_world_share_one_folder_and_the_same_command_again_gets_another(nodes: Nodes) -> None:
    folders: list[str] = []
    for _ in range(2):
        (port,) = free_ports(1)
        meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "--shared-dir", "shared"]
        says = ["--no-python", sys.executable, "-c", "import os; print(os.environ['ELASTICGRID_CHECKPOINT_DIR'])"]
        one = await nodes.run(*meet, "--node-rank", "1", *says)
        zero = await nodes.run(*meet, "--node-rank", "0", *says)
        assert [await one.ended(), await zero.ended()] == [0, 0]
        found = {node.printed.split("] ")[1] for node in (one, zero)}
        assert len(found) == 1
        folders += found
    assert folders[0] != folders[1]


async def test_nodes_of_a_static_world_find_each_other_by_the_address_of_rank_0(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    script = nodes.folder / "meet.py"
    script.write_text(
        "import os, socket, time\n"
        "rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "if rank == 0:\n"
        "    with socket.create_server(address) as server:\n"
        "        told = sorted(server.accept()[0].makefile().readline().strip() for _ in range(world - 1))\n"
        "    print('met', told, 'nodes', os.environ['GROUP_WORLD_SIZE'])\n"
        "while rank:\n"
        "    try:\n"
        "        with socket.create_connection(address) as link:\n"
        "            link.sendall((os.environ['RANK'] + ' ' + os.environ['GROUP_RANK'] + chr(10)).encode())\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.05)\n"
    )
    words = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    zero = await nodes.run(*words, "--node-rank", "0", str(script))
    one = await nodes.run(*words, "--node-rank", "1", str(script))
    assert [await zero.ended(), await one.ended()] == [0, 0]
    assert zero.printed == "[rank 0] met ['1 0', '2 1', '3 1'] nodes 2\n"
