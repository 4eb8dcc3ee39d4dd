"""`submit` and `jobs`: what a trainer's author does with a grid."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticgrid.cli.failures import FAILED, INTERRUPTED, OK
from elasticgrid.cli.options import DataDir, JobArgument, Json, KeyFile, Output, Tenant, Url, chosen, flags
from elasticgrid.cli.output import Format, dollars, print_data, print_line, print_table, say

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.projections.results import JobDetail, JobSummary

GROUP = "Jobs"
TERMINAL = ("completed", "failed", "cancelled")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("submit", rich_help_panel=GROUP)(submit)
    jobs = typer.Typer(help="List, show, watch, cancel, resize, pause and resume jobs.", no_args_is_help=True)
    jobs.command("list")(list_jobs)
    jobs.command("show")(show)
    jobs.command("watch")(watch)
    jobs.command("cancel")(cancel)
    jobs.command("resize")(resize)
    jobs.command("pause")(pause)
    jobs.command("resume")(resume)
    app.add_typer(jobs, name="jobs", rich_help_panel=GROUP)


def submit(
    file: Annotated[Path, typer.Argument(help="The job file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether it would be accepted.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over; its outcome is the exit code.")] = False,
    idempotency_key: Annotated[
        str, typer.Option("--idempotency-key", help="Submitting again with the same key is the same job.")
    ] = "",
    tenant: Tenant = "default",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Submit a job. What this grid can never run is refused at once, with the reason.

    Example: elasticgrid submit examples/elastic_numpy/job.yaml --wait
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.config.job_file import read_job
    from elasticgrid.gateway.job_routes import Submission

    spec = read_job(file, submitted_ms=time.time_ns() // 1_000_000)
    with gateway(flags(url, key_file, data)) as grid:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = grid.post("/v1/jobs", Submission, spec, headers=headers, tenant=tenant, dry_run=dry_run or None)
        if answer.job is None:
            say(f"{file}: job {spec.name} would be accepted")
            return OK
        if not wait:
            if chosen(output, json) is Format.TEXT:
                print(answer.job.id)
            else:
                print_data(answer.job, chosen(output, json))
            say(f"submitted; look at it with: elasticgrid jobs show {answer.job.id}")
            return OK
        return _wait(grid, answer.job, tenant, chosen(output, json))


def _wait(grid: Gateway, job: JobSummary, tenant: str, output: Format) -> int:
    say(f"submitted {job.id}; Ctrl-C stops waiting, not the job")
    try:
        for event in grid.events(f"/v1/jobs/{job.id}/events/stream", after=0, tenant=tenant):
            if output is Format.TEXT:
                say(f"{_clock(event.recorded_ms)} {event.type:24} {event.text}")
            if event.type == "decision.outcome":
                break
    except KeyboardInterrupt:
        say(f"the job goes on; look again with: elasticgrid jobs watch {job.id}")
        say(f"cancel it with: elasticgrid jobs cancel {job.id}")
        return INTERRUPTED
    from elasticgrid.projections.results import JobDetail

    detail = grid.get(f"/v1/jobs/{job.id}", JobDetail, tenant=tenant)
    _print_job(detail, output)
    return OK if detail.job.phase == "completed" else FAILED


def list_jobs(
    phase: Annotated[str | None, typer.Option(help="Only jobs in this phase.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 100,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List jobs, the newest first.

    Example: elasticgrid jobs list --phase running
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import JobPage

    with gateway(flags(url, key_file, data)) as grid:
        found: list[JobSummary] = []
        cursor: str | None = None
        while len(found) < limit:
            page = grid.get(
                "/v1/jobs", JobPage, phase=phase, tenant=tenant, cursor=cursor, limit=min(limit - len(found), 500)
            )
            found.extend(page.items)
            cursor = page.next_cursor
            if not cursor:
                break
    if chosen(output, json) is not Format.TEXT:
        print_data(found, chosen(output, json))
        return OK
    print_table(
        ("job", "phase", "#nodes", "#wanted", "last decision", "#cost", "submitted"),
        (
            (
                job.id,
                job.phase,
                job.world_nodes,
                job.target_nodes,
                f"{job.action} [{job.rule}] {job.reason}" if job.rule else "",
                dollars(job.cost_microdollars, places=4),
                _clock(job.submitted_ms),
            )
            for job in found
        ),
    )
    if not found:
        say("no jobs; submit one with: elasticgrid submit FILE")
    return OK


def show(
    job: JobArgument,
    tenant: Tenant = "default",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show one job with its nodes and launches.

    Example: elasticgrid jobs show elastic-numpy-abc123
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import JobDetail

    with gateway(flags(url, key_file, data)) as grid:
        _print_job(grid.get(f"/v1/jobs/{job}", JobDetail, tenant=tenant), chosen(output, json))
    return OK


def watch(
    job: JobArgument,
    tenant: Tenant = "default",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Follow a job's events from its beginning until it is over or Ctrl-C.

    Example: elasticgrid jobs watch elastic-numpy-abc123
    """
    from elasticgrid.cli.client import gateway

    with gateway(flags(url, key_file, data)) as grid:
        for event in grid.events(f"/v1/jobs/{job}/events/stream", after=0, tenant=tenant):
            if chosen(output, json) is Format.TEXT:
                sys.stdout.write(f"{_clock(event.recorded_ms)} {event.sequence:6} {event.type:24} {event.text}\n")
                sys.stdout.flush()
            else:
                print_line(event)
            if event.type == "decision.outcome":
                break
    return OK


def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = "default",
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """End a job: its workers commit a checkpoint, its nodes are given back.

    Example: elasticgrid jobs cancel elastic-numpy-abc123 --reason "wrong data"
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import JobSummary

    with gateway(flags(url, key_file, data)) as grid:
        summary = grid.delete(f"/v1/jobs/{job}", JobSummary, tenant=tenant, reason=reason or None)
    say(f"{summary.id} is {summary.phase}; it is over when its nodes are gone: elasticgrid jobs watch {summary.id}")
    return OK


def resize(
    job: JobArgument,
    min_nodes: Annotated[int | None, typer.Option("--min", help="The new floor.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max", help="The new ceiling.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = "default",
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Give a job new bounds; a size outside of them changes at once.

    Example: elasticgrid jobs resize elastic-numpy-abc123 --max 8
    """
    body = {"min_nodes": min_nodes, "max_nodes": max_nodes, "reason": reason}
    return _ask(job, "resize", body, tenant, flags(url, key_file, data))


def pause(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = "default",
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Hold a job at the size it has; it goes on training.

    Example: elasticgrid jobs pause elastic-numpy-abc123
    """
    return _ask(job, "pause", {"reason": reason}, tenant, flags(url, key_file, data))


def resume(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = "default",
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Decide on a paused job's size again.

    Example: elasticgrid jobs resume elastic-numpy-abc123
    """
    return _ask(job, "resume", {"reason": reason}, tenant, flags(url, key_file, data))


def _ask(job: str, what: str, body: Mapping[str, object], tenant: str, where: dict[str, str | None]) -> int:
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import JobSummary

    with gateway(where) as grid:
        summary = grid.post(f"/v1/jobs/{job}/{what}", JobSummary, body, tenant=tenant)
    bounds = f"between {summary.min_nodes} and {summary.max_nodes} nodes"
    say(f"{summary.id} is {summary.phase}, {bounds}" + (f", {summary.paused}" if summary.paused else ""))
    return OK


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _print_job(detail: JobDetail, output: Format) -> None:
    if output is not Format.TEXT:
        print_data(detail, output)
        return
    job = detail.job
    rows = [
        ("job", f"{job.id} of {job.tenant}"),
        ("phase", job.phase + (f": {job.outcome_reason}" if job.outcome_reason else "")),
        (
            "size",
            f"{job.world_nodes} nodes train, {job.target_nodes} wanted, {job.min_nodes}..{job.max_nodes} allowed",
        ),
        ("round", str(job.round)),
        ("last decision", f"{job.action} [{job.rule}] {job.reason}" if job.rule else "none yet"),
        ("checkpoint", f"step {job.checkpoint_step}"),
        ("cost", f"{dollars(job.cost_microdollars, places=4)}, now {dollars(job.price_microdollars_per_hour)}/h"),
        ("submitted", _clock(job.submitted_ms)),
    ]
    if job.waiting:
        rows.append(("waiting", job.waiting))
    if job.paused:
        rows.append(("paused", job.paused))
    print_table(("what", "value"), rows)
    print_table(
        ("node", "provider", "status", "#round", "#step"),
        ((node.id, node.provider, node.status, node.round, node.last_step) for node in detail.nodes),
        title="nodes",
    )
    if job.phase not in TERMINAL:
        say(f"next: elasticgrid decisions why {job.id}")
