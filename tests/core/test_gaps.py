"""Gaps in a round's samples: when there is one, what its cause is, and what is evidence behind it."""

from __future__ import annotations

from statistics import median_low

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.events import Signals
from elasticgrid.core.gaps import FLOOR_MS, SETTLE_MS, STEPS, gap_cause
from elasticgrid.core.job import JobState, initial
from elasticgrid.core.job_gaps import gap_to_record
from elasticgrid.core.samples import AdmittedSample
from elasticgrid.core.scaling import Situation, rule_on
from elasticgrid.core.spec import ScalingPolicy
from elasticgrid.core.window import Window, observe, open_window, signals_of

S = 1_000_000
SECOND_MS = 1_000
MINUTE_MS = 60_000


def step(number: int, duration_s: float = 1.0, *, rank: int = 0, round_number: int = 1) -> AdmittedSample:
    return AdmittedSample(
        round=round_number,
        rank=rank,
        seq=number - 1,
        step=number,
        duration_us=round(duration_s * S),
        queue_us=0,
        data_wait_us=0,
        tokens=10,
        nodes=1,
        queue_clamped=False,
    )


def opened(*, warmup: int = 0, size: int = 16, ranks: int = 1) -> Window:
    return open_window(1, 1, ranks, ScalingPolicy(warmup_steps=warmup, window_steps=size))


def trained(steps: int, *, step_s: float = 1.0, warmup: int = 0) -> tuple[Window, int]:
    """A window after so many steps, one message for each, and the time of the last."""
    window, now_ms = opened(warmup=warmup), MINUTE_MS
    for number in range(1, steps + 1):
        now_ms += round(step_s * SECOND_MS)
        window = observe(window, [step(number, step_s)], now_ms)
    return window, now_ms


def gap_of(window: Window) -> tuple[int, int, int]:
    signals = signals_of(window)
    return signals.gap_from_ms, signals.gap_until_ms, signals.gap_threshold_ms


# --------------------------------------------------------------------------------------------------------------------
# When there is one
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "threshold_ms"), [(1.0, 300_000), (30.0, 300_000), (45.0, 450_000)])
def test_a_gap_is_longer_than_ten_usual_steps_and_five_minutes(step_s: float, threshold_ms: int) -> None:
    window, now_ms = trained(20, step_s=step_s)
    within = observe(window, [step(21)], now_ms + threshold_ms)
    assert gap_of(within) == (0, 0, 0)
    beyond = observe(window, [step(21)], now_ms + threshold_ms + 1)
    assert gap_of(beyond) == (now_ms, now_ms + threshold_ms + 1, threshold_ms)


def test_silence_before_the_first_sample_of_a_round_is_no_gap() -> None:
    window = observe(opened(), [step(1)], 90 * MINUTE_MS)
    assert gap_of(window) == (0, 0, 0)


def test_a_rank_that_goes_on_breaks_the_silence() -> None:
    window = opened(ranks=2)
    for minute in range(1, 20):
        window = observe(window, [step(minute)], minute * MINUTE_MS)
    window = observe(window, [step(1, rank=1)], 20 * MINUTE_MS)
    assert gap_of(window) == (0, 0, 0)


def test_samples_of_another_round_end_no_silence() -> None:
    window, now_ms = trained(5)
    passed = observe(window, [step(6, round_number=2)], now_ms + 10 * MINUTE_MS)
    assert passed == window


def test_before_a_step_has_counted_the_longest_one_seen_is_the_usual_one() -> None:
    """A job whose steps take eight minutes has no gap between its first two."""
    eight_min_s = 480.0
    for window in (opened(warmup=1), opened(warmup=1, ranks=2)):
        window = observe(window, [step(1, eight_min_s)], MINUTE_MS)
        window = observe(window, [step(2, eight_min_s)], 9 * MINUTE_MS)
        assert gap_of(window) == (0, 0, 0)


def test_steps_that_become_long_are_gaps_until_they_are_the_usual_ones() -> None:
    window, now_ms = trained(20)
    gaps = []
    for number in range(21, 41):
        now_ms += 8 * MINUTE_MS
        window = observe(window, [step(number, 480.0)], now_ms)
        gaps.append(gap_of(window)[1] == now_ms)
    assert gaps == [True] * gaps.count(True) + [False] * gaps.count(False)
    assert 0 < gaps.count(True) < 12


# --------------------------------------------------------------------------------------------------------------------
# What it was
# --------------------------------------------------------------------------------------------------------------------


def after_gap(steps: list[tuple[int, float]], *, silent_ms: int = 10 * MINUTE_MS) -> Signals:
    """Signals after a gap and these steps: (milliseconds behind its end, seconds that it took)."""
    window, now_ms = trained(20)
    for number, (later_ms, duration_s) in enumerate(steps, 21):
        window = observe(window, [step(number, duration_s)], now_ms + silent_ms + later_ms)
    return signals_of(window)


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        pytest.param([(0, 100.0), (1, 100.0), (9_000, 100.0)], "late", id="half of it was worked on, told late"),
        pytest.param([(0, 100.0), (1, 100.0), (9_000, 99.9)], "unknown", id="less than half of it was worked on"),
        pytest.param([(0, 300.0)], "long_step", id="one step took half of it"),
        pytest.param([(0, 299.9)], "unknown", id="one step took less than half of it"),
        pytest.param([(0, 300.0), (5, 300.0)], "long_step", id="two steps took it up"),
        pytest.param(
            [(0, 1.0), (10_000, 300.0)], "long_step", id="the long step is told at the end of the settle time"
        ),
        pytest.param([(0, 1.0), (10_001, 300.0)], "unknown", id="the long step is told after the settle time"),
    ],
)
def test_the_cause_is_judged_by_the_steps_that_complete_right_behind_it(
    steps: list[tuple[int, float]], cause: str
) -> None:
    assert gap_cause(after_gap(steps), 0) == cause


@pytest.mark.parametrize(
    ("said_ms", "cause"), [(-1, "unknown"), (0, "stuck"), (610_000, "stuck"), (610_001, "unknown")]
)
def test_stuck_is_what_a_node_said_meanwhile(said_ms: int, cause: str) -> None:
    signals = after_gap([(0, 1.0)])
    assert gap_cause(signals, signals.gap_from_ms + said_ms) == cause


def test_steps_that_were_taken_speak_louder_than_a_word_of_a_node() -> None:
    signals = after_gap([(0, 200.0), (1, 200.0)])
    assert gap_cause(signals, signals.gap_from_ms + MINUTE_MS) == "late"


# --------------------------------------------------------------------------------------------------------------------
# What is evidence behind it
# --------------------------------------------------------------------------------------------------------------------


def test_behind_a_gap_evidence_begins_anew_with_the_steps_after_its_settle_time() -> None:
    signals = after_gap([(0, 600.0), (5_000, 2.0), (10_001, 3.0), (13_001, 3.0), (16_001, 3.0)])
    assert (signals.steps, signals.round_steps, signals.evidence_ms) == (3, 3, 6_000)
    assert (signals.step_us, signals.window_us, signals.tokens) == (3 * S, 9 * S, 30)
    assert (signals.gap_steps, signals.gap_work_us, signals.gap_longest_us) == (2, 602 * S, 600 * S)
    assert signals.last_step == 25


def test_the_silent_time_is_no_time_of_training_for_any_rule() -> None:
    """Two steps, ten minutes of silence and three steps are not enough evidence, however long that took."""
    policy = ScalingPolicy(min_samples=3, min_evidence_ms=30_000, warmup_steps=0)
    job = Situation(current_nodes=1, min_nodes=1, max_nodes=4, start_nodes=1, round=1)
    window, now_ms = trained(2)
    until_ms = now_ms + 10 * MINUTE_MS
    for number, later_ms in enumerate((0, SETTLE_MS + 1, SETTLE_MS + 5_000, SETTLE_MS + 9_000), 3):
        window = observe(window, [step(number)], until_ms + later_ms)
    ruling = rule_on(job, signals_of(window), policy, until_ms + SETTLE_MS + 9_000)
    assert (ruling.rule, ruling.action) == ("evidence", "hold")
    assert ruling.reason == "9 s of 30 s of evidence seen since the gap in the samples"


def test_the_next_gap_takes_the_place_of_the_last_one() -> None:
    window, now_ms = trained(20)
    first_ms = now_ms + 10 * MINUTE_MS
    window = observe(window, [step(21, 600.0)], first_ms)
    window = observe(window, [step(22)], first_ms + 6 * MINUTE_MS)
    signals = signals_of(window)
    assert (signals.gap_from_ms, signals.gap_until_ms) == (first_ms, first_ms + 6 * MINUTE_MS)
    assert (signals.gap_steps, signals.gap_longest_us, signals.steps) == (1, S, 0)


# --------------------------------------------------------------------------------------------------------------------
# When it is to be recorded
# --------------------------------------------------------------------------------------------------------------------


def state(**changes: object) -> JobState:
    return msgspec.structs.replace(initial("demo", "train"), phase="running", round=1, **changes)


def test_a_gap_is_recorded_once_its_settle_time_is_over_and_only_once() -> None:
    signals = after_gap([(0, 600.0)])
    due_ms = signals.gap_until_ms + SETTLE_MS + 1
    assert gap_to_record(state(), signals, due_ms - 1) is None
    told = gap_to_record(state(), signals, due_ms)
    assert told is not None
    assert (told.cause, told.from_ms, told.until_ms) == ("long_step", signals.gap_from_ms, signals.gap_until_ms)
    assert told.signals == signals
    assert gap_to_record(state(gap_until_ms=told.until_ms), signals, due_ms) is None


def test_a_gap_that_ends_elsewhere_after_samples_were_lost_is_the_same_gap() -> None:
    signals = after_gap([(0, 600.0)])
    due_ms = signals.gap_until_ms + SETTLE_MS + 1
    recorded_before = state(gap_until_ms=signals.gap_until_ms - 2_000)
    assert gap_to_record(recorded_before, signals, due_ms) is None


@pytest.mark.parametrize("changes", [{"phase": "draining"}, {"round": 2}])
def test_only_a_round_that_runs_has_gaps_to_record(changes: dict[str, object]) -> None:
    signals = after_gap([(0, 600.0)])
    other = msgspec.structs.replace(state(), **changes)
    assert gap_to_record(other, signals, signals.gap_until_ms + SETTLE_MS + 1) is None


# --------------------------------------------------------------------------------------------------------------------
# The law
# --------------------------------------------------------------------------------------------------------------------

PAUSES = st.one_of(
    st.integers(0, 5_000),
    st.integers(0, 3_600_000),
    st.integers(FLOOR_MS - 2, FLOOR_MS + 2),
    st.sampled_from([SETTLE_MS, SETTLE_MS + 1]),
)
DURATIONS_MS = st.one_of(st.integers(1, 2_000), st.integers(1, 120_000))


@given(
    messages=st.lists(st.tuples(PAUSES, DURATIONS_MS), min_size=1, max_size=40),
    warmup=st.integers(0, 2),
    size=st.integers(3, 8),
)
def test_whatever_the_pauses_a_gap_is_noted_exactly_when_it_is_longer_than_the_threshold(
    messages: list[tuple[int, int]], warmup: int, size: int
) -> None:
    window, now_ms = opened(warmup=warmup, size=size), MINUTE_MS
    gap = (0, 0, 0)
    behind: list[int] = []
    fresh: list[int] = []
    durations: list[int] = []
    for number, (pause_ms, duration_ms) in enumerate(messages, 1):
        before_ms, now_ms = now_ms, now_ms + pause_ms
        counted = durations[warmup:][-size:]
        usual_ms = (
            (median_low(counted) + sorted(counted)[len(counted) // 2]) / 2 if counted else max(durations, default=0)
        )
        threshold_ms = max(FLOOR_MS, int(STEPS * usual_ms))
        if number > 1 and pause_ms > threshold_ms:
            gap, behind, fresh = (before_ms, now_ms, threshold_ms), [], []
        durations.append(duration_ms)
        if gap[1] and now_ms <= gap[1] + SETTLE_MS:
            behind.append(duration_ms)
        elif number > warmup:
            fresh.append(duration_ms)
        window = observe(window, [step(number, duration_ms / 1_000)], now_ms)

        signals = signals_of(window)
        assert gap_of(window) == gap
        assert (signals.gap_steps, signals.gap_work_us) == (len(behind), sum(behind) * 1_000)
        assert signals.gap_longest_us == max(behind, default=0) * 1_000
        assert signals.round_steps == len(fresh)
        assert signals.window_us == sum(fresh[-size:]) * 1_000
