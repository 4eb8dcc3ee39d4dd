"""What the gateway answers with, besides what the views do; clients read the same types without the web framework."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elasticgrid.config.checks import job_warnings
from elasticgrid.core.job import JobState
from elasticgrid.gateway.first_interface import first_fields
from elasticgrid.gateway.providers import ProviderView
from elasticgrid.gateway.worker_logs import LogText
from elasticgrid.projections.results import JobDetail, JobFacts, JobSummary, LaunchView, NodeView


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a submission.

    Attributes:
        accepted: the job would be, or was, accepted.
        dry_run: nothing was submitted.
        job: the job; None after a dry run.
        warnings: what of it looks like a secret that is in the log now, or would be, a sentence each.
    """

    accepted: bool
    dry_run: bool
    job: JobSummary | None = None
    warnings: tuple[str, ...] = ()


class JobSubmission(Submission, frozen=True, kw_only=True):
    """What became of a submission, and beside it the fields of the service's first interface; none after a dry run."""

    job_id: str | msgspec.UnsetType = msgspec.UNSET
    tenant_id: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    command: str | msgspec.UnsetType = msgspec.UNSET
    state: str | msgspec.UnsetType = msgspec.UNSET
    nodes: int | msgspec.UnsetType = msgspec.UNSET
    step: int | msgspec.UnsetType = msgspec.UNSET
    idempotency_key: str | msgspec.UnsetType = msgspec.UNSET
    workdir: str | msgspec.UnsetType = msgspec.UNSET
    checkpoint_dir: str | msgspec.UnsetType = msgspec.UNSET
    log_file: str | msgspec.UnsetType = msgspec.UNSET
    created_at: str | msgspec.UnsetType = msgspec.UNSET
    updated_at: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class JobAnswer(JobSummary, frozen=True, kw_only=True):
    """A job in a line, with the fields of the service's first interface beside it."""

    job_id: str
    tenant_id: str
    command: str
    state: str
    nodes: int
    step: int
    idempotency_key: str
    workdir: str
    checkpoint_dir: str
    log_file: str
    created_at: str
    updated_at: str
    error: str
    metadata: dict[str, Any]


class ShownJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its nodes and launches, and the fields of the service's first interface beside it.

    Attributes:
        nodes: its nodes; or how many, for a client of the first interface, whose nodes are `node_views` then.
    """

    job: JobSummary
    facts: JobFacts
    nodes: tuple[NodeView, ...] | int
    node_views: tuple[NodeView, ...] | msgspec.UnsetType = msgspec.UNSET
    launches: tuple[LaunchView, ...]
    job_id: str
    tenant_id: str
    name: str
    command: str
    state: str
    step: int
    idempotency_key: str
    workdir: str
    checkpoint_dir: str
    log_file: str
    created_at: str
    updated_at: str
    error: str
    metadata: dict[str, Any]


def submission(job: JobSummary, state: JobState) -> JobSubmission:
    """The answer to a submission."""
    warnings = job_warnings(state.spec) if state.spec is not None else ()
    return JobSubmission(
        accepted=True, dry_run=False, job=job, warnings=warnings, **msgspec.structs.asdict(first_fields(state))
    )


def job_answer(job: JobSummary, state: JobState) -> JobAnswer:
    """The answer about a job. Where both interfaces have a name, that is the one its submitter gave."""
    return JobAnswer(**msgspec.structs.asdict(job) | msgspec.structs.asdict(first_fields(state)))


def shown_job(detail: JobDetail, state: JobState, *, counts_nodes: bool) -> ShownJob:
    """The whole of a job; with `counts_nodes` for a client of the first interface."""
    first = msgspec.structs.asdict(first_fields(state))
    count = first.pop("nodes")
    return ShownJob(
        job=detail.job,
        facts=detail.facts,
        nodes=count if counts_nodes else detail.nodes,
        node_views=detail.nodes if counts_nodes else msgspec.UNSET,
        launches=detail.launches,
        **first,
    )


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """The end of what a job's workers wrote.

    Attributes:
        job_id: the job's.
        log: all of it as one text; where it is of several workers each line says of which.
        pieces: the same by worker.
        elsewhere: when nothing that is asked for is here, the nodes that joined and whose output their providers have.
    """

    job_id: str
    log: str
    pieces: tuple[LogText, ...]
    elsewhere: tuple[str, ...] = ()


class ProviderList(msgspec.Struct, frozen=True, kw_only=True):
    """All providers, by name."""

    items: tuple[ProviderView, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway is well. `sequence` is the last event that answers contain, where it was asked for."""

    status: Literal["ok"] = "ok"
    sequence: int | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which software answers, and which interface it speaks."""

    version: str
    api: str = "v1"
