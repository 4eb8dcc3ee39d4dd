"""`replay whatif` and `replay report`: an archive under another policy, and as a page to read and share."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import Json, Output, chosen
from elasticgrid.cli.output import Format, print_data, print_table, say, waiting
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.review.whatif import WhatIf, WhatIfJob
    from elasticgrid.review.whatif_change import Change

Archive = Annotated[Path, typer.Argument(help="An archive with its samples.", metavar="ARCHIVE")]
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
OnlyJob = Annotated[str, typer.Option("--job", help="Only this job's policy changes, as TENANT/JOB.")]


def register(replay: typer.Typer) -> None:
    """Add the verbs to `replay`."""
    replay.command("whatif")(whatif)
    replay.command("report")(report)


def whatif(
    archive: Archive,
    policy: PolicyFile = None,
    grid: GridFile = None,
    settings: Settings = None,
    job: OnlyJob = "",
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Run an archive's jobs under another policy or on another grid, beside what was recorded.

    Up to the first different decision the inputs are the recorded ones; what is told of the time after it is marked
    as extrapolated.

    Example: elasticgrid replay whatif incident.egz --set scaling.cooldown_up_s=0
    """
    change = change_of(policy, grid, settings, job)
    with waiting("running the jobs again"):
        answer = _what_if(archive, change)
    if chosen(output, json) is Format.TEXT:
        _print(answer)
        say(f"next: elasticgrid replay report {archive} -o report.html, with the same options")
    else:
        print_data(answer, chosen(output, json))
    return OK


def report(
    archive: Annotated[Path, typer.Argument(help="An archive.", metavar="ARCHIVE")],
    target: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write it: a .html page or a .md file.", metavar="FILE")
    ],
    policy: PolicyFile = None,
    grid: GridFile = None,
    settings: Settings = None,
    job: Annotated[str, typer.Option("--job", help="Only this job, as TENANT/JOB.")] = "",
) -> int:
    """Write an incident report: what happened, why, and what another policy would have done.

    The page is one file that opens offline. With --policy, --grid or --set it has a what-if table as well.

    Example: elasticgrid replay report incident.egz -o incident.html --set scaling.cooldown_up_s=0
    """
    from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, read_header
    from elasticgrid.review.report_data import gather
    from elasticgrid.review.report_html import html_report
    from elasticgrid.review.report_markdown import markdown_report

    write = {".html": html_report, ".htm": html_report, ".md": markdown_report}.get(target.suffix.lower())
    if write is None:
        raise InvalidInput(f"`{target.name}` is no report", where="--output", hint="name it .html or .md")
    header = read_header(archive)
    change = change_of(policy, grid, settings, job)
    asked = policy is not None or grid is not None or bool(settings)
    with waiting("writing the report"):
        data = gather(
            ArchivedEvents(archive),
            ArchivedSamples(archive) if header.samples is not None else None,
            samples_held=header.samples,
            source=archive.name,
            software=header.software,
            complete=header.filters.everything,
            job=change.job,
            what_if=_what_if(archive, change) if asked else None,
        )
        text = write(data)
    target.write_text(text, encoding="utf-8")
    look = "read it" if target.suffix.lower() == ".md" else "open it in a browser; it needs no network"
    say(f"{target} is written ({len(text.encode()):,} bytes); {look}")
    return OK


def change_of(policy: Path | None, grid: Path | None, settings: list[str] | None, job: str) -> Change:
    """What the options change.

    Raises:
        NotFound, InvalidInput: a file is not there, or wrong.
    """
    from elasticgrid.config.grid_file import read_grid
    from elasticgrid.config.policy_file import PolicyValues, parse_settings, read_policy
    from elasticgrid.core.spec import PlacementPolicy, ScalingPolicy
    from elasticgrid.review.whatif_change import Change

    whole = read_policy(policy) if policy is not None else PolicyValues()
    single = parse_settings(settings or ())
    tenant, slash, name = job.partition("/")
    if job and not (slash and tenant and name):
        raise InvalidInput(f"`{job}` names no job", where="--job", hint="write TENANT/JOB, such as default/train-a1b2")
    return Change(
        scaling=ScalingPolicy(**whole.scaling) if whole.scaling is not None else None,
        placement=PlacementPolicy(**whole.placement) if whole.placement is not None else None,
        scaling_values=single.scaling or {},
        placement_values=single.placement or {},
        providers=read_grid(grid) if grid is not None else None,
        job=(tenant, name) if job else None,
    )


def _what_if(archive: Path, change: Change) -> WhatIf:
    from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, read_header
    from elasticgrid.review.whatif import what_if

    header = read_header(archive)
    if not header.filters.everything:
        say("the archive is a part of its log: what other jobs held of the grid is not known")
    if header.samples is None:
        raise InvalidInput(
            "the archive has no samples, and another policy would decide from them",
            where=str(archive),
            hint="export it with `elasticgrid events export --with-samples`",
        )
    return what_if(ArchivedEvents(archive), ArchivedSamples(archive), change)


def tell(text: str) -> None:
    """A sentence of the answer, on standard output."""
    sys.stdout.write(text + "\n")


def _print(answer: WhatIf) -> None:
    first = answer.first_difference
    if first is None:
        tell(f"0 differences: {answer.why_none}.")
    else:
        moment = datetime.fromtimestamp(first.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        where = f"{first.tenant}/{first.job}, {moment} UTC, after event {first.after_sequence}"
        tell(f"The first different decision: {where}")
        tell(f"  recorded  {first.recorded}")
        tell(f"  what if   {first.what_if}" + (f" ({first.rule}: {first.reason})" if first.rule else ""))
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
