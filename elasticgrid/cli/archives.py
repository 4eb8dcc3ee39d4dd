"""`events export` and `events import`: the log as one file, out of a grid and into one for study."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticgrid.cli.asked_for import parse_job, span_ms
from elasticgrid.cli.completion import complete_job
from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, clock, print_data, print_table, progress_bar, say, waiting
from elasticgrid.core.errors import ElasticGridError, InvalidInput, NotFound

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway, OnProgress
    from elasticgrid.log.archive import ArchiveFooter, ArchiveHeader

ArchiveFile = Annotated[Path, typer.Argument(help="The archive; its name ends in .egz by custom.", metavar="FILE")]


def export_events(
    file: ArchiveFile,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="[TENANT/]JOB", help="Only this job's.", autocompletion=complete_job),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this UTC time, or so long ago such as 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then.")] = None,
    with_samples: Annotated[
        bool, typer.Option("--with-samples", help="Also the step samples that have not aged out.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Write the log into one file that replays with no server.

    The file is hash-chained and compressed, has no credentials in it, and is proven before it takes its name. What is
    appended meanwhile is not in it. With --since it has the jobs of that time from their submission, so that it can be
    verified, and samples from where their rounds of then began.

    Example: elasticgrid events export incident.egz --since 2h --with-samples
    """
    from elasticgrid.cli.client import gateway

    if file.exists() and not force:
        raise InvalidInput("is there already", where=str(file), hint="--force replaces it")
    since_ms, until_ms = span_ms(since, until)
    if job is not None:
        tenant, job = parse_job(job, tenant, where="--job")
    asked: dict[str, object] = {
        "job": job,
        "tenant": tenant,
        "since_ms": since_ms,
        "until_ms": until_ms,
        "with_samples": True if with_samples else None,
    }
    require_writable(file.parent)
    with gateway(flags(url, key_file, data)) as grid:
        if job is not None:
            require_job(grid, tenant, job)
        header, footer = download(grid, file, asked)
    wanted = chosen(output, json)
    if wanted is Format.TEXT:
        print_table(("what", "~value"), _contents(file, header, footer))
    else:
        print_data({"file": str(file), "header": header, "footer": footer}, wanted)
    say(f"next: elasticgrid replay verify {file}")
    return OK


def require_writable(folder: Path) -> None:
    """Refuse to begin what could not be written down.

    Raises:
        InvalidInput: there is no such folder, or nothing can be written to it.
    """
    if not folder.is_dir():
        raise InvalidInput("there is no such folder", where=str(folder), hint="make it, or name another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput("this folder cannot be written in", where=str(folder), hint="name another file")


def require_job(grid: Gateway, tenant: str | None, job: str) -> None:
    """Ask whether the log has anything about a job; of any tenant that may be seen when none is named.

    Raises:
        NotFound: it has not.
    """
    from elasticgrid.projections.results import EventPage

    if not grid.get("/v1/events", EventPage, job=job, tenant=tenant, limit=1).items:
        name = f"{tenant}/{job}" if tenant is not None else job
        raise NotFound(f"there is no job {name}", where="--job", hint="elasticgrid jobs list shows them")


def download(grid: Gateway, file: Path, asked: dict[str, object]) -> tuple[ArchiveHeader, ArchiveFooter]:
    """Have the gateway write an archive, fetch it, prove it, and give it its name.

    Raises:
        ArchiveDamaged: it came damaged.
        OSError: it cannot be written.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as writing:
            with _bar("receiving") as progress:
                grid.download("/v1/events/export", writing, on_progress=progress, **asked)
            writing.flush()
            os.fsync(descriptor)
        with waiting("proving the archive"):
            proven = _prove(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return proven


def _prove(path: Path) -> tuple[ArchiveHeader, ArchiveFooter]:
    from elasticgrid.log.archive import ArchiveFooter, ArchiveHeader, read_archive

    header: ArchiveHeader | None = None
    footer: ArchiveFooter | None = None
    for record in read_archive(path):
        if isinstance(record, ArchiveHeader):
            header = record
        elif isinstance(record, ArchiveFooter):
            footer = record
    assert header is not None
    assert footer is not None
    return header, footer


def _contents(file: Path, header: ArchiveHeader, footer: ArchiveFooter) -> Iterator[tuple[str, str]]:
    yield "archive", f"{file}, {file.stat().st_size:,} bytes"
    yield "events", f"{footer.events:,}, from {footer.first_sequence} to {footer.last_sequence}"
    samples = f"{footer.samples:,} messages" if header.samples is not None else "none: --with-samples has them"
    yield "samples", samples
    if footer.redacted:
        yield "withheld", f"credentials in {footer.redacted} events"
    if header.filters.context and header.filters.since_ms is not None:
        since = clock(header.filters.since_ms)
        yield "begins", f"{since}; what its jobs and the grid were until then is in it, to fold it from"
    if not header.filters.everything:
        yield "part of the log", "decisions that looked at other jobs' nodes cannot be verified from it"
    yield "written", clock(header.created_ms)


def import_events(
    file: ArchiveFile,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="What the jobs are found under; gets a _ in front.")
    ],
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Load an archive into an empty grid, to look at it there.

    The jobs come in as records: they are shown like any other, but nobody decides about them and nothing is launched.
    Their decisions are verified, and run under another policy, on the archive itself. Start an empty grid with:
    elasticgrid up --data study.

    Example: elasticgrid events import incident.egz --tenant incident --data study
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.log.importing import ARCHIVE, Imported

    try:
        reading = file.open("rb")
    except FileNotFoundError as error:
        raise NotFound("there is no such archive", where=str(file)) from error
    except OSError as error:
        raise ElasticGridError(f"the archive cannot be read: {error.strerror}", where=str(file)) from error
    try:
        with reading, gateway(flags(url, key_file, data)) as grid, _bar("sending") as progress:
            imported = grid.upload("/v1/events/import", reading, Imported, on_progress=progress, tenant=tenant)
    except ElasticGridError as error:
        if error.where.partition(":")[0] == ARCHIVE:
            named = error.where.replace(ARCHIVE, str(file), 1)
            raise type(error)(error.what, where=named, hint=error.hint.replace("FILE", str(file))) from error
        raise
    wanted = chosen(output, json)
    if wanted is Format.TEXT:
        print_table(
            ("what", "~value"),
            (
                ("tenant", imported.tenant),
                ("jobs", f"{imported.jobs:,}"),
                ("events", f"{imported.events:,}, now {imported.first_sequence} to {imported.last_sequence}"),
                ("left out", f"{imported.left_out_grid_events} of the grid, {imported.left_out_samples} of samples"),
            ),
        )
    else:
        print_data(imported, wanted)
    say(f"its decisions are proved by the archive, not by this grid: elasticgrid replay verify {file}")
    say(f"next: elasticgrid jobs list --tenant {imported.tenant}")
    return OK


@contextmanager
def _bar(what: str) -> Iterator[OnProgress]:
    """A progress bar over bytes, where one can be shown."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task(what, total=None)

        def on_progress(size: int, whole: int) -> None:
            bar.update(task, completed=size, total=whole or None)

        yield on_progress
