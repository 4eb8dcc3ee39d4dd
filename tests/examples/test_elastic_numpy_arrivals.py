"""The example's arrival schedule and the wait it measures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from arrivals import Schedule, WorkQueue

pytestmark = pytest.mark.usefixtures("example_on_path")


class Clock:
    """Time that passes only when somebody sleeps or the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def queue_at(
    clock: Clock,
    phases: str,
    taken: int = 0,
    passed: list[tuple[int, float]] | None = None,
    limit: int | None = None,
) -> WorkQueue:
    from arrivals import Schedule, WorkQueue

    plan = Schedule.parse(phases)
    return WorkQueue(plan, 1_000.0, taken=taken, limit=limit, passed=passed or [], now_s=clock, sleep=clock.sleep)


def schedule(phases: str) -> Schedule:
    from arrivals import Schedule

    return Schedule.parse(phases)


def test_items_arrive_at_the_rate_of_their_phase_and_the_last_phase_goes_on() -> None:
    plan = schedule("10:4,5:0,1:2")
    assert [plan.arrived(t) for t in (0, 1, 10, 15, 16, 20)] == [0, 4, 40, 40, 42, 50]
    assert plan.arrival_s(39) == pytest.approx(10)
    assert plan.arrival_s(40) == pytest.approx(15.5)


@pytest.mark.parametrize("phases", ["", "10", "10:a", "0:5", "10:5,1:0", "-1:5"])
def test_a_schedule_that_says_nothing_or_ends_is_refused(phases: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - parsing and range errors have no common text
        schedule(phases)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200)), max_size=4),
    st.integers(1, 200),
    st.integers(0, 5_000),
)
def test_an_item_has_arrived_at_its_arrival_and_not_before(
    phases: list[tuple[int, int]], last_rate: int, item: int
) -> None:
    plan = schedule(",".join(f"{seconds}:{rate}" for seconds, rate in [*phases, (1, last_rate)]))
    arrival_s = plan.arrival_s(item)
    assert plan.arrived(arrival_s) >= item + 1
    assert plan.arrived(arrival_s - 0.001) <= item


def test_a_batch_that_is_not_full_waits_for_arrivals_and_nobody_was_passed_over() -> None:
    clock = Clock()
    queue = queue_at(clock, "1:10")
    assert queue.take(4, max_wait_s=60) == (0, 4, 0.0)
    assert clock.now == pytest.approx(1_000.4)


def test_a_part_of_a_batch_is_taken_when_the_wait_is_over_but_never_nothing() -> None:
    clock = Clock()
    queue = queue_at(clock, "1:10")
    assert queue.take(100, max_wait_s=0.5) == (0, 5, 0.0)
    slow = queue_at(clock, "100:0,1:1")
    assert slow.take(4, max_wait_s=0.5) == (0, 1, 0.0)


def test_an_item_waits_from_the_boundary_that_passed_it_over_to_the_one_that_takes_it() -> None:
    clock = Clock()
    queue = queue_at(clock, "1:10")
    clock.now = 1_001.0
    assert queue.take(4, max_wait_s=0) == (0, 4, 0.0)  # items 4 to 9 are passed over at 1
    clock.now = 1_001.5
    assert queue.take(4, max_wait_s=0) == (4, 4, 0.5)  # 8 and 9 still wait, 10 to 14 are passed over at 1.5
    clock.now = 1_001.6
    first, items, queue_s = queue.take(4, max_wait_s=0)
    assert (first, items) == (8, 4)
    assert queue_s == pytest.approx((0.6 + 0.6 + 0.1 + 0.1) / 4)


def test_of_more_items_than_may_wait_the_oldest_are_dropped_and_the_waits_of_the_others_stay_true() -> None:
    clock = Clock()
    queue = queue_at(clock, "1:10", limit=5)
    clock.now = 1_001.0
    assert queue.take(4, max_wait_s=0) == (1, 4, 0.0)  # of 10 items 0 is dropped, 5 to 9 are passed over at 1
    clock.now = 1_001.5
    first, items, queue_s = queue.take(4, max_wait_s=0)  # of 15 items 5 is dropped
    assert (first, items) == (6, 4)
    assert queue_s == pytest.approx(0.5)
    clock.now = 1_009.0
    assert queue.take(4, max_wait_s=0) == (81, 4, 0.0)  # those that were passed over earlier are all gone
    assert queue.taken == 85


@given(st.integers(1, 9), st.integers(0, 30), st.lists(st.floats(0, 20), max_size=30))
def test_no_more_items_than_the_limit_wait_after_a_boundary_and_none_is_taken_twice(
    most: int, limit: int, pauses_s: list[float]
) -> None:
    clock = Clock()
    plan = schedule("3:0,4:20,1:2")
    queue = queue_at(clock, "3:0,4:20,1:2", limit=limit)
    following = 0
    for pause_s in pauses_s:
        clock.now += pause_s
        first, items, queue_s = queue.take(most, max_wait_s=1.0)
        assert first >= following
        assert queue.taken == first + items
        assert plan.arrived(clock.now - 1_000.0) - queue.taken <= limit
        assert queue_s >= 0
        following = queue.taken


def test_waits_go_on_through_a_checkpoint() -> None:
    clock = Clock()
    before = queue_at(clock, "1:10")
    clock.now = 1_001.0
    before.take(4, max_wait_s=0)
    clock.now = 1_004.0
    after = queue_at(clock, "1:10", taken=before.taken, passed=before.passed)
    assert after.take(2, max_wait_s=0) == (4, 2, 3.0)


def test_the_first_to_ask_sets_the_start_of_the_job_for_all(tmp_path: Path) -> None:
    from arrivals import started_at

    assert started_at(tmp_path / "job", 5.0) == 5.0
    assert started_at(tmp_path / "job", 9.0) == 5.0
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["started.json"]


@given(st.integers(0, 1_000), st.integers(0, 300), st.integers(1, 40))
def test_the_shares_of_all_ranks_are_the_items_in_order_and_even(first: int, items: int, world_size: int) -> None:
    from arrivals import Taken
    from train import share

    shares = [share(Taken(first, items, 0.0), rank, world_size) for rank in range(world_size)]
    assert [item for each in shares for item in each] == list(range(first, first + items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
