"""Gaps that are on record: taken again as every decision, told by reports, and nothing to a what-if."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_jobs import QUICK, job, providers

from elasticgrid.bus.subjects import sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.gaps import FLOOR_MS, SETTLE_MS
from elasticgrid.core.job import JobState, initial
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, StepSample, encode_batch
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage, SampleRange
from elasticgrid.review.report_data import gather
from elasticgrid.review.report_html import html_report
from elasticgrid.review.report_markdown import markdown_report
from elasticgrid.review.sample_windows import SampleWindows
from elasticgrid.review.series import job_series
from elasticgrid.review.timeline import timeline
from elasticgrid.review.verify import verify
from elasticgrid.review.whatif import what_if
from elasticgrid.review.whatif_change import Change
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload
from elasticgrid.testing.tamper import forged

MINUTE_MS = 60_000
KEY = ("demo", "train")


@pytest.fixture(scope="module")
def silent() -> SimulatedGrid:
    """A job whose samples are late for ten minutes and whose workers stall for as long; then it shrinks."""
    grid = SimulatedGrid(providers())
    key = grid.submit(job(), Workload(total_steps=1_800, demand=((40 * MINUTE_MS, 3), (1, 1))))
    grid.at(10 * MINUTE_MS, lambda: grid.hold_samples(key, 10 * MINUTE_MS))
    grid.at(22 * MINUTE_MS, lambda: grid.stall(key, 10 * MINUTE_MS))
    grid.run()
    assert grid.job(key).phase == "completed"
    assert [gap.cause for _, gap in gaps(grid.recorded)] == ["late", "unknown"]
    return grid


def gaps(records: list[ev.Recorded]) -> list[tuple[int, ev.GapDecided]]:
    """Where in the list gaps are on record, and each."""
    found = []
    for index, recorded in enumerate(records):
        if isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, ev.GapDecided):
            found.append((index, recorded.event.data))
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}" if path else name)
    else:
        yield path, value


def other(field: str, value: Any) -> Any:
    if field == "data.cause":
        return "stuck" if value != "stuck" else "late"
    return value + 1 if isinstance(value, int) else f"{value}x"


# --------------------------------------------------------------------------------------------------------------------
# Taken again
# --------------------------------------------------------------------------------------------------------------------


def test_a_log_with_gaps_verifies_from_samples_and_from_what_its_decisions_carry(silent: SimulatedGrid) -> None:
    samples, values = verify(silent.recorded, silent.samples), verify(silent.recorded)
    for report in (samples, values):
        assert report.ok, (report.divergences, report.laws)
        assert report.verified == report.decisions
    assert samples.from_samples == values.from_values > len(gaps(silent.recorded))
    assert samples.from_values == 0


def test_where_the_samples_around_a_gap_have_aged_out_it_is_verified_from_its_values(silent: SimulatedGrid) -> None:
    index, _ = gaps(silent.recorded)[1]
    event = silent.recorded[index].event
    assert isinstance(event, ev.Event)
    assert event.basis is not None
    cut = event.basis.samples_through
    rest = [message for message in silent.samples if message.sequence > cut]
    report = verify(silent.recorded, rest, samples_held=SampleRange(cut, silent.evidence.sequence))
    assert report.ok
    assert min(report.from_samples, report.from_values) > 0


#: What a decision says it had read, when it had read more or less but nothing that mattered, changes nothing else.
UNPROVABLE = {"basis.events_through", "basis.samples_through"}


@pytest.mark.parametrize("nth", [0, 1])
def test_every_forged_field_of_a_gap_is_found_and_named(silent: SimulatedGrid, nth: int) -> None:
    index, _ = gaps(silent.recorded)[nth]
    recorded = silent.recorded[index]
    tried = 0
    for field, value in leaves(msgspec.json.decode(recorded.raw)):
        if field in UNPROVABLE or field in ("tenant", "job", "data.type"):
            continue
        try:
            forgery = forged(recorded, field, other(field, value))
        except InvalidInput:  # with a value that no event can have there
            continue
        report = verify([*silent.recorded[:index], forgery, *silent.recorded[index + 1 :]], silent.samples)
        assert [(each.sequence, each.field) for each in report.divergences] == [(recorded.sequence, field)], field
        tried += 1
    assert tried > 30


def test_a_forged_gap_is_found_even_where_the_samples_are_gone(silent: SimulatedGrid) -> None:
    index, gap = gaps(silent.recorded)[0]
    recorded = silent.recorded[index]
    for field in ("from_ms", "until_ms", "threshold_ms", "steps", "work_us", "longest_step_us", "round"):
        forgery = forged(recorded, f"data.{field}", getattr(gap, field) + 1)
        (told,) = verify([*silent.recorded[:index], forgery, *silent.recorded[index + 1 :]]).divergences
        assert f"data.{field}" in f"{told.field} {told.note}".split()
    for field in ("gap_from_ms", "gap_until_ms", "gap_threshold_ms", "gap_steps", "gap_work_us", "gap_longest_us"):
        forgery = forged(recorded, f"data.signals.{field}", getattr(gap.signals, field) + 1)
        (told,) = verify([*silent.recorded[:index], forgery, *silent.recorded[index + 1 :]]).divergences
        assert f"data.signals.{field}" in f"{told.field} {told.note}".split()


def test_a_gap_that_was_left_out_is_missed(silent: SimulatedGrid) -> None:
    for index, _ in gaps(silent.recorded):
        assert not verify([*silent.recorded[:index], *silent.recorded[index + 1 :]], silent.samples).ok


def test_gaps_that_are_short_or_overlap_break_laws(silent: SimulatedGrid) -> None:
    (_, first), (index, second) = gaps(silent.recorded)
    for law, field, value in (
        ("gaps_are_long", "from_ms", second.until_ms - FLOOR_MS),
        ("gaps_are_long", "threshold_ms", 100 * MINUTE_MS),
        ("gaps_follow", "from_ms", first.until_ms - 1),
    ):
        forgery = forged(silent.recorded[index], f"data.{field}", value)
        report = verify([*silent.recorded[:index], forgery, *silent.recorded[index + 1 :]])
        assert law in {each.law for each in report.laws}


STEP_MESSAGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 4_000), st.integers(FLOOR_MS - 1, 1_000_000), st.just(SETTLE_MS)),
        st.integers(1, 60_000),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=30,
)


@given(sent=STEP_MESSAGES, looks=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_whatever_the_pauses_windows_that_are_rebuilt_say_what_the_first_ones_said(
    sent: list[tuple[int, int, int]], looks: list[int]
) -> None:
    """Also in another order than they were asked in, as decisions may reach the log."""
    state = _round_of_two_ranks()
    live, now_ms = EvidenceFold(), 0
    live.open(state)
    said: list[ev.Signals] = []
    messages: list[SampleMessage] = []
    steps = [0, 0]
    for sequence, (pause_ms, duration_ms, rank) in enumerate(sent, 1):
        now_ms += pause_ms
        steps[rank] += 1
        sample = StepSample(steps[rank] - 1, steps[rank], duration_ms / 1_000, 0.0, 0.0, 8, 2, now_ms)
        data = encode_batch(SampleBatch(SAMPLE_VERSION, 1, rank, [sample]))
        live.apply(KEY, sequence, now_ms, data)
        messages.append(SampleMessage(sequence, now_ms, sample_subject(*KEY, rank), data))
        said.append(live.signals(KEY))

    rebuilt = SampleWindows(messages, SampleCoverage(SampleRange(0, len(messages))))
    rebuilt.open(state)
    for look in looks:
        through = min(look, len(messages))
        assert rebuilt.signals(state, through, now_ms) == said[through - 1]


def _round_of_two_ranks() -> JobState:
    members = tuple(ev.Member(node=f"n{rank}", group_rank=rank) for rank in (0, 1))
    return msgspec.structs.replace(initial(*KEY), spec=job(), phase="running", round=1, members=members)


# --------------------------------------------------------------------------------------------------------------------
# Told
# --------------------------------------------------------------------------------------------------------------------


def test_a_timeline_says_how_long_it_was_silent_and_why(silent: SimulatedGrid) -> None:
    late, unknown = [line for line in timeline(silent.recorded) if line.what == "decision.gap"]
    assert late.after == "round 3: no sample for 603 s"
    assert late.reason.startswith("late: steps were taken meanwhile and their samples came later: ")
    assert unknown.reason == "unknown: nothing on record says why"


def test_reports_tell_gaps_in_the_story_and_on_the_lanes(silent: SimulatedGrid) -> None:
    data = gather(silent.recorded, silent.samples, source="run.egz", software="1.0.0")
    assert data.jobs[0].gaps == tuple(gap for _, gap in gaps(silent.recorded))
    for text in (html_report(data), markdown_report(data)):
        assert re.search(r"no sample of round 3 came for 10\.\d min: nothing on record says why \(unknown\)", text)
    marks = [mark for lane in data.lanes for mark in lane.marks if mark.what == "gap"]
    assert len(marks) == 2 * 4
    assert {mark.time_ms for mark in marks} == {gap.from_ms for _, gap in gaps(silent.recorded)}
    series = job_series(silent.recorded, *KEY, as_of_ms=silent.now_ms)
    assert series.lanes == data.lanes


# --------------------------------------------------------------------------------------------------------------------
# What if
# --------------------------------------------------------------------------------------------------------------------


def test_a_gap_is_no_difference_to_a_what_if(silent: SimulatedGrid) -> None:
    for samples in (silent.samples, silent.samples[len(silent.samples) // 2 :]):
        answer = what_if(silent.recorded, samples, Change())
        assert answer.differences == 0
        assert answer.rederived == silent.job(KEY).decisions


def test_another_policy_goes_on_behind_gaps(silent: SimulatedGrid) -> None:
    """A longer cooldown holds the job at its size after both gaps, and the simulation ends as the record does."""
    slower = msgspec.structs.replace(QUICK, cooldown_down_ms=60 * MINUTE_MS, reversal_ms=60 * MINUTE_MS)
    answer = what_if(silent.recorded, silent.samples, Change(scaling=slower))
    assert answer.first_difference is not None
    assert answer.first_difference.time_ms > gaps(silent.recorded)[1][1].until_ms
    assert answer.stopped == ""
    assert next(line.what_if for line in answer.jobs[0].table if line.figure == "outcome") == "completed"
