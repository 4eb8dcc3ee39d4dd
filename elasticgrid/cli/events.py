"""`events`: the log itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_line, print_table
from elasticgrid.core.errors import InvalidInput

GROUP = "The log"
Job = Annotated[str | None, typer.Option("--job", help="Only this job's.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    events = typer.Typer(help="The append-only log: list, tail, show.", no_args_is_help=True)
    events.command("list")(list_events)
    events.command("tail")(tail)
    events.command("show")(show)
    app.add_typer(events, name="events", rich_help_panel=GROUP)


def list_events(
    job: Job = None,
    kind: Annotated[str | None, typer.Option("--type", help="Only of this type, such as decision.scale.")] = None,
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

    with gateway(flags(url, key_file, data)) as grid:
        page = grid.get("/v1/events", EventPage, job=job, type=kind, after=after, limit=limit)
    if chosen(output, json) is not Format.TEXT:
        print_data(page.items, chosen(output, json))
        return OK
    print_table(
        ("#sequence", "job", "actor", "type", "what"),
        ((view.sequence, view.job, view.actor, view.type, view.text) for view in page.items),
    )
    return OK


def tail(
    job: Job = None,
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
    from elasticgrid.cli.client import gateway

    path = f"/v1/jobs/{job}/events/stream" if job is not None else "/v1/events/stream"
    with gateway(flags(url, key_file, data)) as grid:
        for view in grid.events(path, after=after):
            if chosen(output, json) is Format.TEXT:
                sys.stdout.write(f"{view.sequence:6} {view.job:28} {view.type:24} {view.text}\n")
                sys.stdout.flush()
            else:
                print_line(view)
    return OK


def show(
    sequence: Annotated[int, typer.Argument(help="The event's sequence.", min=1)],
    causes: Annotated[bool, typer.Option("--causes", help="What led to it, the first cause first.")] = False,
    effects: Annotated[bool, typer.Option("--effects", help="What it led to.")] = False,
    archive: Annotated[Path | None, typer.Option("--archive", help="Of an archive instead of the live log.")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show one event whole, or the chain of causes or effects around it.

    Example: elasticgrid events show 42 --causes
    """
    from elasticgrid.cli.history import events_of
    from elasticgrid.review import causes as chains

    if causes and effects:
        raise InvalidInput("--causes and --effects are two questions", hint="ask one at a time")
    with events_of(archive, flags(url, key_file, data)) as log:
        if not causes and not effects:
            recorded = chains.find(log, sequence)
            shown = Format.JSON if chosen(output, json) is Format.TEXT else chosen(output, json)
            print_data(
                {"sequence": recorded.sequence, "recorded_ms": recorded.recorded_ms, "event": recorded.event}, shown
            )
            return OK
        steps = chains.causes(log, sequence) if causes else chains.effects(log, sequence)
    if chosen(output, json) is not Format.TEXT:
        print_data(steps, chosen(output, json))
        return OK
    for step in steps:
        sys.stdout.write(f"{'  ' * step.depth}{step.line.text()}\n")
    return OK
