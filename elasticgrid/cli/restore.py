"""`events restore`: a log that was lost or damaged is built again, with the grid stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.nats_binary import NatsServer, checked
from elasticgrid.cli.output import progress_bar, say, waiting
from elasticgrid.core.errors import InvalidInput

FROM_MIRROR = "mirror"


def restore_events(
    source: Annotated[
        str, typer.Option("--from", metavar="mirror|ARCHIVE", help="The mirror beside the log, or a whole archive.")
    ],
    data: Annotated[
        Path, typer.Option("--data", envvar="ELASTICGRID_DATA_DIR", metavar="DIR", help="The grid's data folder.")
    ] = Path(".elasticgrid"),
    mirror: Annotated[
        Path | None,
        typer.Option("--mirror", metavar="FILE", help="Another mirror than the data folder's mirror.sqlite."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Restore from an archive although events that the mirror has are not in it.")
    ] = False,
    nats_server: NatsServer = None,
) -> int:
    """Rebuild the event log with the same order and ids, and prove it before it takes the old one's place.

    The grid must be stopped. The old log is kept beside it, in bus/set-aside. An archive must begin with all that the
    mirror has, where there is a mirror that can be read.

    Example: elasticgrid events restore --from mirror
    """
    from rich.progress import TextColumn, TimeElapsedColumn

    from elasticgrid.log.restore import archive_source, mirror_source
    from elasticgrid.log.restore_check import require_extension
    from elasticgrid.log.restore_folder import restore_folder
    from elasticgrid.logs import configure_logging
    from elasticgrid.runtime.control_plane import MIRROR_FILE

    configure_logging(level="warning")
    server = checked(nats_server)
    if not data.is_dir():
        raise InvalidInput("there is no such data folder", where=str(data), hint="name it with --data")
    kept = mirror if mirror is not None else data / MIRROR_FILE
    from_mirror = source == FROM_MIRROR
    records = mirror_source(kept) if from_mirror else archive_source(Path(source))
    if not from_mirror and not force:
        with waiting("comparing the archive with the mirror"):
            asyncio.run(require_extension(kept, records))
    columns = (TextColumn("restoring"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("restoring", total=None)
        restored = asyncio.run(
            restore_folder(
                data,
                records,
                replaced_mirror=None if from_mirror else kept,
                nats_server=server,
                on_progress=lambda done: bar.update(task, completed=done.records),
            )
        )
    say(f"restored {restored.restored.events} events, through sequence {restored.restored.last_sequence}")
    say(f"the old log is in {restored.kept_stream}" if restored.kept_stream else "there was no old log")
    say("next: elasticgrid up")
    return OK
