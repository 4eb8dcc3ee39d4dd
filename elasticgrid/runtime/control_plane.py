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
from elasticgrid.bus.server_config import Listening, ServerTls
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.core.errors import FolderInUse
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.log.event_reader import event_reader
from elasticgrid.log.mirror_file import MIRROR_FILE as MIRROR_FILE
from elasticgrid.log.port import EventLog
from elasticgrid.metrics.registry import new_registry
from elasticgrid.runtime import services
from elasticgrid.runtime.gateway_file import GATEWAY_FILE as GATEWAY_FILE
from elasticgrid.runtime.gateway_file import GatewayFile as GatewayFile
from elasticgrid.runtime.gateway_file import read_gateway_file
from elasticgrid.runtime.node_bus import NodeBus


class ControlPlane:
    """Everything that a grid needs on this machine, running inside an `async with` block.

    Args:
        data_dir: all files are kept below it.
        providers: the grid's providers.
        nats_server: another nats-server binary than the installed one.
        bus: a bus that runs already; none is started then.
        node: with `bus`, how agents get there; as this process does when absent.
        listening: where the embedded bus listens, and with which certificate.
        bus_port: of the embedded bus; None for one of its own choice.
        http_tls: the gateway's certificate, for HTTPS.
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
        node: NodeBus | None = None,
        listening: Listening = Listening(),
        bus_port: int | None = None,
        http_tls: ServerTls | None = None,
        http: tuple[str, int] = ("127.0.0.1", 0),
        orphan_timeout_s: float | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._providers = providers
        self._bus = bus
        self._node = node
        self._http = http
        self._http_tls = http_tls
        self._orphan_timeout_s = orphan_timeout_s
        self._server = (
            EmbeddedServer(self.data_dir, nats_server=nats_server, listening=listening, port=bus_port)
            if bus is None
            else None
        )
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

    def _runs_already(self, error: FolderInUse) -> FolderInUse:
        """The same, with where the grid is that runs there."""
        running = read_gateway_file(self.data_dir)
        if running is None:
            return error
        return FolderInUse(
            f"a grid runs on this folder already, at {running.url}",
            where=str(self.data_dir),
            hint="use it: elasticgrid jobs list; or end it first, or name another folder with --data",
        )

    async def _start(self) -> None:
        if self._server is not None:
            server = self._server
            try:
                await self._stack.enter_async_context(server)
            except FolderInUse as error:
                raise self._runs_already(error) from error
            address = server.address
            node = NodeBus(url=server.url, ca=server.ca, authority=str(server.authority_file))
        else:
            assert self._bus is not None
            address = self._bus
            node = self._node or NodeBus(url=address.url, ca=address.ca, credentials=address.credentials)
        self._client = await connect(address, name="control-plane")
        self._stack.push_async_callback(disconnect, self._client)
        await ensure_streams(self._client)
        await self._stack.enter_async_context(event_reader(self._client))
        registry = new_registry()
        event_log = await self._stack.enter_async_context(
            services.trusted_log(self._client, self.data_dir / MIRROR_FILE, registry)
        )
        self._log = event_log
        self._gateway = await self._stack.enter_async_context(
            services.gateway(
                self._client, event_log, self.data_dir, self._providers, self._http, registry, self._http_tls
            )
        )
        where = self.data_dir / GATEWAY_FILE
        ca = self._http_tls.ca if self._http_tls is not None else ""
        where.write_bytes(msgspec.json.encode(GatewayFile(url=self.url, key_file=str(self.key_file), ca=ca)))
        self._stack.callback(where.unlink, missing_ok=True)
        launching = services.launcher_config(address, node, self.data_dir, self._orphan_timeout_s)
        self._stack.push_async_callback(self._end_tasks)
        self._tasks = [
            asyncio.create_task(services.run_decider(self._client, event_log, self.data_dir, registry), name="decider"),
            asyncio.create_task(services.run_launcher(self._client, event_log, launching, registry), name="launcher"),
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
