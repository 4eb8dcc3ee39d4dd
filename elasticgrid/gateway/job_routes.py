"""Routes about jobs: submit, list, show, cancel, pause, resume, resize, and why they are the size they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from elasticgrid.config.checks import job_warnings
from elasticgrid.core.errors import InvalidInput, InvalidJob
from elasticgrid.core.job import Phase
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.access import needs
from elasticgrid.gateway.answers import JobAnswer, JobSubmission, ShownJob, job_answer, shown_job, submission
from elasticgrid.gateway.bodies import PriorityRequest, ReasonRequest, ResizeRequest, decode_body
from elasticgrid.gateway.conditions import IfMatch, etag, wanted_sequence
from elasticgrid.gateway.first_interface import PHASES, FirstState, is_first_submit, is_of_first, read_first_submit
from elasticgrid.gateway.gate import is_plain
from elasticgrid.gateway.job_names import require_tenant
from elasticgrid.gateway.parameters import Caller, Cursor, Gateway, Limit, Reason, Tenant, TenantFilter, takes
from elasticgrid.gateway.service import DEFAULT_TENANT, GatewayService
from elasticgrid.projections.results import DecisionPage, JobPage, JobSummary
from elasticgrid.projections.views import MAX_PAGE

_OK: Final = 200
_CREATED: Final = 201
_ACCEPTED: Final = 202


@post(
    "/jobs",
    operation_class=takes(JobSpec, required=True),
    opt=needs("submit"),
    summary="Submit a job",
    responses={
        200: ResponseSpec(JobSubmission, generate_examples=False, description="A dry run, or the job of the same key")
    },
)
async def submit_job(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    dry_run: Annotated[bool, QueryParameter(description="only check it")] = False,
    idempotency_key: Annotated[
        str, HeaderParameter(name="Idempotency-Key", description="the same key with the same job is the same job")
    ] = "",
) -> Response[JobSubmission]:
    """Answer 201 for a new job, and 200 for a dry run or for the job that the key was used for before.

    A body whose `command` is one line of text is that of the service's first interface, which answers 201 both times.
    """
    body = await request.body()
    first = is_first_submit(body)
    metadata = ""
    if first:
        spec, key_in_body, metadata = read_first_submit(body, Path.cwd())
        if idempotency_key and key_in_body not in ("", idempotency_key):
            raise InvalidInput("there are two idempotency keys", where="Idempotency-Key", hint="leave one out")
        idempotency_key = idempotency_key or key_in_body
    else:
        spec = decode_body(body, JobSpec, error=InvalidJob)
    if dry_run:
        require_tenant(tenant)
        await gateway.tenants.require_created(tenant)
        gateway.jobs.check(spec)
        gateway.tenants.require_room(tenant, spec)
        return Response(JobSubmission(accepted=True, dry_run=True, warnings=job_warnings(spec)), status_code=_OK)
    submitted = await gateway.jobs.submit(
        spec, tenant=tenant, idempotency_key=idempotency_key, metadata=metadata, actor=caller.actor
    )
    job = submitted.job
    return Response(
        submission(job, gateway.jobs.state(job.tenant, job.id)),
        status_code=_CREATED if submitted.created or first else _OK,
        headers={"Location": f"/v1/jobs/{job.id}?tenant={job.tenant}", **etag(job.sequence)},
    )


@get("/jobs", summary="List jobs")
async def list_jobs(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    tenant: TenantFilter = "",
    phase: Annotated[Literal["", Phase], QueryParameter(description="only jobs in this phase")] = "",
    first_state: Annotated[
        Literal["", FirstState] | None,
        QueryParameter(name="state", description="only jobs in this state of the first interface"),
    ] = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Response[JobPage | list[JobAnswer]]:
    """The newest first.

    Without any parameter, or with `state` alone, this is the list of the service's first interface: at most the newest
    1,000 jobs, without a page around them.
    """
    if first_state is None and not is_plain(request):
        page = await gateway.views.jobs(
            as_of_ms=gateway.now_ms(), tenant=tenant, phase=phase, cursor=cursor, limit=limit
        )
        return Response(page)
    return Response(await _first_list(gateway, tenant, first_state))


async def _first_list(gateway: GatewayService, tenant: str, state: str | None) -> list[JobAnswer]:
    jobs: list[JobSummary] = []
    for phase in ("",) if not state else PHASES.get(state, ()):
        page = await gateway.views.jobs(as_of_ms=gateway.now_ms(), tenant=tenant, phase=phase, limit=MAX_PAGE)
        jobs.extend(page.items)
    jobs.sort(key=lambda job: (-job.submitted_ms, job.tenant, job.id))
    answers = [job_answer(job, gateway.jobs.state(job.tenant, job.id)) for job in jobs[:MAX_PAGE]]
    return [each for each in answers if state in (None, "", each.state)]


@get("/jobs/{job:str}", summary="Show a job")
async def show_job(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    tenant: Tenant = DEFAULT_TENANT,
    view: Annotated[
        Literal["", "full"], QueryParameter(description="`full` has the nodes of every job as a list")
    ] = "",
) -> Response[ShownJob]:
    """With its nodes, its launches and its last decisions; its `ETag` is for `If-Match`.

    A job that came by the service's first interface is shown to a request without parameters with its number of nodes
    as `nodes`, and the nodes themselves as `node_views`.
    """
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    state = gateway.jobs.state(tenant, job)
    shown = shown_job(detail, state, counts_nodes=not view and is_plain(request) and is_of_first(state))
    return Response(shown, headers=etag(detail.job.sequence))


@get("/jobs/{job:str}/decisions", summary="List a job's decisions")
async def list_decisions(
    job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT, cursor: Cursor = "", limit: Limit = 100
) -> DecisionPage:
    """The newest first, with every number that was compared."""
    return await gateway.views.decisions_of(tenant, job, cursor=cursor, limit=limit)


@delete(
    "/jobs/{job:str}",
    status_code=_ACCEPTED,
    opt=needs("submit"),
    summary="Cancel a job",
    responses={
        200: ResponseSpec(JobAnswer, generate_examples=False, description="A job that came by the first interface")
    },
)
async def cancel_job(
    job: FromPath[str],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    reason: Reason = "",
    if_match: IfMatch = None,
) -> Response[JobAnswer]:
    """It checkpoints, ends and gives its nodes back. Asking again changes nothing."""
    summary = await gateway.jobs.cancel(
        tenant, job, reason=reason, actor=caller.actor, if_match=wanted_sequence(if_match)
    )
    first = is_of_first(gateway.jobs.state(tenant, job))
    return _answer(gateway, summary, status_code=_OK if first else _ACCEPTED)


@post(
    "/jobs/{job:str}/pause",
    status_code=_OK,
    operation_class=takes(ReasonRequest),
    opt=needs("operate"),
    summary="Hold a job's size",
)
async def pause_job(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
) -> Response[JobAnswer]:
    """It goes on at the size it has."""
    asked = decode_body(await request.body(), ReasonRequest)
    wanted = wanted_sequence(if_match)
    return _answer(
        gateway, await gateway.jobs.pause(tenant, job, reason=asked.reason, actor=caller.actor, if_match=wanted)
    )


@post(
    "/jobs/{job:str}/resume",
    status_code=_OK,
    operation_class=takes(ReasonRequest),
    opt=needs("operate"),
    summary="Decide again",
)
async def resume_job(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
) -> Response[JobAnswer]:
    """The opposite of pause."""
    asked = decode_body(await request.body(), ReasonRequest)
    wanted = wanted_sequence(if_match)
    return _answer(
        gateway, await gateway.jobs.resume(tenant, job, reason=asked.reason, actor=caller.actor, if_match=wanted)
    )


@post(
    "/jobs/{job:str}/resize",
    status_code=_OK,
    operation_class=takes(ResizeRequest, required=True),
    opt=needs("operate"),
    summary="Give a job new bounds",
)
async def resize_job(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
) -> Response[JobAnswer]:
    """A bound that is absent stays."""
    asked = decode_body(await request.body(), ResizeRequest)
    wanted = wanted_sequence(if_match)
    summary = await gateway.jobs.resize(tenant, job, asked, actor=caller.actor, if_match=wanted)
    return _answer(gateway, summary)


@post(
    "/jobs/{job:str}/priority",
    status_code=_OK,
    operation_class=takes(PriorityRequest, required=True),
    opt=needs("operate"),
    summary="Put a job into another band",
)
async def set_priority(
    job: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
) -> Response[JobAnswer]:
    """It is kept in the log and given to the job's own placement; no job is placed before or instead of another yet."""
    asked = decode_body(await request.body(), PriorityRequest)
    wanted = wanted_sequence(if_match)
    summary = await gateway.jobs.set_priority(tenant, job, asked, actor=caller.actor, if_match=wanted)
    return _answer(gateway, summary)


def _answer(gateway: GatewayService, job: JobSummary, *, status_code: int = _OK) -> Response[JobAnswer]:
    answer = job_answer(job, gateway.jobs.state(job.tenant, job.id))
    return Response(answer, status_code=status_code, headers=etag(job.sequence))


JOB_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    submit_job,
    list_jobs,
    show_job,
    list_decisions,
    cancel_job,
    pause_job,
    resume_job,
    resize_job,
    set_priority,
)
