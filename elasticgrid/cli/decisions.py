"""`decisions`: what was decided, and why a job is the size it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.asked_for import job_in, parse_job, place, tell_place
from elasticgrid.cli.failures import OK
from elasticgrid.cli.hints import next_command
from elasticgrid.cli.history import Salvage
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
from elasticgrid.cli.output import Format, print_data, print_table, print_text, say, waiting

GROUP = "Look"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    decisions = typer.Typer(help="What was decided, with every number that was compared.", no_args_is_help=True)
    decisions.command("list")(list_decisions)
    decisions.command("why")(why)
    app.add_typer(decisions, name="decisions", rich_help_panel=GROUP)


def list_decisions(
    job: JobArgument,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", min=1, max=500)] = 100,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List a job's decisions, the newest first.

    Example: elasticgrid decisions list elastic-numpy-abc123
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.projections.results import DecisionPage

    tenant, job = parse_job(job, tenant)
    with gateway(flags(url, key_file, data)) as grid:
        page = grid.get(job_path(job, "decisions"), DecisionPage, tenant=tenant, limit=limit)
    if chosen(output, json) is not Format.TEXT:
        print_data(page.items, chosen(output, json))
        return OK
    print_table(
        ("#event", "#no", "type", "rule", "#from", "#to", "~reason"),
        (
            (
                line.sequence,
                line.number,
                line.type.removeprefix("decision."),
                line.rule,
                "" if line.from_nodes is None else line.from_nodes,
                "" if line.to_nodes is None else line.to_nodes,
                line.reason,
            )
            for line in page.items
        ),
    )
    say(f"next: {next_command('decisions why', job, tenant=tenant, where=flags(url, key_file, data))}")
    return OK


def why(
    job: JobArgument,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="FILE", help="Of an archive instead of the live log.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="A sequence, a UTC time, or so long ago such as 15m.")
    ] = None,
    tenant: Tenant = None,
    salvage: Salvage = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Say why a job is the size it is: signals, each rule with its numbers, candidates, and when that may change.

    Example: elasticgrid decisions why elastic-numpy-abc123 --at 15m
    """
    from elasticgrid.cli.client import own_tenant
    from elasticgrid.cli.history import events_of, tell_read
    from elasticgrid.review.card import card_lines, decision_card
    from elasticgrid.review.job_names import SeenJobs

    sequence, moment_ms = place(at, where="--at")
    tenant, job = parse_job(job, tenant)
    if tenant is None and archive is None:
        tenant = own_tenant(flags(url, key_file, data))
    with waiting("reading the log"), events_of(archive, flags(url, key_file, data), salvage=salvage) as events:
        key = (tenant, job) if tenant is not None else job_in(events, job, where="JOB")
        read = SeenJobs(events)
        card = decision_card(read, *key, sequence=sequence, time_ms=moment_ms)
    wanted = chosen(output, json)
    if wanted is Format.TEXT:
        for line in card_lines(card):
            print_text(line)
    else:
        print_data(card, wanted)
    tell_place(sequence, moment_ms, card.asked_sequence, read, is_archive=archive is not None)
    ended = tell_read(events)
    if wanted is not Format.TEXT:
        return ended
    if archive is not None:
        flag = " --salvage" if salvage else ""
        say(f"next: elasticgrid replay timeline {archive} --job {'/'.join(key)}{flag}")
    else:
        say(f"next: {next_command('jobs watch', job, tenant=tenant, where=flags(url, key_file, data))}")
    return ended
