"""`events`: the log itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.archives import export_events, import_events, require_job
from elasticgrid.cli.asked_for import known_types, parse_job
from elasticgrid.cli.completion import complete_job
from elasticgrid.cli.failures import INTERRUPTED, OK
from elasticgrid.cli.history import Salvage
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, clock, on_terminal, print_data, print_line, print_table, print_text, say
from elasticgrid.cli.restore import restore_events
from elasticgrid.core.errors import InvalidInput

GROUP = "The log"
Job = Annotated[
    str | None, typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job's.", autocompletion=complete_job)
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    events = typer.Typer(help="The append-only log: list, tail, show, export, import.", no_args_is_help=True)
    events.command("list")(list_events)
    events.command("tail")(tail)
    events.command("show")(show)
    events.command("export")(export_events)
    events.command("import")(import_events)
    events.command("restore")(restore_events)
    app.add_typer(events, name="events", rich_help_panel=GROUP)


def list_events(
    job: Job = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")] = None,
    kind: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only of this type, such as decision.scale.")
    ] = None,
    after: Annotated[int, typer.Option(help="Only later ones than this sequence.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 100,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List events in the order of the log.

    Example: elasticgrid events list --type decision.scale --limit 20
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import EventPage

    if kind is not None:
        known_types((kind,))
    if job is not None:
        tenant, job = parse_job(job, tenant, where="--job")
    with gateway(flags(url, key_file, data)) as grid:
        page = grid.get("/v1/events", EventPage, job=job, tenant=tenant, type=kind, after=after, limit=limit)
        if job is not None and not page.items:
            require_job(grid, tenant, job)
    if not page.items:
        say("no event matches")
    if chosen(output, json) is not Format.TEXT:
        print_data(page.items, chosen(output, json))
        return OK
    print_table(
        ("#event", "time", "!type", "~what", "job"),
        (
            (view.sequence, clock(view.recorded_ms, short=on_terminal()), view.type, view.text, view.job)
            for view in page.items
        ),
    )
    if page.more:
        say(f"there are more: elasticgrid events list --after {page.next_after}")
    else:
        say(f"next: elasticgrid events tail --after {page.next_after}")
    return OK


def tail(
    job: Job = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")] = None,
    after: Annotated[int | None, typer.Option(help="Begin after this sequence instead of with what is new.")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Follow the log until Ctrl-C; nothing is missed over a lost connection.

    Example: elasticgrid events tail -o jsonl
    """
    from elasticgrid.cli.client import gateway, job_path

    if job is not None:
        tenant, job = parse_job(job, tenant, where="--job")
    path = job_path(job, "events", "stream") if job is not None else "/v1/events/stream"
    last = after
    with gateway(flags(url, key_file, data)) as grid:
        try:
            for view in grid.events(path, after=after, tenant=tenant):
                last = view.sequence
                if chosen(output, json) is Format.TEXT:
                    print_text(f"{view.sequence:6} {view.job:28} {view.type:24} {view.text}")
                else:
                    print_line(view)
        except KeyboardInterrupt:
            say(f"go on with: elasticgrid events tail --after {last}" if last else "stopped")
            return INTERRUPTED
    return OK


def show(
    sequence: Annotated[int, typer.Argument(help="The event's sequence.", min=1)],
    causes: Annotated[
        bool, typer.Option("--causes", help="What led to it: the event, then its cause, and so on.")
    ] = False,
    effects: Annotated[bool, typer.Option("--effects", help="What it led to.")] = False,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="FILE", help="Of an archive instead of the live log.")
    ] = None,
    salvage: Salvage = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show one event whole, or the chain of causes or effects around it.

    Example: elasticgrid events show 42 --causes
    """
    from elasticgrid.cli.history import events_of, tell_read
    from elasticgrid.review import causes as chains

    if causes and effects:
        raise InvalidInput("--causes and --effects are two questions", hint="ask one at a time")
    with events_of(archive, flags(url, key_file, data), salvage=salvage) as log:
        if not causes and not effects:
            recorded = chains.find(log, sequence)
            shown = Format.JSON if chosen(output, json) is Format.TEXT else chosen(output, json)
            print_data(
                {"sequence": recorded.sequence, "recorded_ms": recorded.recorded_ms, "event": recorded.event}, shown
            )
            return tell_read(log)
        steps = chains.causes(log, sequence) if causes else chains.effects(log, sequence)
    if chosen(output, json) is not Format.TEXT:
        print_data(steps, chosen(output, json))
    else:
        for line in chains.chain_lines(steps):
            print_text(line)
    return tell_read(log)
