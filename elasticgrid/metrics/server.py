"""Metrics of a service that answers no HTTP otherwise, on an address of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
import uvicorn
from prometheus_client import CollectorRegistry

from elasticgrid.core.errors import InvalidInput
from elasticgrid.metrics.embedded_server import EmbeddedHttpServer
from elasticgrid.metrics.registry import expose

log = structlog.get_logger("metrics")

PATH: Final = "/metrics"
_Message = MutableMapping[str, Any]


@asynccontextmanager
async def metrics_server(registry: CollectorRegistry, host: str, port: int) -> AsyncIterator[str]:
    """Answer `GET /metrics` while the block runs, and give its URL. Nothing else is answered, and no key is asked for.

    The metrics are read in the event loop, between two turns of what they tell of.

    Raises:
        InvalidInput: the address cannot be listened on.
    """

    async def answer(scope: _Message, _receive: Callable[[], Awaitable[_Message]], send: Any) -> None:
        found = scope["type"] == "http" and scope["path"] == PATH and scope["method"] in ("GET", "HEAD")
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        told = expose(registry, accept) if found else None
        headers = [(b"content-type", (told.media_type if told is not None else "text/plain").encode())]
        body = told.body if told is not None else b"metrics are at /metrics\n"
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(answer, log_config=None, access_log=False, lifespan="off", server_header=False)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen there: {error}", where=f"{host}:{port}", hint="choose another address for the metrics"
        ) from error
    server = EmbeddedHttpServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}{PATH}"
    log.info("metrics_listen", url=url)
    try:
        yield url
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
