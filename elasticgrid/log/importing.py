"""From an archive into the log of an empty grid, for people to look at.

The jobs come in as records: under a tenant of their own whose name begins with `_`, so that nobody decides about them
and nothing is launched. Events keep their bytes but for the tenant, their ids and the time they were first recorded.
They get new sequences, and so does how far a decision says it had read the log. Facts about the grid that it came from
and samples stay in the archive; what is to be verified or run under another policy is the archive itself.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from elasticgrid.bus.api import last_message
from elasticgrid.bus.subjects import EVENTS_STREAM, event_filter
from elasticgrid.core.errors import ArchiveDamaged, Conflict, InvalidInput
from elasticgrid.core.events import Recorded
from elasticgrid.core.names import GRID_TENANT, is_name, is_record
from elasticgrid.log.archive import ArchivedEvents, SampleMessage, read_archive
from elasticgrid.log.codec import decode
from elasticgrid.log.envelope import subject_of
from elasticgrid.log.mirror_record import LogRecord
from elasticgrid.log.port import EventLog
from elasticgrid.log.restore import RestoreProgress, append_all

OnProgress = Callable[[int], None]

#: What errors about the archive that was sent name it by.
ARCHIVE: Final = "archive"
_DAMAGED: Final = "get the file again; `elasticgrid replay verify FILE --salvage` says what of it is good"


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What came into the log.

    Attributes:
        tenant: under which the jobs are now.
        jobs, events: how many of each.
        first_sequence, last_sequence: of these events in this log; 0 when there were none.
        left_out_grid_events: facts about the archived grid itself, its providers say; they stay in the archive.
        left_out_samples: messages of step samples; likewise.
    """

    tenant: str
    jobs: int
    events: int
    first_sequence: int
    last_sequence: int
    left_out_grid_events: int
    left_out_samples: int


def record_tenant(name: str) -> str:
    """The tenant that is meant by a name: itself with a `_` in front, unless there is one.

    Raises:
        InvalidInput: it is no name, or the grid's own.
    """
    tenant = name if is_record(name) else f"_{name}"
    if not is_name(tenant) or tenant == GRID_TENANT:
        raise InvalidInput(
            f"{name[:80]!r} cannot be a tenant of records", where="tenant", hint="lower-case letters, digits, - and _"
        )
    return tenant


async def import_archive(
    log: EventLog, client: Client | None, path: Path, tenant: str, *, on_progress: OnProgress | None = None
) -> Imported:
    """Append the archive's events to a log that has no events of jobs yet.

    The whole archive is proven before anything is appended.

    Args:
        log: the log.
        client: a connection to the bus it is on, which may append everything.
        path: the archive.
        tenant: see `record_tenant`.
        on_progress: told how many events were appended so far.

    Raises:
        NotFound, ArchiveDamaged: as `read_archive`; nothing was appended.
        InvalidInput: this log is on no bus, two tenants of the archive have a job of one id, or the tenant is none.
        Conflict: the grid is not empty; nothing was appended.
        LogDiverged: somebody else appended at the same time; a part may have been appended.
        BusUnavailable: the bus went away; a part may have been appended.
    """
    name = record_tenant(tenant)
    if client is None:
        raise InvalidInput("this grid's log is on no bus", hint="import into a grid that `elasticgrid up` runs")
    try:
        contents = await asyncio.to_thread(_look_through, path)
    except ArchiveDamaged as error:
        # Where it lies here says nothing to whoever sent it.
        place = error.where.removeprefix(str(path)).removeprefix(": ")
        raise ArchiveDamaged(error.what, where=f"{ARCHIVE}: {place}" if place else ARCHIVE, hint=_DAMAGED) from error
    await _require_empty(log)
    head = await last_message(client, EVENTS_STREAM, event_filter())
    after = head.seq if head is not None else 0

    async def records() -> AsyncGenerator[LogRecord]:
        for sequence, recorded in enumerate(_of_jobs(path), after + 1):
            yield _renamed(recorded, sequence, name, after, contents.sequences)

    def told(progress: RestoreProgress) -> None:
        if on_progress is not None:
            on_progress(progress.records)

    last = await append_all(client, records, after=after, on_progress=told)
    return Imported(
        tenant=name,
        jobs=contents.jobs,
        events=contents.events,
        first_sequence=after + 1 if contents.events else 0,
        last_sequence=last if contents.events else 0,
        left_out_grid_events=contents.grid_events,
        left_out_samples=contents.samples,
    )


class _Contents(msgspec.Struct, frozen=True):
    """`sequences`: of the events of jobs, in the archive."""

    jobs: int
    events: int
    sequences: array[int]
    grid_events: int
    samples: int


def _look_through(path: Path) -> _Contents:
    """Prove every record of the archive, and count."""
    tenant_of: dict[str, str] = {}
    sequences = array("Q")
    grid_events = samples = 0
    for record in read_archive(path):
        samples += isinstance(record, SampleMessage)
        if not isinstance(record, Recorded):
            continue
        event = record.event
        if event.tenant == GRID_TENANT:
            grid_events += 1
            continue
        sequences.append(record.sequence)
        if tenant_of.setdefault(event.job, event.tenant) != event.tenant:
            raise InvalidInput(
                f"the tenants {tenant_of[event.job]} and {event.tenant} both have a job {event.job}",
                where=ARCHIVE,
                hint="export one tenant at a time",
            )
    return _Contents(len(tenant_of), len(sequences), sequences, grid_events, samples)


def _of_jobs(path: Path) -> Iterator[Recorded]:
    return (recorded for recorded in ArchivedEvents(path) if recorded.event.tenant != GRID_TENANT)


def _renamed(recorded: Recorded, sequence: int, tenant: str, after: int, sequences: array[int]) -> LogRecord:
    raw: dict[str, Any] = msgspec.json.decode(recorded.raw)
    raw["tenant"] = tenant
    basis = raw.get("basis")
    if isinstance(basis, dict) and isinstance(basis.get("events_through"), int):
        read = bisect_right(sequences, basis["events_through"])
        basis["events_through"] = after + read if read else 0
    data = msgspec.json.encode(raw)
    return LogRecord(sequence, recorded.recorded_ms, subject_of(decode(data)), data)


async def _require_empty(log: EventLog) -> None:
    async for recorded in log.read():
        event = recorded.event
        if event.tenant != GRID_TENANT:
            raise Conflict(
                f"the grid is not empty: there is a job {event.job} of {event.tenant}",
                hint="import into one that is: elasticgrid up --data study",
            )
