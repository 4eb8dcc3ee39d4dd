"""A bus, agents as real processes, and a hand that writes the decisions they follow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from nats.aio.client import Client

from elasticgrid import environment
from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core.events import (
    Basis,
    CheckpointRef,
    DecisionData,
    DrainDecided,
    Event,
    Member,
    NodeJoined,
    Recorded,
    WorldDecided,
    type_of,
)
from elasticgrid.core.names import derived_id
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.processes import until

TENANT, JOB = "team", "job"
RUN_AGENT = """
import asyncio, os, sys
from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.service import run_agent
sys.exit(asyncio.run(run_agent(AgentConfig.from_environment(os.environ), command=sys.argv[1:])))
"""

#: Trains in step with the other ranks: a step is done when every rank has put its file. Publishes through the hook.
#: Every rank writes at which step it stopped; rank 0 writes the checkpoint.
TRAINER = """
import os, sys, time
from pathlib import Path
import elasticgrid
from elasticgrid.publish import checkpoint

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
number = int(os.environ["ELASTICGRID_ROUND"])
meet = Path(os.environ["ELASTICGRID_RENDEZVOUS_DIR"])
step = int(os.environ["ELASTICGRID_RESUME_STEP"])
last, step_s = int(sys.argv[1]), float(sys.argv[2])
(meet / f"began-{rank}").write_text(str(step))
pub = elasticgrid.publisher()
while step < last and not pub.should_stop():
    with pub.step(tokens=8):
        time.sleep(step_s)
        step += 1
        (meet / f"{step}-{rank}").touch()
        while not all((meet / f"{step}-{other}").exists() for other in range(world)):
            time.sleep(0.001)
if rank == 0:
    uri = checkpoint.write(os.environ["ELASTICGRID_CHECKPOINT_DIR"], step, {"state": b"%d" % step}, round=number)
    pub.checkpointed(step, uri)
(meet / f"stopped-{rank}").write_text(str(step))
pub.close()
"""

#: Never stops by itself and does not listen to SIGTERM; has a child of its own that does not either.
STUBBORN = """
import os, signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
meet = Path(os.environ["ELASTICGRID_RENDEZVOUS_DIR"])
(meet / "writing").write_text(f"{os.getpid()} {child.pid}")
(meet / "writing").rename(meet / f"pids-{os.environ['RANK']}")
time.sleep(600)
"""

#: The command of a trainer that takes so many steps of so many seconds.
Trainer = Callable[[int, float], list[str]]
T = TypeVar("T")


class Grid:
    """A bus, agents as processes, and decisions written by hand."""

    def __init__(self, server: EmbeddedServer, client: Client, address: BusAddress, folder: Path) -> None:
        self._address = address
        self.server = server
        self.log = JetStreamLog(client)
        self.shared = folder / "shared"
        self._folder = folder
        self._decisions = 0
        self._agents: dict[str, asyncio.subprocess.Process] = {}

    @property
    def job_scope(self) -> Scope:
        return Scope(tenant=TENANT, job=JOB)

    async def start_agent(
        self, attempt: str, command: list[str], stdout: IO[bytes] | None = None, /, **variables: str
    ) -> asyncio.subprocess.Process:
        address = self._address
        environ = os.environ | {
            environment.NATS_URL: address.url,
            environment.CREDENTIALS: address.credentials,
            environment.TENANT: TENANT,
            environment.JOB: JOB,
            environment.PROVIDER: "local",
            environment.ATTEMPT: attempt,
            environment.NODE_DIR: str(self._folder / attempt),
            environment.SHARED_DIR: str(self.shared),
            "RANK": "0",
            **variables,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN_AGENT, *command, env=environ, stdout=stdout
        )
        self._agents[attempt] = process
        return process

    async def end(self) -> None:
        for process in self._agents.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        for process in self._agents.values():
            await process.wait()

    async def decide(self, data: DecisionData) -> Event:
        self._decisions += 1
        event = Event(
            id=derived_id(1_000 + self._decisions, JOB, self._decisions),
            time_ms=1_000 + self._decisions,
            tenant=TENANT,
            job=JOB,
            correlation_id="story",
            actor="decider",
            basis=Basis(
                number=self._decisions,
                as_of_ms=0,
                events_through=0,
                samples_through=0,
                policy="test",
                policy_version=1,
                config_digest="",
            ),
            data=data,
        )
        await self.log.append([event])
        return event

    async def wait_for(self, kind: type[T], *, node: str, timeout_s: float = 20.0, **fields: object) -> tuple[T, Event]:
        """The first fact of that kind about that node whose fields have those values."""
        async with asyncio.timeout(timeout_s), contextlib.aclosing(self.log.follow(scope=self.job_scope)) as events:
            async for recorded in events:
                event = recorded.event
                if not isinstance(event, Event) or not isinstance(event.data, kind):
                    continue
                told = msgspec.structs.asdict(event.data)
                if told["node"] == node and all(told[name] == value for name, value in fields.items()):
                    return event.data, event
        raise AssertionError("following ends only with the time-out")

    async def facts(self) -> list[Recorded]:
        return [recorded async for recorded in self.log.read(scope=Scope(tenant=TENANT, job=JOB, writer="node"))]

    async def fact_types(self, node: str) -> list[str]:
        return [
            type_of(recorded.event.data)
            for recorded in await self.facts()
            if isinstance(recorded.event, Event) and recorded.event.actor == f"agent:{node}"
        ]

    async def world(
        self, number: int, *nodes: str, nproc: int = 1, resume: CheckpointRef | None = None
    ) -> WorldDecided:
        joined = [(await self.wait_for(NodeJoined, node=node))[0] for node in nodes]
        world = WorldDecided(
            round=number,
            members=tuple(Member(node=node, group_rank=rank) for rank, node in enumerate(nodes)),
            nproc_per_node=nproc,
            master_addr=joined[0].host,
            master_port=joined[0].free_port,
            resume=resume,
        )
        await self.decide(world)
        return world

    async def drain(
        self, number: int, *, leaving: tuple[str, ...] = (), reason: str = "resize", grace_ms: int = 15_000
    ) -> Event:
        return await self.decide(DrainDecided(round=number, reason=reason, leaving=leaving, grace_ms=grace_ms))

    def meeting_place(self, number: int) -> Path:
        return self.shared / "rendezvous" / f"round-{number}"

    def stopped_at(self, number: int) -> dict[int, int]:
        """The step each rank of a round stopped at."""
        files = self.meeting_place(number).glob("stopped-*")
        return {int(file.name.removeprefix("stopped-")): int(file.read_text()) for file in files}

    async def pids(self, number: int, rank: int = 0) -> list[int]:
        file = self.meeting_place(number) / f"pids-{rank}"
        await until(file.exists)
        return [int(pid) for pid in file.read_text().split()]
