"""What to do about a job now: one pure function of its state, the fleet, the signals and the time.

First comes what has to be done about what happened (`_reconcile`: endings, losses, rounds that drained, nodes that
joined), then, if there is nothing of that kind, the scaling rules. What comes back is one decision: its events are
appended together or not at all.
"""

from __future__ import annotations

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.job import JobState, NodeState, live_nodes, situation
from elasticgrid.core.membership import ReadyNode, form_world
from elasticgrid.core.names import content_digest, derived_id
from elasticgrid.core.placement import Demand, HeldAssignment, place
from elasticgrid.core.scaling import POLICY_NAME, POLICY_VERSION, Ruling, rule_on

#: Beyond its grace a drain is waited for this long, for the facts to arrive.
DRAIN_SLACK_MS = 30_000
#: Survivors of a loss wait at most this long for a node that is already on its way.
REPLACEMENT_WAIT_MS = 30_000

Decision = tuple[ev.DecisionData, ...]
NOTHING: Decision = ()


class Reading(msgspec.Struct, frozen=True):
    """How far the streams had been read when a decision was taken."""

    events_through: int
    samples_through: int


def decide(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int) -> Decision:
    """The decision to take now, empty when there is none.

    A hold is a decision too, when its rule differs from the last one recorded.
    """
    if state.spec is None or state.terminal or state.unknown_type:
        return NOTHING
    todo = _reconcile(state, fleet, as_of_ms)
    if todo is not None:
        return todo
    return _scale(state, fleet, signals, as_of_ms)


def decision_events(state: JobState, decision: Decision, as_of_ms: int, reading: Reading) -> list[ev.Event]:
    """The decision as events: numbered, with derived identifiers, so that a second try appends the same events."""
    assert state.spec is not None
    basis = ev.Basis(
        number=state.decisions + 1,
        as_of_ms=as_of_ms,
        events_through=reading.events_through,
        samples_through=reading.samples_through,
        policy=POLICY_NAME,
        policy_version=POLICY_VERSION,
        config_digest=content_digest((state.spec.scaling, state.spec.placement)),
    )
    made: list[ev.Event] = []
    for index, data in enumerate(decision):
        made.append(
            ev.Event(
                id=derived_id(as_of_ms, state.tenant, state.id, basis.number, ev.type_of(data), index),
                schema_version=ev.SCHEMA_VERSIONS[ev.type_of(data)],
                time_ms=as_of_ms,
                tenant=state.tenant,
                job=state.id,
                causation_id=made[0].id if made else state.last_event_id,
                correlation_id=state.submitted_id,
                actor="decider",
                basis=basis,
                data=data,
            )
        )
    return made


# --------------------------------------------------------------------------------------------------------------------
# What has to be done about what happened
# --------------------------------------------------------------------------------------------------------------------


def _reconcile(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision | None:
    """What happened and needs an answer; None when nothing does and the rules may speak."""
    if state.phase == "ending":
        return _conclude(state)
    if state.cancel_requested is not None:
        return _end(state, "cancelled")
    if state.phase == "submitted":
        return None
    if any(launch.failure == "invalid" for launch in state.launches.values()):
        return _end(state, "failed")
    if state.phase == "running":
        return _watch_round(state, fleet, as_of_ms)
    if state.phase == "draining" and not _round_drained(state, as_of_ms):
        return NOTHING
    return _gather(state, fleet, as_of_ms)


def _conclude(state: JobState) -> Decision:
    """An ending is final when nothing of the job exists any more and no launch is open."""
    if any(not launch.resolved for launch in state.launches.values()):
        return NOTHING
    assert state.ending is not None
    last_step = max([node.last_step for node in state.nodes.values()], default=0)
    return (ev.OutcomeDecided(outcome=state.ending, reason=state.ending_reason, last_step=last_step),)


def _end(state: JobState, how: ev.Outcome) -> Decision:
    """Everybody leaves: healthy workers commit first, broken ones are stopped."""
    assert state.spec is not None
    nodes = tuple(node.id for node in live_nodes(state))
    return (
        ev.DrainDecided(round=state.round, reason=how, leaving=nodes, grace_ms=state.spec.grace_ms),
        _drop_all(state),
    )


def _drop_all(state: JobState) -> ev.PlacementDecided:
    lines = []
    for launch in state.launches.values():
        leaving = tuple(node for node in launch.nodes if state.nodes[node].status in ("planned", "joined"))
        if leaving or not (launch.released_ms or launch.resolved):
            lines.append(
                ev.Assignment(
                    id=launch.id,
                    provider=launch.provider,
                    action="drop",
                    nodes=len(leaving),
                    price_microdollars_per_hour=launch.price_microdollars_per_hour,
                    market=launch.market,
                    leaving=leaving,
                )
            )
    return ev.PlacementDecided(demand_nodes=0, placed_nodes=0, assignments=tuple(lines))


def _watch_round(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision | None:
    assert state.spec is not None
    members = [state.nodes[node] for node in state.member_nodes]
    present = [node for node in members if node.status == "joined"]
    if present and all(node.finished_round == state.round for node in present):
        return _end(state, "completed")
    broken = [node for node in members if node.status != "joined" or node.failed_round == state.round]
    if broken:
        return _answer_failure(state, fleet, as_of_ms)
    if not state.round_active_ms:
        return None
    planned = [node for node in live_nodes(state) if node.status == "planned"]
    joined = [node for node in live_nodes(state) if node.status == "joined"]
    overdue = planned and as_of_ms - state.placement_ms >= state.spec.join_timeout_ms
    if planned and not overdue:
        return None
    if overdue:
        return _give_up(state, planned, f"{len(planned)} nodes did not join in {state.spec.join_timeout_ms // 1000} s")
    if len(joined) > len(members):
        return (ev.DrainDecided(round=state.round, reason="resize", grace_ms=state.spec.grace_ms),)
    if state.target_nodes > len(members):
        failures = sorted({launch.failure for launch in state.launches.values() if launch.failure})
        return _give_up(state, [], f"launch failed: {', '.join(failures) or 'nodes were lost'}")
    return None


def _answer_failure(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision:
    """A round that lost a member cannot go on: another from the last checkpoint, or the end of the budget."""
    assert state.spec is not None
    if state.app_failures > state.spec.max_restarts or state.infra_failures > state.spec.max_infra_restarts:
        return _end(state, "failed")
    lost = any(state.nodes[node].status != "joined" for node in state.member_nodes)
    reason = "node_lost" if lost else "failure"
    placement = None
    if len(live_nodes(state)) < state.target_nodes:
        placement = _place(state, fleet, state.target_nodes, as_of_ms)
    leaving = _leaving(placement) if placement is not None else ()
    drain = ev.DrainDecided(round=state.round, reason=reason, leaving=leaving, grace_ms=state.spec.grace_ms)
    return (drain, placement) if placement is not None and (_adds(placement) or leaving) else (drain,)


def _round_drained(state: JobState, as_of_ms: int) -> bool:
    """Whether nothing of the last round trains any more, or has been waited for long enough."""
    if as_of_ms - state.drain_ms >= state.drain_grace_ms + DRAIN_SLACK_MS:
        return True
    return all(
        state.nodes[node].drained_round == state.round or state.nodes[node].status in ("left", "lost")
        for node in state.member_nodes
    )


def _gather(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision | None:
    """Nobody trains: form a world of the nodes that are there, or ask for those that are missing."""
    assert state.spec is not None
    live = live_nodes(state)
    stuck = [node for node in live if node.status == "joined" and not _is_ready(state, node)]
    if stuck:
        return _give_up(state, stuck, f"{len(stuck)} nodes did not drain in time")
    planned = [node for node in live if node.status == "planned"]
    ready = [node for node in live if _is_ready(state, node)]
    enough = len(ready) >= state.min_nodes
    if planned:
        waited_ms = as_of_ms - state.placement_ms
        patience_ms = REPLACEMENT_WAIT_MS if state.phase == "draining" and enough else state.spec.join_timeout_ms
        if waited_ms < patience_ms:
            return NOTHING
        if waited_ms >= state.spec.join_timeout_ms:
            return _give_up(state, planned, f"{len(planned)} nodes did not join in {waited_ms // 1000} s")
    wanted = max(state.target_nodes, state.min_nodes)
    if len(live) < wanted:
        placement = _place(state, fleet, wanted, as_of_ms)
        if _adds(placement) or _leaving(placement):
            return _with_drain(state, placement)
        if not enough:
            return (placement,) if _is_news(state, placement) else NOTHING
    if not enough:
        return NOTHING
    world = form_world(
        state.members,
        tuple(ReadyNode(node.id, node.host, node.free_port, node.joined_sequence) for node in ready),
        round=state.round + 1,
        nproc_per_node=state.spec.nproc_per_node,
        resume=state.checkpoint,
    )
    return (world,)


def _is_ready(state: JobState, node: NodeState) -> bool:
    """Joined and free: not busy with a round that it has not yet drained from."""
    if node.status != "joined":
        return False
    return node.id not in state.member_nodes or node.drained_round == state.round


def _give_up(state: JobState, missing: list[NodeState], why: str) -> Decision:
    """Stop waiting for nodes that do not come or do not stop: the job is as big as what it has.

    They are told to leave, should they be heard of again.
    """
    gone = {node.id for node in missing}
    held = [node for node in live_nodes(state) if node.id not in gone]
    lines = []
    for launch in state.launches.values():
        for action, nodes in (
            ("keep", tuple(node.id for node in held if node.assignment == launch.id)),
            ("drop", tuple(node.id for node in missing if node.assignment == launch.id)),
        ):
            if nodes:
                lines.append(
                    ev.Assignment(
                        id=launch.id,
                        provider=launch.provider,
                        action="keep" if action == "keep" else "drop",
                        nodes=len(nodes),
                        price_microdollars_per_hour=launch.price_microdollars_per_hour,
                        market=launch.market,
                        leaving=nodes if action == "drop" else (),
                    )
                )
    placement = ev.PlacementDecided(
        demand_nodes=state.target_nodes,
        placed_nodes=len(held),
        assignments=tuple(lines),
        waiting=why,
        price_microdollars_per_hour=sum(
            line.nodes * line.price_microdollars_per_hour for line in lines if line.action == "keep"
        ),
    )
    return _with_drain(state, placement)


# --------------------------------------------------------------------------------------------------------------------
# The rules, and where what they want is placed
# --------------------------------------------------------------------------------------------------------------------


def _scale(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int) -> Decision:
    assert state.spec is not None
    ruling = rule_on(situation(state), signals, state.spec.scaling, as_of_ms)
    scale = _scale_event(state, ruling, signals)
    if ruling.action == "hold":
        return (scale,) if _is_new_hold(state, scale) else NOTHING
    placement = _place(state, fleet, ruling.target_nodes, as_of_ms)
    if _adds(placement) or _leaving(placement):
        return (scale, *_with_drain(state, placement))
    return (scale, placement) if _is_new_hold(state, scale) or _is_news(state, placement) else NOTHING


def _leaving(placement: ev.PlacementDecided) -> tuple[str, ...]:
    return tuple(node for line in placement.assignments for node in line.leaving)


def _with_drain(state: JobState, placement: ev.PlacementDecided) -> Decision:
    """The placement and, where it makes nodes leave, the drain that tells them."""
    assert state.spec is not None
    leaving = _leaving(placement)
    if not leaving:
        return (placement,)
    members = state.member_nodes if state.phase == "running" else ()
    ends_round = state.round if any(node in members for node in leaving) else 0
    drain = ev.DrainDecided(round=ends_round, reason="resize", leaving=leaving, grace_ms=state.spec.grace_ms)
    return (placement, drain)


def _scale_event(state: JobState, ruling: Ruling, signals: ev.Signals) -> ev.ScaleDecided:
    return ev.ScaleDecided(
        action=ruling.action,
        current_nodes=state.target_nodes,
        target_nodes=ruling.target_nodes,
        rule=ruling.rule,
        reason=ruling.reason,
        checks=ruling.checks,
        signals=signals,
        next_change_ms=ruling.until_ms,
    )


def _is_new_hold(state: JobState, scale: ev.ScaleDecided) -> bool:
    last = state.last_scale
    return last is None or (last.action, last.rule, last.target_nodes, last.signals.round) != (
        scale.action,
        scale.rule,
        scale.target_nodes,
        scale.signals.round,
    )


def places_nodes(decision: Decision) -> bool:
    """Whether a decision takes nodes of the fleet, which no other decision must have been taken without knowing."""
    return any(isinstance(data, ev.PlacementDecided) and _adds(data) for data in decision)


def _adds(placement: ev.PlacementDecided) -> bool:
    return any(line.action == "add" for line in placement.assignments)


def _is_news(state: JobState, placement: ev.PlacementDecided) -> bool:
    """Whether a placement that adds nothing says something that the last one did not."""
    last = state.last_placement
    return last is None or (last.demand_nodes, last.placed_nodes, last.waiting) != (
        placement.demand_nodes,
        placement.placed_nodes,
        placement.waiting,
    )


def _place(state: JobState, fleet: FleetState, nodes: int, as_of_ms: int) -> ev.PlacementDecided:
    """Place `nodes` nodes for this job, keeping what it has."""
    assert state.spec is not None
    held = []
    for launch in state.launches.values():
        kept = tuple(node for node in launch.nodes if state.nodes[node].status in ("planned", "joined"))
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
        band=state.spec.band,
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
