"""Where the nodes of a run meet: a bus that is there, one that this node serves, or one for this node alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from elasticgrid.agent.config import default_host
from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.credentials import Credentials, read_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.server_config import Listening
from elasticgrid.core.errors import InvalidInput, RendezvousConnectionFailed, ServerStartFailed
from elasticgrid.elastic.config import LaunchConfig

#: Every address of a machine.
_ANY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - told apart here, bound only where it was asked for
#: A documentation address that leaves by the default route; asking for the way to it sends nothing.
_ELSEWHERE: Final = "nats://203.0.113.1:9"
_log = structlog.get_logger("elasticgrid.elastic")


class RunBus(msgspec.Struct, frozen=True):
    """The bus of a run.

    Attributes:
        address: for everything on this node.
        reached_by: what the other nodes reach it by; empty when there are none.
        served: whether others depend on this node's serving it.
    """

    address: BusAddress
    reached_by: str
    served: bool


@contextlib.asynccontextmanager
async def run_bus(config: LaunchConfig) -> AsyncGenerator[RunBus]:
    """The bus that a configuration names, served inside the block when this node is to serve it.

    Raises:
        InvalidInput: the address or the credential is not usable.
        RendezvousConnectionFailed: this node cannot serve it.
    """
    if config.bus_url and not config.is_static and not config.host_bus:
        if config.credentials:
            read_credentials(config.credentials)
        address = BusAddress(config.bus_url, config.credentials)
        yield RunBus(address, config.bus_url, served=False)
        return
    folder = Path(tempfile.mkdtemp(prefix="elasticgrid-run-"))
    server = _shared_server(config, folder) if config.host_bus else EmbeddedServer(folder)
    try:
        try:
            await server.start()
        except ServerStartFailed as error:
            raise RendezvousConnectionFailed(
                f"this node cannot serve the bus: {error.what}", where=config.bus_url, hint=error.hint
            ) from error
        try:
            if config.host_bus:
                yield RunBus(BusAddress(server.url, config.credentials), config.bus_url, served=True)
            else:
                yield RunBus(server.address, "", served=False)
        finally:
            await server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def host_and_port(url: str) -> tuple[str, int]:
    """Where `nats://HOST:PORT` is.

    Raises:
        InvalidInput: it is not of that form.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InvalidInput(f"{url!r} is not a place to serve a bus at", where="bus_url", hint="nats://HOST:PORT")
    return host, port


def own_address(bus: RunBus) -> str:
    """What the other nodes reach this one by: the address that traffic to the bus leaves by.

    Where the bus is served on every address of this machine, that of the default route.
    """
    if bus.served and host_and_port(bus.reached_by)[0] in _ANY_ADDRESS:
        return default_host(_ELSEWHERE)
    return default_host(bus.reached_by or bus.address.url)


def _shared_server(config: LaunchConfig, folder: Path) -> EmbeddedServer:
    """A server for all nodes of the run: with a credential only for who shows it, without one open to everybody."""
    host, port = host_and_port(config.bus_url)
    listening = Listening(host=f"[{host}]" if ":" in host else host)
    if config.credentials:
        return EmbeddedServer(folder, listening=listening, port=port, shared=_credentials(Path(config.credentials)))
    if host not in ("127.0.0.1", "localhost", "::1"):
        _log.warning("anybody who reaches this address may take part in the run", bus=config.bus_url)
    return EmbeddedServer(folder, listening=listening, port=port, shared="open")


def _credentials(path: Path) -> Credentials:
    """What the file holds; a new one is made where there is none, to be given to the other nodes."""
    if not path.exists():
        made = Credentials(user="service", password=secrets.token_urlsafe(32), inbox_prefix="_INBOX_service")
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(msgspec.json.encode(made))
    return read_credentials(path)
