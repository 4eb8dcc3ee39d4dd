"""A job's nodes and launches: what is over for ever is kept apart, and nothing is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.job import GONE, JobState
from elasticgrid.core.job_parts import Parts
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

HOUR_MS = 3_600_000


def job_of_many_rounds() -> JobState:
    """A job whose load goes up and down for half a day."""
    grid = SimulatedGrid((ProviderSpec(name="spot", max_nodes=8, market="spot", price_microdollars_per_hour=500_000),))
    scaling = ScalingPolicy(target_tokens_per_s=400, cooldown_down_ms=300_000, reversal_ms=300_000)
    key = grid.submit(
        JobSpec(name="train", command=("train",), max_nodes=6, scaling=scaling),
        Workload(total_steps=4_000, step_ms=60_000, demand=((1_800_000, 5), (2_400_000, 1)), repeat=True),
    )
    for _ in range(12):
        grid.advance(HOUR_MS)
    return grid.job(key)


def test_a_job_of_many_rounds_keeps_few_nodes_that_may_still_change_and_forgets_none() -> None:
    state = job_of_many_rounds()
    assert len(state.nodes) > 30
    assert len(state.nodes.present) < 20
    assert all(node.status in GONE for node in state.nodes.past.values())
    assert all(launch.status == "stopped" for launch in state.launches.past.values())
    placed = [node for launch in state.launches.values() for node in launch.nodes]
    assert sorted(state.nodes) == sorted(placed)
    assert {node.id for node in state.nodes.values()} == set(placed)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9))), st.integers(0, 9))
def test_parts_read_as_one_dictionary_whatever_of_them_is_over(steps: list[tuple[str, int]], least: int) -> None:
    parts: Parts[int] = Parts()
    plain: dict[str, int] = {}
    for name, value in steps:
        if name in parts.past:
            continue
        parts, plain[name] = parts.with_part(name, value), value
        settled = parts.settled(lambda part: part > least)
        assert settled.present == {each: part for each, part in plain.items() if part <= least}
        parts = settled
    assert len(parts) == len(plain)
    assert sorted(parts) == sorted(plain)
    assert sorted(parts.values()) == sorted(plain.values())
    assert parts.named(plain) == [parts[name] for name in plain] == list(plain.values())
    assert (parts.get("x"), "x" in parts) == (None, False)
    with pytest.raises(KeyError):
        parts["x"]
