"""A real bus for tests: one embedded server or a cluster of three, and connections to it, all ended with the block."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Self

from nats.aio.client import Client

from elasticgrid.bus.account_keeper import AccountKeeper
from elasticgrid.bus.authority import LaunchKey, keep_authority
from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import write_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.server_config import ClusterMember
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.testing.processes import until as until


@contextlib.asynccontextmanager
async def embedded_server(data_dir: Path) -> AsyncGenerator[EmbeddedServer]:
    """A running embedded server with its files in `data_dir`."""
    async with EmbeddedServer(data_dir) as server:
        yield server


@contextlib.asynccontextmanager
async def connection(address: BusAddress, name: str = "test") -> AsyncGenerator[Client]:
    """A connection that is closed at the end."""
    client = await connect(address, name=name)
    try:
        yield client
    finally:
        await disconnect(client)


@contextlib.asynccontextmanager
async def bus_client(server: EmbeddedServer, *, replicas: int = 1) -> AsyncGenerator[Client]:
    """A connection as a service, with both streams there."""
    async with connection(server.address) as client:
        await ensure_streams(client, replicas=replicas)
        yield client


async def launch_address(
    server: EmbeddedServer, tenant: str, job: str, launch: str = "launch", *, lasts_s: int = 3_600
) -> BusAddress:
    """For the agents and workers of a launch: a credential of its own, and an account for its tenant."""
    now_s = int(time.time())
    async with AccountKeeper(server.authority, server.address, server.folder) as keeper:
        await keeper.keep(tenant, {})
    credentials = server.authority.launch(LaunchKey(tenant, job, launch), now_s, expires_s=now_s + lasts_s)
    path = server.folder / f"launch-{tenant}-{job}-{launch}.json"
    write_credentials(path, credentials)
    return BusAddress(server.url, str(path), server.ca)


def free_ports(count: int) -> list[int]:
    """Loopback ports that were free just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.asynccontextmanager
async def cluster_of_three(data_dir: Path) -> AsyncGenerator[list[EmbeddedServer]]:
    """Three servers that form a cluster. A client of `cluster_address` moves between them."""
    ports = free_ports(3)
    keep_authority(data_dir / "authority.key")
    route_password = secrets.token_urlsafe(16)
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for number, port in enumerate(ports, 1):
            member = ClusterMember(
                cluster="test",
                server=f"s{number}",
                port=port,
                routes=tuple(ports),
                route_password=route_password,
                authority=str(data_dir / "authority.key"),
            )
            servers.append(await stack.enter_async_context(EmbeddedServer(data_dir / f"s{number}", cluster=member)))
        yield servers


def cluster_address(servers: list[EmbeddedServer]) -> BusAddress:
    """One address that names every member."""
    return BusAddress(
        url=",".join(server.address.url for server in servers), credentials=servers[0].address.credentials
    )


class Proxy:
    """Stands between clients and a server and fails as networks do. Use as an async context manager.

    Attributes:
        swallowed: set when something the server said was kept from a client.
    """

    def __init__(self, address: BusAddress) -> None:
        self.swallowed = asyncio.Event()
        self._marker: bytes | None = None
        self._swallowing = False
        self._target = int(address.url.rsplit(":", 1)[1])
        self._credentials = address.credentials
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> BusAddress:
        """Where clients connect instead."""
        return BusAddress(f"nats://127.0.0.1:{self._port}", self._credentials)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def swallow_answers_after(self, marker: bytes) -> None:
        """From when a client sends these bytes, keep everything the server says from the clients, until `cut`."""
        self.swallowed.clear()
        self._marker = marker

    def cut(self) -> None:
        """Break every connection; new ones can be made, and answers pass again."""
        self._marker = None
        self._swallowing = False
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            client_writer.transport.abort()
            return
        pair = {client_writer, server_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(client_reader, server_writer, answers=False))
                tasks.create_task(self._pump(server_reader, client_writer, answers=True))
        finally:
            self._writers -= pair

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if answers and self._swallowing:
                    self.swallowed.set()
                    continue
                if not answers and self._marker is not None and self._marker in data:
                    self._swallowing = True
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
