"""Routes about what was decided in the whole grid, or a tenant's part of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from litestar import get
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from elasticgrid.gateway.parameters import Cursor, Gateway, JobFilter, Limit, TenantFilter
from elasticgrid.projections.results import DecisionPage

_PLACEMENT: Final = "decision.placement"

_Rule = Annotated[
    str, QueryParameter(max_length=40, description="only what this rule decided, such as `queue_bound` or `placement`")
]
_Action = Annotated[
    Literal["", "up", "down", "hold"], QueryParameter(description="only decisions about a size that say this")
]


@get("/decisions", summary="List decisions")
async def list_all_decisions(
    gateway: Gateway,
    tenant: TenantFilter = "",
    job: JobFilter = "",
    rule: _Rule = "",
    action: _Action = "",
    cursor: Cursor = "",
    limit: Limit = 100,
) -> DecisionPage:
    """Of all jobs, the newest first, with every number that was compared."""
    return await gateway.views.decisions(tenant=tenant, job=job, rule=rule, action=action, cursor=cursor, limit=limit)


@get("/placements", summary="List placements")
async def list_placements(
    gateway: Gateway, tenant: TenantFilter = "", job: JobFilter = "", cursor: Cursor = "", limit: Limit = 100
) -> DecisionPage:
    """Where jobs were decided to run, the newest first: what each keeps, adds and drops, and why others took none."""
    return await gateway.views.decisions(tenant=tenant, job=job, event_type=_PLACEMENT, cursor=cursor, limit=limit)


DECISION_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (list_all_decisions, list_placements)
