"""From the live streams into an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.client import Client

from elasticgrid.bus.api import last_message, stream_info
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM, parse_sample_subject
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import Event, QuotaSet, Recorded
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.names import ACCESS, GRID_TENANT
from elasticgrid.log.archive_format import ArchiveFilters, SampleMessage, SampleRange
from elasticgrid.log.archive_writer import ArchiveWriter
from elasticgrid.log.port import EventLog

OnProgress = Callable[[int], None]

#: So many records are written before others get their turn: a log in memory never waits by itself.
_TURN: Final = 500


class Exported(msgspec.Struct, frozen=True):
    """What went into an archive: how many events and sample messages, and where the live log ended."""

    events: int
    samples: int
    redacted: int
    last_sequence: int


async def export_archive(
    log: EventLog,
    client: Client | None,
    path: Path,
    *,
    created_ms: int,
    filters: ArchiveFilters = ArchiveFilters(),  # noqa: B008 - frozen
    with_samples: bool = False,
    on_progress: OnProgress | None = None,
) -> Exported:
    """Write what the log holds now into an archive.

    What is appended while it is being written is not in it. `on_progress` is told the sequence reached.

    Args:
        log: the events.
        client: a connection to the bus that keeps the samples; None where there is none.
        path: the file.
        created_ms: the time to note, Unix milliseconds.
        filters: which part of the log.
        with_samples: also the step samples that have not aged out.
        on_progress: told now and then.

    Raises:
        InvalidInput: samples are wanted, and there is no bus that keeps any.
        BusUnavailable, LogError: the streams cannot be read; no archive is left then.
    """
    if with_samples and client is None:
        raise InvalidInput("this log keeps no step samples", hint="export it without them")
    through = await log.last_sequence()
    part = await _part_of(log, through, filters)
    held = None
    if with_samples:
        assert client is not None
        held = await held_samples(client, filters)
        if part.samples_after is not None:
            held = SampleRange(max(held.after, min(part.samples_after, held.through)), held.through)
    with ArchiveWriter(path, created_ms=created_ms, filters=part.filters, samples=held) as writer:
        async for recorded in log.read(through=through):
            if part.wants(recorded):
                writer.add_event(recorded)
            if recorded.sequence % _TURN == 0:
                await asyncio.sleep(0)
            if on_progress is not None:
                on_progress(recorded.sequence)
        if held is not None:
            assert client is not None
            async for message in read_samples(client, held, filters):
                if part.wants_samples(message):
                    writer.add_samples(message)
    return Exported(writer.events, writer.samples, writer.redacted, through)


class _Part(msgspec.Struct, frozen=True):
    """Which records go into an archive.

    Attributes:
        filters: what was asked for.
        jobs: the jobs that are in it from some time on, whose earlier events are needed to fold them; None for any.
        samples_after: samples from this sequence on; None for all.
    """

    filters: ArchiveFilters
    jobs: frozenset[JobKey] | None = None
    samples_after: int | None = None

    def wants(self, recorded: Recorded) -> bool:
        """Whether an event is in it."""
        key = (recorded.event.tenant, recorded.event.job)
        return _is_wanted(recorded, self.filters) and (self.jobs is None or key[0] == GRID_TENANT or key in self.jobs)

    def wants_samples(self, message: SampleMessage) -> bool:
        """Whether a message of samples is."""
        until_ms = self.filters.until_ms
        if until_ms is not None and message.time_ms >= until_ms:
            return False
        return self.jobs is None or parse_sample_subject(message.subject) in self.jobs


async def _part_of(log: EventLog, through: int, filters: ArchiveFilters) -> _Part:
    """What is needed of the log.

    A part that begins in the middle has its jobs from their submission, and the grid from its beginning: without that
    nothing in it could be folded. Samples it has from where the first of the rounds of then began.
    """
    if filters.since_ms is None:
        return _Part(filters)
    fold = GridFold(memory=0)
    jobs: set[JobKey] = set()
    begun = False
    read_through = 0
    async for recorded in log.read(through=through):
        event = recorded.event
        if recorded.sequence % _TURN == 0:
            await asyncio.sleep(0)
        if not begun and recorded.recorded_ms < filters.since_ms:
            fold.apply(recorded)
            if isinstance(event, Event) and event.basis is not None:
                read_through = max(read_through, event.basis.samples_through)
            continue
        if filters.until_ms is not None and recorded.recorded_ms >= filters.until_ms:
            break
        begun = True
        if event.tenant != GRID_TENANT and _is_wanted(recorded, filters):
            jobs.add((event.tenant, event.job))
    living = [
        state
        for state in fold.jobs()
        if not state.terminal and filters.tenant in ("*", state.tenant) and filters.job in ("*", state.id)
    ]
    jobs |= {(state.tenant, state.id) for state in living}
    # Between two jobs nothing of theirs can have come before what the last decision had read.
    samples_after = min((state.round_samples_after for state in living if state.round), default=read_through)
    return _Part(msgspec.structs.replace(filters, context=True), frozenset(jobs), samples_after)


async def held_samples(client: Client, filters: ArchiveFilters = ArchiveFilters()) -> SampleRange:  # noqa: B008 - frozen
    """Which part of the samples stream is there."""
    state = (await stream_info(client, SAMPLES_STREAM)).state
    last = await last_message(client, SAMPLES_STREAM, _subjects(filters))
    return SampleRange(max(state.first_seq - 1, 0), last.seq if last is not None else max(state.first_seq - 1, 0))


async def read_samples(
    client: Client,
    held: SampleRange,
    filters: ArchiveFilters = ArchiveFilters(),  # noqa: B008 - frozen
) -> AsyncGenerator[SampleMessage]:
    """The messages of that part, in order."""
    if held.through <= held.after:
        return
    async with Follower(client, SAMPLES_STREAM, _subjects(filters), after=held.after, lossy=True) as follower:
        while follower.last_sequence < held.through:
            for message in await follower.next_batch():
                if message.sequence <= held.through:
                    yield SampleMessage(message.sequence, message.time_ms, message.subject, message.data)


def _subjects(filters: ArchiveFilters) -> str:
    return f"{SAMPLES_ROOT}.{filters.tenant}.{filters.job}.>"


def _is_wanted(recorded: Recorded, filters: ArchiveFilters) -> bool:
    """Whether an event belongs to the part of the log.

    Facts about providers do whoever's jobs are asked for: no decision that looked for nodes can be taken again
    without them. Of tenants and keys nothing goes out with a part that is somebody's but that tenant's own quotas,
    which decisions depend on. When a part begins is not looked at here.
    """
    event = recorded.event
    if event.tenant == GRID_TENANT and event.job == ACCESS and not (filters.tenant == "*" and filters.job == "*"):
        chosen = (
            isinstance(event, Event) and isinstance(event.data, QuotaSet) and filters.tenant in ("*", event.data.tenant)
        )
    else:
        chosen = filters.tenant in ("*", event.tenant) and filters.job in ("*", event.job)
        chosen = chosen or event.tenant == GRID_TENANT
    return chosen and (filters.until_ms is None or recorded.recorded_ms < filters.until_ms)
