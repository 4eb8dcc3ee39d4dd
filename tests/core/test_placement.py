"""Placement: what is kept, added and dropped, why others were refused, and what can never be placed."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from fleet_builder import (
    DOLLAR,
    LAW,
    MINUTE_MS,
    FleetLog,
    candidate,
    demand,
    held,
    kept,
    leaving,
    provider,
    taken,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import initial_fleet
from elasticgrid.core.fleet_state import FleetState, free_nodes
from elasticgrid.core.placement import Demand, HeldAssignment, check_placeable, place
from elasticgrid.core.spec import JobSpec, PlacementPolicy, ProviderSpec

HOUR_MS = 60 * MINUTE_MS


def place_one(one: Demand, fleet: FleetState, as_of_ms: int = 0) -> ev.PlacementDecided:
    (placement,) = place((one,), fleet, as_of_ms)
    return placement


def on(*providers: ProviderSpec) -> FleetState:
    return initial_fleet(providers)


# Cost, spread and the spot cap --------------------------------------------------------------------------------------


def test_free_on_demand_nodes_come_before_any_spot() -> None:
    fleet = on(
        provider("local", 8, 0),
        provider("aws", 64, 3.2, market="spot"),
        provider("gcp", 64, 3.6, market="spot"),
        provider("ssh", 4, 5),
    )
    placement = place_one(demand(8, policy=PlacementPolicy(max_spot_ppm=900_000)), fleet)
    assert taken(placement) == {"local": 8}
    assert placement.price_microdollars_per_hour == 0


def test_a_spot_cap_never_forces_spot_where_on_demand_is_cheaper() -> None:
    fleet = on(provider("od", 100, 0.5), provider("spot", 100, 1, market="spot"))
    placement = place_one(demand(10, policy=PlacementPolicy(max_spot_ppm=900_000)), fleet)
    assert taken(placement) == {"od": 10}
    assert placement.price_microdollars_per_hour == 5 * DOLLAR


def test_a_spot_cap_is_the_floor_of_its_share() -> None:
    fleet = on(provider("od", 100, 2), provider("spot", 100, 1, market="spot"))
    placement = place_one(demand(9, policy=PlacementPolicy(max_spot_ppm=500_000)), fleet)
    assert taken(placement) == {"spot": 4, "od": 5}
    assert placement.policy_broken == ""
    assert candidate(placement, "spot").refused == "spot_cap"


def test_where_on_demand_cannot_hold_the_rest_it_goes_on_spot_and_the_placement_says_so() -> None:
    fleet = on(provider("od", 3, 2), provider("spot", 100, 1, market="spot"))
    placement = place_one(demand(10, policy=PlacementPolicy(max_spot_ppm=500_000)), fleet)
    assert taken(placement) == {"spot": 7, "od": 3}
    assert placement.policy_broken == "7 of 10 nodes are spot where at most 5 may be: on-demand cannot hold the rest"


def test_the_spot_cap_counts_what_the_job_already_holds() -> None:
    fleet = on(provider("od", 100, 2), provider("spot", 100, 1, market="spot"))
    had = (held("h1", "spot", 3, 1, "spot"), held("h2", "od", 3, 2))
    placement = place_one(demand(8, held=had, policy=PlacementPolicy(max_spot_ppm=500_000)), fleet)
    assert taken(placement) == {"spot": 1, "od": 1}


def test_balance_spreads_evenly_and_gives_the_odd_node_to_the_cheapest() -> None:
    fleet = on(provider("a", 100, 3), provider("b", 100, 2), provider("c", 100, 1))
    balanced = PlacementPolicy(prefer="balance")
    assert taken(place_one(demand(60, policy=balanced), fleet)) == {"a": 20, "b": 20, "c": 20}
    assert taken(place_one(demand(61, policy=balanced), fleet)) == {"a": 20, "b": 20, "c": 21}
    assert taken(place_one(demand(60), fleet)) == {"c": 60}


def test_balance_fills_up_to_what_each_can_hold_and_counts_what_is_held() -> None:
    fleet = on(provider("a", 5, 1), provider("b", 100, 2), provider("c", 100, 3))
    balanced = PlacementPolicy(prefer="balance")
    assert taken(place_one(demand(25, policy=balanced), fleet)) == {"a": 5, "b": 10, "c": 10}
    had = (held("h", "b", 6),)
    assert taken(place_one(demand(12, policy=balanced, held=had), fleet)) == {"a": 3, "c": 3}


def test_two_regions_and_two_markets_of_one_cloud_are_providers_of_their_own() -> None:
    fleet = on(
        provider("gcp-us", 2, 1, engine="gcp/us", region="us"),
        provider("gcp-us-spot", 2, 0.3, engine="gcp/us", region="us", market="spot"),
        provider("gcp-eu", 2, 1.1, engine="gcp/eu", region="eu"),
    )
    placement = place_one(demand(6), fleet)
    assert taken(placement) == {"gcp-us-spot": 2, "gcp-us": 2, "gcp-eu": 2}
    assert {line.provider: line.market for line in placement.assignments}["gcp-us-spot"] == "spot"


def test_an_on_demand_placement_asks_for_on_demand() -> None:
    placement = place_one(demand(2), on(provider("od", 4)))
    assert [line.market for line in placement.assignments] == ["on_demand"]


# Several jobs, and why ----------------------------------------------------------------------------------------------


def test_three_jobs_and_a_cheap_provider_with_room_for_one() -> None:
    fleet = on(provider("cheap", 1, 1), provider("dear", 8, 2))
    demands = tuple(demand(1, job=f"j{index}", submitted_ms=index) for index in range(3))
    placements = place(demands, fleet, 10)
    assert [taken(each) for each in placements] == [{"cheap": 1}, {"dear": 1}, {"dear": 1}]
    why = candidate(placements[1], "cheap")
    assert (why.refused, why.detail) == ("capacity", "all of its 1 nodes are taken")


def test_a_node_that_boots_for_exactly_this_demand_is_waited_for() -> None:
    log = FleetLog(provider("best", 1, 1), provider("other", 8, 2))
    log.start("h", "best", 1, at_ms=1)
    placement = place_one(demand(1, held=(held("h", "best", 1),)), log.fleet, 2)
    assert taken(placement) == {}
    assert kept(placement) == {"h": 1}


def test_only_what_was_not_yet_asked_for_is_asked_for() -> None:
    log = FleetLog(provider("a", 8, 1))
    log.launch("h", "a", 2, at_ms=1)
    placement = place_one(demand(3, held=(held("h", "a", 2),)), log.fleet, 2)
    assert taken(placement) == {"a": 1}
    assert placement.placed_nodes == 3


def test_a_higher_band_is_served_first_and_then_who_came_first() -> None:
    fleet = on(provider("a", 2, 1))
    demands = (
        demand(1, job="late", submitted_ms=30),
        demand(1, job="early", submitted_ms=20),
        demand(1, job="production", submitted_ms=40, band="production"),
    )
    assert [each.placed_nodes for each in place(demands, fleet, 50)] == [0, 1, 1]


def test_a_job_that_waited_long_enough_comes_before_a_stream_of_higher_ones() -> None:
    fleet = on(provider("a", 1, 1))
    low = demand(1, job="low", submitted_ms=0)
    started = []
    for minute in range(0, 120, 10):
        high = demand(1, job="high", band="production", submitted_ms=minute * MINUTE_MS)
        started.append(place((low, high), fleet, minute * MINUTE_MS)[0].placed_nodes)
    assert started[0] == 0
    assert started[6:] == [1] * 6


def test_every_provider_has_one_reason_and_a_mark_says_when_it_ends() -> None:
    log = FleetLog(
        provider("full", 1, 1),
        provider("cordoned", 8, 1),
        provider("marked", 8, 1),
        provider("dear", 8, 9),
        provider("spot", 8, 1, market="spot"),
        provider("good", 8, 2),
    )
    log.run("x", "full", 1, at_ms=1)
    log.on_grid(ev.ProviderCordoned(name="cordoned"), at_ms=2)
    evidence = log.fail("y", "marked", "stockout", at_ms=3)
    policy = PlacementPolicy(spot="forbid", max_price_microdollars_per_hour=3 * DOLLAR)
    placement = place_one(demand(2, job="other", policy=policy), log.fleet, 4)
    assert taken(placement) == {"good": 2}
    reasons = {each.provider: each.refused for each in placement.candidates}
    assert reasons == {
        "full": "capacity",
        "cordoned": "cordoned",
        "marked": "mark",
        "dear": "price",
        "spot": "constraint",
        "good": "",
    }
    marked = candidate(placement, "marked")
    assert marked.until_ms == 3 + 15 * MINUTE_MS
    assert evidence in marked.detail


def test_a_refused_credential_sends_the_job_elsewhere() -> None:
    log = FleetLog(provider("a", 8, 1, engine="gcp/us"), provider("b", 8, 2))
    log.fail("x", "a", "auth", at_ms=1)
    assert taken(place_one(demand(2), log.fleet, 30 * 24 * HOUR_MS)) == {"b": 2}


def test_one_pass_sends_one_probe_into_a_place_that_was_closed() -> None:
    log = FleetLog(provider("a", 8, 1, quota_pool="g"), provider("a2", 8, 1, quota_pool="g"), provider("b", 8, 2))
    log.fail("x", "a", "stockout", at_ms=0)
    demands = tuple(demand(1, job=f"j{index}", submitted_ms=index) for index in range(3))
    placements = place(demands, log.fleet, 15 * MINUTE_MS)
    assert [taken(each) for each in placements] == [{"a": 1}, {"b": 1}, {"b": 1}]
    assert candidate(placements[1], "a2").refused == "mark"


# All or enough ------------------------------------------------------------------------------------------------------


def test_below_the_minimum_nothing_is_placed_and_every_candidate_says_why() -> None:
    fleet = on(provider("a", 2, 1), provider("b", 1, 2))
    placement = place_one(demand(8, least=4), fleet)
    assert (placement.placed_nodes, placement.assignments) == (0, ())
    assert placement.waiting.startswith("0 of 8 nodes are placed, at least 4 are needed; a: capacity (2 nodes are free")
    assert [each.refused for each in placement.candidates] == ["capacity", "capacity"]


def test_between_minimum_and_target_what_fits_is_placed() -> None:
    placement = place_one(demand(8, least=2), on(provider("a", 3, 1), provider("b", 2, 2)))
    assert taken(placement) == {"a": 3, "b": 2}
    assert placement.waiting.startswith("5 of 8 nodes are placed; a: capacity")


def test_a_size_is_a_multiple_of_the_quantum() -> None:
    assert place_one(demand(8, least=2, quantum=4), on(provider("a", 7, 1))).placed_nodes == 4


def test_a_grid_without_providers_says_so() -> None:
    assert place_one(demand(1), on()).waiting.endswith("the grid has no provider")


# Keep, grow, shrink, move -------------------------------------------------------------------------------------------


def test_growth_from_8_to_12_adds_4_and_moves_none() -> None:
    log = FleetLog(provider("a", 8, 2), provider("b", 8, 1))
    log.run("h", "a", 8, at_ms=1)
    placement = place_one(demand(12, held=(held("h", "a", 8, 2),)), log.fleet, 2)
    assert kept(placement) == {"h": 8}
    assert taken(placement) == {"b": 4}
    assert leaving(placement) == []
    assert [line.id for line in placement.assignments] == ["h", "p1a1"]


def test_the_dearest_leave_first_and_of_equals_the_highest_rank() -> None:
    log = FleetLog(provider("a", 8, 1), provider("b", 8, 2))
    log.run("h1", "a", 3, at_ms=1)
    log.run("h2", "b", 2, at_ms=1)
    had = (held("h1", "a", 3, 1), held("h2", "b", 2, 2))
    ranks = ("h1-2", "h2-0", "h1-0", "h2-1", "h1-1")
    assert leaving(place_one(demand(4, held=had, members=ranks), log.fleet, 2)) == ["h2-1"]
    placement = place_one(demand(2, held=had, members=ranks), log.fleet, 2)
    assert leaving(placement) == ["h1-1", "h2-0", "h2-1"]
    assert kept(placement) == {"h1": 2}
    assert placement.price_microdollars_per_hour == 2 * DOLLAR


def test_a_node_without_a_rank_leaves_before_a_member_and_rank_0_stays_longest() -> None:
    had = (held("h1", "a", 2), held("h2", "a", 1))
    fleet = on(provider("a", 8))
    assert leaving(place_one(demand(2, held=had, members=("h1-0", "h1-1")), fleet)) == ["h2-0"]
    assert leaving(place_one(demand(1, held=had, members=("h1-1", "h1-0")), fleet)) == ["h1-0", "h2-0"]


def test_a_job_that_shrinks_gives_up_spot_beyond_its_cap_first() -> None:
    fleet = on(provider("od", 8, 3), provider("spot", 8, 1, market="spot"))
    had = (held("h1", "spot", 4, 1, "spot"), held("h2", "od", 4, 3))
    placement = place_one(demand(4, held=had, policy=PlacementPolicy(max_spot_ppm=500_000)), fleet)
    assert kept(placement) == {"h1": 2, "h2": 2}
    assert placement.policy_broken == ""


def test_where_nodes_come_in_slices_only_whole_slices_leave() -> None:
    fleet = on(provider("a", 9, 1, slice_nodes=3))
    placement = place_one(demand(4, held=(held("h", "a", 9),)), fleet)
    assert leaving(placement) == ["h-6", "h-7", "h-8"]
    assert placement.placed_nodes == 6


def test_nodes_that_the_policy_now_forbids_are_moved() -> None:
    log = FleetLog(provider("a", 8, 1, region="us"), provider("b", 8, 2, region="eu"))
    log.run("h", "a", 2, at_ms=1)
    policy = PlacementPolicy(regions=("eu",))
    placement = place_one(demand(2, least=2, held=(held("h", "a", 2),), policy=policy), log.fleet, 2)
    assert taken(placement) == {"b": 2}
    assert leaving(placement) == ["h-0", "h-1"]


def test_a_withdrawn_provider_is_drained_into_others() -> None:
    log = FleetLog(provider("a", 8, 1), provider("b", 8, 2))
    log.run("h", "a", 2, at_ms=1)
    log.on_grid(ev.ProviderWithdrawn(name="a"), at_ms=2)
    placement = place_one(demand(2, held=(held("h", "a", 2),)), log.fleet, 3)
    assert taken(placement) == {"b": 2}
    assert candidate(placement, "a").refused == "withdrawn"
    log.drop("h", "a", tuple(leaving(placement)), at_ms=4)
    for node in ("h-0", "h-1"):
        log.add(ev.NodeLeft(node=node, reason="resize"), at_ms=5)
    assert list(log.fleet.providers) == ["b"]


def test_nodes_stay_where_they_may_not_when_nothing_else_can_hold_the_job() -> None:
    log = FleetLog(provider("a", 8, 1), provider("b", 1, 2))
    log.run("h", "a", 2, at_ms=1)
    log.on_grid(ev.ProviderWithdrawn(name="a"), at_ms=2)
    placement = place_one(demand(2, least=2, held=(held("h", "a", 2),)), log.fleet, 3)
    assert kept(placement) == {"h": 2}
    assert "nodes stay on a against the policy" in placement.policy_broken


@pytest.mark.parametrize("trouble", ["cordon", "stockout", "dearer"])
def test_what_runs_is_not_moved_for_a_cordon_a_mark_or_a_new_price(trouble: str) -> None:
    log = FleetLog(provider("a", 8, 1), provider("b", 8, 2))
    log.run("h", "a", 2, at_ms=1)
    if trouble == "cordon":
        log.on_grid(ev.ProviderCordoned(name="a"), at_ms=2)
    elif trouble == "stockout":
        log.fail("x", "a", "stockout", at_ms=2, job="other")
    else:
        log.on_grid(ev.ProviderDeclared(provider=provider("a", 8, 100)), at_ms=2)
    policy = PlacementPolicy(max_price_microdollars_per_hour=5 * DOLLAR)
    placement = place_one(demand(3, held=(held("h", "a", 2),), policy=policy), log.fleet, 3)
    assert kept(placement) == {"h": 2}
    assert taken(placement) == {"b": 1}
    assert placement.price_microdollars_per_hour == 4 * DOLLAR


def test_a_draining_node_is_never_kept() -> None:
    log = FleetLog(provider("a", 8, 1))
    log.run("h", "a", 3, at_ms=1)
    log.drop("h", "a", ("h-1",), at_ms=2)
    placement = place_one(demand(3, held=(held("h", "a", 3),)), log.fleet, 3)
    assert kept(placement) == {"h": 2}
    assert taken(placement) == {"a": 1}


def test_a_draining_node_is_charged_until_it_is_gone() -> None:
    log = FleetLog(provider("a", 3, 1))
    log.run("h", "a", 3, at_ms=1)
    log.drop("h", "a", ("h-1",), at_ms=2)
    assert taken(place_one(demand(1, job="other"), log.fleet, 3)) == {}
    log.add(ev.NodeLeft(node="h-1", reason="resize"), at_ms=4)
    assert taken(place_one(demand(1, job="other"), log.fleet, 5)) == {"a": 1}


# Slices -------------------------------------------------------------------------------------------------------------


def test_nodes_come_in_whole_slices_and_no_greedy_step_spoils_the_sum() -> None:
    fleet = on(provider("threes", 9, 1, slice_nodes=3), provider("fours", 8, 2, slice_nodes=4))
    assert taken(place_one(demand(8, least=8), fleet)) == {"fours": 8}
    assert taken(place_one(demand(7, least=7), fleet)) == {"threes": 3, "fours": 4}


def test_where_no_size_up_to_the_target_can_be_made_the_next_one_up_is() -> None:
    fleet = on(provider("a", 9, 1, slice_nodes=3))
    assert place_one(demand(7, least=7, max_nodes=9), fleet).placed_nodes == 9
    assert place_one(demand(7, least=7, max_nodes=8), fleet).placed_nodes == 0


# Never --------------------------------------------------------------------------------------------------------------


def job(nodes: int, most: int | None = None, **fields: object) -> JobSpec:
    raw = {"name": "j", "command": ["run"], "min_nodes": nodes, "max_nodes": most or nodes, **fields}
    return msgspec.convert(raw, JobSpec)


GRID = (
    provider("gcp-us", 16, 1, region="us-central1", zone="us-central1-a", accelerator="a100"),
    provider("aws-us", 16, 1, region="us-east-1", zone="us-east-1b", accelerator="h100"),
)


def test_a_job_that_fits_an_empty_grid_is_accepted() -> None:
    assert check_placeable(job(20, 30, placement={"regions": ["us-central1", "us-east-1"]}), GRID) is None


def test_a_gang_that_is_no_multiple_of_the_slice_is_refused_with_the_nearest_sizes() -> None:
    refused = check_placeable(job(8), [provider("a", 30, 1, slice_nodes=3)])
    assert refused is not None
    assert refused.what == "no job of 8 nodes can be made up: a gives nodes in slices of 3"
    assert refused.hint == "the nearest possible sizes are 6 and 9"


@pytest.mark.parametrize(
    ("policy", "where", "hint"),
    [
        (
            {"regions": ["us-central1-a"]},
            "placement.regions[0]",
            "'us-central1-a' is a zone; its region is 'us-central1'",
        ),
        ({"providers": ["aws-us", "gpc-us"]}, "placement.providers[1]", "did you mean 'gcp-us'?"),
        ({"regions": ["us-east1"]}, "placement.regions[0]", "did you mean 'us-east-1'?"),
        ({"accelerators": ["tpu-v5p"]}, "placement.accelerators[0]", "it has a100, h100"),
    ],
)
def test_a_name_that_the_grid_does_not_have_is_refused_with_a_hint(
    policy: dict[str, list[str]], where: str, hint: str
) -> None:
    refused = check_placeable(job(1, placement=policy), GRID)
    assert refused is not None
    assert (refused.where, refused.hint) == (where, hint)


def test_a_job_larger_than_all_that_fits_it_is_refused_with_what_there_is() -> None:
    refused = check_placeable(job(17, placement={"providers": ["aws-us"]}), GRID)
    assert refused is not None
    assert refused.what == "the job needs at least 17 nodes, the providers that fit it have 16 together"


def test_a_policy_that_no_provider_fits_is_refused_with_every_reason() -> None:
    refused = check_placeable(job(1, placement={"spot": "require"}), GRID)
    assert refused is not None
    assert refused.hint == "aws-us: spot is required; gcp-us: spot is required"


def test_an_empty_grid_refuses_every_job() -> None:
    refused = check_placeable(job(1), [])
    assert refused is not None
    assert refused.hint == "the grid has no provider"


def test_a_job_of_any_size_is_answered_at_once() -> None:
    assert check_placeable(job(10**9), GRID) is not None
    assert check_placeable(job(1, 10**9, initial_nodes=10**9), GRID) is None


# Laws ---------------------------------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[ProviderSpec], list[Demand], FleetState]:
    """Providers, demands on them, and a fleet on which what the demands hold runs."""
    specs = [
        provider(
            f"p{index}",
            draw(st.integers(0, 12)),
            draw(st.sampled_from((0, 0.5, 1, 2))),
            market=draw(st.sampled_from(("on_demand", "spot"))),
            slice_nodes=draw(st.sampled_from((1, 1, 1, 2, 3))),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    log = FleetLog(*specs)
    demands = []
    for index in range(draw(st.integers(1, 3))):
        name = f"j{index}"
        had: list[HeldAssignment] = []
        for spec in specs:
            whole = free_nodes(log.fleet, spec.name) // spec.slice_nodes
            nodes = draw(st.integers(0, min(whole, 2))) * spec.slice_nodes
            if nodes:
                id_ = f"h{spec.name}"
                log.run(id_, spec.name, nodes, at_ms=1, job=name)
                had.append(held(id_, spec.name, nodes, spec.price_microdollars_per_hour / DOLLAR, spec.market))
        least = draw(st.integers(1, 6))
        policy = PlacementPolicy(
            prefer=draw(st.sampled_from(("cost", "balance"))),
            max_spot_ppm=draw(st.sampled_from((0, 250_000, 500_000, 1_000_000))),
            spot=draw(st.sampled_from(("allow", "allow", "forbid", "require"))),
        )
        target = least + draw(st.integers(0, 10))
        demands.append(demand(target, least=least, job=name, policy=policy, held=tuple(had), submitted_ms=index))
    return specs, demands, log.fleet


def of_action(placement: ev.PlacementDecided, *actions: str) -> list[ev.Assignment]:
    return [line for line in placement.assignments if line.action in actions]


@LAW
@given(worlds())
def test_no_provider_is_ever_given_more_than_it_can_hold(
    world: tuple[list[ProviderSpec], list[Demand], FleetState],
) -> None:
    specs, demands, fleet = world
    placements = place(demands, fleet, 2)
    for spec in specs:
        given_nodes = [taken(each).get(spec.name, 0) for each in placements]
        assert sum(given_nodes) <= free_nodes(fleet, spec.name)
        assert all(nodes % spec.slice_nodes == 0 for nodes in given_nodes)


@LAW
@given(worlds())
def test_the_lines_of_a_placement_add_up(world: tuple[list[ProviderSpec], list[Demand], FleetState]) -> None:
    _, demands, fleet = world
    for one, placement in zip(demands, place(demands, fleet, 2), strict=True):
        now = of_action(placement, "keep", "add")
        assert sum(line.nodes for line in now) == placement.placed_nodes
        assert (
            sum(line.nodes * line.price_microdollars_per_hour for line in now) == placement.price_microdollars_per_hour
        )
        had = {node for line in one.held for node in line.nodes}
        assert sum(line.nodes for line in of_action(placement, "keep", "drop")) == len(had)
        gone = leaving(placement)
        assert len(gone) == len(set(gone)) == sum(line.nodes for line in of_action(placement, "drop"))
        assert set(gone) <= had
        assert {each.provider: each.taken for each in placement.candidates if each.taken} == taken(placement)
        assert (placement.waiting != "") == (placement.placed_nodes < placement.demand_nodes)


@LAW
@given(worlds())
def test_a_job_gets_nothing_new_or_at_least_its_minimum(
    world: tuple[list[ProviderSpec], list[Demand], FleetState],
) -> None:
    _, demands, fleet = world
    for one, placement in zip(demands, place(demands, fleet, 2), strict=True):
        assert not taken(placement) or one.min_nodes <= placement.placed_nodes <= one.target_nodes


@LAW
@given(worlds())
def test_the_spot_cap_holds_or_the_placement_says_that_it_was_broken(
    world: tuple[list[ProviderSpec], list[Demand], FleetState],
) -> None:
    _, demands, fleet = world
    for one, placement in zip(demands, place(demands, fleet, 2), strict=True):
        spot = sum(line.nodes for line in of_action(placement, "keep", "add") if line.market == "spot")
        assert spot * 1_000_000 <= one.policy.max_spot_ppm * placement.placed_nodes or "spot" in placement.policy_broken


@LAW
@given(worlds())
def test_what_the_policy_allows_is_kept_unless_the_job_shrinks(
    world: tuple[list[ProviderSpec], list[Demand], FleetState],
) -> None:
    _, demands, fleet = world
    for one, placement in zip(demands, place(demands, fleet, 2), strict=True):
        if one.policy.spot == "allow" and sum(len(line.nodes) for line in one.held) <= one.target_nodes:
            assert leaving(placement) == []
            assert kept(placement) == {line.id: len(line.nodes) for line in one.held}


@LAW
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_providers_and_demands_does_not_matter(
    world: tuple[list[ProviderSpec], list[Demand], FleetState], shuffle: Random
) -> None:
    _, demands, fleet = world
    names = list(fleet.providers)
    shuffle.shuffle(names)
    order = list(range(len(demands)))
    shuffle.shuffle(order)
    turned = msgspec.structs.replace(fleet, providers={name: fleet.providers[name] for name in names})
    first = place(demands, fleet, 2)
    second = place([demands[index] for index in order], turned, 2)
    assert msgspec.json.encode([first[index] for index in order]) == msgspec.json.encode(second)


@LAW
@given(worlds())
def test_a_cost_placement_of_single_nodes_is_the_cheapest_there_is(
    world: tuple[list[ProviderSpec], list[Demand], FleetState],
) -> None:
    specs, demands, fleet = world
    one = msgspec.structs.replace(demands[0], held=(), policy=PlacementPolicy())
    assume(all(spec.slice_nodes == 1 for spec in specs))
    placement = place_one(one, fleet, 2)
    prices = sorted(spec.price_microdollars_per_hour for spec in specs for _ in range(free_nodes(fleet, spec.name)))
    assert placement.price_microdollars_per_hour == sum(prices[: placement.placed_nodes])
