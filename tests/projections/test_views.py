"""Reading: what the views say is what the core's fold says, in pages that neither repeat nor miss anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import cost_microdollars
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.first_interface import first_fields
from elasticgrid.log.memory import MemoryLog
from elasticgrid.projections.projector import Projector
from elasticgrid.projections.views import Views
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

History = Sequence[ev.Recorded]
Play = Callable[[MemoryLog, History], Awaitable[None]]


@pytest.fixture
async def views(log: MemoryLog, path: Path, history: History, play: Play) -> AsyncGenerator[Views]:
    """Views of the whole history."""
    await play(log, history)
    async with Projector(log, path) as projector, Views(path) as opened:
        await projector.wait_for(len(history))
        yield opened


def fold(history: History) -> GridFold:
    grid = GridFold()
    for recorded in history:
        grid.apply(recorded)
    return grid


async def test_a_job_is_shown_as_the_core_folds_it(views: Views, history: History) -> None:
    state = fold(history).job(("demo", "elastic"))
    assert state is not None
    assert state.spec is not None
    detail = await views.job("demo", "elastic", as_of_ms=history[-1].recorded_ms)
    assert (detail.job.phase, detail.job.round, detail.job.decisions) == ("completed", state.round, state.decisions)
    assert detail.job.sequence == state.sequence
    assert detail.job.finished_ms == state.finished_ms
    assert detail.facts.spec == state.spec
    assert detail.facts.scale == state.last_scale
    assert detail.facts.placement == state.last_placement
    assert detail.facts.checkpoint == state.checkpoint
    assert detail.facts.members == state.members
    assert {node.id: node.status for node in detail.nodes} == {node.id: node.status for node in state.nodes.values()}
    assert {each.id: each.status for each in detail.launches} == {
        each.id: each.status for each in state.launches.values()
    }


async def test_cost_is_the_cores_at_every_moment_of_the_job(
    log: MemoryLog, path: Path, history: History, play: Play
) -> None:
    grid = GridFold()
    async with Projector(log, path) as projector, Views(path) as views:
        for recorded in history:
            grid.apply(recorded)
            await play(log, [recorded])
            if recorded.sequence % 10:
                continue
            await projector.wait_for(recorded.sequence)
            as_of_ms = recorded.recorded_ms + 1_234_567
            for state in grid.jobs():
                summary = await views.job_summary(state.tenant, state.id, as_of_ms=as_of_ms)
                assert summary.cost_microdollars == cost_microdollars(state, as_of_ms)


async def test_cost_adds_up_by_job_by_tenant_and_by_provider(views: Views, history: History) -> None:
    as_of_ms = history[-1].recorded_ms
    total = sum(cost_microdollars(state, as_of_ms) for state in fold(history).jobs())
    reports = [await views.cost(by=by, as_of_ms=as_of_ms) for by in ("job", "tenant", "provider")]
    assert [report.cost_microdollars for report in reports] == [total] * 3
    assert {line.name for line in reports[2].lines} == {"cheap", "large"}
    assert {line.tenant for line in reports[1].lines} == {"demo", "second"}


async def test_cost_since_a_time_leaves_out_what_was_before(views: Views, history: History) -> None:
    end_ms = history[-1].recorded_ms
    middle_ms = (history[0].recorded_ms + end_ms) // 2
    whole = await views.cost(by="tenant", as_of_ms=end_ms)
    until = await views.cost(by="tenant", as_of_ms=middle_ms, tenant="demo")
    since = await views.cost(by="tenant", as_of_ms=end_ms, since_ms=middle_ms)
    assert 0 < since.cost_microdollars < whole.cost_microdollars
    assert until.lines[0].tenant == "demo"
    assert (await views.cost(by="job", as_of_ms=end_ms, since_ms=end_ms)).lines == ()


async def test_every_decision_is_listed_with_its_numbers(views: Views, history: History) -> None:
    expected = [
        each.sequence
        for each in history
        if isinstance(each.event, ev.Event) and each.event.basis is not None and each.event.job == "elastic"
    ]
    found: list[int] = []
    cursor = ""
    while True:
        page = await views.decisions_of("demo", "elastic", cursor=cursor, limit=7)
        found += [each.sequence for each in page.items]
        assert all(each.reason and each.rule for each in page.items)
        if not page.next_cursor:
            break
        cursor = page.next_cursor
    assert found == sorted(expected, reverse=True)
    grown = [
        each
        for each in (await views.decisions_of("demo", "elastic", limit=1_000)).items
        if each.type == "decision.scale" and each.rule == "queue_bound"
    ]
    assert (grown[-1].from_nodes, grown[-1].to_nodes) == (2, 4)


async def test_events_come_in_order_and_pages_go_on_where_the_last_ended(views: Views, history: History) -> None:
    found: list[int] = []
    after = 0
    while True:
        page = await views.events(after=after, limit=33)
        found += [each.sequence for each in page.items]
        after = page.next_after
        if not page.more:
            break
    assert found == [each.sequence for each in history]
    assert after == len(history)
    some = await views.events(tenant="second", event_type="job.cancel_requested")
    assert [each.text for each in some.items] == ["cancel: a test"]
    assert (await views.events(after=10**30)).items == ()
    assert [each.sequence for each in (await views.events(after=3, through=5)).items] == [4, 5]


async def test_jobs_are_paged_newest_first_without_repeating_any(
    log: MemoryLog, path: Path, clock: VirtualClock
) -> None:
    for index in range(25):
        if index % 3 == 0:
            clock.advance(1)
        submitted = ev.JobSubmitted(spec=JobSpec(name="job", command=("x",)))
        tenant = "even" if index % 2 == 0 else "odd"
        await log.append(
            [ev.Event(id=f"{index}", time_ms=0, tenant=tenant, job=f"j{index}", actor="key:x", data=submitted)]
        )
    async with Projector(log, path) as projector, Views(path) as views:
        await projector.wait_for(25)
        found: list[str] = []
        cursor = ""
        while True:
            page = await views.jobs(as_of_ms=0, cursor=cursor, limit=4)
            found += [job.id for job in page.items]
            if not page.next_cursor:
                break
            cursor = page.next_cursor
        assert len(found) == len(set(found)) == 25
        assert found[0] == "j24"
        odd = await views.jobs(as_of_ms=0, tenant="odd", phase="submitted", limit=1_000)
        assert len(odd.items) == 12
        assert (await views.jobs(as_of_ms=0, phase="running")).items == ()


@pytest.mark.parametrize("cursor", ["x", "%%%", "W10", "WzEsMiwzXQ", "é", "A" * 5_000, "W1tbW1tb"])
async def test_a_cursor_of_somebody_elses_making_is_refused(views: Views, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="not a cursor"):
        await views.jobs(as_of_ms=0, cursor=cursor)


async def test_what_is_not_there_is_not_found(views: Views, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await views.job("demo", "nothing", as_of_ms=0)
    with pytest.raises(NotFound):
        await views.decisions_of("nobody", "elastic")
    async with Views(tmp_path / "none.sqlite") as none:
        with pytest.raises(NotFound, match="no views yet"):
            await none.sequence()


async def test_a_gap_in_the_samples_is_a_decision_whose_rule_is_its_cause(
    log: MemoryLog, path: Path, play: Play
) -> None:
    grid = SimulatedGrid()
    key = grid.submit(JobSpec(name="silent", command=("train",)), Workload(total_steps=200))
    grid.at(300_000, lambda: grid.lengthen_step(key, 600_000))
    grid.run()
    await play(log, grid.recorded)
    async with Projector(log, path) as projector, Views(path) as views:
        await projector.wait_for(len(grid.recorded))
        (gap,) = [each for each in (await views.decisions_of(*key)).items if each.type == "decision.gap"]
        assert (gap.rule, gap.took_effect, gap.from_nodes) == ("long_step", True, None)
        assert gap.reason.startswith("no sample of round 1 for 602 s, long_step: one step lasted for most of it: 600 s")
        assert projector.counts.decisions["gap", "long_step"] == 1


async def test_a_job_that_its_budget_stopped_waits_to_start_and_says_until_when(
    log: MemoryLog, path: Path, play: Play
) -> None:
    hour_ms = 3_600_000
    grid = SimulatedGrid(start_ms=486_111 * hour_ms)
    key = grid.submit(
        JobSpec(name="train", command=("train",), max_nodes=4, grace_ms=5_000), Workload(total_steps=2_000)
    )
    grid.at(300_000, lambda: grid.set_quota("demo", ev.Quota(microdollars=1_000, period="day")))
    grid.run(limit_ms=hour_ms)
    assert (grid.job(key).phase, grid.job(key).target_nodes) == ("draining", 0)
    await play(log, grid.recorded)
    async with Projector(log, path) as projector, Views(path) as views:
        await projector.wait_for(len(grid.recorded))
        job = await views.job_summary(*key, as_of_ms=grid.now_ms)
        assert (job.phase, job.rule, job.target_nodes, job.world_nodes) == ("submitted", "budget", 0, 0)
        assert job.waiting == "over budget until 2025-06-16 00:00:00 UTC"
        assert [each.id for each in (await views.jobs(as_of_ms=0, phase="submitted")).items] == [key[1]]
        assert (await views.totals(as_of_ms=0)).jobs == {"submitted": 1}
    assert first_fields(grid.job(key)).state == "queued"
