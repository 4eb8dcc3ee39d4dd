"""What counts as evidence about a round."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.samples import AdmittedSample
from elasticgrid.core.spec import ScalingPolicy
from elasticgrid.core.window import Window, median, observe, open_window, signals_of

S = 1_000_000


def sample(
    step: int, rank: int = 0, duration_s: float = 1.0, queue_s: float = 0.0, *, nodes: int = 2, **more: int
) -> AdmittedSample:
    return AdmittedSample(
        round=more.get("round", 1),
        rank=rank,
        seq=step - 1,
        step=step,
        duration_us=round(duration_s * S),
        queue_us=round(queue_s * S),
        data_wait_us=more.get("data_wait_us", 0),
        tokens=more.get("tokens", 10),
        nodes=nodes,
        queue_clamped=False,
    )


def opened(*, warmup: int = 0, size: int = 8) -> Window:
    return open_window(1, 2, 2, ScalingPolicy(warmup_steps=warmup, window_steps=size))


def test_a_step_counts_when_every_rank_has_reported_it() -> None:
    window = observe(opened(), [sample(1, 0)], 1_000)
    assert signals_of(window).steps == 0
    window = observe(window, [sample(1, 1)], 1_200)
    assert (signals_of(window).steps, signals_of(window).last_step) == (1, 1)


def test_a_step_lasts_as_long_as_its_slowest_rank_and_queues_as_long_as_its_mean_rank() -> None:
    window = observe(opened(), [sample(1, 0, 1.0, 0.4), sample(1, 1, 3.0, 0.8)], 0)
    signals = signals_of(window)
    assert (signals.step_us, signals.queue_us, signals.tokens) == (3 * S, 600_000, 20)


def test_a_second_report_of_a_step_is_dropped_and_counted() -> None:
    window = observe(opened(), [sample(1, 0), sample(1, 0), sample(1, 1), sample(1, 1)], 0)
    assert (signals_of(window).steps, signals_of(window).dropped) == (1, 2)


def test_a_sample_with_another_node_count_is_dropped_and_counted() -> None:
    window = observe(opened(), [sample(1, 0, nodes=4), sample(1, 1)], 0)
    assert (signals_of(window).steps, signals_of(window).dropped) == (0, 1)


def test_a_rank_outside_the_world_is_dropped_and_counted() -> None:
    window = observe(opened(), [sample(1, 7)], 0)
    assert signals_of(window).dropped == 1


def test_samples_of_another_round_leave_the_window_as_it_is() -> None:
    window = opened()
    assert observe(window, [sample(1, 0, round=2)], 5) == window


def test_the_first_steps_of_a_round_are_left_out() -> None:
    window = opened(warmup=2)
    for step in range(1, 6):
        window = observe(window, [sample(step, 0, 100.0 if step < 3 else 1.0), sample(step, 1)], step * 1000)
    signals = signals_of(window)
    assert (signals.steps, signals.round_steps, signals.step_us, signals.evidence_ms) == (3, 3, S, 2_000)


def test_only_the_last_steps_are_kept_but_all_are_counted() -> None:
    window = opened(size=4)
    for step in range(1, 11):
        window = observe(window, [sample(step, 0, float(step)), sample(step, 1)], step)
    signals = signals_of(window)
    assert (signals.steps, signals.round_steps, signals.step_us) == (4, 10, 8_500_000)


def test_steps_that_never_complete_take_bounded_room() -> None:
    window = opened()
    for step in range(1, 3_000):
        window = observe(window, [sample(step, 0)], step)
    assert len(window.pending) <= 1_024


@given(st.lists(st.integers(0, 1_000), max_size=30))
def test_half_of_the_values_are_not_above_the_median(values: list[int]) -> None:
    middle = median(values)
    assert sum(value <= middle for value in values) * 2 >= len(values) or not values


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_how_the_samples_were_cut_into_messages_does_not_matter(shuffler: random.Random, size: int) -> None:
    samples = [sample(step, rank, shuffler.random(), shuffler.random()) for step in range(1, 12) for rank in (0, 1)]
    whole = observe(opened(), samples, 7)
    pieces = opened()
    for start in range(0, len(samples), size):
        pieces = observe(pieces, samples[start : start + size], 7)
    assert pieces == whole
