"""What a run under chaos kills, and what it makes of the outcome."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.demo.chaos_plan import FIRST_S, GAP_S, KINDS, LAST_S, MOST_MORE, chaos_plan
from elasticgrid.demo.report import ChaosResult, DemoResult, Kill, Run, judge_chaos
from elasticgrid.review.report import VerifyReport
from elasticgrid.review.summary import RunSummary

SEEDS = st.integers(min_value=0, max_value=2**63)
#: Moments are rounded to hundredths of a second.
ROUNDED_S = 0.011


@given(SEEDS)
def test_every_part_is_killed_at_least_once_in_time_and_never_two_at_once(seed: int) -> None:
    plan = chaos_plan(seed)
    kinds = [kill.what for kill in plan]
    assert set(kinds) == set(KINDS)
    assert len(KINDS) <= len(plan) <= len(KINDS) + MOST_MORE
    # A job may lose only so much in a minute.
    assert (kinds.count("agent"), kinds.count("worker")) == (1, 1)
    assert all(FIRST_S - ROUNDED_S <= kill.at_s <= LAST_S + ROUNDED_S for kill in plan)
    assert all(after.at_s - before.at_s >= GAP_S - ROUNDED_S for before, after in pairwise(plan))
    assert all(0 <= kill.pick < 1 for kill in plan)


@given(SEEDS)
def test_a_seed_always_has_the_same_kills(seed: int) -> None:
    assert chaos_plan(seed) == chaos_plan(seed)


def test_seeds_differ_in_what_is_killed_first_and_in_when() -> None:
    plans = [chaos_plan(seed) for seed in range(100)]
    assert {plan[0].what for plan in plans} == set(KINDS)
    assert len(set(plans)) == len(plans)


KILLS = (Kill(at_s=1.0, what="bus", pid=7),)


def outcome(**changes: Any) -> ChaosResult:
    summary = RunSummary(
        tenant="default",
        job="j",
        phase=changes.get("phase", "completed"),
        outcome_reason="",
        worlds=(2,),
        steps=280,
        duplicate_steps=changes.get("duplicate_steps", 0),
        lost_steps=5,
        unreported_steps=0,
        loss_first=3.0,
        loss_last=3.5,
        decisions=9,
        scale_ups=0,
        scale_downs=0,
        launches=1,
        failed_launches=0,
        nodes_lost=1,
        nodes_by_provider={"here": 2},
        duration_s=1.0,
        cost_usd=0.0,
    )
    diverged = changes.get("diverged", 0)
    report = VerifyReport(
        events=40,
        jobs=1,
        first_sequence=1,
        last_sequence=40,
        missing_sequences=0,
        decisions=9,
        verified=9 - diverged,
        diverged=diverged,
        unverifiable=0,
        from_samples=9 - diverged,
        from_values=0,
    )
    run = Run(summary=summary, report=report, published=1, dropped=0, duration_s=60.0, archive=Path("demo.egz"))
    return judge_chaos(
        run,
        seed=3,
        planned=1,
        kills=changes.get("kills", KILLS),
        orphans=changes.get("orphans", 0),
    )


def test_a_run_that_came_through_has_no_failure_whatever_its_sizes_and_losses() -> None:
    result = outcome()
    assert (result.failures, result.seed, result.orphans, result.kills) == ((), 3, 0, KILLS)
    assert set(ChaosResult.__struct_fields__) - set(DemoResult.__struct_fields__) == {"seed", "kills", "orphans"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"phase": "failed"}, "the job ended as failed"),
        ({"duplicate_steps": 2}, "steps of the committed line that ran twice: 2"),
        ({"diverged": 1}, "decisions that came out differently when they were taken again: 1"),
        ({"orphans": 4}, "processes left behind: 4"),
        ({"kills": ()}, "0 of 1 kills happened before the job was over"),
    ],
)
def test_everything_that_must_hold_is_a_failure_when_it_does_not(changes: dict[str, Any], says: str) -> None:
    assert says in outcome(**changes).failures[0]
