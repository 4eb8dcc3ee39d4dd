"""Routes about the grid itself: providers, cost, and whether the gateway is well."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler

import elasticgrid
from elasticgrid.gateway.access import looks_at_caller, needs
from elasticgrid.gateway.answers import Health, ProviderList, Version
from elasticgrid.gateway.bodies import InterruptRequest, ReasonRequest, decode_body
from elasticgrid.gateway.conditions import IfMatch, etag, wanted_sequence
from elasticgrid.gateway.parameters import MAX_INTEGER, Caller, Gateway, TenantFilter, takes
from elasticgrid.gateway.providers import FLEET_SCOPE, Interrupted, ProviderView
from elasticgrid.projections.results import CostReport


@get("/providers", opt=looks_at_caller(), summary="List providers")
async def list_providers(gateway: Gateway, caller: Caller) -> Response[ProviderList]:
    """With what they hold, and why they take no nodes where they do not.

    For a tenant's key these are the tenant's own nodes, and nothing is said of what others made of a provider.
    """
    headers = etag(await gateway.caught_up(FLEET_SCOPE))
    return Response(ProviderList(items=gateway.providers.views(caller.tenant)), headers=headers)


@post(
    "/providers/{provider:str}/cordon",
    status_code=200,
    operation_class=takes(ReasonRequest),
    opt=needs("operate", whole_grid=True),
    summary="Keep new nodes off a provider",
)
async def cordon_provider(
    provider: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, caller: Caller, if_match: IfMatch = None
) -> ProviderView:
    """What runs there stays."""
    asked = decode_body(await request.body(), ReasonRequest)
    wanted = wanted_sequence(if_match)
    return await gateway.providers.cordon(provider, reason=asked.reason, actor=caller.actor, if_match=wanted)


@post(
    "/providers/{provider:str}/uncordon",
    status_code=200,
    opt=needs("operate", whole_grid=True),
    summary="Let a provider take nodes again",
)
async def uncordon_provider(
    provider: FromPath[str], gateway: Gateway, caller: Caller, if_match: IfMatch = None
) -> ProviderView:
    """The opposite of cordon."""
    return await gateway.providers.uncordon(provider, actor=caller.actor, if_match=wanted_sequence(if_match))


@post(
    "/providers/{provider:str}/interrupt",
    status_code=202,
    operation_class=takes(InterruptRequest),
    opt=needs("operate", whole_grid=True),
    summary="Give notice to a provider's nodes",
)
async def interrupt_provider(
    provider: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, caller: Caller
) -> Interrupted:
    """As if the provider had said that it takes them away: their jobs commit, leave them and ask for others.

    Nothing is taken away by this itself. Nodes asked for meanwhile may be at the same provider: cordon it first if
    they must not.
    """
    asked = decode_body(await request.body(), InterruptRequest)
    return await gateway.providers.interrupt(provider, asked, actor=caller.actor)


@get("/cost", summary="What nodes cost")
async def show_cost(
    gateway: Gateway,
    by: FromQuery[Literal["job", "tenant", "provider"]] = "job",
    since_ms: Annotated[int, QueryParameter(ge=0, le=MAX_INTEGER, description="Unix milliseconds; 0 is all")] = 0,
    tenant: TenantFilter = "",
) -> CostReport:
    """From the prices in the log: each node from its launch until it was gone."""
    return await gateway.views.cost(by=by, as_of_ms=gateway.now_ms(), since_ms=since_ms, tenant=tenant)


@get("/healthz", summary="Is the process alive", security=[{}])
async def healthz() -> Health:
    """It answers."""
    return Health()


@get("/readyz", summary="Can requests be sent here", security=[{}])
async def readyz(gateway: Gateway) -> Health:
    """It reaches the log, and its answers contain what the log has."""
    return Health(sequence=await gateway.require_ready())


@get("/version", summary="Which software this is", security=[{}])
async def version() -> Version:
    """The installed version and the interface's."""
    return Version(version=elasticgrid.__version__)


GRID_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    list_providers,
    cordon_provider,
    uncordon_provider,
    interrupt_provider,
    show_cost,
)
OPEN_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (healthz, readyz, version)
