"""Routes about jobs: submit, list, show, cancel, pause, resume, resize, and why they are the size they are."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Request, Response, delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.answers import Submission
from elasticgrid.gateway.bodies import ReasonRequest, ResizeRequest, decode_body
from elasticgrid.gateway.job_names import require_tenant
from elasticgrid.gateway.parameters import Cursor, Gateway, Limit, Reason, Tenant, TenantFilter, takes
from elasticgrid.gateway.service import DEFAULT_TENANT
from elasticgrid.projections.results import DecisionPage, JobDetail, JobPage, JobSummary


@post(
    "/jobs",
    operation_class=takes(JobSpec, required=True),
    summary="Submit a job",
    responses={
        200: ResponseSpec(Submission, generate_examples=False, description="A dry run, or the job of the same key")
    },
)
async def submit_job(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    tenant: Tenant = DEFAULT_TENANT,
    dry_run: Annotated[bool, QueryParameter(description="only check it")] = False,
    idempotency_key: Annotated[
        str, HeaderParameter(name="Idempotency-Key", description="the same key with the same job is the same job")
    ] = "",
) -> Response[Submission]:
    """Answer 201 for a new job, and 200 for a dry run or for the job that the key was used for before."""
    spec = decode_body(await request.body(), JobSpec, error=InvalidJob)
    if dry_run:
        require_tenant(tenant)
        gateway.check(spec)
        return Response(Submission(accepted=True, dry_run=True), status_code=200)
    submitted = await gateway.submit(spec, tenant=tenant, idempotency_key=idempotency_key, actor=gateway.key.actor)
    return Response(
        Submission(accepted=True, dry_run=False, job=submitted.job),
        status_code=201 if submitted.created else 200,
        headers={"Location": f"/v1/jobs/{submitted.job.id}?tenant={submitted.job.tenant}"},
    )


@get("/jobs", summary="List jobs")
async def list_jobs(
    gateway: Gateway,
    tenant: TenantFilter = "",
    phase: Annotated[str, QueryParameter(max_length=20, description="only jobs in this phase")] = "",
    cursor: Cursor = "",
    limit: Limit = 100,
) -> JobPage:
    """The newest first."""
    return await gateway.views.jobs(as_of_ms=gateway.now_ms(), tenant=tenant, phase=phase, cursor=cursor, limit=limit)


@get("/jobs/{job:str}", summary="Show a job")
async def show_job(job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT) -> JobDetail:
    """With its nodes, its launches and its last decisions."""
    return await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())


@get("/jobs/{job:str}/decisions", summary="List a job's decisions")
async def list_decisions(
    job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT, cursor: Cursor = "", limit: Limit = 100
) -> DecisionPage:
    """The newest first, with every number that was compared."""
    return await gateway.views.decisions(tenant, job, cursor=cursor, limit=limit)


@delete("/jobs/{job:str}", status_code=202, summary="Cancel a job")
async def cancel_job(
    job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT, reason: Reason = ""
) -> JobSummary:
    """It checkpoints, ends and gives its nodes back. Asking again changes nothing."""
    return await gateway.cancel(tenant, job, reason=reason, actor=gateway.key.actor)


@post("/jobs/{job:str}/pause", status_code=200, operation_class=takes(ReasonRequest), summary="Hold a job's size")
async def pause_job(
    job: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT
) -> JobSummary:
    """It goes on at the size it has."""
    asked = decode_body(await request.body(), ReasonRequest)
    return await gateway.pause(tenant, job, reason=asked.reason, actor=gateway.key.actor)


@post("/jobs/{job:str}/resume", status_code=200, operation_class=takes(ReasonRequest), summary="Decide again")
async def resume_job(
    job: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT
) -> JobSummary:
    """The opposite of pause."""
    asked = decode_body(await request.body(), ReasonRequest)
    return await gateway.resume(tenant, job, reason=asked.reason, actor=gateway.key.actor)


@post(
    "/jobs/{job:str}/resize",
    status_code=200,
    operation_class=takes(ResizeRequest, required=True),
    summary="Give a job new bounds",
)
async def resize_job(
    job: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT
) -> JobSummary:
    """A bound that is absent stays."""
    asked = decode_body(await request.body(), ResizeRequest)
    return await gateway.resize(tenant, job, asked, actor=gateway.key.actor)


JOB_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    submit_job,
    list_jobs,
    show_job,
    list_decisions,
    cancel_job,
    pause_job,
    resume_job,
    resize_job,
)
