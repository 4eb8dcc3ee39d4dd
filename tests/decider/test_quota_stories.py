"""What a tenant's quota does to its jobs: budgets drain them and never shoot them, and every decision verifies."""

from __future__ import annotations

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import cost_microdollars
from elasticgrid.core.job_quota import tenant_nodes
from elasticgrid.core.quotas import HOUR_MS, used_since
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

POLICY = ScalingPolicy(
    cooldown_up_ms=30_000,
    cooldown_down_ms=60_000,
    reversal_ms=60_000,
    default_restart_ms=10_000,
    min_evidence_ms=10_000,
    max_restart_ppm=1_000_000,
    max_changes_per_hour=30,
)
PROVIDERS = (ProviderSpec(name="here", max_nodes=16, price_microdollars_per_hour=1_000_000),)
GRACE_MS = 5_000


def spec(name: str, *, min_nodes: int = 1, max_nodes: int = 4) -> JobSpec:
    return JobSpec(
        name=name,
        command=("python", "train.py"),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        grace_ms=GRACE_MS,
        join_timeout_ms=60_000,
        scaling=POLICY,
    )


def grown(steps: int, nodes: int = 4) -> Workload:
    return Workload(total_steps=steps, demand=((1, nodes),))


def of_job(grid: SimulatedGrid, key: JobKey) -> list[ev.Recorded]:
    return [each for each in grid.recorded if (each.event.tenant, each.event.job) == key]


def scales(grid: SimulatedGrid, key: JobKey) -> list[ev.ScaleDecided]:
    data = [each.event.data for each in of_job(grid, key) if isinstance(each.event, ev.Event)]
    return [each for each in data if isinstance(each, ev.ScaleDecided)]


def assert_sound(grid: SimulatedGrid) -> None:
    report = verify(grid.recorded)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions
    assert all(job.illegal == 0 for job in grid.fold.jobs())


def test_a_job_whose_tenants_budget_is_spent_commits_gives_its_nodes_back_and_goes_on_in_the_next_period() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000 // HOUR_MS * HOUR_MS)
    grid.set_quota("demo", ev.Quota(microdollars=100_000, period_s=3_600))
    key = grid.submit(spec("train"), grown(500))
    grid.run()
    assert grid.job(key).phase == "completed"
    spent = [each for each in scales(grid, key) if each.rule == "budget" and each.action == "down"]
    assert len(spent) >= 2
    for decision in spent:
        assert decision.target_nodes == 0
        assert decision.checks[-1].numbers["used"] >= decision.checks[-1].numbers["limit"] == 100_000
        assert decision.next_change_ms is not None
        assert decision.next_change_ms % HOUR_MS == 0
    drains = [each.event.data for each in of_job(grid, key) if isinstance(each.event, ev.Event)]
    assert all(each.clean for each in drains if isinstance(each, ev.NodeDrained)), "a worker was terminated"
    worlds = [each for each in drains if isinstance(each, ev.WorldDecided)]
    lost = [each for each in drains if isinstance(each, ev.NodeFailed | ev.NodeLost)]
    assert not lost
    # Every round goes on from the very step that the one before it ended at.
    steps = [world.resume.step for world in worlds if world.resume is not None]
    assert steps == sorted(steps)
    assert_sound(grid)


def test_a_budget_is_overdrawn_by_no_more_than_it_takes_to_drain() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000 // HOUR_MS * HOUR_MS)
    grid.set_quota("demo", ev.Quota(microdollars=100_000, period_s=3_600))
    grid.submit(spec("train"), grown(500))
    grid.run()
    start_ms, end_ms = grid.recorded[0].recorded_ms, grid.now_ms
    worst = 4 * 1_000_000 * (GRACE_MS + 60_000) // HOUR_MS
    for hour in range(start_ms // HOUR_MS, end_ms // HOUR_MS + 1):
        _, until = used_since(grid.fold.fleet.quotas, "demo", hour * HOUR_MS, end_ms)
        _, later = used_since(grid.fold.fleet.quotas, "demo", (hour + 1) * HOUR_MS, end_ms)
        assert until - later <= 100_000 + worst


def test_accelerator_hours_are_a_budget_too_and_one_tenants_is_not_anothers() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000 // HOUR_MS * HOUR_MS)
    grid.set_quota("demo", ev.Quota(accelerator_hours=0, period="day"))
    stopped = grid.submit(spec("stopped"), grown(100))
    free = grid.submit(spec("free"), grown(100), tenant="others")
    grid.run(limit_ms=3 * HOUR_MS)
    assert grid.job(free).phase == "completed"
    assert (grid.job(stopped).phase, len(grid.job(stopped).launches)) == ("submitted", 0)
    (hold,) = scales(grid, stopped)
    assert (hold.action, hold.rule) == ("hold", "budget")
    assert_sound(grid)


def test_a_budget_that_is_set_or_raised_while_a_job_runs_counts_at_once() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000 // HOUR_MS * HOUR_MS)
    key = grid.submit(spec("train"), grown(2_000))
    grid.at(300_000, lambda: grid.set_quota("demo", ev.Quota(microdollars=1_000, period="month")))
    grid.at(900_000, lambda: grid.set_quota("demo", ev.Quota(microdollars=50_000_000, period="month")))
    grid.run(limit_ms=800_000)
    assert (grid.job(key).phase, grid.job(key).target_nodes) == ("draining", 0)
    assert not grid.fold.fleet.usage
    grid.run()
    assert grid.job(key).phase == "completed"
    assert_sound(grid)


def test_jobs_of_a_tenant_share_its_nodes_and_never_have_more() -> None:
    grid = SimulatedGrid(PROVIDERS)
    grid.set_quota("demo", ev.Quota(nodes=5))
    keys = [grid.submit(spec(name), grown(600)) for name in ("one", "two")]
    most = 0
    for _ in range(4_000):
        grid.advance(1_000)
        most = max(most, tenant_nodes(grid.fold.fleet, "demo"))
        if grid.idle:
            break
    assert [grid.job(key).phase for key in keys] == ["completed", "completed"]
    assert most == 5
    capped = [each for key in keys for each in scales(grid, key) if each.checks and each.checks[0].rule == "quota"]
    assert capped
    assert all(each.target_nodes <= each.checks[0].numbers["most_nodes"] for each in capped)
    assert_sound(grid)


def test_a_job_that_needs_more_than_others_leave_waits_and_says_for_what() -> None:
    grid = SimulatedGrid(PROVIDERS)
    grid.set_quota("demo", ev.Quota(nodes=4))
    first = grid.submit(spec("first", min_nodes=3, max_nodes=3), grown(200))
    grid.advance(60_000)
    second = grid.submit(spec("second", min_nodes=2), grown(50))
    grid.advance(60_000)
    (hold,) = scales(grid, second)
    assert (hold.rule, hold.checks[0].numbers) == ("quota", {"limit_nodes": 4, "other_nodes": 3, "min_nodes": 2})
    grid.run()
    assert [grid.job(key).phase for key in (first, second)] == ["completed", "completed"]
    assert_sound(grid)


def test_a_lower_quota_of_nodes_takes_none_away() -> None:
    grid = SimulatedGrid(PROVIDERS)
    key = grid.submit(spec("train"), grown(1_500))
    grid.advance(600_000)
    before = grid.job(key).target_nodes
    assert before > 1
    grid.set_quota("demo", ev.Quota(nodes=1))
    grid.advance(120_000)
    assert grid.job(key).target_nodes == before
    assert_sound(grid)


def test_a_node_that_is_lost_with_the_budget_spent_is_not_replaced() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000 // HOUR_MS * HOUR_MS)
    key = grid.submit(spec("train"), grown(3_000))
    grid.advance(400_000)
    grid.set_quota("demo", ev.Quota(microdollars=1, period="month"))
    grid.lose_node(key)
    launches = len(grid.job(key).launches)
    grid.advance(600_000)
    assert len(grid.job(key).launches) == launches
    assert not grid.fold.fleet.usage
    assert_sound(grid)


def test_what_was_charged_is_what_the_jobs_are_said_to_have_cost() -> None:
    grid = SimulatedGrid(PROVIDERS, start_ms=1_750_000_000_000)
    keys = [grid.submit(spec(name), grown(steps)) for name, steps in (("one", 200), ("two", 700))]
    grid.advance(400_000)
    _, charged = used_since(grid.fold.fleet.quotas, "demo", 0, grid.now_ms)
    cost = sum(cost_microdollars(grid.job(key), grid.now_ms) for key in keys)
    nodes = sum(len(grid.job(key).nodes) for key in keys)
    assert charged == pytest.approx(cost, abs=nodes)
    assert charged > 0


def test_a_notice_for_a_provider_moves_its_nodes_as_the_providers_own_would() -> None:
    two = (*PROVIDERS, ProviderSpec(name="there", max_nodes=16, price_microdollars_per_hour=3_000_000))
    grid = SimulatedGrid(two)
    key = grid.submit(spec("train", min_nodes=2), grown(1_000))
    grid.advance(300_000)
    nodes = tuple(node.id for node in grid.job(key).nodes.values() if node.status == "joined")
    grid.append(("_grid", "fleet"), ev.ProviderCordoned(name="here"), actor="key:test")
    grid.request(key, ev.JobInterruptRequested(provider="here", nodes=nodes, deadline_ms=grid.now_ms + 120_000))
    grid.advance(120_000)
    job = grid.job(key)
    assert {job.nodes[node].provider for node in job.member_nodes} == {"there"}
    assert {job.nodes[node].status for node in nodes} == {"left"}
    assert (job.app_failures, job.infra_failures) == (0, 0)
    assert_sound(grid)


def test_a_job_of_a_higher_band_is_placed_as_one_of_that_band() -> None:
    grid = SimulatedGrid(PROVIDERS)
    key = grid.submit(spec("train"), grown(400))
    grid.advance(30_000)
    assert grid.job(key).band == "batch"
    grid.request(key, ev.JobPriorityRequested(band="production"))
    grid.run()
    assert grid.job(key).band == "production"
    assert grid.job(key).spec is not None
    assert grid.job(key).spec.band == "batch"  # type: ignore[union-attr] # it is there
    assert_sound(grid)
