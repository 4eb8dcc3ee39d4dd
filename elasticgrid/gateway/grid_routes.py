"""Routes about the grid itself: providers, cost, and whether the gateway is well."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler

import elasticgrid
from elasticgrid.gateway.answers import Health, ProviderList, Version
from elasticgrid.gateway.bodies import ReasonRequest, decode_body
from elasticgrid.gateway.parameters import MAX_INTEGER, Gateway, TenantFilter, takes
from elasticgrid.gateway.providers import ProviderView
from elasticgrid.projections.results import CostReport


@get("/providers", summary="List providers")
async def list_providers(gateway: Gateway) -> ProviderList:
    """With what they hold, and why they take no nodes where they do not."""
    return ProviderList(items=gateway.providers())


@post(
    "/providers/{provider:str}/cordon",
    status_code=200,
    operation_class=takes(ReasonRequest),
    summary="Keep new nodes off a provider",
)
async def cordon_provider(provider: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway) -> ProviderView:
    """What runs there stays."""
    asked = decode_body(await request.body(), ReasonRequest)
    return await gateway.cordon(provider, reason=asked.reason, actor=gateway.key.actor)


@post("/providers/{provider:str}/uncordon", status_code=200, summary="Let a provider take nodes again")
async def uncordon_provider(provider: FromPath[str], gateway: Gateway) -> ProviderView:
    """The opposite of cordon."""
    return await gateway.uncordon(provider, actor=gateway.key.actor)


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
    show_cost,
)
OPEN_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (healthz, readyz, version)
