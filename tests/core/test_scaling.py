"""The scaling rules, on the rows where earlier rules of this kind went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.events import Signals
from elasticgrid.core.samples import SampleBatch, StepSample, admit
from elasticgrid.core.scaling import POLICY_VERSION, AppliedChange, Measured, Ruling, Situation, rule_on
from elasticgrid.core.spec import PPM, ScalingPolicy
from elasticgrid.core.window import observe, open_window, signals_of

POLICY = ScalingPolicy(min_evidence_ms=30_000, warmup_steps=0)
NOW = 10_000_000
S = 1_000_000


def steps(*rows: tuple[float, float], nodes: int, data_wait_s: float = 0.0, tokens: int = 1000) -> Signals:
    """Signals of steps (duration_s, queue_s), reported one after the other by a one-rank world of `nodes` nodes."""
    window = open_window(1, nodes, 1, POLICY)
    at_ms = NOW - round(1000 * sum(duration for duration, _ in rows))
    for index, (duration_s, queue_s) in enumerate(rows):
        at_ms += round(duration_s * 1000)
        sample = StepSample(index, index + 1, duration_s, queue_s, data_wait_s, tokens, nodes, at_ms)
        admitted = admit(SampleBatch(1, 1, 0, [sample]), sample)
        assert not isinstance(admitted, str)
        window = observe(window, [admitted], at_ms)
    return signals_of(window)


def five(duration_s: float, queue_s: float, nodes: int) -> Signals:
    return steps(*[(duration_s, queue_s)] * 5, nodes=nodes)


def job(nodes: int, **changes: object) -> Situation:
    values: dict[str, object] = {
        "current_nodes": nodes,
        "min_nodes": 1,
        "max_nodes": 1024,
        "start_nodes": 1,
        "round": 1,
        "restart_ms": 120_000,
    }
    return Situation(**(values | changes))  # type: ignore[arg-type] # the fields' types are checked by the cases


def ask(situation: Situation, signals: Signals, policy: ScalingPolicy = POLICY, as_of_ms: int = NOW) -> Ruling:
    return rule_on(situation, signals, policy, as_of_ms)


def applied(from_nodes: int, to_nodes: int, ago_s: int, restart_s: int = 10) -> AppliedChange:
    return AppliedChange(NOW - ago_s * 1000, from_nodes, to_nodes, restart_s * 1000, voluntary=True)


def test_growing_by_a_small_factor_still_adds_a_node() -> None:
    policy = ScalingPolicy(grow_factor_ppm=1_500_000, warmup_steps=0)
    ruling = ask(job(1), five(10, 8, 1), policy)
    assert (ruling.action, ruling.target_nodes, ruling.rule) == ("up", 2, "queue_bound")


@pytest.mark.parametrize(
    ("nodes", "signals", "target"),
    [(16, five(10, 8, 16), 8), (16, five(20, 2, 16), 8), (16, Signals(), 8)],
)
def test_a_size_above_the_ceiling_goes_down_to_it_whatever_the_evidence(
    nodes: int, signals: Signals, target: int
) -> None:
    ruling = ask(job(nodes, max_nodes=8), signals)
    assert (ruling.action, ruling.target_nodes, ruling.rule) == ("down", target, "bounds")


@pytest.mark.parametrize("signals", [Signals(), five(1, 0, 2)])
def test_a_size_below_the_floor_goes_up_to_it_whatever_the_evidence(signals: Signals) -> None:
    ruling = ask(job(2, min_nodes=4), signals)
    assert (ruling.action, ruling.target_nodes, ruling.rule) == ("up", 4, "bounds")


def test_one_impossible_queue_among_quiet_steps_decides_nothing() -> None:
    signals = steps((1, 50), *[(10, 0)] * 9, nodes=4)
    assert signals.clamped == 1
    assert ask(job(4), signals).action == "hold"


def test_one_slow_step_among_quick_ones_decides_nothing() -> None:
    signals = steps(*[(4, 0)] * 9, (100, 60), nodes=4)
    assert (ask(job(4), signals).action, ask(job(4), signals).rule) == ("hold", "balanced")


@pytest.mark.parametrize("duration_s", [math.nan, math.inf, -math.inf, -1.0])
def test_a_duration_that_is_no_number_is_refused_at_the_edge(duration_s: float) -> None:
    sample = StepSample(0, 1, duration_s, 0.0, 0.0, 1, 1, 0)
    assert isinstance(admit(SampleBatch(1, 1, 0, [sample]), sample), str)


def test_a_second_before_the_deadline_nothing_is_begun() -> None:
    ruling = ask(job(8, deadline_ms=NOW + 1_000), five(10, 8, 8))
    assert (ruling.action, ruling.rule) == ("hold", "no_time")


def test_with_less_time_left_than_a_restart_costs_nothing_is_shrunk() -> None:
    policy = ScalingPolicy(target_step_us=60 * S, warmup_steps=0)
    signals = five(14, 0, 8)
    assert ask(job(8, restart_ms=720_000), signals, policy).action == "down"
    ruling = ask(job(8, deadline_ms=NOW + 600_000, restart_ms=720_000), signals, policy)
    assert (ruling.action, ruling.rule) == ("hold", "no_time")


def test_the_same_question_has_the_same_answer_twice() -> None:
    situation, signals = job(8), five(10, 8, 8)
    assert ask(situation, signals) == ask(situation, signals)


def test_right_after_an_applied_change_the_next_one_waits_and_says_until_when() -> None:
    ruling = ask(job(8, changes=(applied(4, 8, ago_s=60),)), five(10, 8, 8))
    assert (ruling.action, ruling.rule) == ("hold", "cooldown")
    assert ruling.until_ms == NOW + 60_000


def test_a_job_that_never_changed_has_no_cooldown() -> None:
    assert ask(job(8), five(10, 8, 8)).action == "up"


def test_evidence_of_another_round_counts_for_nothing() -> None:
    ruling = ask(job(16, round=2), five(10, 8, 16))
    assert (ruling.action, ruling.rule) == ("hold", "evidence")


def test_a_size_that_cured_the_queue_is_kept_even_with_a_target() -> None:
    policy = ScalingPolicy(target_step_us=60 * S, warmup_steps=0, cooldown_down_ms=0, reversal_ms=0)
    situation = job(
        16, changes=(applied(8, 16, ago_s=4000),), measured={8: Measured(20 * S, 32_000, 640 * S, 640 * S, True)}
    )
    signals = steps(*[(10, 0)] * 5, nodes=16)
    assert ask(situation, signals, policy).action == "hold"


def test_without_a_target_short_steps_do_not_shrink_a_job() -> None:
    ruling = ask(job(64), steps(*[(1, 0)] * 40, nodes=64))
    assert (ruling.action, ruling.rule) == ("hold", "balanced")


def test_waiting_for_data_is_no_reason_to_grow() -> None:
    ruling = ask(job(8), steps(*[(10, 0)] * 5, nodes=8, data_wait_s=3.0))
    assert ruling.action == "hold"


def test_growth_that_did_not_pay_is_not_repeated() -> None:
    situation = job(
        16, changes=(applied(8, 16, ago_s=4000),), measured={8: Measured(10 * S, 5000, 50 * S, 50 * S, True)}
    )
    ruling = ask(situation, five(10, 3, 16))
    assert (ruling.action, ruling.rule) == ("hold", "queue_bound")
    assert "last growth" in ruling.reason


@pytest.mark.parametrize("tokens", [0, 5000])
def test_growth_that_never_pays_is_tried_once_whether_tokens_are_reported_or_not(tokens: int) -> None:
    sizes, ruling = grown(lambda nodes: (10.0, 3.0, tokens))
    assert sizes == [8, 16]
    assert (ruling.rule, "last growth" in ruling.reason) == ("queue_bound", True)
    assert ("no tokens are reported" in ruling.reason) == (not tokens)


def test_without_tokens_growth_that_makes_steps_shorter_goes_on() -> None:
    sizes, _ = grown(lambda nodes: (800 / nodes, 240 / nodes, 0))
    assert sizes == [8, 16, 32, 64, 128, 256, 512, 1024]


def test_tokens_that_stop_coming_are_no_throughput_of_nothing() -> None:
    sizes, _ = grown(lambda nodes: (80 / nodes, 24 / nodes, 5000 if nodes < 32 else 0), ceiling=64)
    assert sizes == [8, 16, 32, 64]


def test_version_1_of_the_rules_judges_growth_and_speaks_of_idleness_as_it_did() -> None:
    sizes, _ = grown(lambda nodes: (10.0, 3.0, 0), ceiling=64, rules_version=1)
    assert sizes == [8, 16, 32, 64]
    policy = ScalingPolicy(target_step_us=30 * S, warmup_steps=0, shrink_margin_ppm=850_000)
    ruling = ask(job(8, rules_version=1), five(9.1, 0, 8), policy)
    assert ruling.reason.endswith("and 4 nodes would be loaded to 200 %; 8 -> 4")


def grown(
    measure: Callable[[int], tuple[float, float, int]], ceiling: int = 1024, rules_version: int = POLICY_VERSION
) -> tuple[list[int], Ruling]:
    """The sizes a job of 8 nodes takes when nothing but the rules holds it, and what is said at the last one.

    Args:
        measure: duration and queue of a step in seconds, and the tokens of five, by nodes.
    """
    policy = ScalingPolicy(warmup_steps=0, cooldown_up_ms=0, max_changes_per_hour=1000, max_restart_ppm=PPM)
    situation, sizes, now = job(8, max_nodes=ceiling, rules_version=rules_version), [8], NOW
    while True:
        nodes, now = sizes[-1], now + 700_000
        duration_s, queue_s, tokens = measure(nodes)
        signals = five(duration_s, queue_s, nodes)
        signals = msgspec.structs.replace(signals, tokens=tokens, last_sample_ms=now, evidence_ms=60_000)
        ruling = ask(situation, signals, policy, now)
        if ruling.action == "hold":
            return sizes, ruling
        sizes.append(ruling.target_nodes)
        seen = Measured(signals.step_us, tokens, signals.window_us, signals.busy_us, queue_bound=True)
        change = AppliedChange(now, nodes, ruling.target_nodes, 1_000, voluntary=True)
        situation = job(
            ruling.target_nodes,
            max_nodes=ceiling,
            rules_version=rules_version,
            measured={**situation.measured, nodes: seen},
            changes=(*situation.changes, change),
        )


def test_exactly_twenty_percent_is_twenty_percent() -> None:
    assert ask(job(8), five(10, 2, 8)).action == "up"
    assert ask(job(8), five(10, 1.999, 8)).action == "hold"


def test_a_paused_job_keeps_even_a_size_out_of_bounds() -> None:
    ruling = ask(job(16, max_nodes=8, paused="paused for maintenance"), five(10, 8, 16))
    assert (ruling.action, ruling.rule) == ("hold", "paused")


def test_a_change_under_way_holds_until_its_time_is_over() -> None:
    under_way = job(8, in_flight_since_ms=NOW - 1000, in_flight="2 of 8 nodes have not joined yet")
    ruling = ask(under_way, five(10, 8, 8))
    assert (ruling.action, ruling.rule, ruling.until_ms) == ("hold", "in_flight", NOW - 1000 + 600_000)
    assert ask(job(8, in_flight_since_ms=NOW - 600_000), five(10, 8, 8)).action == "up"


def test_a_reversal_soon_after_needs_twice_the_gain() -> None:
    policy = ScalingPolicy(warmup_steps=0, cooldown_up_ms=0)
    shrunk = job(8, changes=(applied(16, 8, ago_s=200),))
    assert ask(shrunk, five(10, 3, 8), policy).rule == "cooldown"
    assert ask(shrunk, five(10, 4, 8), policy).action == "up"


def test_seven_changes_in_an_hour_are_not_made() -> None:
    policy = ScalingPolicy(warmup_steps=0, cooldown_up_ms=0, max_restart_ppm=PPM)
    changes = tuple(applied(n, n + 1, ago_s=3000 - 400 * n) for n in range(1, 7))
    ruling = ask(job(7, changes=changes), five(10, 8, 7), policy)
    assert (ruling.rule, ruling.until_ms) == ("cooldown", changes[0].applied_ms + 3_600_000)


def test_restarts_take_at_most_their_share_of_an_hour() -> None:
    policy = ScalingPolicy(warmup_steps=0, cooldown_up_ms=0)
    changes = (applied(2, 4, ago_s=3000, restart_s=200), applied(4, 8, ago_s=1900, restart_s=100))
    assert ask(job(8, changes=changes), five(10, 8, 8), policy).rule == "cooldown"


def test_no_size_beyond_twice_the_largest_measured_is_tried() -> None:
    policy = ScalingPolicy(grow_factor_ppm=10 * PPM, warmup_steps=0)
    assert ask(job(4), five(10, 8, 4), policy).target_nodes == 8


@pytest.mark.survive("D")
def test_silence_is_not_evidence() -> None:
    ruling = ask(job(8), five(10, 8, 8), as_of_ms=NOW + 200_000)
    assert (ruling.action, ruling.rule) == ("hold", "evidence")


def test_a_mostly_idle_job_with_a_target_gives_nodes_back() -> None:
    policy = ScalingPolicy(target_step_us=20 * S, warmup_steps=0)
    ruling = ask(job(4), steps(*[(10, 0)] * 5, nodes=4, data_wait_s=8.0), policy)
    assert (ruling.action, ruling.target_nodes, ruling.rule) == ("down", 2, "idle")


@pytest.mark.parametrize(
    ("changes", "measured", "says"),
    [
        ({"target_step_us": 30 * S}, {}, "a step of 4 nodes would take 18.2 s of 25.5 s allowed"),
        ({"target_tokens_per_s": 40}, {}, "4 nodes would do 54 tokens/s of 48 needed"),
        (
            {"target_step_us": 30 * S, "target_tokens_per_s": 40},
            {},
            "a step of 4 nodes would take 18.2 s of 25.5 s allowed and 4 nodes would do 54 tokens/s of 48 needed",
        ),
        (
            {"target_step_us": 30 * S},
            {4: Measured(10 * S, 10_000, 50 * S, 50 * S, queue_bound=True)},
            "4 nodes would be loaded to 55 %",
        ),
    ],
)
def test_giving_nodes_back_is_reasoned_with_what_was_compared(
    changes: dict[str, int], measured: dict[int, Measured], says: str
) -> None:
    policy = ScalingPolicy(**{"warmup_steps": 0, "shrink_margin_ppm": 850_000} | changes)
    ruling = ask(job(8, measured=measured), five(9.1, 0, 8), policy)
    assert (ruling.rule, ruling.target_nodes) == ("idle", 4)
    assert ruling.reason == f"0 % of the step was spent waiting for a worker and {says}; 8 -> 4"


@pytest.mark.survive("P")
def test_every_rule_up_to_the_one_that_spoke_is_reported() -> None:
    ruling = ask(job(8), five(10, 8, 8))
    assert [check.rule for check in ruling.checks] == [
        "paused", "bounds", "in_flight", "evidence", "no_time", "cooldown", "queue_bound",
    ]  # fmt: skip
    assert [check.spoke for check in ruling.checks] == [False] * 6 + [True]


@given(
    nodes=st.integers(1, 64),
    queue=st.integers(0, 10 * S),
    wait=st.integers(0, 10 * S),
    low=st.integers(1, 8),
    extra=st.integers(0, 64),
    quantum=st.integers(1, 4),
    target=st.none() | st.integers(1, 100 * S),
)
def test_every_answer_is_within_the_bounds(
    nodes: int, queue: int, wait: int, low: int, extra: int, quantum: int, target: int | None
) -> None:
    low, high = low * quantum, (low + extra) * quantum
    policy = ScalingPolicy(target_step_us=target, warmup_steps=0)
    signals = steps(*[(10, queue / S)] * 5, nodes=nodes, data_wait_s=wait / S)
    ruling = ask(job(nodes, min_nodes=low, max_nodes=high, quantum=quantum), signals, policy)
    if ruling.action != "hold":
        assert low <= ruling.target_nodes <= high
        assert (ruling.target_nodes > nodes) == (ruling.action == "up")


@given(
    work=st.integers(1, 400),
    limit=st.integers(1, 64),
    start=st.integers(1, 64),
    target_s=st.none() | st.integers(1, 100),
)
def test_constant_demand_reaches_a_size_that_stays(work: int, limit: int, start: int, target_s: int | None) -> None:
    """A job whose step takes `work`/n seconds and waits for workers below `limit` nodes settles in a few decisions."""
    policy = ScalingPolicy(
        target_step_us=target_s * S if target_s else None,
        warmup_steps=0,
        reversal_ms=0,
        cooldown_up_ms=0,
        cooldown_down_ms=0,
    )
    nodes, now = start, NOW
    situation = job(nodes, max_nodes=64)
    sizes = [nodes]
    for _ in range(40):
        now += 700_000
        duration_s = work / nodes
        queue_s = 0.35 * duration_s if nodes < limit else 0.0
        window = round(duration_s * S)
        signals = Signals(
            round=1, nodes=nodes, steps=5, round_steps=5, evidence_ms=60_000, last_step=5, step_us=window,
            queue_us=round(queue_s * S), tokens=5000, window_us=5 * window, busy_us=5 * window, last_sample_ms=now,
        )  # fmt: skip
        ruling = rule_on(situation, signals, policy, now)
        if ruling.action == "hold" and ruling.until_ms is None:
            break
        if ruling.action == "hold":
            continue
        measured = {**situation.measured, nodes: Measured(window, 5000, 5 * window, 5 * window, queue_s > 0)}
        change = AppliedChange(now, nodes, ruling.target_nodes, 1_000, voluntary=True)
        nodes = ruling.target_nodes
        sizes.append(nodes)
        situation = job(nodes, max_nodes=64, measured=measured, changes=(*situation.changes, change))
    else:
        pytest.fail(f"no fixed point: {sizes}")
    assert len(sizes) <= 14, sizes
