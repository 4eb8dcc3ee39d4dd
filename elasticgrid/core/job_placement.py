"""Where a job's nodes run: its demand placed against the fleet, and what such a placement says.

Nodes that will be taken away are still held until they are told to leave; a replacement is placed without them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.job import JobState, LaunchState, live_nodes
from elasticgrid.core.placement import Demand, HeldAssignment, place


def place_job(
    state: JobState, fleet: FleetState, nodes: int, as_of_ms: int, *, without: tuple[str, ...] = ()
) -> ev.PlacementDecided:
    """Place `nodes` nodes for this job, keeping what it has but for the nodes `without`."""
    assert state.spec is not None
    wanted = {node.id for node in live_nodes(state)}.difference(without)
    held = []
    for launch in state.launches.present.values():
        kept = tuple(node for node in launch.nodes if node in wanted)
        if kept:
            held.append(
                HeldAssignment(
                    id=launch.id,
                    provider=launch.provider,
                    nodes=kept,
                    price_microdollars_per_hour=launch.price_microdollars_per_hour,
                    market=launch.market,
                )
            )
    demand = Demand(
        tenant=state.tenant,
        job=state.id,
        band=state.band,
        submitted_ms=state.submitted_ms,
        min_nodes=min(state.min_nodes, nodes),
        target_nodes=nodes,
        max_nodes=max(state.max_nodes, nodes),
        quantum=state.spec.quantum,
        policy=state.spec.placement,
        held=tuple(held),
        members=state.member_nodes,
        id_prefix=f"p{state.decisions + 1}",
    )
    (placement,) = place((demand,), fleet, as_of_ms)
    return placement


def replacement(state: JobState, fleet: FleetState, as_of_ms: int) -> ev.PlacementDecided | None:
    """A placement that brings the job back to its size without the nodes that will be taken away; None at its size."""
    noticed = noticed_nodes(state)
    if len(live_nodes(state)) - len(noticed) >= state.target_nodes:
        return None
    placement = place_job(state, fleet, state.target_nodes, as_of_ms, without=noticed)
    return msgspec.structs.replace(placement, assignments=(*placement.assignments, *_drop_lines(state, noticed)))


def noticed_nodes(state: JobState) -> tuple[str, ...]:
    """Nodes that will be taken away and were not told to leave yet."""
    return tuple(node.id for node in live_nodes(state) if node.notice_ms)


def placement_without(state: JobState, missing: tuple[str, ...], why: str) -> ev.PlacementDecided:
    """The placement by which a job is as big as what it has without the nodes `missing`.

    Args:
        why: what they are given up for.
    """
    held = [node for node in live_nodes(state) if node.id not in missing]
    lines = []
    for launch in state.launches.present.values():
        kept = tuple(node.id for node in held if node.assignment == launch.id)
        gone = tuple(node for node in missing if state.nodes[node].assignment == launch.id)
        lines += [_line(launch, "keep", kept)] if kept else []
        lines += [_line(launch, "drop", gone)] if gone else []
    return ev.PlacementDecided(
        demand_nodes=state.target_nodes,
        placed_nodes=len(held),
        assignments=tuple(lines),
        waiting=why,
        price_microdollars_per_hour=sum(
            line.nodes * line.price_microdollars_per_hour for line in lines if line.action == "keep"
        ),
    )


def drop_all(state: JobState) -> ev.PlacementDecided:
    """The placement that gives up everything the job has."""
    lines = []
    for launch in state.launches.present.values():
        leaving = tuple(node for node in launch.nodes if state.nodes[node].status in ("planned", "joined"))
        if leaving or not (launch.released_ms or launch.resolved):
            lines.append(_line(launch, "drop", leaving))
    return ev.PlacementDecided(demand_nodes=0, placed_nodes=0, assignments=tuple(lines))


def _drop_lines(state: JobState, nodes: tuple[str, ...]) -> tuple[ev.Assignment, ...]:
    """The lines that drop these nodes."""
    launches = state.launches.present.values()
    lines = ((launch, tuple(node for node in launch.nodes if node in nodes)) for launch in launches)
    return tuple(_line(launch, "drop", leaving) for launch, leaving in lines if leaving)


def _line(launch: LaunchState, action: Literal["keep", "drop"], nodes: tuple[str, ...]) -> ev.Assignment:
    return ev.Assignment(
        id=launch.id,
        provider=launch.provider,
        action=action,
        nodes=len(nodes),
        price_microdollars_per_hour=launch.price_microdollars_per_hour,
        market=launch.market,
        leaving=nodes if action == "drop" else (),
    )


def leaving_nodes(placement: ev.PlacementDecided) -> tuple[str, ...]:
    """The nodes a placement makes leave."""
    return tuple(node for line in placement.assignments for node in line.leaving)


def adds_nodes(placement: ev.PlacementDecided) -> bool:
    """Whether a placement takes nodes of the fleet."""
    return any(line.action == "add" for line in placement.assignments)


def is_news(state: JobState, placement: ev.PlacementDecided) -> bool:
    """Whether a placement that adds nothing says something that the last one did not."""
    last = state.last_placement
    return last is None or (last.demand_nodes, last.placed_nodes, last.waiting) != (
        placement.demand_nodes,
        placement.placed_nodes,
        placement.waiting,
    )
