"""Training does not notice that the bus is away: not for how long, and not whether it ever comes back."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec
import pytest
from run_nodes import Nodes

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core import errors
from elasticgrid.elastic import events
from elasticgrid.elastic.config import LaunchConfig, checked
from elasticgrid.elastic.run_node import RunNode
from elasticgrid.elastic.run_outcome import RunResult
from elasticgrid.testing.processes import until

pytestmark = [pytest.mark.server, pytest.mark.process]

#: Says that it began, and ends with the code that a file tells it.
WAIT = """
import sys, time
from pathlib import Path
began, end = map(Path, sys.argv[1:3])
began.touch()
while not end.exists() or not end.read_text():
    time.sleep(0.02)
sys.exit(int(end.read_text()))
"""


class Training:
    """One node of a run whose bus the test can stop."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        address = server.address
        self.server = server
        self.began, self.end_file = folder / "began", folder / "end"
        self.config = LaunchConfig(
            run_id="trial",
            bus_url=address.url,
            credentials=address.credentials,
            log_dir=folder / "logs",
            last_call_s=0,
            bus_timeout_s=1,
            event_destination="test",
        )
        self.told: list[events.AnyEvent] = []
        events.register_handler("test", self.told.append)

    def start(self, **fields: object) -> asyncio.Task[RunResult]:
        command = [sys.executable, "-c", WAIT, str(self.began), str(self.end_file)]
        config = checked(msgspec.structs.replace(self.config, **fields))
        return asyncio.create_task(RunNode(config, command).run())

    async def lose_the_bus(self) -> None:
        """Once the worker has begun."""
        await until(self.began.exists)
        await self.server.stop()

    def end(self, code: int) -> None:
        self.end_file.write_text(str(code))


@pytest.fixture
def training(embedded_server: EmbeddedServer, tmp_path: Path) -> Training:
    return Training(embedded_server, tmp_path)


async def still_runs(node: asyncio.Task[RunResult], duration_s: float) -> bool:
    """Whether it has not ended after this long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(duration_s):
            await asyncio.shield(node)
    return not node.done()


async def test_workers_live_on_without_the_bus_and_a_node_that_is_done_has_succeeded(training: Training) -> None:
    node = training.start()
    await training.lose_the_bus()
    assert await still_runs(node, 3 * training.config.bus_timeout_s)
    training.end(0)
    result = await node
    assert (result.outcome, result.rounds, result.ranks) == ("finished", 1, (0,))


async def test_a_failure_without_the_bus_ends_the_node_for_nobody_could_decide(training: Training) -> None:
    node = training.start(max_restarts=3)
    await training.lose_the_bus()
    training.end(3)
    with pytest.raises(errors.RendezvousConnectionFailed, match="no worker runs here, and the bus was away for 1 s"):
        await node


async def test_a_bus_that_comes_back_has_missed_nothing(training: Training) -> None:
    node = training.start(bus_timeout_s=60)
    await training.lose_the_bus()
    training.end(0)
    await training.server.start()
    assert (await node).outcome == "completed"


async def test_a_node_that_is_not_to_live_without_the_bus_ends_itself(training: Training) -> None:
    node = training.start(orphan_timeout_s=1)
    await training.lose_the_bus()
    with pytest.raises(errors.RendezvousConnectionFailed, match="the bus was away for 1 s, so this node ended itself"):
        await node


async def test_nobody_who_trains_is_told_of_what_is_tried_again(
    nodes: Nodes, embedded_server: EmbeddedServer, meet: list[str]
) -> None:
    words = ["--rdzv-conf", "bus_timeout_s=4", "--event-log-handler", "console", *meet, "--no-python"]
    node = await nodes.run(*words, sys.executable, "-c", WAIT, "began", "end")
    await nodes.there("began")
    await embedded_server.stop()
    (nodes.folder / "end").write_text("0")
    assert await node.ended() == 0
    assert "finished: trial" in node.said
    assert "retry" not in node.said
    assert node.said.count("the run's log cannot be followed") <= 1
    assert node.said.count("the run's log cannot be written") <= 1
