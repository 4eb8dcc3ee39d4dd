"""`replay`: verify, timeline and state, and with `review` the rest, offline on an archive or on the live log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from elasticgrid.cli import review
from elasticgrid.cli.failures import DIVERGED, OK
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_line, print_table, print_text, say, stderr
from elasticgrid.cli.times import optional_time_ms, time_ms
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.review.report import VerifyReport

GROUP = "The log"
Archive = Annotated[
    Path | None, typer.Argument(help="An archive; the live log when none is named.", metavar="[ARCHIVE]")
]
Where = dict[str, str | None]


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
    salvage: Annotated[bool, typer.Option("--salvage", help="Use what is provably good of a damaged one.")] = False,
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
    with 5 if any decision came out differently or a law of the log is broken.

    Example: elasticgrid replay verify incident.egz
    """
    if log and archive is not None:
        raise InvalidInput("--log is about the live log", hint="leave the archive out")
    if log:
        return _compare_log(chosen(output, json), flags(url, key_file, data))
    report = _verified(archive, salvage, with_samples, flags(url, key_file, data))
    if chosen(output, json) is Format.TEXT:
        _print_report(report)
        if archive is not None:
            say(
                f"next: elasticgrid replay {f'timeline {archive}' if report.ok else f'report {archive} -o report.html'}"
            )
        else:
            say("next: elasticgrid events export FILE --with-samples")
    else:
        print_data(report, chosen(output, json))
    return OK if report.ok else DIVERGED


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from elasticgrid.cli.history import events_of, exported
    from elasticgrid.review.verify import verify as verify_events
    from elasticgrid.review.verify import verify_archive

    console = stderr()
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
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


def _print_report(report: VerifyReport) -> None:
    print_table(
        ("what", "~value"),
        (
            ("events", f"{report.events:,} of {report.jobs} jobs, {report.first_sequence} to {report.last_sequence}"),
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
    for stopped in report.stopped:
        say(f"stopped: {stopped}")


def timeline(
    archive: Archive = None,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only this job.")] = "",
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")] = "",
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Only this provider.")] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only these types; `launch` is every type of the launcher."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this UTC time, or so long ago such as 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then.")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """One line per event: time, delta, sequence, actor, what, from -> to, reason.

    Example: elasticgrid replay timeline incident.egz --type decision
    """
    from elasticgrid.cli.history import events_of
    from elasticgrid.review.timeline import TimelineFilter
    from elasticgrid.review.timeline import timeline as lines_of

    shown = TimelineFilter(
        tenant=tenant,
        job=job,
        provider=provider,
        types=tuple(kind or ()),
        since_ms=optional_time_ms(since, where="--since"),
        until_ms=optional_time_ms(until, where="--until"),
    )
    wanted = chosen(output, json)
    with events_of(archive, flags(url, key_file, data)) as events:
        lines = lines_of(events, shown)
        if wanted is Format.TEXT:
            for line in lines:
                print_text(line.text(), at_once=False)
        elif wanted is Format.JSONL:
            for line in lines:
                print_line(line)
        else:
            print_data(tuple(lines), wanted)
    if archive is None:
        say("the live log ends here; new events may have come since")
    return OK


def state(
    archive: Archive = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="A sequence, a UTC time, or so long ago such as 15m.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option("--diff", help="Say what differs between two moments.", metavar="A B")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only this job, as TENANT/JOB.")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """The whole state of the grid at any moment, or what differs between two.

    Example: elasticgrid replay state incident.egz --diff 40 60
    """
    from elasticgrid.cli.history import events_of
    from elasticgrid.review.state import dump, state_at, state_differences

    if at is not None and diff is not None:
        raise InvalidInput("--at and --diff are two questions", hint="ask one at a time")
    wanted = chosen(output, json)
    with events_of(archive, flags(url, key_file, data)) as events:
        if diff is None:
            sequence, moment = _moment(at, "--at")
            whole = dump(state_at(events, sequence=sequence, time_ms=moment, job=job))
            if wanted in (Format.TEXT, Format.JSON):
                sys.stdout.write(whole.decode())
            else:
                print_data(msgspec.json.decode(whole), wanted)
            return OK
        states = []
        for text in diff:
            sequence, moment = _moment(text, "--diff")
            states.append(state_at(events, sequence=sequence, time_ms=moment, job=job))
    found = state_differences(*states)
    if wanted is not Format.TEXT:
        print_data(found, wanted)
        return OK
    print_table(("field", f"~{diff[0]}", f"~{diff[1]}"), ((each.field, each.expected, each.got) for each in found))
    return OK


def _moment(text: str | None, where: str) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if text.isdigit():
        return int(text), None
    return None, time_ms(text, where=where)
