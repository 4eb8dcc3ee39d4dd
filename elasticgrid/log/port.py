"""The `EventLog` port: what every log can do, whatever keeps it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from elasticgrid.core.events import Event, Recorded, Writer

MAX_BATCH = 1_000


class Scope(msgspec.Struct, frozen=True):
    """A part of the log: all of it, a tenant's, a job's, or what one writer wrote about a job."""

    tenant: str = "*"
    job: str = "*"
    writer: Writer | None = None


class Expectation(msgspec.Struct, frozen=True):
    """The append goes through only if `sequence` is the last one in `scope` (0: nothing is there yet)."""

    scope: Scope
    sequence: int


class EventLog(Protocol):
    """An append-only, totally ordered log of events."""

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """Append one event, or several as one atomic batch, and return the first and last sequence.

        An append that had landed and is tried again (the answer was lost) returns the sequences it landed at. All
        events of a batch concern one job.

        Raises:
            Conflict: `expect` does not hold; nothing was appended.
            BusUnavailable: it is not known whether it landed; call again with the same events.
            InvalidInput: no events, more than `MAX_BATCH`, or more than one job.
        """
        ...

    def read(self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """Yield events with after < sequence <= through in order, ending at `through` or the last one there is now.

        Raises:
            LogGap: sequences are missing.
        """
        ...

    def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """Yield events after `after` in order, for ever, through any restart of the server.

        Raises:
            LogGap: sequences are missing and do not appear when read again.
        """
        ...

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """The last sequence in `scope`, 0 when it is empty. Never a stale answer."""
        ...
