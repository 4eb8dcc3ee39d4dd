"""`decisions`: what was decided, and why a job is the size it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import OK
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
from elasticgrid.cli.output import Format, print_data, print_table, print_text, say, waiting
from elasticgrid.cli.times import time_ms

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
    say(f"next: elasticgrid decisions why {job}{tenant_flag(tenant)}")
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
    from elasticgrid.cli.history import events_of
    from elasticgrid.review.card import card_lines, decision_card

    sequence = int(at) if at is not None and at.isdigit() else None
    moment = time_ms(at, where="--at") if at is not None and sequence is None else None
    if tenant is None:
        tenant = own_tenant(flags(url, key_file, data)) if archive is None else "default"
    with waiting("reading the log"), events_of(archive, flags(url, key_file, data)) as events:
        card = decision_card(events, tenant, job, sequence=sequence, time_ms=moment)
    if chosen(output, json) is not Format.TEXT:
        print_data(card, chosen(output, json))
        return OK
    for line in card_lines(card):
        print_text(line)
    if archive is not None:
        say(f"next: elasticgrid replay timeline {archive} --job {job}")
    else:
        say(f"next: elasticgrid jobs watch {job}{tenant_flag(tenant)}")
    return OK
