"""Damaged archives as the reading verbs see them: what is good is used, what is missing is said, and the code tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_grid import Run

from elasticgrid.core.events import Event, Recorded, ScaleDecided
from elasticgrid.log.archive import ArchivedEvents, ArchiveWriter, SampleRange
from elasticgrid.log.archive_format import SequenceGap
from elasticgrid.log.archive_salvage import ArchiveDamage, look_for_damage
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid

#: Every verb that reads an archive.
READERS = [
    ("replay", "verify", "log.egz"),
    ("replay", "timeline", "log.egz"),
    ("replay", "state", "log.egz"),
    ("replay", "report", "log.egz", "--out", "report.md"),
    ("replay", "whatif", "log.egz", "--set", "scaling.cooldown_down_s=600"),
    ("decisions", "why", "train", "--archive", "log.egz"),
    ("events", "show", "3", "--archive", "log.egz"),
    ("events", "show", "20", "--causes", "--archive", "log.egz"),
]


@pytest.fixture
def log(archive: Path, folder: Path) -> Path:
    """A whole archive, in the current folder."""
    path = folder / "log.egz"
    path.write_bytes(archive.read_bytes())
    return path


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


@pytest.mark.parametrize("line", READERS, ids=" ".join)
def test_every_reader_says_what_is_missing_and_ends_with_1(line: tuple[str, ...], run: Run, log: Path) -> None:
    cut(log, 0.7)
    if line[0] != "events":  # an event is shown without what comes behind it
        refused = run(*line)
        assert refused.code == 1
        assert "--salvage" in refused.err
    ended = run(*line, "--salvage")
    assert ended.code == 1
    assert "damaged: everything from record " in ended.err
    assert "error: " not in ended.err


@pytest.mark.parametrize("line", READERS, ids=" ".join)
def test_nothing_is_missing_from_an_archive_that_is_whole(line: tuple[str, ...], run: Run, log: Path) -> None:
    ended = run(*line, "--salvage")
    assert ended.code == 0
    assert "damaged" not in ended.err
    with_it, without = ended, run(*line, *(["--force"] if "report" in line else []))
    assert without.out == with_it.out


@pytest.mark.parametrize("verb", [line[:2] for line in READERS[:5]], ids=" ".join)
def test_the_live_log_is_not_salvaged(verb: tuple[str, ...], run: Run) -> None:
    out = ("--out", "report.md") if "report" in verb else ()
    ended = run(*verb, "--salvage", *out)
    assert ended.code == 2
    assert "about an archive" in ended.err


def test_half_of_a_short_archive_is_still_verified(run: Run, folder: Path, history: SimulatedGrid) -> None:
    with ArchiveWriter(folder / "log.egz", created_ms=0) as writer:
        for recorded in history.recorded:
            writer.add_event(recorded)
    cut(folder / "log.egz", 0.6)
    report = run("replay", "verify", "log.egz", "--salvage", "--json")
    assert report.code == 1
    assert report.json()["verified"] == report.json()["decisions"] > 3
    assert (report.json()["diverged"], report.json()["law_breaches"]) == (0, 0)
    (missing,) = report.json()["missing"]
    assert missing["last"] is None
    told = run("replay", "verify", "log.egz", "--salvage")
    assert f"from record {missing['first']} on, at byte {missing['offset']}" in told.err
    named = told.err.partition("next: elasticgrid ")[2].splitlines()[0].split()
    assert run(*named).out


def test_of_an_archive_without_anything_good_no_next_step_is_named(run: Run, log: Path) -> None:
    with ArchiveWriter(log, created_ms=0):
        pass
    cut(log, 0.8)
    ended = run("replay", "verify", log, "--salvage")
    assert ended.code == 1
    assert "next:" not in ended.err


def test_wherever_a_byte_is_wrong_a_true_decision_is_never_called_wrong(
    run: Run, log: Path, history: SimulatedGrid
) -> None:
    whole = log.read_bytes()
    for at in range(700, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        log.write_bytes(bytes(damaged))
        ended = run("replay", "verify", log, "--salvage", "--json")
        report = ended.json()
        # A seal that is damaged costs nothing: its frame is proven line by line.
        assert ended.code == (1 if report["missing"] else 0), at
        assert report["missing"] or report["events"] == len(history.recorded), at
        assert (report["diverged"], report["law_breaches"], report["divergences"]) == (0, 0, []), at
        assert report["verified"] + report["unverifiable"] == report["decisions"]
        if report["events"] == len(history.recorded):
            assert report["verified"] == report["decisions"]


def test_a_hole_in_the_events_makes_unverifiable_what_rests_on_it(
    history: SimulatedGrid,
) -> None:
    """As a salvage finds it, but with a hole of known size."""
    records = history.recorded
    for begin in range(3, len(records) - 3, 7):
        left = [*records[:begin], *records[begin + 2 :]]
        gap = SequenceGap(records[begin - 1].sequence, records[begin + 2].sequence)
        report = verify(left, history.samples, damage=ArchiveDamage(event_gaps=(gap,)))
        assert report.ok, (begin, report.divergences, report.laws)
        assert report.verified + report.unverifiable == report.decisions


def test_behind_missing_events_nothing_is_asked_of_another_policy(
    run: Run, folder: Path, history: SimulatedGrid
) -> None:
    path = folder / "log.egz"
    with ArchiveWriter(path, created_ms=0, samples=SampleRange(0, len(history.samples))) as writer:
        for recorded in history.recorded:
            writer.add_event(recorded)
        for message in history.samples:
            writer.add_samples(message)
    data = bytearray(path.read_bytes())
    holes = 0
    for at in range(600, len(data), 97):
        damaged = bytearray(data)
        damaged[at] ^= 1
        path.write_bytes(bytes(damaged))
        gap = next((each for each in look_for_damage(path).event_gaps if each.before is not None), None)
        if gap is None:
            continue
        holes += 1
        answer = run("replay", "whatif", path, "--salvage", "--set", "scaling.grow_factor=4", "--json")
        if gap.after < 3:
            assert answer.code in (1, 3)
            continue
        assert answer.code == 1
        assert f"only events through {gap.after} are looked at" in answer.err
        first = answer.json()["first_difference"]
        assert first is None or first["after_sequence"] <= gap.after
    assert holes


def scaled(recorded: Recorded) -> bool:
    """Whether a size was decided on here."""
    return isinstance(recorded.event, Event) and isinstance(recorded.event.data, ScaleDecided)


def test_lost_samples_leave_the_rounds_they_belong_to_to_the_values(folder: Path, history: SimulatedGrid) -> None:
    whole = verify(history.recorded, history.samples)
    reads = [each.event.basis.samples_through for each in history.recorded if scaled(each)]  # type: ignore[union-attr]
    through = reads[len(reads) // 2]
    left = [*history.samples[: through - 2], *history.samples[through + 1 :]]
    gap = SequenceGap(through - 2, through + 2)
    report = verify(history.recorded, left, damage=ArchiveDamage(sample_gaps=(gap,)))
    assert report.ok
    assert report.verified == whole.verified
    assert 0 < report.from_samples < whole.from_samples
    path = folder / "log.egz"
    with ArchiveWriter(path, created_ms=0, samples=SampleRange(0, len(history.samples))) as writer:
        for recorded in history.recorded:
            writer.add_event(recorded)
        for message in history.samples:
            writer.add_samples(message)
    assert look_for_damage(path) == ArchiveDamage()
    data = bytearray(path.read_bytes())
    data[-400] ^= 1
    path.write_bytes(bytes(data))
    damage = look_for_damage(path)
    assert len(list(ArchivedEvents(path, salvage=True))) == len(history.recorded)
    assert damage.missing
    assert damage.sample_gaps
    assert not any(gap.before is not None for gap in damage.event_gaps)
