"""Routes about events: in pages, and as they come."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from litestar import get
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from elasticgrid.gateway.parameters import (
    Caller,
    Gateway,
    JobFilter,
    LastEventId,
    Limit,
    OptionalSequence,
    Sequence,
    Tenant,
    TenantFilter,
    TimeFilter,
    TypeFilter,
)
from elasticgrid.gateway.query import event_type
from elasticgrid.gateway.service import DEFAULT_TENANT
from elasticgrid.projections.results import EventPage

_STREAM: Final = "text/event-stream"
# Proxies and browsers must neither keep nor collect what is sent.
_STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@get("/events", summary="List events")
async def list_events(
    gateway: Gateway,
    after: Sequence = 0,
    tenant: TenantFilter = "",
    job: JobFilter = "",
    type: TypeFilter = "",  # noqa: A002 - the parameter's name
    since_ms: TimeFilter = None,
    until_ms: TimeFilter = None,
    order: Annotated[Literal["asc", "desc"], QueryParameter(description="`desc` begins with the newest")] = "asc",
    before: OptionalSequence = None,
    limit: Limit = 100,
) -> EventPage:
    """In the order of the log; `next_after` is the `after` of the next page.

    With `order=desc` the newest come first, and `next_before` is the `before` of the next page.
    """
    wanted = event_type(type)
    if order == "desc":
        return await gateway.views.events_before(
            before, tenant=tenant, job=job, event_type=wanted, since_ms=since_ms or 0, until_ms=until_ms, limit=limit
        )
    return await gateway.views.events(
        after=after,
        through=before - 1 if before else None,
        tenant=tenant,
        job=job,
        event_type=wanted,
        since_ms=since_ms or 0,
        until_ms=until_ms,
        limit=limit,
    )


@get("/events/stream", media_type=_STREAM, summary="Watch events")
async def stream_events(
    gateway: Gateway,
    caller: Caller,
    after: OptionalSequence = None,
    tenant: TenantFilter = "",
    last_event_id: LastEventId = None,
) -> Stream:
    """Server-sent events; the id of each is its sequence.

    It begins after `Last-Event-ID`, else after `after`, else with what is new. It ends when the key or the login that
    it was asked for with is over.
    """
    frames = gateway.feed.frames(
        gateway.feed.start_of(after, last_event_id), tenant=tenant, left_s=partial(gateway.keyring.left_s, caller)
    )
    return Stream(frames, media_type=_STREAM, headers=_STREAM_HEADERS)


@get("/jobs/{job:str}/events/stream", media_type=_STREAM, summary="Watch a job's events")
async def stream_job_events(
    job: FromPath[str],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    after: OptionalSequence = None,
    last_event_id: LastEventId = None,
) -> Stream:
    """The same for one job."""
    await gateway.views.job_summary(tenant, job, as_of_ms=gateway.now_ms())
    frames = gateway.feed.frames(
        gateway.feed.start_of(after, last_event_id),
        tenant=tenant,
        job=job,
        left_s=partial(gateway.keyring.left_s, caller),
    )
    return Stream(frames, media_type=_STREAM, headers=_STREAM_HEADERS)


EVENT_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (list_events, stream_events, stream_job_events)
