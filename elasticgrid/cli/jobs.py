"""`submit` and `jobs`: what a trainer's author does with a grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elasticgrid.cli.failures import FAILED, INTERRUPTED, OK
from elasticgrid.cli.logs import logs
from elasticgrid.cli.options import (
    DataDir,
    JobArgument,
    Json,
    KeyFile,
    Output,
    Tenant,
    Url,
    chosen,
    flags,
    tenant_flag,
)
from elasticgrid.cli.output import (
    Format,
    ago,
    clock,
    dollars,
    plain_terminal,
    print_data,
    print_line,
    print_table,
    say,
)
from elasticgrid.cli.watch import job_rows, live, watch

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.projections.results import EventView, JobDetail, JobSummary

GROUP = "Jobs"
TERMINAL = ("completed", "failed", "cancelled")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("submit", rich_help_panel=GROUP)(submit)
    jobs = typer.Typer(
        help="List, show, watch, cancel, resize, pause, resume and prioritize jobs.", no_args_is_help=True
    )
    jobs.command("list")(list_jobs)
    jobs.command("show")(show)
    jobs.command("watch")(watch)
    jobs.command("logs")(logs)
    jobs.command("cancel")(cancel)
    jobs.command("resize")(resize)
    jobs.command("pause")(pause)
    jobs.command("resume")(resume)
    jobs.command("set-priority")(set_priority)
    app.add_typer(jobs, name="jobs", rich_help_panel=GROUP)


def submit(
    file: Annotated[Path, typer.Argument(help="A job file, or a SkyPilot task file.", metavar="FILE")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether it would be accepted.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over; its outcome is the exit code.")] = False,
    idempotency_key: Annotated[
        str,
        typer.Option("--idempotency-key", metavar="KEY", help="Submitting again with the same key is the same job."),
    ] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Submit a job. What this grid can never run is refused at once, with the reason.

    A SkyPilot task file is taken as well; what of it is not honoured is said. With --wait the exit code is 0 only if
    the job completed.

    Example: elasticgrid submit examples/elastic_numpy/job.yaml --wait
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.config.skypilot_file import read_job_or_task
    from elasticgrid.gateway.answers import Submission

    spec, notes = read_job_or_task(file, submitted_ms=time.time_ns() // 1_000_000)
    for note in notes:
        say(f"not honoured: {note}")
    with gateway(flags(url, key_file, data)) as grid:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = grid.post("/v1/jobs", Submission, spec, headers=headers, tenant=tenant, dry_run=dry_run or None)
        if answer.job is None:
            if chosen(output, json) is not Format.TEXT:
                print_data(answer, chosen(output, json))
            say(f"{file}: job {spec.name} would be accepted")
            return OK
        if not wait:
            if chosen(output, json) is Format.TEXT:
                print(answer.job.id)
            else:
                print_data(answer.job, chosen(output, json))
            say(f"next: elasticgrid jobs watch {answer.job.id}")
            return OK
        return _wait(grid, answer.job, tenant, chosen(output, json))


def _wait(grid: Gateway, job: JobSummary, tenant: str | None, output: Format) -> int:
    from elasticgrid.cli.client import job_path
    from elasticgrid.projections.results import JobDetail

    say(f"submitted {job.id}; Ctrl-C stops waiting, not the job")
    events = grid.events(job_path(job.id, "events", "stream"), after=0, tenant=tenant)
    try:
        if output is Format.TEXT and not plain_terminal():
            live(grid, job.id, tenant, events)
        else:
            _follow(events, output)
    except KeyboardInterrupt:
        say(f"the job goes on; look again with: elasticgrid jobs watch {job.id}")
        say(f"cancel it with: elasticgrid jobs cancel {job.id}")
        return INTERRUPTED
    detail = grid.get(job_path(job.id), JobDetail, tenant=tenant, view="full")
    _print_job(detail, output)
    return OK if detail.job.phase == "completed" else FAILED


def _follow(events: Iterator[EventView], output: Format) -> None:
    """Tell a job's events until it is over."""
    for event in events:
        if output is Format.TEXT:
            say(f"{clock(event.recorded_ms)} {event.type:24} {event.text}")
        elif output is Format.JSONL:
            print_line(event)
        if event.type == "decision.outcome":
            return


def list_jobs(
    phase: Annotated[str | None, typer.Option(help="Only jobs in this phase.", metavar="PHASE")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", metavar="NAME")] = None,
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
    several = len({job.tenant for job in found}) > 1
    print_table(
        ("!job", "phase", "nodes", "#cost", "submitted", "~last decision"),
        (
            (
                f"{job.tenant}/{job.id}" if several else job.id,
                f"{job.phase}, paused" if job.paused else job.phase,
                _size(job),
                dollars(job.cost_microdollars, places=4),
                ago(job.submitted_ms),
                job.outcome_reason or (f"{job.action} [{job.rule}] {job.reason}" if job.rule else job.waiting),
            )
            for job in found
        ),
    )
    if found:
        newest = found[0]
        say(f"next: elasticgrid jobs watch {newest.id}{tenant_flag(newest.tenant)}")
    else:
        say("no jobs; submit one with: elasticgrid submit FILE")
    return OK


def show(
    job: JobArgument,
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show one job with its nodes and launches.

    Example: elasticgrid jobs show elastic-numpy-abc123
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import JobDetail

    with gateway(flags(url, key_file, data)) as grid:
        _print_job(grid.get(job_path(job), JobDetail, tenant=tenant, view="full"), chosen(output, json))
    return OK


def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """End a job: its workers commit a checkpoint, its nodes are given back.

    Example: elasticgrid jobs cancel elastic-numpy-abc123 --reason "wrong data"
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import JobSummary

    with gateway(flags(url, key_file, data)) as grid:
        summary = grid.delete(job_path(job), JobSummary, tenant=tenant, reason=reason or None)
    say(f"{summary.id} is {summary.phase}; it is over when its nodes are gone: elasticgrid jobs watch {summary.id}")
    return OK


def resize(
    job: JobArgument,
    min_nodes: Annotated[int | None, typer.Option("--min", help="The new floor.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max", help="The new ceiling.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
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
    tenant: Tenant = None,
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
    tenant: Tenant = None,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Decide on a paused job's size again.

    Example: elasticgrid jobs resume elastic-numpy-abc123
    """
    return _ask(job, "resume", {"reason": reason}, tenant, flags(url, key_file, data))


def set_priority(
    job: JobArgument,
    band: Annotated[
        Literal["production", "interactive", "batch"],
        typer.Argument(help="production, interactive or batch.", metavar="BAND"),
    ],
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Put a job into another band. It is kept, and given to the job's own placement; it takes nothing from others yet.

    Example: elasticgrid jobs set-priority elastic-numpy-abc123 production
    """
    return _ask(job, "priority", {"band": band, "reason": reason}, tenant, flags(url, key_file, data))


def _ask(job: str, what: str, body: Mapping[str, object], tenant: str | None, where: dict[str, str | None]) -> int:
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import JobSummary

    with gateway(where) as grid:
        summary = grid.post(job_path(job, what), JobSummary, body, tenant=tenant)
    bounds = f"between {summary.min_nodes} and {summary.max_nodes} nodes"
    say(f"{summary.id} is {summary.phase}, {bounds}" + (f", paused: {summary.paused}" if summary.paused else ""))
    say(f"next: elasticgrid jobs watch {summary.id}{tenant_flag(tenant)}")
    return OK


def _size(job: JobSummary) -> str:
    """Nodes that train, and where that goes."""
    if job.phase in TERMINAL or job.world_nodes == job.target_nodes:
        return str(job.world_nodes)
    return f"{job.world_nodes} -> {job.target_nodes}"


def _print_job(detail: JobDetail, output: Format) -> None:
    if output is not Format.TEXT:
        print_data(detail, output)
        return
    job = detail.job
    rows = [*job_rows(detail), ("submitted", clock(job.submitted_ms))]
    print_table(("what", "~value"), rows)
    if detail.nodes:
        print_table(
            ("!node", "provider", "status", "#round", "#step"),
            ((node.id, node.provider, node.status, node.round, node.last_step) for node in detail.nodes),
            title="\nnodes",
        )
    tenant = f" --tenant {job.tenant}" if job.tenant != "default" else ""
    if job.phase == "failed":
        say(f"next: elasticgrid jobs logs {job.id}{tenant}")
    else:
        say(f"next: elasticgrid decisions why {job.id}{tenant}")
