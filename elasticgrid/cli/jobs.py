"""`submit` and `jobs`: what a trainer's author does with a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from elasticgrid.cli.asked_for import parse_job
from elasticgrid.cli.failures import FAILED, INTERRUPTED, OK
from elasticgrid.cli.hints import next_command
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
)
from elasticgrid.cli.output import (
    Format,
    ago,
    clock,
    counted,
    dollars,
    plain_terminal,
    print_data,
    print_line,
    print_table,
    say,
)
from elasticgrid.cli.watch import TERMINAL, job_rows, live, outcome_of, tell_of_going_on, watch

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.projections.results import EventView, JobDetail, JobSummary

GROUP = "Jobs"


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

    A SkyPilot task file is taken as well; what of it is not honoured is said. It warns of what looks like a secret that
    the log, or a copy of the work folder, would keep. With --wait the exit code is 0 only if the job completed.

    Example: elasticgrid submit examples/elastic_numpy/job.yaml --wait
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.cli.job_files import read_job_file
    from elasticgrid.cli.job_warnings import warn_of_job
    from elasticgrid.gateway.answers import Submission

    spec = read_job_file(file, flags(url, key_file, data))
    warn_of_job(spec)
    where = flags(url, key_file, data)
    with gateway(where) as grid:
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
            say(f"next: {next_command('jobs watch', answer.job.id, tenant=answer.job.tenant, where=where)}")
            return OK
        return _wait(grid, answer.job, chosen(output, json), where)


def _wait(grid: Gateway, job: JobSummary, output: Format, where: Mapping[str, str | None]) -> int:
    from elasticgrid.cli.client import job_path
    from elasticgrid.projections.results import JobDetail

    say(f"submitted {job.id}; Ctrl-C stops waiting, not the job")
    events = grid.events(job_path(job.id, "events", "stream"), after=0, tenant=job.tenant)
    try:
        if output is Format.TEXT and not plain_terminal():
            live(grid, job.id, job.tenant, events)
        else:
            _follow(events, output)
    except KeyboardInterrupt:
        tell_of_going_on(job.id, job.tenant, where)
        return INTERRUPTED
    detail = grid.get(job_path(job.id), JobDetail, tenant=job.tenant, view="full")
    _print_job(detail, output, where)
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
    from elasticgrid.cli.client import gateway, tenant_path
    from elasticgrid.core.errors import InvalidInput
    from elasticgrid.core.job import Phase
    from elasticgrid.gateway.tenants import TenantView
    from elasticgrid.projections.results import JobPage

    if phase is not None and phase not in get_args(Phase):
        raise InvalidInput(f"there is no phase {phase!r}", where="--phase", hint=", ".join(get_args(Phase)))
    where = flags(url, key_file, data)
    with gateway(where) as grid:
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
        if not found and tenant is not None:
            # A list is empty for whomever one does not know of: that there is such a tenant is asked for.
            grid.get(tenant_path(tenant), TenantView)
    if chosen(output, json) is not Format.TEXT:
        print_data(found, chosen(output, json))
        return OK
    several = len({job.tenant for job in found}) > 1
    print_table(
        ("!job", "phase", "nodes", "#cost", "submitted", "~outcome, or last decision"),
        (
            (
                f"{job.tenant}/{job.id}" if several else job.id,
                f"{job.phase}, paused" if job.paused and job.phase not in TERMINAL else job.phase,
                _size(job),
                dollars(job.cost_microdollars, places=4),
                ago(job.submitted_ms),
                outcome_of(job),
            )
            for job in found
        ),
        brief=True,
    )
    if found:
        newest = found[0]
        say(f"next: {next_command('jobs watch', newest.id, tenant=newest.tenant, where=where)}")
    elif phase is not None:
        say(f"no jobs are {phase}; all of them: {next_command('jobs list', tenant=tenant, where=where)}")
    else:
        say(f"no jobs; submit one with: {next_command('submit', tenant=tenant, where=where)} FILE")
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

    where = flags(url, key_file, data)
    tenant, job = parse_job(job, tenant)
    with gateway(where) as grid:
        _print_job(grid.get(job_path(job), JobDetail, tenant=tenant, view="full"), chosen(output, json), where)
    return OK


def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """End a job: its workers commit a checkpoint, its nodes are given back.

    Example: elasticgrid jobs cancel elastic-numpy-abc123 --reason "wrong data"
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import JobSummary

    where = flags(url, key_file, data)
    tenant, job = parse_job(job, tenant)
    with gateway(where) as grid:
        summary = grid.delete(job_path(job), JobSummary, tenant=tenant, reason=reason or None)
    if chosen(output, json) is not Format.TEXT:
        print_data(summary, chosen(output, json))
        return OK
    look = next_command("jobs watch", summary.id, tenant=summary.tenant, where=where)
    say(f"{summary.id} is {summary.phase}; it is over when its nodes are gone: {look}")
    return OK


def resize(
    job: JobArgument,
    min_nodes: Annotated[int | None, typer.Option("--min", help="The new floor.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max", help="The new ceiling.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Give a job new bounds; a size outside of them changes at once.

    Example: elasticgrid jobs resize elastic-numpy-abc123 --max 8
    """
    body = {"min_nodes": min_nodes, "max_nodes": max_nodes, "reason": reason}
    return _ask(job, "resize", body, tenant, chosen(output, json), flags(url, key_file, data))


def pause(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Hold a job at the size it has; it goes on training.

    Example: elasticgrid jobs pause elastic-numpy-abc123
    """
    return _ask(job, "pause", {"reason": reason}, tenant, chosen(output, json), flags(url, key_file, data))


def resume(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Decide on a paused job's size again.

    Example: elasticgrid jobs resume elastic-numpy-abc123
    """
    return _ask(job, "resume", {"reason": reason}, tenant, chosen(output, json), flags(url, key_file, data))


def set_priority(
    job: JobArgument,
    band: Annotated[
        Literal["production", "interactive", "batch"],
        typer.Argument(help="production, interactive or batch.", metavar="BAND"),
    ],
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Put a job into another band. It is kept, and given to the job's own placement; it takes nothing from others yet.

    Example: elasticgrid jobs set-priority elastic-numpy-abc123 production
    """
    body = {"band": band, "reason": reason}
    return _ask(job, "priority", body, tenant, chosen(output, json), flags(url, key_file, data))


def _ask(
    job: str, what: str, body: Mapping[str, object], tenant: str | None, output: Format, where: dict[str, str | None]
) -> int:
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import JobSummary

    tenant, job = parse_job(job, tenant)
    with gateway(where) as grid:
        summary = grid.post(job_path(job, what), JobSummary, body, tenant=tenant)
    if output is not Format.TEXT:
        print_data(summary, output)
        return OK
    bounds = f"between {summary.min_nodes} and {counted(summary.max_nodes, 'node')}"
    say(f"{summary.id} is {summary.phase}, {bounds}" + (f", paused: {summary.paused}" if summary.paused else ""))
    say(f"next: {next_command('jobs watch', summary.id, tenant=summary.tenant, where=where)}")
    return OK


def _size(job: JobSummary) -> str:
    """Nodes that train, and where that goes."""
    if job.phase in TERMINAL or job.world_nodes == job.target_nodes:
        return str(job.world_nodes)
    return f"{job.world_nodes} -> {job.target_nodes}"


def _print_job(detail: JobDetail, output: Format, where: Mapping[str, str | None]) -> None:
    if output is not Format.TEXT:
        print_data(detail, output)
        return
    job = detail.job
    rows = [*job_rows(detail), ("submitted", clock(job.submitted_ms))]
    print_table(("what", "~value"), rows)
    if detail.nodes:
        print_table(
            ("!node", "provider", "status", "#round", "#last report"),
            ((node.id, node.provider, node.status, node.round, node.last_step) for node in detail.nodes),
            title="\nnodes",
        )
    verb = "jobs logs" if job.phase == "failed" else "decisions why"
    say(f"next: {next_command(verb, job.id, tenant=job.tenant, where=where)}")
