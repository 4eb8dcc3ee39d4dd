"""The whole control plane in one process: embedded bus, decider, launcher and gateway."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.log.port import EventLog
from elasticgrid.runtime import services
from elasticgrid.runtime.gateway_file import GATEWAY_FILE as GATEWAY_FILE
from elasticgrid.runtime.gateway_file import GatewayFile as GatewayFile

MIRROR_FILE = "mirror.sqlite"


class ControlPlane:
    """Everything that a grid needs on this machine, running inside an `async with` block.

    Args:
        data_dir: all files are kept below it.
        providers: the grid's providers.
        nats_server: another nats-server binary than the installed one.
        bus: a bus that runs already; none is started then.
        node_credentials: with `bus`, the credential file that agents get.
        http: host and port of the gateway; port 0 takes a free one.
        orphan_timeout_s: after this long without the bus agents end by themselves; None is never.
    """

    def __init__(
        self,
        data_dir: Path,
        providers: tuple[ProviderSpec, ...],
        *,
        nats_server: str | None = None,
        bus: BusAddress | None = None,
        node_credentials: str = "",
        http: tuple[str, int] = ("127.0.0.1", 0),
        orphan_timeout_s: float | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._providers = providers
        self._bus = bus
        self._node = BusAddress(bus.url, node_credentials or bus.credentials) if bus is not None else None
        self._http = http
        self._orphan_timeout_s = orphan_timeout_s
        self._server = EmbeddedServer(self.data_dir, nats_server=nats_server) if bus is None else None
        self._client: Client | None = None
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._log: EventLog | None = None
        self._gateway: services.OpenGateway | None = None

    @property
    def client(self) -> Client:
        """The control plane's own connection."""
        assert self._client is not None
        return self._client

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        assert self._gateway is not None
        return self._gateway.http.url

    @property
    def key_file(self) -> Path:
        """The file with the admin key."""
        assert self._gateway is not None
        return self._gateway.service.key_file

    @property
    def log(self) -> EventLog:
        """The event log."""
        assert self._log is not None
        return self._log

    async def __aenter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        if self._server is not None:
            await self._stack.enter_async_context(self._server)
            address, node = self._server.address, self._server.node_address
        else:
            assert self._bus is not None
            assert self._node is not None
            address, node = self._bus, self._node
        self._client = await connect(address, name="control-plane")
        self._stack.push_async_callback(disconnect, self._client)
        await ensure_streams(self._client)
        event_log = await self._stack.enter_async_context(
            services.trusted_log(self._client, self.data_dir / MIRROR_FILE)
        )
        self._log = event_log
        self._gateway = await self._stack.enter_async_context(
            services.gateway(self._client, event_log, self.data_dir, self._providers, self._http)
        )
        where = self.data_dir / GATEWAY_FILE
        where.write_bytes(msgspec.json.encode(GatewayFile(url=self.url, key_file=str(self.key_file))))
        self._stack.callback(where.unlink, missing_ok=True)
        launching = services.launcher_config(node, self.data_dir, self._orphan_timeout_s)
        self._stack.push_async_callback(self._end_tasks)
        self._tasks = [
            asyncio.create_task(services.run_decider(self._client, event_log, self.data_dir), name="decider"),
            asyncio.create_task(services.run_launcher(self._client, event_log, launching), name="launcher"),
            asyncio.create_task(self._gateway.http.wait(), name="gateway"),
        ]

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until a service ends, which none does by itself, and raise why."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError(f"{', '.join(task.get_name() for task in done)} ended by itself")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
