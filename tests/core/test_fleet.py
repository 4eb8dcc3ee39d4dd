"""The fleet as a fold: what is charged to a provider, and which marks close it for how long."""

from __future__ import annotations

import json

import msgspec
import pytest
from fleet_builder import ANY, DOLLAR, LAW, MINUTE_MS, FleetLog, provider, through_json
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import evolve_fleet, initial_fleet
from elasticgrid.core.fleet_state import FleetState, Refusal, Usage, free_nodes, health_ppm, usable
from elasticgrid.core.job_nodes import all_nodes, job_key, nodes_of
from elasticgrid.core.spec import PlacementPolicy

HOUR_MS = 60 * MINUTE_MS


def refusal(log: FleetLog, name: str, at_ms: int) -> Refusal | None:
    return usable(name, ANY, log.fleet, at_ms)


def usage(log: FleetLog, name: str = "a") -> tuple[int, int, int]:
    used = log.fleet.usage.get(name, Usage())
    return used.in_flight, used.in_use, used.draining


# Usage --------------------------------------------------------------------------------------------------------------


def test_a_node_is_charged_from_its_placement_until_it_is_seen_to_be_gone() -> None:
    log = FleetLog(provider("a", 8))
    log.plan("p1", "a", 2, at_ms=1)
    assert usage(log) == (2, 0, 0)
    log.request("p1", "a", 2, at_ms=2)
    log.add(ev.LaunchStarted(attempt="p1", handle="h"), at_ms=3)
    assert usage(log) == (2, 0, 0)
    log.join("p1-0", "a", at_ms=4)
    log.join("p1-1", "a", at_ms=5)
    assert usage(log) == (0, 2, 0)
    log.drop("p1", "a", ("p1-1",), at_ms=6)
    assert usage(log) == (0, 1, 1)
    assert free_nodes(log.fleet, "a") == 6
    log.add(ev.NodeLeft(node="p1-1", reason="resize"), at_ms=7)
    assert usage(log) == (0, 1, 0)
    log.add(ev.LaunchStopped(attempt="p1", reason="done"), at_ms=8)
    assert usage(log) == (0, 0, 0)
    assert log.fleet.jobs == {}


def test_a_failed_launch_gives_back_what_it_was_charged() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "transient", at_ms=1)
    assert free_nodes(log.fleet, "a") == 8


def test_an_assignment_dropped_before_its_launch_gives_back_at_once() -> None:
    log = FleetLog(provider("a", 8))
    log.plan("p1", "a", 3, at_ms=1)
    log.drop("p1", "a", ("p1-2",), at_ms=2)
    assert usage(log) == (2, 0, 0)
    log.drop("p1", "a", ("p1-0", "p1-1"), at_ms=3)
    assert usage(log) == (0, 0, 0)


def test_a_launch_requested_in_spite_of_its_drop_is_charged_because_it_may_exist() -> None:
    log = FleetLog(provider("a", 8))
    log.plan("p1", "a", 2, at_ms=1)
    log.drop("p1", "a", ("p1-0", "p1-1"), at_ms=2)
    log.request("p1", "a", 2, at_ms=3)
    assert free_nodes(log.fleet, "a") == 6
    log.add(ev.LaunchStopped(attempt="p1", reason="given up"), at_ms=4)
    assert free_nodes(log.fleet, "a") == 8


def test_a_silent_node_is_charged_until_it_is_confirmed_gone() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 2, at_ms=1)
    log.lose("p1-0", at_ms=HOUR_MS, silent=True)
    assert usage(log) == (0, 1, 1)
    log.lose("p1-0", at_ms=HOUR_MS + 1)
    assert usage(log) == (0, 1, 0)


def test_the_same_node_gone_twice_is_given_back_once() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 2, at_ms=1)
    log.lose("p1-0", at_ms=HOUR_MS)
    log.add(ev.NodeLeft(node="p1-0", reason="late"), at_ms=HOUR_MS + 1)
    assert usage(log) == (0, 1, 0)


def test_what_a_finished_job_launched_is_charged_until_it_stopped_and_what_it_planned_is_not() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 2, at_ms=1)
    log.plan("p2", "a", 3, at_ms=2)
    log.add(ev.OutcomeDecided(outcome="completed", reason=""), at_ms=3)
    assert usage(log) == (0, 0, 2)
    log.add(ev.LaunchStopped(attempt="p1", reason="over"), at_ms=4)
    assert free_nodes(log.fleet, "a") == 8


def test_a_drained_node_that_joins_late_stays_a_leaving_one() -> None:
    log = FleetLog(provider("a", 8))
    log.start("p1", "a", 1, at_ms=1)
    log.add(ev.DrainDecided(round=0, reason="cancelled", leaving=("p1-0",)), at_ms=2)
    log.join("p1-0", "a", at_ms=3)
    assert usage(log) == (0, 0, 1)


def test_an_event_that_does_not_concern_the_fleet_returns_the_very_same_state() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 1, at_ms=1)
    before = log.fleet
    log.add(ev.NodeStarted(node="p1-0", round=1, step=1), at_ms=2)
    log.add(ev.ScaleDecided(action="hold", current_nodes=1, target_nodes=1, rule="balanced", reason=""), at_ms=3)
    log.add(ev.NodeLeft(node="nobody", reason=""), at_ms=4)
    unknown = ev.UnknownEvent(id="u", type="x.y", schema_version=1, time_ms=5, tenant="t", job="j", raw=b"{}")
    assert evolve_fleet(log.fleet, ev.Recorded(99, 5, unknown)) is before


def test_folding_leaves_the_state_it_started_from_as_it_was() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 2, at_ms=1)
    before, written = log.fleet, msgspec.json.encode(log.fleet)
    log.lose("p1-0", at_ms=2)
    log.drop("p1", "a", ("p1-1",), at_ms=3)
    log.fail("p2", "a", "stockout", at_ms=4)
    assert msgspec.json.encode(before) == written


# Providers ----------------------------------------------------------------------------------------------------------


def test_a_provider_withdrawn_at_work_takes_nothing_new_and_disappears_when_it_is_empty() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 1, at_ms=1)
    log.on_grid(ev.ProviderWithdrawn(name="a"), at_ms=2)
    refused = refusal(log, "a", 3)
    assert refused is not None
    assert refused.reason == "withdrawn"
    assert "a" in log.fleet.providers
    log.add(ev.NodeLeft(node="p1-0", reason="drained"), at_ms=4)
    assert log.fleet.providers == {}


def test_an_idle_provider_withdrawn_is_gone_at_once_and_may_come_back() -> None:
    log = FleetLog(provider("a", 8))
    log.on_grid(ev.ProviderWithdrawn(name="a"), at_ms=1)
    assert log.fleet.providers == {}
    log.on_grid(ev.ProviderDeclared(provider=provider("a", 4)), at_ms=2)
    assert refusal(log, "a", 3) is None


def test_a_cordoned_provider_takes_nodes_again_only_when_it_is_uncordoned() -> None:
    log = FleetLog(provider("a", 8))
    log.on_grid(ev.ProviderCordoned(name="a", reason="disk swap"), at_ms=1)
    log.on_grid(ev.ProviderDeclared(provider=provider("a", 9)), at_ms=2)
    refused = refusal(log, "a", 3)
    assert refused is not None
    assert (refused.reason, refused.detail) == ("cordoned", "disk swap")
    log.on_grid(ev.ProviderUncordoned(name="a"), at_ms=4)
    assert refusal(log, "a", 5) is None


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (PlacementPolicy(providers=("b",)), "constraint"),
        (PlacementPolicy(regions=("eu",)), "constraint"),
        (PlacementPolicy(accelerators=("h100",)), "constraint"),
        (PlacementPolicy(spot="require"), "constraint"),
        (PlacementPolicy(max_price_microdollars_per_hour=DOLLAR - 1), "price"),
        (PlacementPolicy(max_price_microdollars_per_hour=DOLLAR, spot="forbid"), None),
    ],
)
def test_a_policy_refuses_with_its_reason(policy: PlacementPolicy, reason: str | None) -> None:
    refused = usable("a", policy, initial_fleet([provider("a", 2)]), 0)
    assert (refused.reason if refused is not None else None) == reason


def test_a_full_provider_and_one_with_less_than_a_slice_say_so() -> None:
    log = FleetLog(provider("a", 2), provider("b", 5, slice_nodes=3))
    log.run("p1", "a", 2, at_ms=1)
    log.run("p2", "b", 3, at_ms=1)
    reasons = [(each.reason if (each := refusal(log, name, 2)) else None) for name in ("a", "b", "c")]
    assert reasons == ["capacity", "slice", "withdrawn"]


# Marks --------------------------------------------------------------------------------------------------------------


def until(log: FleetLog, name: str, at_ms: int) -> int | None:
    """When the mark that closes the provider ends, as its distance from now."""
    refused = refusal(log, name, at_ms)
    assert refused is not None
    assert refused.reason == "mark"
    return None if refused.until_ms is None else refused.until_ms - at_ms


def test_a_stockout_closes_for_15_minutes_and_doubles_to_two_hours() -> None:
    log = FleetLog(provider("a", 8))
    now, closed_min = 0, []
    for index in range(6):
        log.fail(f"p{index}", "a", "stockout", at_ms=now)
        left = until(log, "a", now)
        assert left is not None
        closed_min.append(left // MINUTE_MS)
        now += left
        assert refusal(log, "a", now) is None
    assert closed_min == [15, 30, 60, 120, 120, 120]


def test_failures_at_one_moment_are_one_stockout_and_all_its_evidence() -> None:
    log = FleetLog(provider("a", 8))
    log.launch("p1", "a", 1, at_ms=0)
    log.launch("p2", "a", 1, at_ms=0)
    first = log.add(ev.LaunchFailed(attempt="p1", failure="stockout", text=""), at_ms=1)
    second = log.add(ev.LaunchFailed(attempt="p2", failure="stockout", text=""), at_ms=2)
    refused = refusal(log, "a", 3)
    assert refused is not None
    assert refused.until_ms == 1 + 15 * MINUTE_MS
    assert refused.evidence == (first, second)


def test_a_stockout_at_a_tier_closes_larger_tiers_of_its_pool_and_zone_and_nothing_else() -> None:
    log = FleetLog(
        *(provider(f"t{tier}", 8, quota_pool="g", zone="z", tier=tier) for tier in (1, 2, 3)),
        provider("other_zone", 8, quota_pool="g", zone="y", tier=2),
        provider("other_pool", 8, quota_pool="h", zone="z", tier=2),
    )
    log.fail("p1", "t2", "stockout", at_ms=0)
    closed = [name for name in log.fleet.providers if refusal(log, name, 1) is not None]
    assert closed == ["t2", "t3"]
    assert refusal(log, "t3", 15 * MINUTE_MS) is None


def test_a_grant_closes_a_stockout_at_once_but_says_nothing_of_larger_sizes() -> None:
    log = FleetLog(*(provider(f"t{tier}", 8, quota_pool="g", tier=tier) for tier in (1, 2)))
    log.launch("p0", "t1", 1, at_ms=0)
    log.fail("p1", "t1", "stockout", at_ms=1)
    log.fail("p2", "t2", "stockout", at_ms=1)
    log.add(ev.LaunchStarted(attempt="p0", handle="h"), at_ms=2)
    assert refusal(log, "t1", 3) is None
    assert until(log, "t2", 3) is not None


def test_a_failure_from_before_a_grant_that_arrives_after_it_does_not_reopen_the_mark() -> None:
    log = FleetLog(provider("a", 8))
    log.start("p1", "a", 1, at_ms=100)
    log.fail("p2", "a", "stockout", at_ms=120, happened_ms=90)
    assert refusal(log, "a", 121) is None
    log.fail("p3", "a", "stockout", at_ms=140, happened_ms=130)
    assert refusal(log, "a", 141) is not None


def test_after_a_stockout_exactly_one_probe_is_under_way() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "stockout", at_ms=0)
    now = 15 * MINUTE_MS
    assert refusal(log, "a", now) is None
    log.plan("p2", "a", 1, at_ms=now)
    assert until(log, "a", now) is None
    log.request("p2", "a", 1, at_ms=now)
    log.add(ev.LaunchFailed(attempt="p2", failure="stockout", text=""), at_ms=now + 1)
    assert until(log, "a", now + 1) == 30 * MINUTE_MS


def test_a_probe_that_was_given_up_lets_the_next_one_through() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "stockout", at_ms=0)
    now = 15 * MINUTE_MS
    log.plan("p2", "a", 1, at_ms=now)
    log.drop("p2", "a", ("p2-0",), at_ms=now + 1)
    assert refusal(log, "a", now + 2) is None


def test_a_probe_that_is_granted_ends_the_mark_and_the_doubling() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "stockout", at_ms=0)
    log.start("p2", "a", 1, at_ms=15 * MINUTE_MS)
    assert refusal(log, "a", 15 * MINUTE_MS) is None
    log.fail("p3", "a", "stockout", at_ms=16 * MINUTE_MS)
    assert until(log, "a", 16 * MINUTE_MS) == 15 * MINUTE_MS


def test_a_used_quota_closes_its_pool_in_the_region_until_one_of_ours_is_released() -> None:
    log = FleetLog(
        provider("a", 8, quota_pool="g", region="us"),
        provider("b", 8, quota_pool="g", region="us"),
        provider("c", 8, quota_pool="g", region="eu"),
    )
    log.run("p1", "b", 1, at_ms=0)
    log.fail("p2", "a", "quota_used", at_ms=1)
    assert [until(log, name, 1) for name in ("a", "b")] == [30 * MINUTE_MS] * 2
    assert refusal(log, "c", 2) is None
    log.add(ev.NodeLeft(node="p1-0", reason=""), at_ms=3)
    assert refusal(log, "a", 4) is None


def test_a_used_quota_reopens_by_itself_after_30_minutes() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "quota_used", at_ms=0)
    assert refusal(log, "a", 30 * MINUTE_MS) is None


def test_a_quota_of_zero_closes_for_a_day_or_until_the_provider_is_declared_anew() -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", "quota_zero", at_ms=0)
    assert until(log, "a", 0) == 24 * HOUR_MS
    log.on_grid(ev.ProviderDeclared(provider=provider("a", 8)), at_ms=5)
    assert refusal(log, "a", 6) is None


def test_a_refused_credential_closes_the_account_until_the_configuration_changes() -> None:
    log = FleetLog(
        provider("a", 8, engine="gcp/us-a1"), provider("b", 8, engine="gcp/us-b1"), provider("c", 8, engine="ssh")
    )
    log.launch("p0", "a", 1, at_ms=0)
    log.fail("p1", "a", "auth", at_ms=1)
    log.add(ev.LaunchStarted(attempt="p0", handle="h"), at_ms=2)
    assert [until(log, name, 90 * 24 * HOUR_MS) for name in ("a", "b")] == [None, None]
    assert refusal(log, "c", 2) is None
    log.on_grid(ev.ProviderDeclared(provider=provider("a", 8, engine="gcp/us-a1")), at_ms=3)
    assert refusal(log, "b", 4) is None


def test_a_rate_limit_closes_for_seconds_with_a_jitter_that_only_the_event_decides() -> None:
    def closed_ms() -> list[int]:
        log = FleetLog(provider("a", 8))
        now, closed = 0, []
        for index in range(8):
            log.fail(f"p{index}", "a", "rate_limited", at_ms=now)
            left = until(log, "a", now)
            assert left is not None
            closed.append(left)
            now += left
        return closed

    first = closed_ms()
    assert first == closed_ms()
    for index, closed in enumerate(first):
        base = min(2_000 << index, 60_000)
        assert base <= closed <= base + base // 2
    assert health_ppm(FleetLog(provider("a", 8)).fleet, "a", 0) == 1_000_000


def test_api_trouble_closes_one_provider_for_30_seconds_doubling_to_15_minutes() -> None:
    log = FleetLog(provider("a", 8, quota_pool="g"), provider("b", 8, quota_pool="g"))
    now, closed_s = 0, []
    for index in range(7):
        log.fail(f"p{index}", "a", "transient", at_ms=now)
        left = until(log, "a", now)
        assert left is not None
        closed_s.append(left // 1000)
        now += left
    assert closed_s == [30, 60, 120, 240, 480, 900, 900]
    assert refusal(log, "b", 0) is None


@pytest.mark.parametrize("failure", ["invalid", "app_failed"])
def test_a_failure_of_the_job_marks_no_provider(failure: ev.FailureClass) -> None:
    log = FleetLog(provider("a", 8))
    log.fail("p1", "a", failure, at_ms=0)
    assert log.fleet.marks == {}


# Health -------------------------------------------------------------------------------------------------------------


def test_five_boot_failures_in_a_row_block_a_provider_until_it_says_and_then_one_probe_goes_through() -> None:
    log = FleetLog(provider("a", 8))
    for index in range(5):
        assert refusal(log, "a", index) is None
        log.fail(f"p{index}", "a", "boot_failed", at_ms=index)
    left = until(log, "a", 5)
    assert left is not None
    assert 0 < left < HOUR_MS // 4
    reopens = 5 + left
    assert refusal(log, "a", reopens) is None
    log.start("p9", "a", 1, at_ms=reopens)
    assert until(log, "a", reopens) is None
    log.join("p9-0", "a", at_ms=reopens + 1)
    assert refusal(log, "a", reopens + 1) is None


def test_health_recovers_in_an_hour_so_spread_out_failures_never_block() -> None:
    log = FleetLog(provider("a", 8))
    for index in range(20):
        log.fail(f"p{index}", "a", "boot_failed", at_ms=index * HOUR_MS)
        assert refusal(log, "a", index * HOUR_MS) is None
    assert health_ppm(log.fleet, "a", 19 * HOUR_MS) == 700_000
    assert health_ppm(log.fleet, "a", 20 * HOUR_MS) == 1_000_000


def test_a_node_lost_at_20_minutes_counts_against_its_provider_and_one_at_45_does_not() -> None:
    log = FleetLog(provider("a", 8, market="spot"), provider("b", 8, market="spot"))
    log.run("p1", "a", 2, at_ms=0)
    log.run("p2", "b", 2, at_ms=0)
    log.lose("p1-0", at_ms=20 * MINUTE_MS)
    log.lose("p1-1", at_ms=20 * MINUTE_MS)
    log.lose("p2-0", at_ms=45 * MINUTE_MS)
    assert health_ppm(log.fleet, "a", 20 * MINUTE_MS) == 700_000
    assert health_ppm(log.fleet, "b", 45 * MINUTE_MS) == 1_000_000


def test_a_node_that_was_told_to_leave_is_no_loss() -> None:
    log = FleetLog(provider("a", 8))
    log.run("p1", "a", 1, at_ms=0)
    log.drop("p1", "a", ("p1-0",), at_ms=1)
    log.lose("p1-0", at_ms=2)
    assert health_ppm(log.fleet, "a", 2) == 1_000_000


def test_a_small_tier_that_churns_does_not_close_the_larger_one() -> None:
    log = FleetLog(*(provider(f"t{tier}", 8, quota_pool="g", tier=tier) for tier in (1, 2)))
    for index in range(5):
        log.start(f"p{index}", "t1", 1, at_ms=0)
        log.lose(f"p{index}-0", at_ms=1)
    assert health_ppm(log.fleet, "t1", 1) < 200_000
    assert refusal(log, "t1", 2) is not None
    assert refusal(log, "t2", 2) is None


# Laws ---------------------------------------------------------------------------------------------------------------

_FAILURES: tuple[ev.FailureClass, ...] = ("stockout", "transient", "boot_failed", "auth", "quota_used")
_JOBS, _PLACES, _LINES = ("j", "k"), ("a", "b"), ("p1", "p2", "p3")


@st.composite
def histories(draw: st.DrawFn) -> FleetLog:
    """Any events in any order, sensible or not."""
    log = FleetLog(provider("a", 8, quota_pool="g"), provider("b", 8, quota_pool="g", tier=1))
    now = 0
    for _ in range(draw(st.integers(0, 30))):
        now += draw(st.sampled_from((0, 1_000, MINUTE_MS, 20 * MINUTE_MS)))
        job, line = draw(st.sampled_from(_JOBS)), draw(st.sampled_from(_LINES))
        where = draw(st.sampled_from(_PLACES))
        node = f"{line}-{draw(st.integers(0, 2))}"
        match draw(st.integers(0, 10)):
            case 0:
                log.plan(line, where, draw(st.integers(1, 3)), at_ms=now, job=job)
            case 1:
                log.request(line, where, draw(st.integers(1, 3)), at_ms=now, job=job)
            case 2:
                log.add(ev.LaunchStarted(attempt=line, handle="h"), at_ms=now, job=job)
            case 3:
                failure = draw(st.sampled_from(_FAILURES))
                log.add(ev.LaunchFailed(attempt=line, failure=failure, text=""), at_ms=now, job=job)
            case 4:
                log.add(ev.LaunchStopped(attempt=line, reason=""), at_ms=now, job=job)
            case 5:
                log.join(node, where, at_ms=now, job=job)
            case 6:
                log.lose(node, at_ms=now, silent=draw(st.booleans()), job=job)
            case 7:
                log.add(ev.NodeLeft(node=node, reason=""), at_ms=now, job=job)
            case 8:
                log.drop(line, where, (node,), at_ms=now, job=job)
            case 9:
                log.add(ev.OutcomeDecided(outcome="failed", reason=""), at_ms=now, job=job)
            case _:
                log.on_grid(ev.ProviderWithdrawn(name=where), at_ms=now)
                log.on_grid(ev.ProviderDeclared(provider=provider(where, 8)), at_ms=now)
    return log


def charged_by_jobs(fleet: FleetState) -> dict[str, int]:
    charged: dict[str, int] = {}
    for _, job in all_nodes(fleet.jobs):
        for plan in job.planned.values():
            charged[plan.provider] = charged.get(plan.provider, 0) + plan.nodes
        for launch in job.launches.values():
            charged[launch.provider] = charged.get(launch.provider, 0) + len(launch.nodes)
    return charged


@LAW
@given(histories())
def test_usage_is_always_the_sum_of_what_jobs_are_charged_for(log: FleetLog) -> None:
    assert {name: each.charged for name, each in log.fleet.usage.items()} == charged_by_jobs(log.fleet)
    assert all(min(each.in_flight, each.in_use, each.draining) >= 0 for each in log.fleet.usage.values())


@LAW
@given(histories(), st.integers(0, 30))
def test_a_fleet_written_to_json_goes_on_as_if_it_had_not_been(log: FleetLog, cut: int) -> None:
    fleet = initial_fleet()
    for recorded in log.recorded[:cut]:
        fleet = evolve_fleet(fleet, recorded)
    again = through_json(fleet)
    assert again == fleet
    for recorded in log.recorded[cut:]:
        again = evolve_fleet(again, recorded)
    assert msgspec.json.encode(again) == msgspec.json.encode(log.fleet)


def test_a_job_with_nothing_left_leaves_no_trace_in_the_state() -> None:
    log = FleetLog(provider("a", 2_000))
    for index in range(1_000):
        log.run(f"p{index}", "a", 1, at_ms=index, job=f"j{index}")
    assert len(dict(all_nodes(log.fleet.jobs))) == 1_000
    assert nodes_of(log.fleet.jobs, job_key("t", "j7")).launches
    for index in range(1_000):
        log.add(ev.NodeLeft(node=f"p{index}-0", reason=""), at_ms=2_000, job=f"j{index}")
    assert log.fleet.jobs == {}
    assert json.loads(msgspec.json.encode(log.fleet)).keys() == {"providers", "granted_ms"}
