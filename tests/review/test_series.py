"""A job over time, as the columns of plots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_jobs import providers

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.job import cost_microdollars
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, StepSample, decode_batch
from elasticgrid.review.series import MAX_STEP_POINTS, StepFold, job_series
from elasticgrid.testing.history import SimulatedGrid

KEY = ("demo", "train")


def steps_of(grid: SimulatedGrid) -> StepFold:
    fold = StepFold()
    for message in grid.samples:
        batch = decode_batch(message.data)
        assert not isinstance(batch, str)
        if parse_sample_subject(message.subject) == KEY:
            fold.take(message.sequence, message.time_ms, batch)
    return fold


def test_a_jobs_series_tell_its_rounds_its_sizes_and_what_it_cost(one_job: SimulatedGrid) -> None:
    state = one_job.job(KEY)
    series = job_series(one_job.recorded, *KEY, as_of_ms=one_job.now_ms, steps=steps_of(one_job).columns())
    assert [each.round for each in series.rounds] == list(range(1, state.round + 1))
    assert all(each.to_ms is not None and each.to_ms > each.from_ms for each in series.rounds)
    assert max(series.target.value) == max(series.training.value) == 4
    assert series.training.value[-1] == 0
    assert series.cost.value[-1] * 1e6 == pytest.approx(cost_microdollars(state, state.finished_ms), rel=0.01)
    assert {lane.provider for lane in series.lanes} == {each.name for each in providers()}
    assert next(each.action for each in series.decisions if each.action != "hold") == "up"
    assert series.finished_ms == state.finished_ms


def test_steps_are_told_from_samples_round_by_round_and_in_order(one_job: SimulatedGrid) -> None:
    columns = steps_of(one_job).columns()
    assert columns.source == "samples"
    assert list(columns.round) == sorted(columns.round)
    assert all(0 <= share <= 1 for share in columns.queue_share)
    assert max(columns.queue_share) > 0.5
    spans = {each.round: each for each in job_series(one_job.recorded, *KEY, as_of_ms=one_job.now_ms).rounds}
    for at_ms, number in zip(columns.time_ms, columns.round, strict=True):
        assert spans[number].from_ms - 5_000 <= at_ms <= (spans[number].to_ms or 0) + 5_000


def test_without_samples_steps_are_what_the_decisions_saw(one_job: SimulatedGrid) -> None:
    series = job_series(one_job.recorded, *KEY, as_of_ms=one_job.now_ms)
    assert series.steps.source == "decisions"
    assert 0 < len(series.steps.time_ms) <= len(series.decisions)


def test_what_goes_on_is_drawn_until_now(one_job: SimulatedGrid) -> None:
    half = one_job.recorded[: len(one_job.recorded) // 2]
    later_ms = half[-1].recorded_ms + 60_000
    series = job_series(half, *KEY, as_of_ms=later_ms)
    assert series.finished_ms is None
    assert series.as_of_ms == series.cost.time_ms[-1] == later_ms
    assert series.cost.value[-1] > series.cost.value[-2]
    assert series.paid.value[-1] > 0


def test_a_job_that_is_not_in_the_log_is_not_found(one_job: SimulatedGrid) -> None:
    with pytest.raises(NotFound):
        job_series(one_job.recorded, "demo", "nobody", as_of_ms=0)


def batch(round_number: int, first: int, durations_s: list[float]) -> SampleBatch:
    return SampleBatch(
        SAMPLE_VERSION,
        round_number,
        0,
        [
            StepSample(
                seq=index,
                step=first + index,
                duration_s=duration_s,
                queue_s=duration_s / 2,
                data_wait_s=0.0,
                tokens=100,
                nodes=2,
                time_ms=0,
            )
            for index, duration_s in enumerate(durations_s)
        ],
    )


def test_steps_of_one_message_ended_one_after_the_other_until_it_came() -> None:
    fold = StepFold()
    fold.take(1, 10_000, batch(1, 1, [1.0, 2.0, 3.0]))
    columns = fold.columns()
    assert columns.time_ms == (5_000, 7_000, 10_000)
    assert columns.step_s == (1.0, 2.0, 3.0)
    assert set(columns.queue_share) == {0.5}
    assert columns.tokens_per_s == (200.0, 100.0, 66.67)


def test_a_message_that_comes_twice_and_numbers_that_are_none_change_nothing() -> None:
    fold = StepFold()
    fold.take(1, 10_000, batch(1, 1, [1.0]))
    before = fold.columns()
    fold.take(1, 10_000, batch(1, 1, [1.0]))
    fold.take(2, 11_000, batch(1, 2, [float("nan"), -1.0, float("inf")]))
    assert fold.columns() == before


@settings(deadline=None, max_examples=50)  # the slowest example says nothing of the law
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 400)), min_size=1, max_size=30))
def test_however_long_a_job_runs_so_much_is_kept_and_no_more(messages: list[tuple[int, int]]) -> None:
    fold, step, now_ms, number = StepFold(), 1, 0, 1
    for sequence, (rounds, count) in enumerate(messages, 1):
        number += rounds % 2
        now_ms += count * 1_000
        fold.take(sequence, now_ms, batch(number, step, [1.0] * min(count, 512)))
        step += count
    columns = fold.columns()
    assert 0 < len(columns.time_ms) <= MAX_STEP_POINTS
    assert columns.time_ms[-1] == now_ms
    assert set(columns.step_s) == {1.0}


def test_members_of_a_job_that_tells_of_no_step_train_from_when_their_world_was_decided(one_job: SimulatedGrid) -> None:
    def tells(recorded: ev.Recorded) -> bool:
        return isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, ev.NodeStarted)

    silent = [each for each in one_job.recorded if not tells(each)]
    told = job_series(one_job.recorded, *KEY, as_of_ms=one_job.now_ms)
    series = job_series(silent, *KEY, as_of_ms=one_job.now_ms)
    assert [(each.round, each.nodes) for each in series.rounds] == [(each.round, each.nodes) for each in told.rounds]
    assert all(one.from_ms <= other.from_ms for one, other in zip(series.rounds, told.rounds, strict=True))
    assert max(series.training.value) == max(told.training.value) == 4
    for one, other in zip(series.lanes, told.lanes, strict=True):
        assert [bar.doing for bar in one.bars].count("training") == [bar.doing for bar in other.bars].count("training")
        assert all(bar.to_ms > bar.from_ms for bar in one.bars)
        assert [bar.from_ms for bar in one.bars][1:] == [bar.to_ms for bar in one.bars][:-1]
