"""Notices, stuck rounds, budgets and pauses: the real core decides, machines and time are simulated."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import msgspec
import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.fleet_state import health_ppm
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import PPM, JobSpec, OnStuck, ProviderSpec, ScalingPolicy
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

CHEAP = ProviderSpec(name="cheap", max_nodes=16, price_microdollars_per_hour=500_000)
DEAR = ProviderSpec(name="dear", max_nodes=32, price_microdollars_per_hour=2_000_000)
SPOT = ProviderSpec(name="cheap", max_nodes=16, market="spot", price_microdollars_per_hour=100_000)
MINUTE_MS = 60_000
STEADY = ScalingPolicy(min_evidence_ms=10_000, max_restart_ppm=PPM)

D = TypeVar("D")


def spec(nodes: tuple[int, int] = (2, 2), **changes: object) -> JobSpec:
    made = JobSpec(
        name="train",
        command=("python", "train.py"),
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        join_timeout_ms=120_000,
        scaling=STEADY,
    )
    return msgspec.structs.replace(made, **changes)


def running(
    changes: JobSpec, workload: Workload | None = None, *, providers: tuple[ProviderSpec, ...] = (CHEAP, DEAR)
) -> tuple[SimulatedGrid, JobKey]:
    """A grid whose one job has trained for two minutes."""
    grid = SimulatedGrid(providers)
    key = grid.submit(changes, workload if workload is not None else Workload(total_steps=4_000, demand=((1, 2),)))
    grid.advance(2 * MINUTE_MS)
    assert grid.job(key).phase == "running"
    return grid, key


def told(grid: SimulatedGrid, key: JobKey, kind: type[D]) -> list[tuple[ev.Recorded, D]]:
    """The job's events of that kind, with where and when they stand."""
    found: list[tuple[ev.Recorded, D]] = []
    for recorded in grid.recorded:
        event = recorded.event
        if isinstance(event, ev.Event) and (event.tenant, event.job) == key and isinstance(event.data, kind):
            found.append((recorded, event.data))
    return found


def notice(grid: SimulatedGrid, key: JobKey, node: str, *, in_ms: int | None = 2 * MINUTE_MS) -> int:
    """A node hears that it is taken away; returns when."""
    deadline_ms = grid.now_ms + in_ms if in_ms is not None else 0
    grid.append(key, ev.NodePreemptionNotice(node=node, source="aws", deadline_ms=deadline_ms), actor=f"agent:{node}")
    return deadline_ms


def stuck(grid: SimulatedGrid, key: JobKey) -> None:
    """All workers of the round stop getting on, and the first node says so after five minutes."""
    running = grid.agents.running(key)
    grid.agents.interrupt(key)
    since_ms = grid.now_ms
    grid.advance(5 * MINUTE_MS)
    data = ev.NodeStuck(
        node=running.members[0], round=running.round, what="no_step", last_step=running.step, since_ms=since_ms
    )
    grid.append(key, data, actor=f"agent:{data.node}")


def holds(grid: SimulatedGrid, key: JobKey, rule: str) -> list[ev.ScaleDecided]:
    return [scale for _, scale in told(grid, key, ev.ScaleDecided) if scale.rule == rule]


def verified(grid: SimulatedGrid, key: JobKey) -> None:
    state = grid.job(key)
    assert state.illegal == 0, state.last_illegal
    report = verify(grid.recorded, grid.samples)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions


def ended(grid: SimulatedGrid, key: JobKey) -> str:
    grid.run()
    verified(grid, key)
    assert all(launch.resolved for launch in grid.job(key).launches.values())
    return grid.job(key).phase


# --------------------------------------------------------------------------------------------------------------------
# Notices
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.survive("M", "notice")
@pytest.mark.parametrize("taken", [0, 1], ids=["the host of rank 0", "the other"])
def test_a_node_with_a_notice_leaves_before_its_deadline_and_no_step_is_lost(taken: int) -> None:
    grid, key = running(spec())
    before = grid.job(key)
    leaver = before.member_nodes[taken]
    deadline_ms = notice(grid, key, leaver)
    assert ended(grid, key) == "completed"

    (drain,) = [each for _, each in told(grid, key, ev.DrainDecided) if each.reason == "preempted"]
    assert (drain.round, drain.leaving) == (before.round, (leaver,))
    left = next(recorded for recorded, each in told(grid, key, ev.NodeLeft) if each.node == leaver)
    assert left.recorded_ms < deadline_ms
    world = next(each for _, each in told(grid, key, ev.WorldDecided) if each.round == before.round + 1)
    drained = next(each for _, each in told(grid, key, ev.NodeDrained) if each.round == before.round)
    assert drained.clean
    assert world.resume is not None
    assert world.resume.step == drained.last_step
    assert leaver not in {member.node for member in world.members}


def test_a_replacement_is_asked_for_in_the_same_decision_as_the_drain() -> None:
    grid, key = running(spec())
    leaver = grid.job(key).member_nodes[0]
    notice(grid, key, leaver)
    grid.advance(1_000)
    (at, _) = next((recorded, each) for recorded, each in told(grid, key, ev.DrainDecided))
    placement = next(each for recorded, each in told(grid, key, ev.PlacementDecided) if recorded.sequence > at.sequence)
    actions = {line.action: line for line in placement.assignments}
    assert actions["add"].nodes == 1
    assert actions["drop"].leaving == (leaver,)
    assert placement.placed_nodes == 2
    assert told(grid, key, ev.PlacementDecided)[-1][0].event.basis.number == at.event.basis.number  # type: ignore[union-attr] # both are decisions
    assert ended(grid, key) == "completed"


@pytest.mark.parametrize(
    ("in_ms", "grace_ms"),
    [(120_000, 110_000), (30_000, 20_000), (3_000, 2_000), (-5_000, 0), (3_600_000, 120_000), (None, 45_000)],
)
def test_the_grace_is_the_time_that_is_left_less_what_ending_the_workers_takes(
    in_ms: int | None, grace_ms: int
) -> None:
    grid, key = running(spec(grace_ms=45_000))
    notice(grid, key, grid.job(key).member_nodes[1], in_ms=in_ms)
    grid.advance(1_000)
    (drain,) = [each for _, each in told(grid, key, ev.DrainDecided)]
    assert grace_ms - 10 <= drain.grace_ms <= grace_ms
    assert ended(grid, key) == "completed"


def test_a_notice_charges_no_budget_and_no_provider_when_the_node_is_older_than_half_an_hour() -> None:
    grid, key = running(spec(), Workload(total_steps=10_000, demand=((1, 2),)), providers=(SPOT, DEAR))
    grid.advance(31 * MINUTE_MS)
    notice(grid, key, grid.job(key).member_nodes[0])
    grid.advance(5 * MINUTE_MS)
    state = grid.job(key)
    assert (state.app_failures, state.infra_failures, state.infra_charged) == (0, 0, 0)
    assert health_ppm(grid.fold.fleet, "cheap", grid.now_ms) == PPM
    assert ended(grid, key) == "completed"


def test_a_node_that_is_taken_young_counts_once_against_its_provider() -> None:
    grid, key = running(spec(), providers=(SPOT, DEAR))
    node = grid.job(key).member_nodes[0]
    notice(grid, key, node)
    notice(grid, key, node)
    assert health_ppm(grid.fold.fleet, "cheap", grid.now_ms) == 700_000
    assert ended(grid, key) == "completed"
    assert grid.job(key).infra_failures == 0


@pytest.mark.survive("notice")
def test_a_node_that_is_gone_before_it_could_leave_charges_no_budget_after_its_notice() -> None:
    grid, key = running(spec())
    node = grid.job(key).member_nodes[-1]
    notice(grid, key, node, in_ms=3_000)
    assert grid.lose_node(key) == node
    assert ended(grid, key) == "completed"
    assert grid.job(key).infra_failures == 0


def test_a_node_that_waits_for_a_world_leaves_when_it_gets_a_notice() -> None:
    grid = SimulatedGrid((CHEAP, DEAR))
    key = grid.submit(spec(), Workload(total_steps=400, demand=((1, 2),)))
    while not any(node.status == "joined" for node in grid.job(key).nodes.values()):
        grid.advance(100)
    node = next(node.id for node in grid.job(key).nodes.values() if node.status == "joined")
    notice(grid, key, node)
    assert ended(grid, key) == "completed"
    assert all(node not in {m.node for m in world.members} for _, world in told(grid, key, ev.WorldDecided))


def test_a_notice_in_the_middle_of_a_drain_keeps_the_node_out_of_the_next_world() -> None:
    grid, key = running(spec((2, 4)), Workload(total_steps=4_000, demand=((1, 2),)))
    grid.request(key, ev.JobResizeRequested(min_nodes=1, max_nodes=1))
    while grid.job(key).phase != "draining":
        grid.advance(10)
    stays = next(node for node in grid.job(key).member_nodes if grid.job(key).nodes[node].status == "joined")
    notice(grid, key, stays)
    assert ended(grid, key) == "completed"
    last = told(grid, key, ev.WorldDecided)[-1][1]
    assert stays not in {member.node for member in last.members}


def test_when_nothing_can_replace_a_node_the_others_go_on_without_it() -> None:
    grid, key = running(spec((1, 2), initial_nodes=2), providers=(CHEAP,))
    grid.append(("_grid", "fleet"), ev.ProviderCordoned(name="cheap"), actor="key:simulated")
    notice(grid, key, grid.job(key).member_nodes[0])
    grid.advance(60_000)
    assert grid.job(key).phase == "running"
    assert [len(world.members) for _, world in told(grid, key, ev.WorldDecided)] == [2, 1]
    assert ended(grid, key) == "completed"


# --------------------------------------------------------------------------------------------------------------------
# Who is to blame
# --------------------------------------------------------------------------------------------------------------------


def broken(grid: SimulatedGrid, key: JobKey, codes: tuple[int, ...]) -> str:
    """Workers of the round's first node end with these codes; returns the node."""
    running = grid.agents.running(key)
    node = grid.agents.node(key, running.members[0])
    grid.agents.interrupt(key)
    node.failed_round = running.round
    exits = tuple(ev.WorkerExit(rank=rank, code=code) for rank, code in enumerate(codes))
    data = ev.NodeFailed(
        node=node.id,
        round=running.round,
        last_step=running.step,
        exits=exits,
        failure="app_failed",
        free_port=node.next_port(),
    )
    grid.append(key, data, actor=f"agent:{node.id}")
    return node.id


@pytest.mark.survive("20")
def test_exits_followed_by_a_notice_are_the_infrastructures_and_the_job_goes_on() -> None:
    grid, key = running(spec(max_restarts=0))
    node = broken(grid, key, (143, 1, 137))
    round_number = grid.job(key).round
    grid.advance(20_000)
    assert grid.job(key).phase == "draining"
    notice(grid, key, node)
    again = ev.NodeReclassified(node=node, round=round_number, failure="infra_failed", text="a notice came")
    grid.append(key, again, actor=f"agent:{node}")
    state = grid.job(key)
    assert (state.app_failures, state.infra_failures) == (0, 1)
    assert ended(grid, key) == "completed"
    failed = [each for _, each in told(grid, key, ev.NodeFailed)]
    assert [each.failure for each in failed] == ["app_failed"]


@pytest.mark.survive("20")
def test_the_same_exits_without_a_notice_are_the_applications_when_the_window_is_over() -> None:
    grid, key = running(spec(max_restarts=0))
    failed_ms = grid.now_ms
    broken(grid, key, (143, 1, 137))
    grid.advance(59_000)
    assert grid.job(key).phase == "draining"
    (hold,) = holds(grid, key, "disruption")
    assert hold.next_change_ms == failed_ms + 60_000
    assert ended(grid, key) == "failed"
    assert (grid.job(key).app_failures, grid.job(key).infra_failures) == (1, 0)
    assert "restarts allowed: 0" in grid.job(key).ending_reason


def test_a_notice_after_the_window_changes_no_blame() -> None:
    grid, key = running(spec(max_restarts=1))
    node = broken(grid, key, (1,))
    grid.advance(61_000)
    notice(grid, key, node)
    assert (grid.job(key).app_failures, grid.job(key).infra_failures) == (1, 0)
    assert ended(grid, key) == "completed"


@pytest.mark.survive("20")
def test_an_exit_that_the_program_chose_ends_the_job_at_once() -> None:
    grid, key = running(spec(max_restarts=0))
    broken(grid, key, (2, -15))
    grid.advance(1_000)
    assert grid.job(key).phase == "ending"
    assert ended(grid, key) == "failed"


def test_the_loss_of_another_node_right_after_explains_a_failure() -> None:
    grid, key = running(spec((3, 3), max_restarts=0), providers=(SPOT, DEAR))
    broken(grid, key, (1,))
    grid.advance(3_000)
    last = grid.job(key).nodes[grid.job(key).member_nodes[-1]]
    grid.agents.node(key, last.id).alive = False
    lost = ev.NodeLost(node=last.id, attempt=last.assignment, evidence="process_gone")
    grid.append(key, lost, actor="launcher")
    assert (grid.job(key).app_failures, grid.job(key).infra_failures) == (0, 1)
    assert ended(grid, key) == "completed"


def test_a_member_that_breaks_after_anothers_notice_is_not_the_applications_failure() -> None:
    grid, key = running(spec(max_restarts=0))
    notice(grid, key, grid.job(key).member_nodes[1])
    broken(grid, key, (1,))
    assert grid.job(key).app_failures == 0
    assert ended(grid, key) == "completed"


# --------------------------------------------------------------------------------------------------------------------
# Budgets and pauses
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.survive("21")
def test_a_job_that_always_ends_with_the_infrastructures_code_is_spaced_and_stops_at_the_cap() -> None:
    grid, key = running(spec(max_infra_restarts=5), Workload(total_steps=100_000, demand=((1, 2),)))
    begun = []
    while not grid.job(key).terminal:
        if grid.job(key).phase == "running" and grid.job(key).round_active_ms:
            begun.append(grid.job(key).round_decided_ms)
            grid.fail_worker(key, code=75, failure="infra_failed")
        grid.advance(1_000)
    assert len(begun) == 6
    pauses = [later - earlier for earlier, later in pairwise(begun[1:])]
    assert all(later > earlier for earlier, later in pairwise(pauses))
    waits = [hold.next_change_ms for hold in holds(grid, key, "back_off")]
    assert len(waits) == 4
    assert all(wait is not None for wait in waits)
    state = grid.job(key)
    assert state.phase == "failed"
    assert "failures of the infrastructure: 6, restarts allowed: 5" in state.ending_reason
    verified(grid, key)


@pytest.mark.survive("21")
def test_with_restarts_off_the_first_failure_of_the_infrastructure_ends_the_job() -> None:
    grid, key = running(spec(max_infra_restarts=0))
    grid.fail_worker(key, code=75, failure="infra_failed")
    assert ended(grid, key) == "failed"
    assert len(told(grid, key, ev.WorldDecided)) == 1


def test_ten_healthy_minutes_give_a_failure_of_the_infrastructure_back() -> None:
    grid, key = running(spec(max_infra_restarts=1), Workload(total_steps=100_000, demand=((1, 2),)))
    for _ in range(4):
        grid.fail_worker(key, code=75, failure="infra_failed")
        grid.advance(11 * MINUTE_MS)
        assert grid.job(key).phase == "running"
    assert grid.job(key).infra_failures == 4
    grid.fail_worker(key, code=75, failure="infra_failed")
    grid.advance(MINUTE_MS)
    grid.fail_worker(key, code=75, failure="infra_failed")
    assert ended(grid, key) == "failed"


def test_healthy_time_adds_up_over_changes_of_size() -> None:
    grid, key = running(spec((1, 4), max_infra_restarts=1), Workload(total_steps=100_000, demand=((1, 2),)))
    grid.fail_worker(key, code=75, failure="infra_failed")
    for size in (1, 2, 1, 2, 1):
        grid.request(key, ev.JobResizeRequested(min_nodes=size, max_nodes=size))
        grid.advance(4 * MINUTE_MS)
    assert len(told(grid, key, ev.WorldDecided)) > 4
    grid.fail_worker(key, code=75, failure="infra_failed")
    grid.advance(2 * MINUTE_MS)
    assert grid.job(key).phase == "running"
    verified(grid, key)


@pytest.mark.survive("14", "18")
def test_nodes_lost_together_are_one_failure() -> None:
    grid, key = running(spec((4, 4)), Workload(total_steps=4_000, demand=((1, 4),)))
    for node in grid.job(key).member_nodes[2:]:
        grid.agents.node(key, node).alive = False
        grid.append(
            key,
            ev.NodeLost(node=node, attempt=grid.job(key).nodes[node].assignment, evidence="process_gone"),
            actor="launcher",
        )
    assert grid.job(key).infra_failures == 1
    assert ended(grid, key) == "completed"


# --------------------------------------------------------------------------------------------------------------------
# Stuck rounds
# --------------------------------------------------------------------------------------------------------------------


def test_a_stuck_round_is_only_told_when_the_job_says_nothing_else() -> None:
    grid, key = running(spec())
    stuck(grid, key)
    grid.advance(60_000)
    state = grid.job(key)
    assert (state.phase, state.round) == ("running", 1)
    assert "is stuck after step" in state.stuck
    assert state.infra_failures == 0
    verified(grid, key)


@pytest.mark.parametrize(("on_stuck", "end"), [("restart", "completed"), ("fail", "failed")])
def test_a_stuck_round_is_answered_as_the_job_says(on_stuck: OnStuck, end: str) -> None:
    grid, key = running(spec(on_stuck=on_stuck))
    committed = grid.job(key).checkpoint
    stuck(grid, key)
    assert ended(grid, key) == end
    state = grid.job(key)
    if on_stuck == "fail":
        assert "is stuck after step" in state.ending_reason
        return
    assert (state.infra_failures, state.app_failures, state.stuck) == (1, 0, "")
    drains = [each for _, each in told(grid, key, ev.DrainDecided) if each.reason == "stuck"]
    assert [(each.round, each.grace_ms) for each in drains] == [(1, 0)]
    assert told(grid, key, ev.WorldDecided)[1][1].resume == committed


def test_a_job_that_gets_stuck_again_and_again_stops_at_the_cap() -> None:
    grid, key = running(spec(on_stuck="restart", max_infra_restarts=1))
    for _ in range(2):
        stuck(grid, key)
        grid.advance(2 * MINUTE_MS)
    assert ended(grid, key) == "failed"
    assert "restarts allowed: 1" in grid.job(key).ending_reason
