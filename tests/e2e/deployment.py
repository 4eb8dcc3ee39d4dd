"""The four services of compose.yaml as processes on this machine: the same commands, the same variables."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets as random
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import yaml
from nats.aio.client import Client
from sandbox import BIN, TOP, Sandbox, eventually, is_open

from elasticgrid.bus.authority import Authority
from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import write_credentials, write_private
from elasticgrid.bus.deployment import deployment_variables
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import decode_batch
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples
from elasticgrid.log.export import export_archive
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.review.report import VerifyReport
from elasticgrid.review.summary import RunSummary, summarise
from elasticgrid.review.verify import verify_archive
from elasticgrid.testing.bus import free_ports

TENANT: Final = "default"
SERVICES: Final = ("nats", "decider", "launcher", "gateway")
START_S: Final = 20.0
EXAMPLE: Final = TOP / "examples" / "elastic_numpy"
Found = Callable[[ev.Event], bool]


class Deployment:
    """nats, decider, launcher and gateway, each a process that can be killed and started again.

    Attributes:
        box: where they run; `elasticgrid` commands run in it find this gateway.
        processes: by service.
    """

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self._client: Client | None = None
        compose = yaml.safe_load((TOP / "compose.yaml").read_text())
        self._services: dict[str, dict[str, Any]] = compose["services"]
        bus_port, self.http_port, monitor_port = free_ports(3)
        self.bus_port = bus_port
        self._secret = random.token_hex(32)
        self.authority = Authority(bytes.fromhex(self._secret))
        self._variables = deployment_variables(self.authority, self._secret, int(time.time()))
        (box.folder / "nats.conf").write_text((TOP / "services/nats/nats.conf").read_text())
        for name, config in compose["configs"].items():
            content = self._filled(config["content"]).replace("/var/lib/nats", str(self.data("nats")))
            write_private(box.folder / name, content.encode())
        (box.folder / "trust").rename(box.folder / "trust.conf")
        write_credentials(box.folder / "service.json", self.authority.service("service", int(time.time())))
        self._replaced = {
            "nats://nats:4222": f"nats://127.0.0.1:{bus_port}",
            "0.0.0.0:4222": f"127.0.0.1:{bus_port}",
            "127.0.0.1:8222": f"127.0.0.1:{monitor_port}",
            "0.0.0.0:8088": f"127.0.0.1:{self.http_port}",
            "/etc/elasticgrid/nats.conf": str(box.folder / "nats.conf"),
            "/etc/elasticgrid/grid.yaml": str(TOP / "services/gateway/grid.yaml"),
            "/run/elasticgrid/authority.key": str(box.folder / "authority"),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        box.environ |= {
            "ELASTICGRID_GATEWAY_URL": f"http://127.0.0.1:{self.http_port}",
            "ELASTICGRID_KEY_FILE": str(self.data("gateway") / "admin.key"),
        }

    def _filled(self, text: str) -> str:
        """With `${NAME}` and `${NAME:?message}` replaced, as compose does."""
        return re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", lambda match: self._variables.get(match[1], ""), text)

    def data(self, service: str) -> Path:
        """The volume of a service."""
        return self.box.folder / "volumes" / service

    def output(self, service: str) -> str:
        """What a service has said so far."""
        return self._output(service).read_text()

    def _output(self, service: str) -> Path:
        return self.box.folder / f"{service}.log"

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncGenerator[Self]:
        """With a connection to the bus, as a service, until the block ends."""
        address = BusAddress(f"nats://127.0.0.1:{self.bus_port}", str(self.box.folder / "service.json"))
        self._client = await connect(address, name="test")
        try:
            yield self
        finally:
            await disconnect(self._client)

    @property
    def client(self) -> Client:
        """The connection to the bus."""
        assert self._client is not None
        return self._client

    @property
    def log(self) -> JetStreamLog:
        """The event log."""
        return JetStreamLog(self.client)

    def start(self, service: str) -> None:
        """Start a service as compose.yaml says; names, paths and addresses are those of this machine instead."""
        told = self._services[service]
        volume = self.data(service)
        volume.mkdir(parents=True, exist_ok=True, mode=0o700)
        own_credential = {
            "/run/elasticgrid/credential.json": str(self.box.folder / f"{service}-credential"),
            "0.0.0.0:9464": f"127.0.0.1:{free_ports(1)[0]}",
        }
        here = {**self._replaced, **own_credential, "/var/lib/elasticgrid": str(volume), "/var/lib/nats": str(volume)}
        variables = {name: here.get(value, self._filled(value)) for name, value in told["environment"].items()}
        program, *arguments = told["command"]
        command = [str(BIN / program), *[here.get(word, word) for word in arguments]]
        own = {name: value for name, value in self.box.environ.items() if not name.startswith("ELASTICGRID_")}
        self.processes[service] = self.box.start(command, environ={**own, **variables}, output=self._output(service))

    def kill(self, service: str) -> None:
        """kill -9."""
        self.processes[service].send_signal(signal.SIGKILL)
        self.processes[service].wait()

    def restart(self, service: str) -> None:
        """kill -9, and at once started again as `restart: unless-stopped` does."""
        self.kill(service)
        self.start(service)

    # ----------------------------------------------------------------------------------------------------------------
    # Jobs
    # ----------------------------------------------------------------------------------------------------------------

    def submit(self, path: Path) -> str:
        """The id of the job, submitted by the command line."""
        answer = self.box.run("submit", path)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def workers(self, job: str) -> list[int]:
        """The training processes of the job on this machine."""
        return sorted(self.box.running(ELASTICGRID_JOB=job) & self.box.commanded("python train.py"))

    def agents(self, job: str) -> list[int]:
        """Its agents."""
        return sorted(self.box.running(ELASTICGRID_JOB=job) & self.box.commanded(r"\S+ -P -m elasticgrid\.agent "))

    async def event(self, job: str, found: Found, *, timeout_s: float = 40.0) -> ev.Recorded:
        """The first event of the job that is the one looked for; waits for it, whatever dies meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                async for recorded in self.log.follow(scope=Scope(TENANT, job)):
                    if isinstance(recorded.event, ev.Event) and found(recorded.event):
                        return recorded
        except TimeoutError as error:
            raise AssertionError(await self._story(job)) from error
        raise AssertionError("the log ended")

    async def _story(self, job: str) -> str:
        lines = []
        async for recorded in self.log.read(scope=Scope(TENANT, job)):
            event = recorded.event
            lines.append(f"{recorded.sequence} {event.data if isinstance(event, ev.Event) else event}"[:300])
        return "\n".join(["not seen in time; the job's events:", *lines])

    async def world(self, job: str, nodes: int, *, after_round: int = 0) -> ev.WorldDecided:
        """The first world of so many nodes, after this round, of which every node has taken a step."""
        started: dict[int, set[str]] = {}
        worlds: dict[int, ev.WorldDecided] = {}

        def found(event: ev.Event) -> bool:
            if isinstance(event.data, ev.WorldDecided):
                worlds[event.data.round] = event.data
            if isinstance(event.data, ev.NodeStarted):
                started.setdefault(event.data.round, set()).add(event.data.node)
                world = worlds.get(event.data.round)
                return (
                    world is not None
                    and world.round > after_round
                    and len(world.members) == nodes
                    and len(started[world.round]) == nodes
                )
            return False

        recorded = await self.event(job, found)
        assert isinstance(recorded.event, ev.Event)
        assert isinstance(recorded.event.data, ev.NodeStarted)
        return worlds[recorded.event.data.round]

    async def checkpoint(self, job: str, step: int) -> None:
        """Wait until a checkpoint with at least so many steps is committed."""
        await self.event(
            job, lambda event: isinstance(event.data, ev.NodeCheckpointed) and event.data.checkpoint.step >= step
        )

    async def step(self, job: str, step: int, *, ranks: int, timeout_s: float = 30.0) -> None:
        """Wait until the samples of so many ranks tell of this step: a killed one takes its last samples with it."""
        told: set[str] = set()
        async with asyncio.timeout(timeout_s):
            async with Follower(self.client, SAMPLES_STREAM, f"{SAMPLES_ROOT}.{TENANT}.{job}.>", lossy=True) as samples:
                async for message in samples:
                    batch = decode_batch(message.data)
                    if not isinstance(batch, str) and any(sample.step >= step for sample in batch.samples):
                        told.add(message.subject)
                    if len(told) >= ranks:
                        return

    async def worlds(self, job: str) -> list[ev.WorldDecided]:
        """Every world of the job so far."""
        return [
            recorded.event.data
            async for recorded in self.log.read(scope=Scope(TENANT, job))
            if isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, ev.WorldDecided)
        ]

    async def outcome(self, job: str, *, timeout_s: float = 60.0) -> ev.OutcomeDecided:
        recorded = await self.event(job, lambda event: isinstance(event.data, ev.OutcomeDecided), timeout_s=timeout_s)
        assert isinstance(recorded.event, ev.Event)
        assert isinstance(recorded.event.data, ev.OutcomeDecided)
        return recorded.event.data

    async def state(self, job: str) -> JobState:
        fold = GridFold()
        async for recorded in self.log.read():
            fold.apply(recorded)
        state = fold.job((TENANT, job))
        assert state is not None
        return state

    async def review(self, job: str) -> tuple[RunSummary, VerifyReport]:
        """What the whole log says of the job, and what taking every decision again found."""
        archive = self.box.folder / f"{job}.egz"
        await export_archive(self.log, self.client, archive, created_ms=0, with_samples=True)
        answer = self.box.run("replay", "verify", archive)
        report = verify_archive(archive)
        assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}{report}"
        assert report.verified == report.decisions > 0, report
        assert not report.law_breaches, report.laws
        return summarise(ArchivedEvents(archive), ArchivedSamples(archive), job=(TENANT, job)), report


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """All four services, running; all of them and all that they started are gone at the end."""
    with Sandbox(folder) as box:
        grid = Deployment(box)
        for service in SERVICES:
            grid.start(service)
        key = grid.data("gateway") / "admin.key"
        eventually(lambda: is_open(grid.http_port) and key.exists(), START_S, "the gateway listens")
        yield grid


def trainer(steps: int | None = None, *, latency_s: float = 0.02, phases: str = "1:1000", every: int = 20) -> str:
    """The example's trainer with this many steps. By default work is always there."""
    return shlex.join(
        [
            *("python", "train.py", "--phases", phases, "--item-latency-s", str(latency_s)),
            *("--batch-per-rank", "2", "--checkpoint-every", str(every)),
            *(() if steps is None else ("--steps", str(steps))),
        ]
    )


#: A job whose size follows its load within seconds. By default it takes longer than the jobs here run.
QUICK: Final = {
    "min_evidence_s": 1,
    "window_steps": 8,
    "target_step_s": 3,
    "cooldown_up_s": 15,
    "cooldown_down_s": 1,
    "reversal_s": 1,
    "max_restart_share": 0.9,
    "default_restart_s": 1,
}


def up_and_down() -> str:
    """The trainer under more work than two nodes serve for 8 s, and under less than that for another 40 s.

    The job ends with its arrivals, on a slow machine as on a fast one.
    """
    return f"{trainer(latency_s=0.04, phases='8:70,1:12')} --items {8 * 70 + 40 * 12} --queue-limit 80"


def job_file(folder: Path, name: str, run: str | list[str], **more: Any) -> Path:
    """A job file of two nodes that stay two, in the folder of the example's trainer, unless `more` says else."""
    job = {
        "name": name,
        "run": run,
        "workdir": str(EXAMPLE),
        "env": {"OPENBLAS_NUM_THREADS": "1"},
        "nodes": {"min": 2, "max": 2},
        "grace_s": 20,
        **more,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML, too
    return path
