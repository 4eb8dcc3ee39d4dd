"""Each service as a coroutine, on a connection that is there or one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import msgspec
import structlog
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.server_config import ServerTls
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.clock import SystemClock
from elasticgrid.core.errors import BusUnavailable
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.decider import snapshot
from elasticgrid.decider.metrics import DeciderMetrics, decision_latency
from elasticgrid.decider.service import Decider
from elasticgrid.gateway.server import RunningGateway
from elasticgrid.gateway.server import serve_gateway as listen
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.metrics import LauncherMetrics
from elasticgrid.launcher.service import Launcher
from elasticgrid.log.event_reader import event_reader
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import MirroredLog, mirrored_log
from elasticgrid.log.port import EventLog
from elasticgrid.metrics.append_metrics import append_metrics
from elasticgrid.metrics.registry import new_registry
from elasticgrid.metrics.server import metrics_server
from elasticgrid.metrics.stray_metrics import stray_metrics
from elasticgrid.runtime.node_bus import NodeBus

log = structlog.get_logger("services")

#: Nodes of the one provider there is when no grid file names any: this machine.
DEFAULT_LOCAL_NODES = 8
BUS_WAIT_S = 1.0
#: A snapshot is made when so many events came since the last one.
SNAPSHOT_EVENTS = 20_000
SNAPSHOT_EVERY_S = 30.0


def default_providers() -> tuple[ProviderSpec, ...]:
    """The grid of somebody who has not written one: this machine, for nothing."""
    return (ProviderSpec(name="local", engine="local", max_nodes=DEFAULT_LOCAL_NODES),)


@asynccontextmanager
async def bus(address: BusAddress, name: str) -> AsyncIterator[Client]:
    """A connection to the bus with the streams in place; waits for a bus that is not there yet."""
    while True:
        try:
            client = await connect(address, name=name)
        except BusUnavailable as error:
            log.warning("waiting for the bus", url=address.url, error=error.what, hint=error.hint)
            await asyncio.sleep(BUS_WAIT_S)
        else:
            break
    try:
        while True:
            try:
                await ensure_streams(client)
            except BusUnavailable as error:
                log.warning("waiting for the streams", url=address.url, error=error.what, hint=error.hint)
            else:
                break
        async with event_reader(client):
            yield client
    finally:
        await disconnect(client)


@asynccontextmanager
async def trusted_log(client: Client, mirror_file: Path, registry: CollectorRegistry) -> AsyncIterator[MirroredLog]:
    """The event log with its mirror, compared before it is used and, event by event, while it is.

    Its appends are measured in `registry`, and what in it is no event is counted there.

    Raises:
        LogDiverged: stream and mirror differ; nothing may be appended until one is restored.
    """
    mirror = await Mirror.open(mirror_file)
    try:
        event_log = mirrored_log(client, mirror, on_append=append_metrics(registry), on_stray=stray_metrics(registry))
        found = await event_log.verify()
        log.info("the log is what the mirror says", last=found.stream_last, compared=found.compared)
        full = asyncio.create_task(event_log.verify(full=True), name="verify-log")
        try:
            yield event_log
        finally:
            full.cancel()
            await asyncio.gather(full, return_exceptions=True)
    finally:
        await mirror.close()


async def run_decider(client: Client, event_log: MirroredLog, data_dir: Path, registry: CollectorRegistry) -> None:
    """Decide until cancelled, beginning from the last snapshot; what is measured goes to `registry`."""

    def open_samples(*, after: int) -> Follower:
        return Follower(client, SAMPLES_STREAM, f"{SAMPLES_ROOT}.>", after=after, lossy=True)

    path = data_dir / snapshot.FILE_NAME
    grid = await snapshot.load(path, event_log.mirror)
    clock = SystemClock()
    decider = Decider(event_log, open_samples, clock, grid=grid, on_decided=decision_latency(registry))
    registry.register(DeciderMetrics(lambda: decider.stats, clock.now_ms))

    async def keep_snapshots() -> None:
        saved = decider.grid.events
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            if decider.grid.events - saved >= SNAPSHOT_EVENTS and await snapshot.save(
                path, decider.grid, event_log.mirror
            ):
                saved = decider.grid.events

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_snapshots(), name="snapshots")
        tasks.create_task(decider.run(), name="decider")


async def run_launcher(
    client: Client, event_log: EventLog, config: LauncherConfig, registry: CollectorRegistry
) -> None:
    """Launch, watch and stop until cancelled; what is measured goes to `registry`."""
    launcher = Launcher(event_log, client, SystemClock(), config)
    registry.register(LauncherMetrics(lambda: launcher.stats))
    await launcher.run()


class OpenGateway(msgspec.Struct, frozen=True):
    """A gateway that listens: what it does, and where it does it."""

    service: GatewayService
    http: RunningGateway


@asynccontextmanager
async def gateway(
    client: Client,
    event_log: EventLog,
    data_dir: Path,
    providers: tuple[ProviderSpec, ...] | None,
    http: tuple[str, int],
    registry: CollectorRegistry,
    tls: ServerTls | None = None,
) -> AsyncIterator[OpenGateway]:
    """A gateway that listens until the block ends, and tells what is in `registry`."""
    async with (
        open_gateway(event_log, data_dir=data_dir, providers=providers, bus=client, registry=registry) as service,
        await listen(service, host=http[0], port=http[1], tls=tls) as running,
    ):
        yield OpenGateway(service, running)


def launcher_config(own: BusAddress, node: NodeBus, data_dir: Path, orphan_timeout_s: float | None) -> LauncherConfig:
    """A launcher that works in `data_dir`, reaches the bus at `own`, and whose nodes enter it with `node`."""
    return LauncherConfig(
        data_dir=data_dir,
        nats_url=node.url,
        authority=node.authority,
        node_credentials=node.credentials,
        own_nats_url=own.url,
        own_credentials=own.credentials,
        nats_ca=node.ca,
        credential_life_s=node.credential_life_s,
        orphan_timeout_s=orphan_timeout_s,
    )


def _metrics_at(
    address: tuple[str, int] | None, registry: CollectorRegistry
) -> AbstractAsyncContextManager[str | None]:
    """What is in `registry`, answered at an address while the block runs; nothing when none is named."""
    return nullcontext() if address is None else metrics_server(registry, *address)


async def serve_decider(address: BusAddress, data_dir: Path, metrics: tuple[str, int] | None = None) -> int:
    """The decider as a process of its own, with its metrics at an address when one is named."""
    registry = new_registry()
    async with (
        _metrics_at(metrics, registry),
        bus(address, "decider") as client,
        trusted_log(client, data_dir / "decider.mirror", registry) as event_log,
    ):
        await run_decider(client, event_log, data_dir, registry)
    return 0


async def serve_launcher(
    address: BusAddress,
    node: NodeBus,
    data_dir: Path,
    orphan_timeout_s: float | None = None,
    metrics: tuple[str, int] | None = None,
) -> int:
    """The launcher as a process of its own, with its metrics at an address when one is named."""
    registry = new_registry()
    async with (
        _metrics_at(metrics, registry),
        bus(address, "launcher") as client,
        trusted_log(client, data_dir / "launcher.mirror", registry) as event_log,
    ):
        await run_launcher(client, event_log, launcher_config(address, node, data_dir, orphan_timeout_s), registry)
    return 0


async def serve_gateway(
    address: BusAddress,
    data_dir: Path,
    providers: tuple[ProviderSpec, ...] | None,
    http: tuple[str, int],
    tls: ServerTls | None = None,
) -> int:
    """The gateway as a process of its own."""
    registry = new_registry()
    async with (
        bus(address, "gateway") as client,
        trusted_log(client, data_dir / "gateway.mirror", registry) as event_log,
        gateway(client, event_log, data_dir, providers, http, registry, tls) as opened,
    ):
        await opened.http.wait()
    return 0
