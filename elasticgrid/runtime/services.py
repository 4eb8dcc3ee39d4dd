"""Each service as a coroutine, on a connection that is there or one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.clock import SystemClock
from elasticgrid.core.errors import BusUnavailable
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.decider.service import Decider
from elasticgrid.gateway.server import RunningGateway
from elasticgrid.gateway.server import serve_gateway as listen
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.service import Launcher
from elasticgrid.log.jetstream import JetStreamLog

log = structlog.get_logger("services")

#: Nodes of the one provider there is when no grid file names any: this machine.
DEFAULT_LOCAL_NODES = 8
BUS_WAIT_S = 1.0


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
            log.warning("waiting for the bus", url=address.url, error=error.what)
            await asyncio.sleep(BUS_WAIT_S)
        else:
            break
    try:
        await ensure_streams(client)
        yield client
    finally:
        await disconnect(client)


async def run_decider(client: Client) -> NoReturn:
    """Decide until cancelled."""

    def open_samples(*, after: int) -> Follower:
        return Follower(client, SAMPLES_STREAM, f"{SAMPLES_ROOT}.>", after=after, lossy=True)

    await Decider(JetStreamLog(client), open_samples, SystemClock()).run()
    raise AssertionError("the decider only ends by raising")


async def run_launcher(client: Client, config: LauncherConfig) -> None:
    """Launch, watch and stop until cancelled."""
    await Launcher(JetStreamLog(client), client, SystemClock(), config).run()


class OpenGateway(msgspec.Struct, frozen=True):
    """A gateway that listens: what it does, and where it does it."""

    service: GatewayService
    http: RunningGateway


@asynccontextmanager
async def gateway(
    client: Client, data_dir: Path, providers: tuple[ProviderSpec, ...] | None, http: tuple[str, int]
) -> AsyncIterator[OpenGateway]:
    """A gateway that listens until the block ends."""
    async with (
        open_gateway(JetStreamLog(client), data_dir=data_dir, providers=providers) as service,
        await listen(service, host=http[0], port=http[1]) as running,
    ):
        yield OpenGateway(service, running)


def launcher_config(node: BusAddress, data_dir: Path, orphan_timeout_s: float | None) -> LauncherConfig:
    """A launcher that works in `data_dir` and whose nodes enter the bus with `node`."""
    return LauncherConfig(
        data_dir=data_dir,
        nats_url=node.url,
        node_credentials=node.credentials,
        orphan_timeout_s=orphan_timeout_s,
    )


async def serve_decider(address: BusAddress) -> int:
    """The decider as a process of its own."""
    async with bus(address, "decider") as client:
        await run_decider(client)


async def serve_launcher(address: BusAddress, node: BusAddress, data_dir: Path) -> int:
    """The launcher as a process of its own."""
    async with bus(address, "launcher") as client:
        await run_launcher(client, launcher_config(node, data_dir, None))
    return 0


async def serve_gateway(
    address: BusAddress, data_dir: Path, providers: tuple[ProviderSpec, ...] | None, http: tuple[str, int]
) -> int:
    """The gateway as a process of its own."""
    async with bus(address, "gateway") as client, gateway(client, data_dir, providers, http) as opened:
        await opened.http.wait()
    return 0
