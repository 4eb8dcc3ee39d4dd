"""Whether a log may be restored from something else than its mirror: only from what the mirror is the beginning of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.log.archive_secrets import without_credentials
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirror_record import LogRecord, describe
from elasticgrid.log.restore import Source


async def require_extension(mirror: Path, source: Source) -> None:
    """Compare a source, event by event, with what the mirror has. Where there is no mirror that can be read, nothing.

    An event that a credential was taken out of is taken for the one with it.

    Raises:
        InvalidInput: the source lacks an event that the mirror has, or has another one there; names the first one, and
            says how many events the grid would lose.
        NotFound, ArchiveDamaged: of the source.
    """
    try:
        kept = await Mirror.open(mirror, read_only=True)
    except (NotFound, MirrorDamaged):
        return
    async with kept, aclosing(_events(kept.read())) as had, aclosing(_events(source())) as given:
        try:
            ours = await anext(had, None)
        except MirrorDamaged:
            return
        theirs = await anext(given, None)
        while ours is not None and theirs is not None and _same(ours, theirs):
            theirs = await anext(given, None)
            try:
                ours = await anext(had, None)
            except MirrorDamaged:
                return
        if ours is None:
            return
        first, lost = ours, 1
        try:
            async for _ in had:
                lost += 1
        except MirrorDamaged:
            pass
    events = "event that the grid has" if lost == 1 else "events that the grid has"
    raise InvalidInput(
        f"this is not the log of this grid, or not all of it: {lost:,} {events} would be gone",
        where=f"event {first.sequence}",
        hint="restore from the mirror: --from mirror; --force restores from this all the same",
        story=(f"the grid has {describe(first)}", f"the archive has {describe(theirs)}"),
    )


async def _events(records: AsyncGenerator[LogRecord]) -> AsyncGenerator[LogRecord]:
    async with aclosing(records):
        async for record in records:
            if record.is_event:
                yield record


def _same(ours: LogRecord, theirs: LogRecord) -> bool:
    if (ours.sequence, ours.recorded_ms, ours.subject) != (theirs.sequence, theirs.recorded_ms, theirs.subject):
        return False
    return ours.data == theirs.data or without_credentials(ours.data) == theirs.data
