"""`replay whatif` and `replay report`: a log under another policy, and as a page to read and share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from elasticgrid import utc
from elasticgrid.cli.archives import require_writable
from elasticgrid.cli.asked_for import job_in
from elasticgrid.cli.history import Salvage, archive_of, tell_missing
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_table, say, waiting
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.core.events import Recorded
    from elasticgrid.core.grid import JobKey
    from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, ArchiveHeader
    from elasticgrid.log.archive_salvage import ArchiveDamage
    from elasticgrid.review.whatif import WhatIf, WhatIfJob
    from elasticgrid.review.whatif_change import Change

Archive = Annotated[
    Path | None,
    typer.Argument(help="An archive with its samples; the live log when none is named.", metavar="[ARCHIVE]"),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy", help="A file with the `scaling:` and `placement:` sections of a job file.", metavar="FILE"
    ),
]
GridFile = Annotated[Path | None, typer.Option("--grid", help="Another grid than the recorded one.", metavar="FILE")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, such as scaling.cooldown_up_s=0; can be repeated.", metavar="KEY=VALUE"),
]
OnlyJob = Annotated[str | None, typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job's policy changes.")]


def register(replay: typer.Typer) -> None:
    """Add the verbs to `replay`."""
    replay.command("whatif")(whatif)
    replay.command("report")(report)


def whatif(
    archive: Archive = None,
    policy: PolicyFile = None,
    grid: GridFile = None,
    settings: Settings = None,
    job: OnlyJob = None,
    salvage: Salvage = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Run a log's jobs under another policy or on another grid, beside what was recorded.

    Up to the first different decision the inputs are the recorded ones; what is told of the time after it is marked
    as extrapolated. Where samples are missing, it says of which time nothing can be told.

    Example: elasticgrid replay whatif incident.egz --set scaling.cooldown_up_s=0 --set scaling.cooldown_down_s=0
    """
    with archive_of(archive, flags(url, key_file, data), salvage=salvage) as path:
        found = _found(path, salvage)
        change = change_of(policy, grid, settings, found.key(job))
        with waiting("running the jobs again"):
            answer = found.what_if(change)
    if chosen(output, json) is Format.TEXT:
        _print(answer)
        named = f"{archive} " if archive is not None else ""
        flag = "--salvage " if salvage else ""
        say(f"next: elasticgrid replay report {named}{flag}--out report.html, with the same options")
    else:
        print_data(answer, chosen(output, json))
    return tell_missing(found.damage.missing)


def report(
    archive: Annotated[
        Path | None, typer.Argument(help="An archive; the live log when none is named.", metavar="[ARCHIVE]")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--out", "-o", "--output", help="Where to write it: a .html page or a .md file.", metavar="FILE"),
    ] = None,
    policy: PolicyFile = None,
    grid: GridFile = None,
    settings: Settings = None,
    job: Annotated[str | None, typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    salvage: Salvage = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Write an incident report: what happened, why, and what another policy would have done.

    The page is one file that opens offline. With --policy, --grid or --set it has a what-if table as well.

    Example: elasticgrid replay report incident.egz --out incident.html --set scaling.cooldown_down_s=0
    """
    from elasticgrid.review.report_data import gather
    from elasticgrid.review.report_html import html_report
    from elasticgrid.review.report_markdown import markdown_report

    if target is None:
        raise InvalidInput("there is no file to write to", where="--out", hint="--out report.html, or report.md")
    write = {".html": html_report, ".htm": html_report, ".md": markdown_report}.get(target.suffix.lower())
    if write is None:
        raise InvalidInput(f"`{target.name}` is no report", where="--out", hint="name it .html or .md")
    if target.exists() and not force:
        raise InvalidInput("is there already", where=str(target), hint="--force replaces it")
    require_writable(target.parent)
    asked = policy is not None or grid is not None or bool(settings)
    with archive_of(archive, flags(url, key_file, data), salvage=salvage) as path:
        found = _found(path, salvage)
        change = change_of(policy, grid, settings, found.key(job))
        with waiting("writing the report"):
            told = gather(
                found.events,
                found.samples,
                samples_held=found.header.samples,
                source=archive.name if archive is not None else "the live log",
                software=found.header.software,
                complete=found.header.filters.everything,
                job=change.job,
                what_if=found.what_if(change) if asked else None,
            )
            text = write(told)
    target.write_text(text, encoding="utf-8")
    look = "read it" if target.suffix.lower() == ".md" else "open it in a browser; it needs no network"
    say(f"{target} is written ({len(text.encode()):,} bytes); {look}")
    return tell_missing(found.damage.missing)


def change_of(policy: Path | None, grid: Path | None, settings: list[str] | None, job: JobKey | None) -> Change:
    """What the options change, of one job where one is named.

    Raises:
        NotFound, InvalidInput: a file is not there, or wrong.
    """
    from elasticgrid.config.grid_file import read_grid
    from elasticgrid.config.policy_file import PolicyValues, parse_settings, read_policy
    from elasticgrid.core.spec import PlacementPolicy, ScalingPolicy
    from elasticgrid.review.whatif_change import Change

    whole = read_policy(policy) if policy is not None else PolicyValues()
    single = parse_settings(settings or ())
    return Change(
        scaling=ScalingPolicy(**whole.scaling) if whole.scaling is not None else None,
        placement=PlacementPolicy(**whole.placement) if whole.placement is not None else None,
        scaling_values=single.scaling or {},
        placement_values=single.placement or {},
        providers=read_grid(grid) if grid is not None else None,
        job=job,
    )


class _Found(msgspec.Struct, frozen=True):
    """An archive, and what is missing from it if it is salvaged."""

    path: Path
    header: ArchiveHeader
    events: ArchivedEvents
    samples: ArchivedSamples | None
    damage: ArchiveDamage

    def key(self, job: str | None) -> JobKey | None:
        """The job that is meant, when one is named.

        Raises:
            NotFound, InvalidInput: as `job_in`.
        """
        return job_in(self.events, job) if job is not None else None

    def what_if(self, change: Change) -> WhatIf:
        """Its jobs under another policy.

        Raises:
            NotFound, InvalidInput: as `what_if`, and when it has no samples.
        """
        from elasticgrid.log.archive_format import SampleCoverage
        from elasticgrid.review.whatif import what_if

        if not self.header.filters.everything:
            say("the archive is a part of its log: what other jobs held of the grid is not known")
        if self.header.samples is None or self.samples is None:
            raise InvalidInput(
                "the archive has no samples, and another policy would decide from them",
                where=str(self.path),
                hint="export it with `elasticgrid events export --with-samples`",
            )
        coverage = SampleCoverage(self.header.samples, self.damage.sample_gaps)
        events: Iterable[Recorded] = self.events
        gap = next(iter(self.damage.event_gaps), None)
        if gap is not None and gap.before is not None:
            say(f"only events through {gap.after} are looked at: behind it some are missing")
            events = _Through(self.events, gap.after)
        return what_if(events, self.samples, change, coverage=coverage)


class _Through:
    """The events up to a sequence, each time they are read."""

    def __init__(self, events: Iterable[Recorded], last: int) -> None:
        self._events = events
        self._last = last

    def __iter__(self) -> Iterator[Recorded]:
        return takewhile(lambda recorded: recorded.sequence <= self._last, self._events)


def _found(path: Path, salvage: bool) -> _Found:
    from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, read_header
    from elasticgrid.log.archive_salvage import ArchiveDamage, look_for_damage

    header = read_header(path)
    return _Found(
        path=path,
        header=header,
        events=ArchivedEvents(path, salvage=salvage),
        samples=ArchivedSamples(path, salvage=salvage) if header.samples is not None else None,
        damage=look_for_damage(path) if salvage else ArchiveDamage(),
    )


def tell(text: str) -> None:
    """A sentence of the answer, on standard output."""
    sys.stdout.write(text + "\n")


def _print(answer: WhatIf) -> None:
    from elasticgrid.review.whatif import doubt_words, none_words

    first = answer.first_difference
    if first is None:
        tell(none_words(answer))
    else:
        where = f"{first.tenant}/{first.job}, {utc.precise(first.time_ms)} UTC, after event {first.after_sequence}"
        tell(f"The first different decision: {where}")
        tell(f"  recorded  {first.recorded}")
        tell(f"  what if   {first.what_if}" + (f" ({first.rule}: {first.reason})" if first.rule else ""))
        if doubt := doubt_words(answer):
            tell(doubt)
    for holds, count in answer.other_holds.items():
        tell(f"  held for another reason, {holds}: at {count} moments")
    for job in answer.jobs:
        _print_job(job)
    if answer.stopped:
        tell(f"The simulation stopped: {answer.stopped}.")


def _print_job(job: WhatIfJob) -> None:
    for setting in job.settings:
        tell(f"  {setting.setting}: {setting.recorded} -> {setting.what_if}")
    rows = [
        (
            f"{line.figure} ({line.unit})" if line.unit else line.figure,
            _cell(line.recorded),
            _cell(line.what_if),
            "extrapolated" if line.extrapolated else "",
        )
        for line in job.table
    ]
    print_table(("figure", "#recorded", "#what if", ""), rows, title=f"{job.tenant}/{job.job}")
    model = job.model
    if model is None:
        return
    sizes = ", ".join(f"{each.nodes} nodes: {each.busy_us / 1e6:.3f} s over {each.steps} steps" for each in model.sizes)
    error = f"{model.error_ppm / 10_000:.1f} %" if model.error_ppm is not None else "unknown: one size was measured"
    tell(f"Extrapolated from measured steps ({sizes}); the model's error on held-out sizes: {error}.")
    for each in model.held_out:
        tell(f"  {each.nodes} nodes told from the others: off by {each.error_ppm / 10_000:.1f} %")
    tell(f"Assumed: {'; '.join(model.assumes)}.")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
