"""Whole lives of jobs on a simulated grid: the real core decides, machines and time are simulated."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import PPM, JobSpec, PlacementPolicy, ProviderSpec, ScalingPolicy
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

QUICK = ScalingPolicy(
    min_evidence_ms=10_000,
    cooldown_up_ms=30_000,
    cooldown_down_ms=60_000,
    reversal_ms=60_000,
    max_changes_per_hour=30,
    max_restart_ppm=PPM,
    default_restart_ms=10_000,
    target_tokens_per_s=5_000,
)
CHEAP = ProviderSpec(name="cheap", max_nodes=16, price_microdollars_per_hour=500_000)
DEAR = ProviderSpec(name="dear", max_nodes=32, price_microdollars_per_hour=2_000_000)


def spec(nodes: tuple[int, int] = (1, 4), **changes: object) -> JobSpec:
    made = JobSpec(
        name="train",
        command=("python", "train.py"),
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        grace_ms=5_000,
        join_timeout_ms=120_000,
        scaling=QUICK,
    )
    return msgspec.structs.replace(made, **changes)


def data_of(grid: SimulatedGrid, key: JobKey, kind: type[ev.EventData]) -> list[ev.EventData]:
    events = [recorded.event for recorded in grid.recorded]
    return [
        event.data
        for event in events
        if isinstance(event, ev.Event) and (event.tenant, event.job) == key and isinstance(event.data, kind)
    ]


def worlds(grid: SimulatedGrid, key: JobKey) -> list[int]:
    return [len(world.members) for world in data_of(grid, key, ev.WorldDecided) if isinstance(world, ev.WorldDecided)]


def ended(grid: SimulatedGrid, key: JobKey) -> str:
    """Run to the end; whatever happened, nothing is left and the log verifies."""
    grid.run()
    state = grid.job(key)
    assert state.terminal
    assert state.illegal == 0, state.last_illegal
    assert all(launch.resolved for launch in state.launches.values())
    launched = {launch.id for launch in state.launches.values() if launch.status != "planned"}
    assert all(node.status in ("left", "lost") for node in state.nodes.values() if node.assignment in launched)
    assert all(usage == 0 for name in ("cheap", "dear") for usage in _usage(grid, name))
    report = verify(grid.recorded, grid.samples)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions
    return state.phase


def _usage(grid: SimulatedGrid, provider: str) -> tuple[int, ...]:
    usage = grid.fold.fleet.usage.get(provider)
    return (usage.in_flight, usage.in_use, usage.draining) if usage is not None else ()


def test_a_job_under_a_load_that_comes_and_goes_grows_and_shrinks_and_completes() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(), Workload(total_steps=1_500, demand=((60_000, 1), (600_000, 4), (1, 1))))
    assert ended(grid, key) == "completed"
    sizes = worlds(grid, key)
    assert sizes[0] == 1
    assert max(sizes) == 4
    assert sizes[-1] < 4


@pytest.mark.survive("18", "kill-node")
def test_one_of_sixteen_nodes_lost_is_replaced_and_the_world_forms_again_once() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((16, 16)), Workload(total_steps=600, demand=((1, 16),)))
    grid.advance(120_000)
    lost = grid.lose_node(key)
    assert ended(grid, key) == "completed"
    assert worlds(grid, key) == [16, 16]
    first, second = (set(world.members) for world in data_of(grid, key, ev.WorldDecided))  # type: ignore[union-attr] # all are worlds
    stayed = {member.node for member in first} & {member.node for member in second}
    assert len(stayed) == 15
    assert lost not in stayed
    state = grid.job(key)
    assert (state.infra_failures, state.app_failures) == (1, 0)


@pytest.mark.survive("Q")
def test_survivors_keep_their_order_when_the_first_rank_leaves() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((2, 3), max_restarts=1), Workload(total_steps=600, demand=((1, 3),)))
    grid.advance(300_000)
    grid.lose_node(key)
    assert ended(grid, key) == "completed"
    worlds_seen = [world for world in data_of(grid, key, ev.WorldDecided) if isinstance(world, ev.WorldDecided)]
    for before, after in pairwise(worlds_seen):
        after_nodes = [member.node for member in after.members]
        survivors = [member.node for member in before.members if member.node in after_nodes]
        assert after_nodes[: len(survivors)] == survivors
        assert [member.group_rank for member in after.members] == list(range(len(after.members)))


def test_an_application_that_fails_is_tried_again_as_often_as_it_says_and_not_more() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(max_restarts=1), Workload(total_steps=2_000))
    grid.advance(120_000)
    grid.fail_worker(key, code=2)
    grid.advance(120_000)
    assert grid.job(key).phase == "running"
    grid.fail_worker(key, code=2)
    assert ended(grid, key) == "failed"
    state = grid.job(key)
    assert state.app_failures == 2
    assert "exit code 2" in state.ending_reason
    assert "simulated failure" in state.ending_reason


def test_infrastructure_failures_use_their_own_budget_and_stop_at_its_end() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(max_restarts=0, max_infra_restarts=2), Workload(total_steps=50_000))
    for _ in range(3):
        grid.advance(180_000)
        grid.fail_worker(key, code=75, failure="infra_failed")
    assert ended(grid, key) == "failed"
    assert (grid.job(key).app_failures, grid.job(key).infra_failures) == (0, 3)


@pytest.mark.survive("O")
def test_a_new_round_begins_where_the_last_committed_checkpoint_is() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(max_restarts=3), Workload(total_steps=500, checkpoint_steps=20))
    grid.advance(150_000)
    committed = grid.job(key).checkpoint
    grid.fail_worker(key)
    grid.advance(60_000)
    second = data_of(grid, key, ev.WorldDecided)[-1]
    assert isinstance(second, ev.WorldDecided)
    assert committed is not None
    assert second.resume == committed
    assert ended(grid, key) == "completed"


@pytest.mark.survive("B")
def test_a_cancel_in_any_phase_leaves_nothing_behind() -> None:
    for after_ms in (0, 10, 300, 10_000, 24_000, 30_000, 120_000, 131_000, 134_000, 160_000, 400_000):
        grid = SimulatedGrid((CHEAP, DEAR))
        key = grid.submit(spec((1, 8)), Workload(total_steps=5_000, demand=((1, 8),)))
        grid.advance(after_ms)
        grid.request(key, ev.JobCancelRequested(reason="not needed"))
        assert ended(grid, key) == "cancelled", after_ms
        assert grid.job(key).ending_reason == "not needed"


def test_a_launch_that_fails_is_placed_elsewhere() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    grid.fail_launches("cheap", "stockout", "no more capacity in the zone")
    key = grid.submit(spec(), Workload(total_steps=100))
    assert ended(grid, key) == "completed"
    placements = [each for each in data_of(grid, key, ev.PlacementDecided) if isinstance(each, ev.PlacementDecided)]
    added = [line.provider for each in placements for line in each.assignments if line.action == "add"]
    assert added == ["cheap", "dear"]
    refused = [each for each in placements[1].candidates if each.provider == "cheap"]
    assert refused[0].refused == "mark"
    assert refused[0].until_ms is not None


def test_a_growth_that_fails_uses_up_no_cooldown_and_the_job_trains_on() -> None:
    only = ProviderSpec(name="cheap", max_nodes=4, price_microdollars_per_hour=500_000)
    grid = SimulatedGrid((only,))
    key = grid.submit(spec((1, 4)), Workload(total_steps=3_000, demand=((60_000, 1), (1, 4))))
    grid.fail_launches("cheap", "stockout", "no more capacity in the zone")
    # The first launch is the one that fails; it is made again when the mark has run out.
    assert ended(grid, key) == "completed"
    changes = grid.job(key).changes
    assert all(change.voluntary for change in changes)


@pytest.mark.survive("resize")
def test_new_bounds_are_obeyed_at_once_and_without_evidence() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((4, 8)), Workload(total_steps=3_000, demand=((1, 4),)))
    grid.advance(60_000)
    grid.request(key, ev.JobResizeRequested(min_nodes=1, max_nodes=2))
    grid.advance(60_000)
    assert len(grid.job(key).members) == 2
    grid.request(key, ev.JobResizeRequested(min_nodes=6, max_nodes=8))
    grid.advance(120_000)
    assert len(grid.job(key).members) == 6
    assert ended(grid, key) == "completed"


def test_a_paused_job_keeps_its_size_until_it_is_resumed() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(), Workload(total_steps=3_000, demand=((1, 4),)))
    grid.request(key, ev.JobPauseRequested(reason="paused for a look"))
    grid.advance(1_000)
    grid.request(key, ev.JobResumeRequested())
    grid.advance(60_000)
    grid.request(key, ev.JobPauseRequested(reason="paused for a look"))
    size = grid.job(key).target_nodes
    grid.advance(600_000)
    assert grid.job(key).target_nodes == size
    assert grid.job(key).last_scale is not None
    grid.request(key, ev.JobResumeRequested())
    assert ended(grid, key) == "completed"


def test_a_job_waits_for_capacity_that_another_gives_back() -> None:
    one = ProviderSpec(name="cheap", max_nodes=2, price_microdollars_per_hour=500_000)
    grid = SimulatedGrid((one,))
    first = grid.submit(spec((2, 2)), Workload(total_steps=100))
    second = grid.submit(spec((2, 2), name="later"), Workload(total_steps=100))
    grid.advance(60_000)
    assert grid.job(second).phase == "submitted"
    waiting = grid.job(second).last_placement
    assert waiting is not None
    assert "cheap" in waiting.waiting
    grid.run()
    assert grid.job(first).phase == grid.job(second).phase == "completed"


def test_a_withdrawn_provider_drains_and_its_nodes_are_replaced() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((2, 2)), Workload(total_steps=3_000, demand=((1, 2),)))
    grid.advance(120_000)
    grid.append(("_grid", "fleet"), ev.ProviderWithdrawn(name="cheap"), actor="key:simulated")
    grid.request(key, ev.JobResizeRequested(min_nodes=3, max_nodes=3))
    grid.advance(300_000)
    nodes = [grid.job(key).nodes[node] for node in grid.job(key).member_nodes]
    assert {node.provider for node in nodes} == {"dear"}
    assert ended(grid, key) == "completed"


def test_a_spot_cap_is_kept_through_growth() -> None:
    spot = ProviderSpec(name="cheap", max_nodes=16, market="spot", price_microdollars_per_hour=100_000)
    grid = SimulatedGrid((spot, DEAR))
    policy = PlacementPolicy(max_spot_ppm=500_000)
    key = grid.submit(spec((1, 8), placement=policy), Workload(total_steps=3_000, demand=((1, 8),)))
    assert ended(grid, key) == "completed"
    for placement in data_of(grid, key, ev.PlacementDecided):
        assert isinstance(placement, ev.PlacementDecided)
        kept = [line for line in placement.assignments if line.action != "drop"]
        on_spot = sum(line.nodes for line in kept if line.market == "spot")
        assert on_spot <= placement.placed_nodes // 2 or placement.policy_broken


@pytest.mark.parametrize("evidence", ["process_gone", "silent"])
def test_below_its_floor_a_job_waits_for_nodes_instead_of_training(evidence: str) -> None:
    tight = ProviderSpec(name="cheap", max_nodes=3, price_microdollars_per_hour=500_000)
    grid = SimulatedGrid((tight,))
    key = grid.submit(spec((3, 3)), Workload(total_steps=400, demand=((1, 3),)))
    grid.advance(120_000)
    grid.lose_node(key, evidence="silent" if evidence == "silent" else "process_gone")
    grid.run(limit_ms=6 * 3_600_000) if evidence == "process_gone" else grid.advance(600_000)
    assert all(size == 3 for size in worlds(grid, key))


def test_a_node_that_joins_after_it_was_given_up_is_told_to_leave() -> None:
    slow = ProviderSpec(name="cheap", max_nodes=4, price_microdollars_per_hour=500_000)
    grid = SimulatedGrid((slow,))
    key = grid.submit(spec((1, 4), join_timeout_ms=21_500), Workload(total_steps=4_000, demand=((1, 4),)))
    assert ended(grid, key) == "completed"
    given_up = {
        node
        for placement in data_of(grid, key, ev.PlacementDecided)
        if isinstance(placement, ev.PlacementDecided) and placement.waiting
        for line in placement.assignments
        for node in line.leaving
    }
    told = {
        node
        for drain in data_of(grid, key, ev.DrainDecided)
        if isinstance(drain, ev.DrainDecided)
        for node in drain.leaving
    }
    assert given_up
    assert given_up <= told


def test_nodes_that_are_told_to_leave_end_no_round_they_are_not_in() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((1, 8)), Workload(total_steps=3_000, demand=((1, 8),)))
    grid.advance(58_000)
    while grid.job(key).target_nodes <= len(grid.job(key).members):
        grid.advance(1_000)
    before = grid.job(key)
    grid.request(key, ev.JobResizeRequested(min_nodes=1, max_nodes=len(before.members)))
    grid.advance(10_000)
    after = grid.job(key)
    assert (after.round, after.phase) == (before.round, "running")
    assert after.target_nodes == len(after.members)
    assert ended(grid, key) == "completed"


@pytest.mark.survive("C")
@pytest.mark.parametrize(
    "after_ms", [1_000, 20_000, 45_000, 600_000], ids=["submitted", "placed", "joining", "training"]
)
def test_an_hour_without_decider_and_launcher_fails_no_job_and_costs_it_nothing(after_ms: int) -> None:
    hour_ms = 3_600_000
    grid = SimulatedGrid((CHEAP, DEAR))
    # It needs four nodes for some five hours.
    key = grid.submit(spec((4, 4)), Workload(total_steps=20_000, demand=((1, 4),)))
    grid.advance(after_ms)
    grid.lose_control_plane(hour_ms)
    grid.advance(hour_ms)
    events = grid.fold.sequence
    away = grid.job(key)
    grid.advance(300_000)
    assert grid.fold.sequence > events
    state = grid.job(key)
    assert state.phase == "running"
    if after_ms == 600_000:
        # Those who trained did not even notice.
        assert state.round == away.round == 1
    assert ended(grid, key) == "completed"
    state = grid.job(key)
    assert (state.app_failures, state.infra_failures) == (0, 0)
    assert [each.reason for each in data_of(grid, key, ev.NodeLeft) if isinstance(each, ev.NodeLeft)] == [
        "completed"
    ] * 4


@pytest.mark.survive("C", "kill-node")
def test_a_node_lost_while_decider_and_launcher_are_away_is_replaced_when_they_are_back() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec((4, 4)), Workload(total_steps=5_000, demand=((1, 4),)))
    grid.advance(600_000)
    grid.lose_control_plane(3_600_000)
    grid.advance(60_000)
    lost = grid.lose_node(key)
    grid.advance(3_600_000)
    assert lost not in grid.job(key).member_nodes
    assert ended(grid, key) == "completed"
    state = grid.job(key)
    assert (state.app_failures, state.infra_failures) == (0, 1)
