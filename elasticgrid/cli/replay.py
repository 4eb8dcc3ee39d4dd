"""`replay`: verify, timeline and state, and with `review` the rest, offline on an archive or on the live log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from elasticgrid.cli import review
from elasticgrid.cli.asked_for import job_in, known_types, parse_job, place, span_ms, tell_place
from elasticgrid.cli.failures import DIVERGED, OK
from elasticgrid.cli.history import Salvage, require_archive, tell_missing
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import (
    Format,
    clock,
    counted,
    print_data,
    print_line,
    print_table,
    print_text,
    progress_bar,
    say,
)
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.review.report import VerifyReport
    from elasticgrid.review.state import Change
    from elasticgrid.review.timeline import TimelineLine

GROUP = "The log"
Archive = Annotated[
    Path | None, typer.Argument(help="An archive; the live log when none is named.", metavar="[ARCHIVE]")
]
Where = dict[str, str | None]
#: Of what is told line by line beside a report's figures.
_MOST_TOLD: Final = 20
#: Longer values of the state are cut in a table, in characters.
_VALUE_LENGTH: Final = 60


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    replay = typer.Typer(
        help="What happened and why: re-take every decision, or look at any moment.", no_args_is_help=True
    )
    replay.command("verify")(verify)
    replay.command("timeline")(timeline)
    replay.command("state")(state)
    review.register(replay)
    app.add_typer(replay, name="replay", rich_help_panel=GROUP)


def verify(
    archive: Archive = None,
    salvage: Salvage = False,
    with_samples: Annotated[
        bool, typer.Option("--with-samples", help="Of the live log also the step samples; an archive has them or not.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Compare the live log with its mirror instead, event by event.")
    ] = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Fold the log, take every decision again from what was known then, and compare the whole events.

    Windows are rebuilt from step samples where these are there, else taken from the decisions; both are counted. Exits
    with 5 if any decision came out differently or a law of the log is broken, and with 1 if --salvage misses something.

    Example: elasticgrid replay verify incident.egz
    """
    if log and archive is not None:
        raise InvalidInput("--log is about the live log", hint="leave the archive out")
    require_archive(archive, salvage)
    if log:
        return _compare_log(chosen(output, json), flags(url, key_file, data))
    report = _verified(archive, salvage, with_samples, flags(url, key_file, data))
    if archive is None and not with_samples:
        say(f"the live log was read through event {report.last_sequence}")
    if chosen(output, json) is Format.TEXT:
        _print_report(report, _missing(report, archive, salvage, flags(url, key_file, data)))
        if archive is not None and not report.events:
            say("nothing of it can be read")
        elif archive is not None:
            flag = " --salvage" if salvage else ""
            verb = f"timeline {archive}{flag}" if report.ok else f"report {archive}{flag} -o report.html"
            say(f"next: elasticgrid replay {verb}")
        else:
            say("next: elasticgrid events export FILE --with-samples")
    else:
        print_data(report, chosen(output, json))
    incomplete = tell_missing(report.missing)
    return incomplete if report.ok else DIVERGED


def _compare_log(output: Format, where: Where) -> int:
    from elasticgrid.cli.client import gateway
    from elasticgrid.log.mirror_record import Verified

    with gateway(where) as grid:
        found = grid.post("/v1/events/verify", Verified)
    if output is Format.TEXT:
        say(f"stream and mirror are the same: {found.compared:,} events through {found.stream_last:,}")
        if found.rebuilt:
            say(f"the mirror was made anew: {found.rebuilt}")
    else:
        print_data(found, output)
    return OK


def _verified(archive: Path | None, salvage: bool, with_samples: bool, where: Where) -> VerifyReport:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from elasticgrid.cli.history import events_of, exported
    from elasticgrid.review.verify import verify as verify_events
    from elasticgrid.review.verify import verify_archive

    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with progress_bar(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("verifying", total=None, rate="")

        def on_progress(events: int) -> None:
            elapsed_s = bar.tasks[0].elapsed or 0.0
            bar.update(task, completed=events, rate=f"{events / elapsed_s:,.0f} events/s" if elapsed_s else "")

        if archive is not None:
            return verify_archive(archive, salvage=salvage, on_progress=on_progress)
        if with_samples:
            with exported(where, with_samples=True) as copy:
                return verify_archive(copy, on_progress=on_progress)
        with events_of(None, where) as events:
            return verify_events(events, on_progress=on_progress)


def _missing(report: VerifyReport, archive: Path | None, salvage: bool, where: Where) -> list[str]:
    """Which events of a log that is meant to be whole are not there."""
    from elasticgrid.cli.history import events_of, is_whole
    from elasticgrid.review.timeline import missing_events

    if not report.missing_sequences:
        return []
    with events_of(archive, where, salvage=salvage) as events:
        return [each.text() for each in islice(missing_events(events), _MOST_TOLD)] if is_whole(events) else []


def _print_report(report: VerifyReport, missing: list[str]) -> None:
    span = f"{report.first_sequence} to {report.last_sequence}"
    print_table(
        ("what", "~value"),
        (
            ("events", f"{report.events:,} of {counted(report.jobs, 'job')}, {span}"),
            ("missing sequences", report.missing_sequences),
            ("decisions", f"{report.decisions:,}"),
            ("verified", f"{report.verified:,}"),
            ("diverged", f"{report.diverged:,}"),
            ("unverifiable", f"{report.unverifiable:,}"),
            ("windows rebuilt", f"{report.from_samples:,} from samples, {report.from_values:,} from values"),
            ("laws broken", f"{report.law_breaches:,}"),
            ("open intents", len(report.open_intents)),
        ),
    )
    for divergence in report.divergences:
        say(
            f"\ndiverged: {divergence.tenant}/{divergence.job}, event {divergence.sequence} ({divergence.event_type}),"
            f" decision {divergence.number}\n  field     {divergence.field or 'the whole event'}\n"
            f"  expected  {divergence.expected}\n  got       {divergence.got}"
        )
        if divergence.note:
            say(f"  {divergence.note}")
        for line in divergence.story:
            say(f"    {line}")
    for breach in report.laws:
        say(f"broken law: {breach.law}: {breach.tenant}/{breach.job}, event {breach.sequence}: {breach.says}")
    if report.imported:
        say(
            f"imported: {report.imported:,} decisions were taken in another grid; `elasticgrid replay verify ARCHIVE`"
            " takes them again, of the archive that they came from"
        )
    for stopped in report.stopped:
        say(
            f"stopped: {stopped.tenant}/{stopped.job} could not be verified from event {stopped.sequence} on: this"
            f" version knows no events of type {stopped.event_type}; verify it with a later one"
        )
    for text in missing:
        say(f"missing: {text}")
    for intent in report.open_intents[:_MOST_TOLD]:
        say(
            f"open: the {intent.what} of attempt {intent.attempt} of {intent.tenant}/{intent.job}, asked for in event"
            f" {intent.sequence}, has no outcome yet"
        )
    if len(report.open_intents) > _MOST_TOLD:
        say(f"open: {len(report.open_intents) - _MOST_TOLD:,} more; -o json has all")


def timeline(
    archive: Archive = None,
    job: Annotated[str | None, typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")] = None,
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Only this provider.")] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only these types; `launch` is every type of the launcher."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this UTC time, or so long ago such as 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then.")] = None,
    salvage: Salvage = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """One line per event: time, delta, sequence, actor, what, from -> to, reason.

    The date stands before each day. Where events are missing from a log that is shown whole, a line says so; where a
    writer's clock is off by 2 s or more, its line says by how much.

    Example: elasticgrid replay timeline incident.egz --type decision
    """
    from elasticgrid.cli.history import events_of, is_whole, tell_read
    from elasticgrid.review.job_names import SeenJobs, no_such_job
    from elasticgrid.review.timeline import TimelineFilter, text_lines
    from elasticgrid.review.timeline import timeline as lines_of

    since_ms, until_ms = span_ms(since, until)
    begins_ms = _begins_ms(archive) if since is None else None
    since_ms = begins_ms if since is None else since_ms
    if job is not None:
        tenant, job = parse_job(job, tenant, where="--job")
    shown = TimelineFilter(
        tenant=tenant or "",
        job=job or "",
        provider=provider,
        types=known_types(kind or ()),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    wanted = chosen(output, json)
    with events_of(archive, flags(url, key_file, data), salvage=salvage) as events:
        complete = shown.everything and is_whole(events)
        read = SeenJobs(events)
        found = 0

        def shown_lines() -> Iterator[TimelineLine]:
            nonlocal found
            for line in lines_of(read, shown, complete=complete):
                found += 1
                yield line
            if job is not None and not any(each == job and owner == (tenant or owner) for owner, each in read.jobs):
                raise no_such_job(read.jobs, tenant, job)

        if wanted is Format.TEXT:
            for text in text_lines(shown_lines()):
                print_text(text, at_once=False)
        elif wanted is Format.JSONL:
            for line in shown_lines():
                print_line(line)
        else:
            print_data(tuple(shown_lines()), wanted)
    if not found:
        say("no event matches")
    if begins_ms is not None:
        say(f"the archive is of what was from {clock(begins_ms)} on; --since shows what is in it of before")
    return tell_read(events)


def _begins_ms(archive: Path | None) -> int | None:
    """From when on an archive is meant to be looked at, where it has earlier events to fold that from."""
    from elasticgrid.log.archive import read_header

    if archive is None:
        return None
    filters = read_header(archive).filters
    return filters.since_ms if filters.context else None


def state(
    archive: Archive = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="A sequence, a UTC time, or so long ago such as 15m.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option("--diff", help="Say what differs between two moments.", metavar="A B")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job.")] = None,
    salvage: Salvage = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """The whole state of the grid at any moment, or what differs between two.

    Example: elasticgrid replay state incident.egz --diff 40 60
    """
    from elasticgrid.cli.history import events_of, tell_read
    from elasticgrid.review.job_names import SeenJobs
    from elasticgrid.review.state import GridState, dump, state_at, state_changes

    if at is not None and diff is not None:
        raise InvalidInput("--at and --diff are two questions", hint="ask one at a time")
    asked = [place(text, where="--diff") for text in diff] if diff is not None else [place(at, where="--at")]
    wanted = chosen(output, json)
    states: list[GridState] = []
    with events_of(archive, flags(url, key_file, data), salvage=salvage) as events:
        name = "/".join(job_in(events, job)) if job is not None else None
        for sequence, moment_ms in asked:
            read = SeenJobs(events)
            states.append(state_at(read, sequence=sequence, time_ms=moment_ms, job=name))
            tell_place(sequence, moment_ms, states[-1].sequence, read, is_archive=archive is not None)
            if name is not None and not states[-1].jobs:
                say(f"there was no job {name} yet at event {states[-1].sequence}")
    if diff is not None:
        _print_changes(state_changes(*states), diff, wanted)
    elif wanted in (Format.TEXT, Format.JSON):
        sys.stdout.write(dump(states[0]).decode())
    else:
        print_data(msgspec.json.decode(dump(states[0])), wanted)
    return tell_read(events)


def _print_changes(found: tuple[Change, ...], moments: tuple[str, str], wanted: Format) -> None:
    if wanted is not Format.TEXT:
        print_data(found, wanted)
        return
    if not found:
        say(f"nothing differs between {moments[0]} and {moments[1]}")
        return
    rows = [(each.field, _cut(each.before), _cut(each.after)) for each in found]
    print_table(("field", f"~{moments[0]}", f"~{moments[1]}"), rows)
    if any(len(value) > _VALUE_LENGTH for each in found for value in (each.before, each.after)):
        say("long values are cut; -o json has them whole")


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE_LENGTH else f"{value[: _VALUE_LENGTH - 1]}\u2026"
