"""The route that Prometheus reads, and who may read it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from litestar import Request, Response, get
from litestar.types import ControllerRouterHandler

from elasticgrid.gateway.login import authenticate
from elasticgrid.gateway.parameters import Gateway

#: What a proxy adds: behind one, everybody seems to be on this machine.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


def is_of_this_machine(host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this machine itself, and not through a proxy on it.

    Args:
        host: the other end of the connection.
        headers: of the request, with their names in lower case.
    """
    if any(name in headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@get("/metrics", media_type="text/plain", summary="Metrics for Prometheus")
async def metrics(request: Request[Any, Any, Any], gateway: Gateway) -> Response[bytes]:
    """In Prometheus' text format or as OpenMetrics. From the gateway's own machine no key is asked for."""
    client = request.client
    if client is None or not is_of_this_machine(client.host, request.headers):
        authenticate(gateway.keyring, request, writes=False).require("read", whole_grid=True)
    told = await gateway.metrics.exposition(request.headers.get("accept", ""))
    return Response(told.body, headers={"Content-Type": told.media_type, "Cache-Control": "no-store"})


METRICS_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (metrics,)
