"""A route that hands out what a dashboard enters the bus with: short-lived, for one tenant's events, read only."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import stamina
from litestar import Request, post
from litestar.types import ControllerRouterHandler
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.credential_requests import MAX_WATCHER_S, Issued, WatcherWish
from elasticgrid.bus.credentials import Credentials
from elasticgrid.bus.subjects import watcher_subject
from elasticgrid.core.errors import BusUnavailable, InvalidInput
from elasticgrid.core.names import is_name
from elasticgrid.gateway.access import looks_at_caller, needs
from elasticgrid.gateway.bodies import decode_body
from elasticgrid.gateway.parameters import Caller, Gateway, takes

_TIMEOUT_S: Final = 5.0


class WatcherRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dashboard that wants to hear events from the bus.

    Attributes:
        tenant: whose events; the key's own when absent.
        name: of the dashboard.
        lasts_s: how long the credential is valid, in seconds; a day at most.
        websocket: it is for the WebSocket listener alone.
    """

    tenant: str | None = None
    name: str = "dashboard"
    lasts_s: int = 3_600
    websocket: bool = False


class WatcherCredential(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard enters the bus with.

    Attributes:
        tenant: whose events it may read.
        expires_s: when it ends, Unix seconds.
        credentials: what a credential file holds.
    """

    tenant: str
    expires_s: int
    credentials: Credentials


@post(
    "/bus/watchers",
    status_code=201,
    operation_class=takes(WatcherRequest),
    opt=needs("read") | looks_at_caller(),
    summary="Get a credential that reads events from the bus",
)
async def create_watcher(request: Request[Any, Any, Any], gateway: Gateway, caller: Caller) -> WatcherCredential:
    """It reads one tenant's events, writes nothing, ends by itself, and is shown this once."""
    asked = decode_body(await request.body(), WatcherRequest)
    tenant = caller.tenant_of(asked.tenant, "tenant")
    if not is_name(tenant) or not is_name(asked.name):
        raise InvalidInput("tenant and dashboard have names", where=f"{tenant}/{asked.name}"[:200])
    if not 1 <= asked.lasts_s <= MAX_WATCHER_S:
        raise InvalidInput(f"it lasts 1 to {MAX_WATCHER_S} s", where="lasts_s", hint="ask again when it ends")
    if gateway.bus is None:
        raise BusUnavailable("this gateway has no connection to the bus", where="/v1/bus/watchers")
    wish = WatcherWish(name=asked.name, lasts_s=asked.lasts_s, websocket=asked.websocket)
    subject = watcher_subject(tenant)
    issued = await _issued(gateway.bus, subject, wish)
    if issued.credentials is None:
        raise BusUnavailable(f"no credential was made: {issued.problem}", where=subject)
    made = issued.credentials
    return WatcherCredential(tenant=tenant, expires_s=made.expires_s, credentials=made)


@stamina.retry(on=BusUnavailable, attempts=None, timeout=_TIMEOUT_S, wait_max=0.5)
async def _issued(bus: Client, subject: str, wish: WatcherWish) -> Issued:
    """Who hands credentials out may be starting just now: a question that nobody answers is asked again."""
    reply = await api.request(bus, subject, msgspec.json.encode(wish), timeout_s=_TIMEOUT_S)
    return msgspec.json.decode(reply.data, type=Issued)


BUS_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (create_watcher,)
