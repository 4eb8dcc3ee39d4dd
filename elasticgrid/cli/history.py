"""The log as the reading verbs see it: an archive's, or the live one through the gateway."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from elasticgrid.cli.failures import FAILED, OK
from elasticgrid.cli.output import say
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.core.events import Recorded
    from elasticgrid.log.archive import MissingRecords

PAGE = 1_000
#: Of what is missing from an archive so much is told.
_MOST_TOLD: Final = 20

Salvage = Annotated[
    bool,
    typer.Option(
        "--salvage", help="Use what is provably good of a damaged archive; exits with 1 when something is missing."
    ),
]


class LiveEvents:
    """The live log, read anew in pages by each iteration, from its beginning to where it ends then.

    Attributes:
        last_sequence: of the last event that was read; 0 before the first.
    """

    def __init__(self, grid: Gateway) -> None:
        self._grid = grid
        self.last_sequence = 0

    def whole(self) -> bool:
        """Whether all of it can be seen, and not only what is a tenant's."""
        from elasticgrid.cli.client import tenant_of

        return not tenant_of(self._grid)

    def __iter__(self) -> Iterator[Recorded]:
        from elasticgrid.core.events import Recorded
        from elasticgrid.log.codec import decode
        from elasticgrid.projections.results import EventPage

        after = 0
        while True:
            page = self._grid.get("/v1/events", EventPage, after=after, limit=PAGE)
            for view in page.items:
                raw = msgspec.json.encode(view.event)
                self.last_sequence = view.sequence
                yield Recorded(view.sequence, view.recorded_ms, decode(raw), raw)
            after = page.next_after
            if not page.more:
                return


def is_whole(events: Iterable[Recorded]) -> bool:
    """Whether nothing is left out of these events of `events_of`, so that what is missing between them is missing."""
    if isinstance(events, LiveEvents):
        return events.whole()
    from elasticgrid.log.archive import ArchivedEvents, read_header

    return isinstance(events, ArchivedEvents) and read_header(events.path).filters.everything


def tell_read(events: Iterable[Recorded]) -> int:
    """Say through which event the live log was read, and of a salvaged archive what is missing; the exit code."""
    from elasticgrid.log.archive import ArchivedEvents
    from elasticgrid.log.archive_salvage import look_for_damage

    if isinstance(events, LiveEvents):
        say(f"the live log was read through event {events.last_sequence}")
    if isinstance(events, ArchivedEvents) and events.salvage:
        return tell_missing(look_for_damage(events.path).missing)
    return OK


def tell_missing(missing: Sequence[MissingRecords]) -> int:
    """Say what a salvage did not find; the exit code."""
    for each in missing[:_MOST_TOLD]:
        say(f"damaged: {each.text()}")
    if len(missing) > _MOST_TOLD:
        say(f"damaged: {len(missing) - _MOST_TOLD:,} more spans; -o json of `replay verify --salvage` has all")
    return FAILED if missing else OK


@contextmanager
def events_of(
    archive: Path | None, where: dict[str, str | None], *, salvage: bool = False
) -> Iterator[Iterable[Recorded]]:
    """The events of an archive, or of the live log when none is named; can be iterated more than once.

    Raises:
        NotFound, ArchiveDamaged: of an archive, while iterating; with `salvage` only where nothing of it can be read.
        InvalidInput, BusUnavailable: of the gateway.
    """
    require_archive(archive, salvage)
    if archive is not None:
        from elasticgrid.log.archive import ArchivedEvents

        yield ArchivedEvents(archive, salvage=salvage)
        return
    from elasticgrid.cli.client import gateway

    with gateway(where) as grid:
        yield LiveEvents(grid)


def require_archive(archive: Path | None, salvage: bool) -> None:
    """Refuse to salvage the live log.

    Raises:
        InvalidInput: that was asked for.
    """
    if salvage and archive is None:
        raise InvalidInput(
            "--salvage is about an archive", hint="name it; a damaged log is rebuilt with `elasticgrid events restore`"
        )


@contextmanager
def archive_of(archive: Path | None, where: dict[str, str | None], *, salvage: bool = False) -> Iterator[Path]:
    """The archive, or the live log as one when none is named; says through which event that was read.

    Raises:
        InvalidInput, BusUnavailable: of the gateway.
    """
    require_archive(archive, salvage)
    if archive is not None:
        yield archive
        return
    with exported(where, with_samples=True) as copy:
        yield copy


@contextmanager
def exported(where: dict[str, str | None], *, with_samples: bool) -> Iterator[Path]:
    """The live log as an archive that is gone when the block ends; says through which event it was read.

    Raises:
        InvalidInput, BusUnavailable: of the gateway.
    """
    from elasticgrid.cli.archives import download
    from elasticgrid.cli.client import gateway

    with tempfile.TemporaryDirectory(prefix="elasticgrid-") as folder, gateway(where) as grid:
        copy = Path(folder) / "live.egz"
        _, footer = download(grid, copy, {"with_samples": with_samples or None})
        say(f"the live log was read through event {footer.last_sequence}")
        yield copy
