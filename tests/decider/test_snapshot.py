"""A snapshot is a cache: with it the fold is the same to the byte, and without it only slower."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import pytest

from elasticgrid.core.events import Recorded
from elasticgrid.core.grid import GridFold
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.decider import snapshot
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_record import record_of
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload


def a_history(*, start_ms: int = 1_750_000_000_000) -> list[Recorded]:
    """Several jobs that grow, shrink, fail and end, on two providers one of which is out of stock for a while."""
    grid = SimulatedGrid(
        (
            ProviderSpec(name="spot", max_nodes=2, market="spot", price_microdollars_per_hour=500_000),
            ProviderSpec(name="dear", max_nodes=4, price_microdollars_per_hour=2_000_000),
        ),
        start_ms=start_ms,
    )
    grid.fail_launches("spot", "stockout", "no more capacity in the zone")
    scaling = ScalingPolicy(
        cooldown_up_ms=30_000, target_tokens_per_s=20_000, default_restart_ms=10_000, min_evidence_ms=10_000
    )
    for index in range(3):
        spec = JobSpec(name=f"job{index}", command=("train",), min_nodes=1, max_nodes=3, scaling=scaling)
        key = grid.submit(spec, Workload(total_steps=300, demand=((100_000, 3), (1, 1))))
        if index == 1:
            grid.at(120_000, lambda: grid.fail_worker(key))  # noqa: B023 # called within this round of the loop only
    grid.run()
    return grid.recorded


HISTORY = a_history()


def folded(events: list[Recorded], fold: GridFold | None = None) -> GridFold:
    fold = fold if fold is not None else GridFold()
    for recorded in events:
        fold.apply(recorded)
    return fold


def dump(fold: GridFold) -> bytes:
    return msgspec.json.encode(fold.snapshot())


def rewrite(path: Path, change: Callable[[bytes], bytes] | None) -> None:
    """Change a file as other hands would; None deletes it."""
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


@pytest.fixture
async def mirror(tmp_path: Path) -> AsyncGenerator[Mirror]:
    async with await Mirror.open(tmp_path / "mirror.sqlite") as mirror:
        await mirror.append([record_of(recorded) for recorded in HISTORY])
        yield mirror


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decider" / snapshot.FILE_NAME


async def test_folding_from_any_snapshot_is_folding_everything(mirror: Mirror, path: Path) -> None:
    everything = dump(folded(HISTORY))
    for sequence in [0, 1, 2, *range(3, len(HISTORY), max(len(HISTORY) // 20, 1)), len(HISTORY)]:
        before = folded(HISTORY[:sequence])
        assert await snapshot.save(path, before, mirror)
        loaded = await snapshot.load(path, mirror)
        assert loaded is not None
        assert dump(loaded) == dump(before)
        assert list(loaded.jobs()) == list(before.jobs())
        # From the beginning again: what was folded already changes nothing.
        assert dump(folded(HISTORY, loaded)) == everything


async def test_events_folded_after_a_snapshot_do_not_change_it(mirror: Mirror, path: Path) -> None:
    fold = folded(HISTORY[:50])
    taken, was = fold.snapshot(), dump(fold)
    folded(HISTORY, fold)
    assert msgspec.json.encode(taken) == was
    assert dump(folded(HISTORY, GridFold.restore_from(taken))) == dump(fold)


async def test_a_restored_fold_looks_no_further_back_than_its_snapshot() -> None:
    (key,) = {(job.tenant, job.id) for job in folded(HISTORY).jobs() if job.id == "job0"}
    whole = folded(HISTORY[:80])
    fold = folded(HISTORY[:80], GridFold.restore_from(folded(HISTORY[:60]).snapshot()))
    for sequence in range(60, 81):
        assert fold.at(key, sequence) == whole.at(key, sequence)
    assert fold.at(key, 59) is None


async def test_without_a_snapshot_there_is_none(mirror: Mirror, path: Path) -> None:
    assert await snapshot.load(path, mirror) is None
    await snapshot.save(path, folded(HISTORY), mirror)
    rewrite(path, None)
    assert await snapshot.load(path, mirror) is None


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def resealed(data: bytes) -> bytes:
    """Other contents under a digest that fits."""
    packed = data[40:-20]
    return data[:8] + hashlib.sha256(packed).digest() + packed


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        resealed,
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"something else " * 100,
        lambda data: data.replace(b"egsnap1", b"egsnap2"),
    ],
    ids=["bit flipped", "resealed", "cut", "longer", "short", "empty", "foreign", "other version of the file"],
)
async def test_a_damaged_snapshot_is_ignored_and_replaced(
    mirror: Mirror, path: Path, damage: Callable[[bytes], bytes]
) -> None:
    fold = folded(HISTORY)
    assert await snapshot.save(path, fold, mirror)
    rewrite(path, damage)
    assert await snapshot.load(path, mirror) is None
    assert await snapshot.save(path, fold, mirror)
    loaded = await snapshot.load(path, mirror)
    assert loaded is not None
    assert dump(loaded) == dump(fold)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_snapshot_of_another_fold_is_ignored(
    mirror: Mirror, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await snapshot.save(path, folded(HISTORY), mirror)
    monkeypatch.setattr(snapshot, "fold_version", lambda: "another core")
    assert await snapshot.load(path, mirror) is None


async def test_a_snapshot_of_another_log_is_ignored(mirror: Mirror, path: Path, tmp_path: Path) -> None:
    await snapshot.save(path, folded(HISTORY), mirror)
    other = a_history(start_ms=1_760_000_000_000)
    for name, events in (("other", other), ("shorter", HISTORY[:-1]), ("empty", [])):
        async with await Mirror.open(tmp_path / name) as elsewhere:
            await elsewhere.append([record_of(recorded) for recorded in events])
            assert await snapshot.load(path, elsewhere) is None
    async with await Mirror.open(tmp_path / "rebuilt") as rebuilt:
        await rebuilt.append([record_of(recorded) for recorded in HISTORY])
        assert await snapshot.load(path, rebuilt) is not None


async def test_what_the_mirror_does_not_have_is_not_saved(path: Path, tmp_path: Path) -> None:
    async with await Mirror.open(tmp_path / "behind") as behind:
        assert not await snapshot.save(path, folded(HISTORY), behind)
        await behind.append([record_of(recorded) for recorded in HISTORY])
        assert await snapshot.load(path, behind) is None


async def test_a_folder_that_cannot_be_written_costs_the_snapshot_only(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not await snapshot.save(tmp_path / "file" / snapshot.FILE_NAME, folded(HISTORY), mirror)
    assert await snapshot.load(tmp_path / "file" / snapshot.FILE_NAME, mirror) is None
