"""A log with a small grid in it, launchers that follow it, and an agent that only waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from nats.aio.client import Client

from elasticgrid.clock import SystemClock
from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.service import Launcher
from elasticgrid.log.port import EventLog, Scope
from elasticgrid.marked_processes import MarkedProcess, find_marked, send_signal

T = TypeVar("T")

#: Stands for the agent: says that it is there and waits to be ended.
WAITING_AGENT = (sys.executable, "-S", "-c", "import time; print('waiting', flush=True); time.sleep(600)")
TIMEOUT_S = 30.0


class Bench:
    """A grid in a log: facts can be put in, launchers started on it, and what they record awaited."""

    def __init__(self, folder: Path, log: EventLog, client: Client | None = None) -> None:
        self.folder = folder
        self.log = log
        self.client = client
        self.clock = SystemClock()
        self._facts = 0
        self._decisions: dict[str, int] = {}

    @property
    def node_credentials(self) -> Path:
        """What the operator gives all nodes: a user with a password."""
        path = self.folder / "node.json"
        path.write_text('{"user": "node", "password": "hunter2"}')
        return path

    def config(self, **changes: Any) -> LauncherConfig:
        settings: dict[str, Any] = {
            "data_dir": self.folder / "data",
            "nats_url": "nats://127.0.0.1:9",
            "node_credentials": str(self.node_credentials),
            "poll_s": 0.05,
            "agent_command": WAITING_AGENT,
        }
        return LauncherConfig(**(settings | changes))

    def launcher(self, **changes: Any) -> Launcher:
        return Launcher(self.log, self.client, self.clock, self.config(**changes))

    async def fact(self, data: ev.EventData, *, tenant: str = "default", job: str = "j1", number: int = 0) -> None:
        self._facts += 1
        basis = ev.Basis(
            number=number,
            as_of_ms=0,
            events_through=0,
            samples_through=0,
            policy="test",
            policy_version=1,
            config_digest="",
        )
        event = ev.Event(
            # Launches are named after the id of their submission, and processes found by that name on the machine: it
            # must not be that of another bench, which may be at work beside this one.
            id=f"fact{self._facts}-{crc32(str(self.folder).encode()):08x}",
            time_ms=self.clock.now_ms(),
            tenant=tenant,
            job=job,
            actor="test",
            basis=basis if number else None,
            data=data,
        )
        await self.log.append([event])

    async def provider(self, name: str = "here", engine: str = "local") -> None:
        spec = ProviderSpec(name=name, engine=engine, max_nodes=8)
        await self.fact(ev.ProviderDeclared(provider=spec), tenant="_grid", job="fleet")

    async def submit(self, job: str = "j1", **changes: Any) -> None:
        settings: dict[str, Any] = {"command": ("train",), "workdir": str(self.folder), "max_nodes": 8, "grace_ms": 0}
        await self.fact(ev.JobSubmitted(spec=JobSpec(name=job, **(settings | changes))), job=job)

    async def decide(self, data: ev.EventData, job: str = "j1") -> None:
        self._decisions[job] = self._decisions.get(job, 0) + 1
        await self.fact(data, job=job, number=self._decisions[job])

    async def place(self, attempt: str = "p1a1", nodes: int = 1, *, provider: str = "here", job: str = "j1") -> None:
        line = ev.Assignment(id=attempt, provider=provider, action="add", nodes=nodes, price_microdollars_per_hour=5)
        await self.decide(ev.PlacementDecided(demand_nodes=nodes, placed_nodes=nodes, assignments=(line,)), job)

    async def drop(self, attempt: str, *nodes: str, provider: str = "here", job: str = "j1") -> None:
        line = ev.Assignment(
            id=attempt,
            provider=provider,
            action="drop",
            nodes=len(nodes),
            price_microdollars_per_hour=5,
            leaving=nodes,
        )
        await self.decide(ev.PlacementDecided(demand_nodes=0, placed_nodes=0, assignments=(line,)), job)

    async def joined(self, node: str, job: str = "j1") -> None:
        attempt = node.rpartition("-")[0]
        fact = ev.NodeJoined(node=node, attempt=attempt, provider="here", host="127.0.0.1", free_port=1, pid=1)
        await self.fact(fact, job=job)

    async def until(self, kind: type[T], count: int = 1, *, job: str = "j1") -> list[T]:
        """Wait until that many facts of this kind are in the log, and return them."""
        found: list[T] = []
        async with asyncio.timeout(TIMEOUT_S):
            async with contextlib.aclosing(self.log.follow(scope=Scope("default", job))) as events:
                async for recorded in events:
                    if isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, kind):
                        found.append(recorded.event.data)
                        if len(found) >= count:
                            break
        return found

    async def until_any(self, kinds: tuple[type[ev.EventData], ...], *, job: str = "j1") -> None:
        """Wait until a fact of one of these kinds is in the log."""
        async with asyncio.timeout(TIMEOUT_S):
            async with contextlib.aclosing(self.log.follow(scope=Scope("default", job))) as events:
                async for recorded in events:
                    if isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, kinds):
                        return

    async def recorded(self, job: str = "j1") -> list[ev.EventData]:
        """What launchers have written about the job so far."""
        scope = Scope("default", job, "launch")
        return [r.event.data async for r in self.log.read(scope=scope) if isinstance(r.event, ev.Event)]

    async def kinds(self, job: str = "j1") -> list[str]:
        return [ev.type_of(data).removeprefix("launch.") for data in await self.recorded(job)]

    async def handle(self, job: str = "j1") -> str:
        (started,) = await self.until(ev.LaunchStarted, job=job)
        return started.handle

    def processes(self) -> list[MarkedProcess]:
        """Everything that runs of any launch of this bench."""
        return [process for name in self._launches() for process in find_marked(name)]

    def _launches(self) -> list[str]:
        return [path.parent.name for path in self.folder.glob("*/launches/*/launch.json")]

    def kill_everything(self) -> None:
        for name in self._launches():
            send_signal(find_marked(name), name, signal.SIGKILL)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for something outside this process that tells nobody when it happens."""
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():  # noqa: ASYNC110 - processes and files set no event of ours
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(*launchers: Launcher) -> AsyncIterator[None]:
    """The launchers work while the block runs; they are ended, and had no trouble, when it is left."""
    tasks = [asyncio.create_task(launcher.run()) for launcher in launchers]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await asyncio.gather(*(launcher.stop() for launcher in launchers))
        await asyncio.gather(*tasks)
