"""A log that is well is replaced only by what begins with all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import Recorded
from elasticgrid.core.spec import JobSpec
from elasticgrid.log.archive import ArchiveWriter
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_record import LogRecord, record_of
from elasticgrid.log.restore import archive_source
from elasticgrid.log.restore_check import require_extension
from elasticgrid.testing.history import SimulatedGrid


@pytest.fixture(scope="module")
def log() -> list[Recorded]:
    """Of a grid with one job, whose environment has a credential."""
    return log_of("train")


def log_of(name: str) -> list[Recorded]:
    grid = SimulatedGrid()
    grid.submit(JobSpec(name=name, command=("train",), env={"PGPASSWORD": "sesame"}, min_nodes=1, max_nodes=2))
    grid.run()
    return grid.recorded


def archived(path: Path, records: Sequence[Recorded]) -> Path:
    with ArchiveWriter(path, created_ms=0) as archive:
        for recorded in records:
            archive.add_event(recorded)
    return path


async def mirrored(path: Path, records: Sequence[Recorded]) -> Path:
    async with await Mirror.open(path) as mirror:
        await mirror.append([record_of(recorded) for recorded in records])
    return path


@pytest.mark.parametrize("kept", [0, 5, None])
async def test_an_archive_that_goes_on_from_the_mirror_may_replace_it(
    log: list[Recorded], tmp_path: Path, kept: int | None
) -> None:
    mirror = await mirrored(tmp_path / "mirror", log[:kept])
    await require_extension(mirror, archive_source(archived(tmp_path / "log.egz", log)))


async def test_without_a_mirror_that_can_be_read_anything_may_take_its_place(
    log: list[Recorded], tmp_path: Path
) -> None:
    source = archive_source(archived(tmp_path / "log.egz", log))
    await require_extension(tmp_path / "none", source)
    (tmp_path / "junk").write_bytes(b"junk" * 1_000)
    await require_extension(tmp_path / "junk", source)


async def test_messages_that_are_no_events_are_in_no_archive_and_are_not_missed(
    log: list[Recorded], tmp_path: Path
) -> None:
    async with await Mirror.open(tmp_path / "mirror") as mirror:
        await mirror.append([record_of(log[0]), LogRecord(2, 5, "grid.events.x.y.job.z", b"?", is_event=False)])
        later = [msgspec.structs.replace(each, sequence=each.sequence + 1) for each in log[1:]]
        await mirror.append([record_of(each) for each in later])
    source = archive_source(archived(tmp_path / "log.egz", [log[0], *later]))
    await require_extension(tmp_path / "mirror", source)


@pytest.mark.parametrize("wrong", ["older", "another", "empty", "changed"])
async def test_an_archive_that_lacks_an_event_is_refused_and_the_first_one_is_named(
    log: list[Recorded], tmp_path: Path, wrong: str
) -> None:
    mirror = await mirrored(tmp_path / "mirror", log)
    records, first = {
        "older": (log[:7], log[7]),
        "another": (log_of("other"), None),
        "empty": ([], log[0]),
        "changed": ([*log[:4], msgspec.structs.replace(log[4], recorded_ms=1), *log[5:]], log[4]),
    }[wrong]
    if first is None:
        first = next(mine for mine, other in zip(log, records, strict=False) if mine.raw != other.raw)
    with pytest.raises(InvalidInput) as refused:
        await require_extension(mirror, archive_source(archived(tmp_path / "log.egz", records)))
    assert refused.value.where == f"event {first.sequence}"
    assert f"{len(log) - log.index(first)} event" in refused.value.what
    assert "--force" in refused.value.hint
    assert first.event.id in refused.value.story[0]
