"""Six ways in which a node and the others of its run do not come together, each really provoked."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from run_nodes import Nodes

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core import errors
from elasticgrid.core.events import Basis, Event, NodeLost, OutcomeDecided
from elasticgrid.core.run_state import RUN_TENANT
from elasticgrid.elastic import events
from elasticgrid.elastic.config import LaunchConfig, checked
from elasticgrid.elastic.run_node import RunNode
from elasticgrid.elastic.run_outcome import RunResult
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.bus import free_ports
from elasticgrid.testing.processes import until

pytestmark = [pytest.mark.server, pytest.mark.process]

#: Ends when a file is there.
WAIT = [
    sys.executable,
    "-c",
    "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)",
]


class Run:
    """Nodes of one run, in this process."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        address = server.address
        self.end_file = folder / "end"
        self.config = LaunchConfig(
            run_id="trial",
            bus_url=address.url,
            credentials=address.credentials,
            log_dir=folder / "logs",
            last_call_s=0,
            event_destination="test",
        )

    async def node(self, **fields: object) -> RunResult:
        config = checked(msgspec.structs.replace(self.config, **fields))
        return await RunNode(config, [*WAIT, str(self.end_file)]).run()


@pytest.fixture
def told() -> list[events.RdzvEvent]:
    """Everything that nodes tell of how they come together."""
    found: list[events.RdzvEvent] = []
    events.register_handler("test", lambda event: found.append(event) if isinstance(event, events.RdzvEvent) else None)
    return found


@pytest.fixture
def run(embedded_server: EmbeddedServer, tmp_path: Path, told: list[events.RdzvEvent]) -> Run:
    return Run(embedded_server, tmp_path)


async def has(told: list[events.RdzvEvent], name: str) -> None:
    await until(lambda: any(event.name == name for event in told))


async def test_timed_out_when_too_few_nodes_join(run: Run) -> None:
    with pytest.raises(
        errors.RendezvousTimedOut, match="waited 1 s: 1 of at least 2 nodes joined the run trial"
    ) as told:
        await run.node(min_nodes=2, max_nodes=2, join_timeout_s=1)
    assert told.value.code == "rendezvous_timed_out"


async def test_connection_failed_when_nothing_listens(run: Run) -> None:
    (port,) = free_ports(1)
    with pytest.raises(errors.RendezvousConnectionFailed, match="no connection within 1 s") as told:
        await run.node(bus_url=f"nats://127.0.0.1:{port}", credentials="", bus_timeout_s=1)
    assert told.value.code == "rendezvous_connection"


async def test_closed_when_the_run_is_over(run: Run) -> None:
    run.end_file.touch()
    assert (await run.node()).outcome == "completed"
    with pytest.raises(errors.RendezvousClosed, match="is over: completed") as told:
        await run.node()
    assert told.value.code == "rendezvous_closed"


async def test_exhausted_when_every_place_is_taken_and_graceful_exit_when_the_run_ends_meanwhile(
    run: Run, told: list[events.RdzvEvent]
) -> None:
    member = asyncio.create_task(run.node())
    await has(told, "world")
    with pytest.raises(errors.RendezvousExhausted, match="all 1 places of the run trial are taken") as exhausted:
        await run.node(join_timeout_s=0.5)
    assert exhausted.value.code == "rendezvous_exhausted"
    joined = sum(event.name == "joined" for event in told)
    spare = asyncio.create_task(run.node())
    await until(lambda: sum(event.name == "joined" for event in told) > joined)
    run.end_file.touch()
    assert (await member).outcome == "completed"
    with pytest.raises(errors.RendezvousGracefulExit, match="did not need this node") as left:
        await spare
    assert left.value.code == "rendezvous_graceful_exit"


async def test_state_invalid_when_the_node_was_started_with_other_settings(
    run: Run, told: list[events.RdzvEvent]
) -> None:
    member = asyncio.create_task(run.node())
    await has(told, "world")
    with pytest.raises(errors.RendezvousStateInvalid, match="other settings") as invalid:
        await run.node(nproc_per_node=2)
    assert invalid.value.code == "rendezvous_state"
    run.end_file.touch()
    await member


async def test_state_invalid_when_the_log_under_that_name_is_no_runs(run: Run, bus_client: Client) -> None:
    basis = Basis(
        number=1, as_of_ms=1, events_through=0, samples_through=0, policy="other", policy_version=1, config_digest="x"
    )
    foreign = Event(
        id="f" * 32,
        time_ms=1,
        tenant=RUN_TENANT,
        job="trial",
        actor="decider",
        basis=basis,
        data=OutcomeDecided(outcome="failed", reason="no run"),
    )
    await JetStreamLog(bus_client).append([foreign])
    with pytest.raises(errors.RendezvousStateInvalid, match="taken by the policy other"):
        await run.node()


async def test_a_node_that_was_held_up_for_too_long_finds_that_the_others_went_on_without_it(
    nodes: Nodes, meet: list[str], bus_client: Client
) -> None:
    words = ["--nnodes", "1:2", "--last-call-s", "0.2", "--rdzv-conf", "node_timeout_s=5,grace_s=10", *meet]
    held = await nodes.train(*words)
    await nodes.whole(1, 1)
    other = await nodes.train(*words)
    await nodes.whole(2, 2)
    os.kill(held.process.pid, signal.SIGSTOP)
    scope = Scope(tenant=RUN_TENANT, job="trial", writer="launch")
    async with asyncio.timeout(60):
        async for recorded in JetStreamLog(bus_client).follow(scope=scope):
            if isinstance(recorded.event, Event) and isinstance(recorded.event.data, NodeLost):
                break
    await nodes.whole(3, 1)
    os.kill(held.process.pid, signal.SIGCONT)
    assert await held.ended() == 1
    assert "was not heard of for too long" in held.said
    nodes.finish()
    assert await other.ended() == 0


def test_every_kind_has_a_code_of_its_own_and_is_one_of_the_rendezvous() -> None:
    kinds = errors.RendezvousError.__subclasses__()
    assert len({kind.code for kind in kinds}) == len(kinds) == 6
    assert all(issubclass(kind, errors.ElasticGridError) for kind in kinds)
