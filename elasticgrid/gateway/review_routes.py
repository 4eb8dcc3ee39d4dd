"""Routes that look back: a job over time, why it has its size, what led to what, and what another policy had done."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Request, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, QueryParameter

from elasticgrid.config.policy_file import parse_settings, setting_values
from elasticgrid.core.errors import Conflict, InvalidInput, NotFound
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.access import needs
from elasticgrid.gateway.bodies import decode_body
from elasticgrid.gateway.parameters import (
    MAX_INTEGER,
    Gateway,
    Limit,
    Tenant,
    TenantFilter,
    TimeFilter,
    TypeFilter,
    takes,
)
from elasticgrid.gateway.query import event_type
from elasticgrid.gateway.review_desk import ReviewDesk, recorded_of
from elasticgrid.gateway.service import DEFAULT_TENANT, GatewayService
from elasticgrid.gateway.whatif_run import run_what_if
from elasticgrid.projections.results import EventView, GridTotals
from elasticgrid.review.card import DecisionCard, decision_card
from elasticgrid.review.causes import CausalStep, causes, effects
from elasticgrid.review.series import JobSeries, job_series
from elasticgrid.review.timeline import TimelineLine, line_of
from elasticgrid.review.whatif import WhatIf

MAX_SETTINGS: Final = 32
MAX_STEPS: Final = 1_000

Desk: TypeAlias = NamedDependency[ReviewDesk]
_EventPath = FromPath[int]


class TimelinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in the order of the log. `next_after` continues after them, while there is `more`."""

    items: tuple[TimelineLine, ...]
    next_after: int
    more: bool


class CausalChain(msgspec.Struct, frozen=True, kw_only=True):
    """What led to an event, the event itself first, and what it led to.

    Attributes:
        effects_left_out: later ones that are not told.
    """

    sequence: int
    causes: tuple[CausalStep, ...]
    effects: tuple[CausalStep, ...]
    effects_left_out: int = 0


class PolicySetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a job's policy, as a job file has it; `value` is empty where none is set."""

    setting: str
    value: str


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """A job's policy."""

    items: tuple[PolicySetting, ...]


class WhatIfRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that are different, each as `scaling.cooldown_up_s=0`."""

    settings: tuple[str, ...]


@get("/grid", summary="The grid in numbers")
async def show_grid(gateway: Gateway, tenant: TenantFilter = "") -> GridTotals:
    """Jobs by phase, and what their nodes cost."""
    return await gateway.views.totals(as_of_ms=gateway.now_ms(), tenant=tenant)


@get("/jobs/{job:str}/series", summary="Show a job over time")
async def show_series(job: FromPath[str], gateway: Gateway, desk: Desk, tenant: Tenant = DEFAULT_TENANT) -> JobSeries:
    """Size, steps, money, rounds, nodes and decisions as columns for plots."""
    records = await desk.records(gateway, tenant, job)
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    steps, behind = await desk.steps(gateway, tenant, job, detail.facts.spec.nproc_per_node)
    columns = steps.columns() if steps is not None else None
    series = await asyncio.to_thread(job_series, records, tenant, job, as_of_ms=gateway.now_ms(), steps=columns)
    return msgspec.structs.replace(series, samples_behind=behind)


@get("/jobs/{job:str}/decisions/{sequence:int}", summary="Explain a decision")
async def show_decision(
    job: FromPath[str], sequence: _EventPath, gateway: Gateway, desk: Desk, tenant: Tenant = DEFAULT_TENANT
) -> DecisionCard:
    """The decision on a job's size that held after an event: signals, rules with their numbers, candidates."""
    records = await desk.records(gateway, tenant, job)
    return await asyncio.to_thread(decision_card, records, tenant, job, sequence=sequence)


@get("/jobs/{job:str}/policy", summary="Show a job's scaling policy")
async def show_policy(job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT) -> PolicySettings:
    """Each setting in the unit of a job file, with the value that the job has."""
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    return PolicySettings(items=policy_settings(detail.facts.spec))


@post(
    "/jobs/{job:str}/whatif",
    status_code=200,
    operation_class=takes(WhatIfRequest, required=True),
    opt=needs("read"),
    summary="Run a job under another policy",
)
async def run_job_what_if(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    desk: Desk,
    tenant: Tenant = DEFAULT_TENANT,
) -> WhatIf:
    """What was recorded beside what would have been; nothing of it happens. One runs at a time.

    Up to the first different decision the inputs are the recorded ones; what is told of the time after it is marked as
    extrapolated. What other jobs held of the grid is not known to the run.
    """
    asked = decode_body(await request.body(), WhatIfRequest)
    if not 1 <= len(asked.settings) <= MAX_SETTINGS:
        raise InvalidInput(f"1 to {MAX_SETTINGS} settings are wanted", where="settings", hint="scaling.cooldown_up_s=0")
    change = parse_settings(asked.settings)
    await gateway.views.job_summary(tenant, job, as_of_ms=gateway.now_ms())
    if desk.what_if.locked():
        raise Conflict("another what-if runs", hint="wait until it is done")
    async with desk.what_if:
        return await run_what_if(gateway, tenant, job, change)


@get("/timeline", summary="List events as a timeline")
async def show_timeline(
    gateway: Gateway,
    after: Annotated[int, QueryParameter(ge=0, le=MAX_INTEGER, description="a sequence of the log")] = 0,
    tenant: TenantFilter = "",
    job: Annotated[str, QueryParameter(max_length=63, description="only this job's")] = "",
    type: TypeFilter = "",  # noqa: A002 - the parameter's name
    since_ms: TimeFilter = None,
    until_ms: TimeFilter = None,
    limit: Limit = 500,
) -> TimelinePage:
    """One line for each event: who, what, from which value to which, and why."""
    page = await gateway.views.events(
        after=after,
        tenant=tenant,
        job=job,
        event_type=event_type(type),
        since_ms=since_ms or 0,
        until_ms=until_ms,
        limit=limit,
    )
    lines: list[TimelineLine] = []
    for view in page.items:
        line = line_of(recorded_of(view))
        lines.append(msgspec.structs.replace(line, delta_ms=line.time_ms - lines[-1].time_ms if lines else 0))
    return TimelinePage(items=tuple(lines), next_after=page.next_after, more=page.more)


@get("/events/{sequence:int}", summary="Show an event")
async def show_event(sequence: _EventPath, gateway: Gateway, tenant: TenantFilter = "") -> EventView:
    """As it stands in the log."""
    return await _event(gateway, sequence, tenant)


@get("/events/{sequence:int}/causes", summary="What led to an event, and what it led to")
async def show_causes(sequence: _EventPath, gateway: Gateway, desk: Desk, tenant: TenantFilter = "") -> CausalChain:
    """The chain of direct causes, and everything that followed from it."""
    view = await _event(gateway, sequence, tenant)
    records = [recorded_of(view)]
    with contextlib.suppress(NotFound):  # a fact about the grid: nothing of a job led to it
        records = await desk.records(gateway, view.tenant, view.job)
    led = await asyncio.to_thread(causes, records, sequence)
    followed = (await asyncio.to_thread(effects, records, sequence))[1:]
    return CausalChain(
        sequence=sequence,
        causes=led[:MAX_STEPS],
        effects=followed[:MAX_STEPS],
        effects_left_out=max(len(followed) - MAX_STEPS, 0),
    )


def policy_settings(spec: JobSpec) -> tuple[PolicySetting, ...]:
    """The scaling policy in the names and units of a job file."""
    values = setting_values(spec.scaling)
    return tuple(PolicySetting(setting=f"scaling.{name}", value=text) for name, text in values.items())


async def _event(gateway: GatewayService, sequence: int, tenant: str) -> EventView:
    found = None
    if 0 < sequence <= MAX_INTEGER:
        page = await gateway.views.events(after=sequence - 1, through=sequence, tenant=tenant, limit=1)
        found = page.items[0] if page.items else None
    if found is None:
        raise NotFound(f"there is no event {sequence}", where="sequence", hint="list events for what there is")
    return found


def review_router() -> Router:
    """The routes, with a desk of their own."""
    desk = ReviewDesk()

    async def provide_desk() -> ReviewDesk:
        return desk

    return Router(
        "/",
        route_handlers=[
            show_grid,
            show_series,
            show_decision,
            show_policy,
            run_job_what_if,
            show_timeline,
            show_event,
            show_causes,
        ],
        dependencies={"desk": Provide(provide_desk)},
    )
