"""The log as the reading verbs see it: an archive's, or the live one through the gateway."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.core.events import Recorded

PAGE = 1_000


class LiveEvents:
    """The live log, read anew in pages by each iteration, from its beginning to where it ends then."""

    def __init__(self, grid: Gateway) -> None:
        self._grid = grid
        self.last_sequence = 0

    def __iter__(self) -> Iterator[Recorded]:
        from elasticgrid.core.events import Recorded
        from elasticgrid.log.codec import decode
        from elasticgrid.projections.results import EventPage

        after = 0
        while True:
            page = self._grid.get("/v1/events", EventPage, after=after, limit=PAGE)
            for view in page.items:
                raw = msgspec.json.encode(view.event)
                yield Recorded(view.sequence, view.recorded_ms, decode(raw), raw)
                self.last_sequence = view.sequence
            after = page.next_after
            if not page.more:
                return


@contextmanager
def events_of(archive: Path | None, where: dict[str, str | None]) -> Iterator[Iterable[Recorded]]:
    """The events of an archive, or of the live log when none is named; can be iterated more than once.

    Raises:
        NotFound, ArchiveDamaged: of an archive, while iterating.
        InvalidInput, BusUnavailable: of the gateway.
    """
    if archive is not None:
        from elasticgrid.log.archive import ArchivedEvents

        yield ArchivedEvents(archive)
        return
    from elasticgrid.cli.client import gateway

    with gateway(where) as grid:
        yield LiveEvents(grid)


@contextmanager
def exported(where: dict[str, str | None], *, with_samples: bool) -> Iterator[Path]:
    """The live log as an archive that is gone when the block ends.

    Raises:
        InvalidInput, BusUnavailable: of the gateway.
    """
    from elasticgrid.cli.archives import download
    from elasticgrid.cli.client import gateway

    with tempfile.TemporaryDirectory(prefix="elasticgrid-") as folder, gateway(where) as grid:
        copy = Path(folder) / "live.egz"
        download(grid, copy, {"with_samples": with_samples or None})
        yield copy
