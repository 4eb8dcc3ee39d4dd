"""Looking back at a demonstration that is over: its archive, its timeline, its decisions taken again, its numbers."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.demo.report import Run
from elasticgrid.demo.view import View
from elasticgrid.demo.watch import Plane
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples
from elasticgrid.log.export import export_archive
from elasticgrid.review.summary import summarise
from elasticgrid.review.timeline import timeline
from elasticgrid.review.verify import verify_archive

#: Of what an event says, in the timeline: the last words of a node may be many.
SAID_LENGTH: Final = 200


async def keep(plane: Plane, archive: Path) -> None:
    """Write the log and the samples to an archive."""
    await export_archive(plane.log, plane.client, archive, created_ms=time.time_ns() // 1_000_000, with_samples=True)


def look_back(console: Console, archive: Path, view: View, began_s: float) -> Run:
    """Print the timeline of a run that is over, take its decisions again and count what it did.

    Args:
        began_s: when it began, by the monotonic clock.
    """
    _print_timeline(console, archive, view.key)
    report = verify_archive(archive)
    summary = summarise(ArchivedEvents(archive), ArchivedSamples(archive), job=view.key)
    assert view.job is not None
    return Run(
        summary=summary,
        report=report,
        published=view.job.samples_published,
        dropped=view.job.samples_dropped,
        duration_s=time.monotonic() - began_s,
        archive=archive,
    )


def _shown(archive: Path, key: JobKey) -> Iterator[ev.Recorded]:
    """The job's events without the routine ones: holds that say nothing new and checkpoints in between."""
    for recorded in ArchivedEvents(archive):
        event = recorded.event
        if isinstance(event, ev.Event) and (event.tenant, event.job) == key:
            routine = isinstance(event.data, ev.NodeCheckpointed | ev.NodeStarted) or (
                isinstance(event.data, ev.ScaleDecided) and event.data.action == "hold"
            )
            if not routine:
                yield recorded


def _print_timeline(console: Console, archive: Path, key: JobKey) -> None:
    """What happened, one line each: seconds since the submission, sequence, event, and what it says."""
    console.print(Text("\nThe timeline, without holds, first steps and checkpoints:\n"))
    began_ms: int | None = None
    for line in timeline(_shown(archive, key), complete=False):
        began_ms = line.time_ms if began_ms is None else began_ms
        arrow = f"{line.before} -> {line.after}" if line.before else line.after
        node = line.node if line.node and line.node not in arrow + line.reason else ""
        reason = f"({line.reason})" if line.reason else ""
        said = textwrap.shorten(" ".join(filter(None, (node, arrow, reason))), SAID_LENGTH)
        when = f"{(line.time_ms - began_ms) / 1000:7.2f} s {'#' + str(line.sequence):>4}  "
        what = f"{line.what:<21} "
        if console.is_terminal:
            beside = console.width - len(when + what)
            said = textwrap.indent(textwrap.fill(said, max(beside, 20)), " " * len(when + what)).lstrip()
        console.print(Text.assemble((when, "" if console.no_color else "dim"), what, said), soft_wrap=True)
