"""Whatever happens to jobs, their log verifies; whatever is forged in it, verification ends with a report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_jobs import job, providers

from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.review.summary import summarise
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload
from elasticgrid.testing.tamper import forged

Happening = Callable[[SimulatedGrid, JobKey], object]

LAUNCH_FAILURES: tuple[ev.FailureClass, ...] = ("stockout", "quota_used", "transient", "rate_limited", "boot_failed")


def fail_all_ways(grid: SimulatedGrid) -> None:
    for failure in LAUNCH_FAILURES:
        grid.fail_launches("spot", failure, "no")


HAPPENINGS: dict[str, Happening] = {
    "a node is lost": lambda grid, key: grid.lose_node(key),
    "a node is silent": lambda grid, key: grid.lose_node(key, evidence="silent"),
    "a worker fails": lambda grid, key: grid.fail_worker(key),
    "a device fails": lambda grid, key: grid.fail_worker(key, code=75, failure="infra_failed"),
    "it is cancelled": lambda grid, key: grid.request(key, ev.JobCancelRequested(reason="enough")),
    "it is paused": lambda grid, key: grid.request(key, ev.JobPauseRequested()),
    "it is resumed": lambda grid, key: grid.request(key, ev.JobResumeRequested()),
    "it is made small": lambda grid, key: grid.request(key, ev.JobResizeRequested(min_nodes=1, max_nodes=2)),
    "it is made large": lambda grid, key: grid.request(key, ev.JobResizeRequested(min_nodes=2, max_nodes=6)),
    "its samples are late": lambda grid, key: grid.hold_samples(key, 400_000),
    "its workers stall": lambda grid, key: grid.stall(key, 400_000),
    "a step takes long": lambda grid, key: grid.lengthen_step(key, 400_000),
    "launches fail": lambda grid, key: fail_all_ways(grid),
    "a price rises": lambda grid, key: grid.declare(
        ProviderSpec(name="dear", max_nodes=6, price_microdollars_per_hour=9_000_000)
    ),
}


def happen(grid: SimulatedGrid, key: JobKey, what: Happening) -> None:
    if not grid.job(key).terminal:
        with suppress(NotFound):
            what(grid, key)


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(30, 300)), min_size=1, max_size=4),
    script=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(sorted(HAPPENINGS))), max_size=8),
)
def test_whatever_happens_the_log_verifies_and_no_step_of_the_committed_line_runs_twice(
    jobs: list[tuple[int, int, int]], script: list[tuple[int, int, str]]
) -> None:
    grid = SimulatedGrid(providers())
    keys = []
    for index, (most, nproc, steps) in enumerate(jobs):
        spec = job(f"job{index}", max_nodes=most, nproc_per_node=nproc)
        demand = ((100_000, most), (60_000, 1), (1, 3))
        keys.append(grid.submit(spec, Workload(total_steps=steps, demand=demand, checkpoint_steps=20)))
    # A job that was paused before it began waits for ever: at last each is told to go on.
    at_last = [(500, index, "it is resumed") for index in range(len(keys))]
    for at_s, index, name in (*script, *at_last):
        key = keys[index % len(keys)]
        grid.at(at_s * 1_000, lambda key=key, name=name: happen(grid, key, HAPPENINGS[name]))  # type: ignore[misc]
    grid.run(limit_ms=12 * 3_600_000)

    for report in (verify(grid.recorded), verify(grid.recorded, grid.samples)):
        assert report.ok, (report.divergences, report.laws)
        assert report.verified == report.decisions
    assert [grid.job(key).illegal for key in keys] == [0] * len(keys)
    assert grid.idle
    assert not report.open_intents
    for key in keys:
        summary = summarise(grid.recorded, grid.samples, job=key)
        assert (summary.duplicate_steps, summary.unreported_steps) == (0, 0)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_forged_verification_ends_with_a_report(many_jobs: SimulatedGrid, data: st.DataObject) -> None:
    records = list(many_jobs.recorded)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(records) - 1))
        raw = msgspec.json.decode(records[index].raw)
        field = data.draw(st.sampled_from(sorted(raw["data"].keys() - {"type"}) or ["reason"]))
        old = raw["data"].get(field)
        value: object = data.draw(
            st.integers(-2, 50)
            if isinstance(old, int)
            else st.sampled_from(["", "p1a1", "p1a1-0", "spot", [], {}, None])
        )
        with suppress(InvalidInput):
            records[index] = forged(records[index], f"data.{field}", value)
    if data.draw(st.booleans()):
        records = data.draw(st.permutations(records))
    report = verify(records, many_jobs.samples)
    assert report.verified + report.diverged + report.unverifiable == report.decisions
    assert report.ok or report.divergences or report.laws
