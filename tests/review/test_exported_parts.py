"""A part of a log, exported by time, can be folded: it is verified, reported on and run again as the whole is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from nats.aio.client import Client

from elasticgrid.bus.streams import ensure_streams
from elasticgrid.core.events import Event, Recorded, WorldDecided
from elasticgrid.log.archive import (
    ArchivedEvents,
    ArchivedSamples,
    ArchiveFilters,
    ArchiveWriter,
    SampleRange,
    read_header,
)
from elasticgrid.log.archive_format import SampleCoverage
from elasticgrid.log.export import export_archive
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.mirror_record import LogRecord, record_of
from elasticgrid.log.restore import restore
from elasticgrid.review.report_data import gather
from elasticgrid.review.state import dump, state_at
from elasticgrid.review.verify import verify_archive
from elasticgrid.review.whatif import what_if
from elasticgrid.review.whatif_change import Change
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.history import SimulatedGrid


async def log_of(grid: SimulatedGrid) -> MemoryLog:
    """The log of a grid, with its sequences and times."""
    clock = VirtualClock()
    log = MemoryLog(clock)
    for recorded in grid.recorded:
        clock.advance((recorded.recorded_ms - clock.now_ms()) / 1_000)
        assert isinstance(recorded.event, Event)
        await log.append([recorded.event])
    return log


def moments(grid: SimulatedGrid) -> list[int]:
    """Times all over the log."""
    times = sorted({recorded.recorded_ms for recorded in grid.recorded})
    return [*times[:: max(len(times) // 20, 1)], times[-1], times[-1] + 1]


def worlds_of(grid: SimulatedGrid) -> list[Recorded]:
    """Where rounds began."""
    return [
        each for each in grid.recorded if isinstance(each.event, Event) and isinstance(each.event.data, WorldDecided)
    ]


async def test_from_whatever_time_a_part_begins_nothing_in_it_diverges(
    one_job: SimulatedGrid, many_jobs: SimulatedGrid, tmp_path: Path
) -> None:
    for grid in (one_job, many_jobs):
        log = await log_of(grid)
        for since_ms in moments(grid):
            path = tmp_path / "part.egz"
            await export_archive(log, None, path, created_ms=0, filters=ArchiveFilters(since_ms=since_ms))
            report = verify_archive(path)
            assert (report.diverged, report.law_breaches) == (0, 0), (since_ms, report.divergences, report.laws)
            assert report.verified > 0 or not report.decisions
            assert report.verified == report.decisions or len(list(grid.fold.jobs())) > 1
            later = [each for each in grid.recorded if each.recorded_ms >= since_ms]
            there = list(ArchivedEvents(path))
            assert there[len(there) - len(later) :] == later


async def test_a_part_has_the_jobs_of_its_time_from_their_submission_and_no_others(
    many_jobs: SimulatedGrid, tmp_path: Path
) -> None:
    ended = sorted((state.finished_ms, state.id) for state in many_jobs.fold.jobs())
    since_ms = ended[1][0] + 1
    log, path = await log_of(many_jobs), tmp_path / "part.egz"
    await export_archive(log, None, path, created_ms=0, filters=ArchiveFilters(since_ms=since_ms))

    header = read_header(path)
    assert (header.filters.since_ms, header.filters.context) == (since_ms, True)
    jobs = {name for _, name in ended[2:]} | {
        each.event.job for each in many_jobs.recorded if each.recorded_ms >= since_ms
    }
    expected = [each for each in many_jobs.recorded if each.event.job in jobs | {"fleet"}]
    assert list(ArchivedEvents(path)) == expected
    for job in {name for _, name in ended[2:]}:
        whole, part = (
            dump(state_at(events, job=f"demo/{job}")) for events in (many_jobs.recorded, ArchivedEvents(path))
        )
        assert whole.split(b'"jobs"')[1] == part.split(b'"jobs"')[1]


async def test_a_part_of_one_job_and_of_a_span_can_be_folded_too(many_jobs: SimulatedGrid, tmp_path: Path) -> None:
    times = [recorded.recorded_ms for recorded in many_jobs.recorded]
    log, path = await log_of(many_jobs), tmp_path / "part.egz"
    filters = ArchiveFilters(job="job3", since_ms=times[len(times) // 3], until_ms=times[2 * len(times) // 3])
    await export_archive(log, None, path, created_ms=0, filters=filters)
    assert {each.event.job for each in ArchivedEvents(path)} == {"job3", "fleet"}
    assert max(each.recorded_ms for each in ArchivedEvents(path)) < times[2 * len(times) // 3]
    report = verify_archive(path)
    assert (report.diverged, report.law_breaches) == (0, 0)
    assert report.verified > 5


@pytest.mark.server
async def test_a_part_has_the_samples_of_the_rounds_that_ran_when_it_begins(
    one_job: SimulatedGrid, bus_client: Client, tmp_path: Path
) -> None:
    async def source() -> AsyncGenerator[LogRecord]:
        for recorded in one_job.recorded:
            yield record_of(recorded)

    await ensure_streams(bus_client)
    await restore(bus_client, source)
    for message in one_job.samples:
        await bus_client.jetstream().publish(message.subject, message.data)
    _, second, third, *_ = worlds_of(one_job)
    since_ms = (second.recorded_ms + third.recorded_ms) // 2
    path = tmp_path / "part.egz"
    await export_archive(
        JetStreamLog(bus_client),
        bus_client,
        path,
        created_ms=0,
        filters=ArchiveFilters(since_ms=since_ms),
        with_samples=True,
    )
    assert isinstance(second.event, Event)
    assert second.event.basis is not None
    held = read_header(path).samples
    assert held is not None
    assert (held.after, held.through) == (second.event.basis.samples_through, len(one_job.samples))
    assert [each.sequence for each in ArchivedSamples(path)] == list(range(held.after + 1, held.through + 1))
    assert verify_archive(path).diverged == 0


def part(grid: SimulatedGrid, path: Path, since_ms: int, after: int) -> Path:
    """What an export writes of a log and its samples."""
    filters = ArchiveFilters(since_ms=since_ms, context=True)
    held = SampleRange(after, grid.samples[-1].sequence)
    with ArchiveWriter(path, created_ms=0, filters=filters, samples=held) as writer:
        for recorded in grid.recorded:
            writer.add_event(recorded)
        for message in grid.samples[after:]:
            writer.add_samples(message)
    return path


def test_a_part_is_reported_on_and_run_under_another_policy(one_job: SimulatedGrid, tmp_path: Path) -> None:
    world = worlds_of(one_job)[2]
    assert isinstance(world.event, Event)
    assert world.event.basis is not None
    path = part(one_job, tmp_path / "part.egz", world.recorded_ms + 1_000, world.event.basis.samples_through)
    header = read_header(path)
    assert header.samples is not None
    report = verify_archive(path)
    assert report.ok
    assert report.from_samples > 0
    told = gather(
        ArchivedEvents(path),
        ArchivedSamples(path),
        samples_held=header.samples,
        source="part.egz",
        software=header.software,
        complete=header.filters.everything,
    )
    assert [each.job for each in told.jobs] == ["train"]
    change = Change(scaling_values={"cooldown_down_ms": 600_000})
    whole = what_if(one_job.recorded, one_job.samples, change)
    answer = what_if(ArchivedEvents(path), ArchivedSamples(path), change, coverage=SampleCoverage(header.samples))
    assert answer.first_difference == whole.first_difference
    assert answer.untold
    assert not answer.stopped


def test_what_an_older_export_cut_off_is_unverifiable_and_no_divergence(one_job: SimulatedGrid, tmp_path: Path) -> None:
    late = one_job.recorded[len(one_job.recorded) // 2 :]
    path = tmp_path / "late.egz"
    with ArchiveWriter(path, created_ms=0, filters=ArchiveFilters(since_ms=late[0].recorded_ms)) as writer:
        for recorded in late:
            writer.add_event(recorded)
    report = verify_archive(path)
    assert report.decisions > 5
    assert (report.diverged, report.law_breaches, report.unverifiable) == (0, 0, report.decisions)
