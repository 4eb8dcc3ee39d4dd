"""Quotas: periods of the calendar, and sums that are those of every node by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold, GridSnapshot
from elasticgrid.core.quotas import HOUR_MS, jobs_of, period_at, quota_text, used_since
from elasticgrid.core.rate import RateLimit, full, take
from elasticgrid.core.spec import JobSpec

TIMES = st.integers(0, 4_102_444_800_000)
START_MS = 1_750_000_000_000 // HOUR_MS * HOUR_MS


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, UTC)


@given(TIMES)
def test_a_month_is_the_calendars(time_ms: int) -> None:
    start_ms, end_ms = period_at(ev.Quota(), time_ms)
    first = at(time_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (first + timedelta(days=32)).replace(day=1)
    assert (at(start_ms), at(end_ms)) == (first, following)


@given(TIMES)
def test_a_week_begins_on_monday_and_a_day_at_midnight(time_ms: int) -> None:
    start_ms, end_ms = period_at(ev.Quota(period="week"), time_ms)
    assert at(start_ms).weekday() == 0
    assert (end_ms - start_ms, start_ms % HOUR_MS) == (7 * 24 * HOUR_MS, 0)
    assert start_ms <= time_ms < end_ms
    start_ms, end_ms = period_at(ev.Quota(period="day"), time_ms)
    assert at(start_ms) == at(time_ms).replace(hour=0, minute=0, second=0, microsecond=0)
    assert end_ms - start_ms == 24 * HOUR_MS


@given(TIMES, st.integers(1, 366 * 24))
def test_periods_of_another_length_follow_each_other_without_a_gap(time_ms: int, hours: int) -> None:
    quota = ev.Quota(period="day", period_s=hours * 3_600)
    start_ms, end_ms = period_at(quota, time_ms)
    assert start_ms <= time_ms < end_ms == start_ms + hours * HOUR_MS
    assert period_at(quota, end_ms)[0] == end_ms
    assert period_at(quota, start_ms) == (start_ms, end_ms)


class Nodes:
    """A log of jobs whose nodes come and go at chosen times, and the plain sum of what they used."""

    def __init__(self) -> None:
        self.fold = GridFold()
        self.spans: list[tuple[int, int | None, int, int]] = []
        self._sequence = 0

    def add(self, time_ms: int, job: str, data: ev.EventData) -> None:
        self._sequence += 1
        event = ev.Event(id=str(self._sequence), time_ms=time_ms, tenant="t", job=job, actor="x", data=data)
        self.fold.apply(ev.Recorded(self._sequence, time_ms, event))

    def run(
        self, job: str, since_ms: int, until_ms: int | None, price: int, workers: int
    ) -> list[tuple[int, str, ev.EventData]]:
        """The facts of a job with one node that runs from then until then."""
        spec = JobSpec(name=job, command=("x",), nproc_per_node=workers)
        add = ev.Assignment(id="a", provider="p", action="add", nodes=1, price_microdollars_per_hour=price)
        facts: list[tuple[int, str, ev.EventData]] = [
            (since_ms, job, ev.JobSubmitted(spec=spec)),
            (since_ms, job, ev.PlacementDecided(demand_nodes=1, placed_nodes=1, assignments=(add,))),
            (
                since_ms,
                job,
                ev.LaunchRequested(
                    attempt="a",
                    assignment="a",
                    provider="p",
                    engine="local",
                    nodes=1,
                    node_ids=("a-0",),
                    price_microdollars_per_hour=price,
                ),
            ),
            (since_ms, job, ev.LaunchStarted(attempt="a", handle="h")),
        ]
        if until_ms is not None:
            facts.append((until_ms, job, ev.LaunchStopped(attempt="a", reason="")))
        self.spans.append((since_ms, until_ms, price, workers))
        return facts

    def plainly(self, since_ms: int, as_of_ms: int) -> tuple[int, int]:
        accelerator_ms = price_ms = 0
        for start_ms, until_ms, price, workers in self.spans:
            end_ms = as_of_ms if until_ms is None else min(until_ms, as_of_ms)
            ran_ms = max(end_ms - max(start_ms, since_ms), 0)
            accelerator_ms += ran_ms * workers
            price_ms += ran_ms * price
        return accelerator_ms, price_ms // HOUR_MS


SPANS = st.lists(
    st.tuples(
        st.integers(0, 50 * HOUR_MS),
        st.none() | st.integers(0, 30 * HOUR_MS),
        st.integers(0, 40_000_000),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)


@given(SPANS, st.integers(0, 90))
def test_what_is_used_since_any_hour_is_what_each_node_used_by_itself(
    spans: list[tuple[int, int | None, int, int]], hours: int
) -> None:
    nodes = Nodes()
    facts: list[tuple[int, str, ev.EventData]] = []
    for number, (start, length, price, workers) in enumerate(spans):
        since_ms = START_MS + start
        until_ms = None if length is None else since_ms + length
        facts += nodes.run(f"j{number}", since_ms, until_ms, price, workers)
    for time_ms, job, data in sorted(facts, key=lambda fact: fact[0]):
        nodes.add(time_ms, job, data)
    as_of_ms = START_MS + 100 * HOUR_MS
    since_ms = START_MS + hours * HOUR_MS
    assert used_since(nodes.fold.fleet.quotas, "t", since_ms, as_of_ms) == nodes.plainly(since_ms, as_of_ms)
    assert jobs_of(nodes.fold.fleet.quotas, "t") == len(spans)
    assert used_since(nodes.fold.fleet.quotas, "other", since_ms, as_of_ms) == (0, 0)


def test_what_many_dear_nodes_use_fits_into_a_snapshot_and_is_still_exact() -> None:
    nodes = Nodes()
    for number in range(500):
        for time_ms, job, data in nodes.run(f"j{number}", START_MS + number, None, 90_000_000, 8):
            nodes.add(time_ms, job, data)
    taken = msgspec.msgpack.decode(msgspec.msgpack.encode(nodes.fold.snapshot()), type=GridSnapshot)
    as_of_ms = START_MS + 7 * HOUR_MS
    assert used_since(taken.fleet.quotas, "t", START_MS, as_of_ms) == nodes.plainly(START_MS, as_of_ms)


def test_a_quota_is_told_in_a_sentence() -> None:
    assert quota_text(ev.Quota()) == "anything"
    assert quota_text(ev.Quota(jobs=2, nodes=8)) == "2 jobs, 8 nodes"
    assert quota_text(ev.Quota(microdollars=12_500_000, period="week")) == "$12.50 every week"
    assert quota_text(ev.Quota(accelerator_hours=10, period_s=7_200)) == "10 accelerator-hours every 2 hours"


LIMITS = st.builds(RateLimit, st.integers(1, 1_000), st.integers(1, 1_000))


@given(LIMITS, st.lists(st.integers(0, 5_000), max_size=60))
def test_no_more_requests_are_let_through_than_the_limit_says(limit: RateLimit, waits: list[int]) -> None:
    now_ms, bucket, passed = 0, full(limit, 0), 0
    for wait_ms in waits:
        now_ms += wait_ms
        bucket, refused_ms = take(bucket, limit, now_ms)
        passed += not refused_ms
    assert passed <= limit.burst + now_ms * limit.per_s // 1_000


@given(LIMITS, st.integers(0, 10_000))
def test_who_waits_as_long_as_told_is_let_through(limit: RateLimit, now_ms: int) -> None:
    bucket = full(limit, now_ms)
    for _ in range(limit.burst):
        bucket, wait_ms = take(bucket, limit, now_ms)
        assert wait_ms == 0
    bucket, wait_ms = take(bucket, limit, now_ms)
    assert wait_ms > 0
    assert take(bucket, limit, now_ms + wait_ms - 1)[1] > 0
    assert take(bucket, limit, now_ms + wait_ms)[1] == 0


@pytest.mark.parametrize("back_ms", [1, 10_000])
def test_a_clock_that_goes_back_gives_and_takes_nothing(back_ms: int) -> None:
    limit = RateLimit(10, 2)
    bucket, _ = take(full(limit, 20_000), limit, 20_000)
    bucket, wait_ms = take(bucket, limit, 20_000 - back_ms)
    assert (wait_ms, bucket.left, bucket.as_of_ms) == (0, 0, 20_000)
