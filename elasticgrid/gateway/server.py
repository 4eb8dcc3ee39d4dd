"""The gateway on a socket, inside an event loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from types import TracebackType
from typing import Final, Self

import structlog
import uvicorn

from elasticgrid.bus.server_config import ServerTls
from elasticgrid.core.errors import InvalidInput
from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.head import with_head
from elasticgrid.gateway.metrics import measured
from elasticgrid.gateway.service import GatewayService
from elasticgrid.metrics.embedded_server import EmbeddedHttpServer

log = structlog.get_logger("gateway")

#: A client that takes nothing for so long is cut off by the kernel. It can come back with the last event it saw.
STALLED_CLIENT_S: Final = 30.0
_BACKLOG: Final = 512
_SHUTDOWN_S: Final = 3


class RunningGateway:
    """A gateway that answers at `url` until `close`, or until the block it is the context of ends."""

    def __init__(
        self, service: GatewayService, server: uvicorn.Server, listener: socket.socket, *, secured: bool = False
    ) -> None:
        self._scheme = "https" if secured else "http"
        self._service = service
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="gateway-http")
        self.host, self.port = listener.getsockname()[:2]

    @property
    def url(self) -> str:
        """Where it listens: `http://HOST:PORT`, or `https://` with a certificate."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._server.server_state.connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until the gateway ends: by `close`, or by raising why it cannot go on."""
        failed = asyncio.create_task(self._service.wait_failed(), name="gateway-failed")
        try:
            await asyncio.wait({self._task, failed}, return_when=asyncio.FIRST_COMPLETED)
            for task in (failed, self._task):
                if task.done():
                    task.result()
        finally:
            failed.cancel()
            await asyncio.gather(failed, return_exceptions=True)

    async def close(self) -> None:
        """Stop: take no more requests, end event streams, let what is being answered finish."""
        self._service.feed.close()
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)


async def serve_gateway(
    service: GatewayService,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    stalled_client_s: float = STALLED_CLIENT_S,
    tls: ServerTls | None = None,
) -> RunningGateway:
    """Answer HTTP for `service`, in the running event loop, and return once it listens.

    Args:
        service: what is asked; stays open until this is closed.
        host: an address of this machine.
        port: 0 takes a free one.
        stalled_client_s: how long a client may take nothing.
        tls: its certificate, for HTTPS; None for HTTP.

    Raises:
        InvalidInput: the address cannot be listened on.
    """
    listener = _listen(host, port, stalled_client_s)
    config = uvicorn.Config(
        measured(with_head(create_app(service)), service.metrics),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=64 * 1024,
        ssl_certfile=tls.cert if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        listener.close()
        raise InvalidInput(
            f"the gateway's certificate cannot be used: {error}",
            where=tls.cert if tls is not None else "",
            hint="a PEM file with the certificate, and one with its key",
        ) from error
    gateway = RunningGateway(service, EmbeddedHttpServer(config), listener, secured=tls is not None)
    log.info("gateway_listens", url=gateway.url)
    return gateway


def _listen(host: str, port: int, stalled_client_s: float) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_client_s * 1_000))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"cannot listen there: {error.strerror or error}", where=f"{host}:{port}", hint="choose another address or port"
    )
