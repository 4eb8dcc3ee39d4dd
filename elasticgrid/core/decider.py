"""What to do about a job now: one pure function of its state, the fleet, the signals and the time.

First comes what has to be done about what happened (`_reconcile`: endings, losses, rounds that drained, nodes that
joined), then, if there is nothing of that kind, a gap in the samples that is not on record yet, then the scaling rules.
What comes back is one decision: its events are appended together or not at all.
"""

from __future__ import annotations

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.job import JobState, NodeState, live_nodes, situation
from elasticgrid.core.job_failures import budget_spent, restart_at_ms, settled_at_ms
from elasticgrid.core.job_gaps import gap_to_record
from elasticgrid.core.job_placement import (
    adds_nodes,
    drop_all,
    is_news,
    leaving_nodes,
    noticed_nodes,
    place_job,
    placement_without,
    replacement,
)
from elasticgrid.core.job_quota import NodeCap, budget_says, job_budget, node_cap
from elasticgrid.core.membership import ReadyNode, form_world
from elasticgrid.core.names import content_digest, derived_id
from elasticgrid.core.quotas import Standing
from elasticgrid.core.scaling import POLICY_NAME, POLICY_VERSION, Ruling, rule_on

#: Beyond its grace a drain is waited for this long, for the facts to arrive.
DRAIN_SLACK_MS = 30_000
#: Survivors of a loss wait at most this long for a node that is already on its way.
REPLACEMENT_WAIT_MS = 30_000
#: Of the time until a node is taken away, what is kept back for ending its workers and saying so: at most a third.
NOTICE_SLACK_MS = 10_000
#: Workers of a node that will be taken away get their job's grace, or this long where its notice leaves the time.
NOTICE_GRACE_MS = 120_000

Decision = tuple[ev.DecisionData, ...]
NOTHING: Decision = ()


class Reading(msgspec.Struct, frozen=True, gc=False):
    """How far the streams had been read when a decision was taken."""

    events_through: int
    samples_through: int


def decide(
    state: JobState,
    fleet: FleetState,
    signals: ev.Signals,
    as_of_ms: int,
    *,
    policy_version: int = POLICY_VERSION,
) -> Decision:
    """The decision to take now, empty when there is none.

    A hold is a decision too, when its rule differs from the last one recorded. An older version of the policy asks its
    rules as they were then.
    """
    if state.spec is None or state.terminal or state.unknown_type:
        return NOTHING
    todo = _reconcile(state, fleet, signals, as_of_ms)
    if todo is not None:
        return todo
    gap = gap_to_record(state, signals, as_of_ms)
    if gap is not None:
        return (gap,)
    return _scale(state, fleet, signals, as_of_ms, policy_version)


def decision_events(
    state: JobState, decision: Decision, as_of_ms: int, reading: Reading, *, policy_version: int = POLICY_VERSION
) -> list[ev.Event]:
    """The decision as events: numbered, with derived identifiers, so that a second try appends the same events."""
    assert state.spec is not None
    basis = ev.Basis(
        number=state.decisions + 1,
        as_of_ms=as_of_ms,
        events_through=reading.events_through,
        samples_through=reading.samples_through,
        policy=POLICY_NAME,
        policy_version=policy_version,
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


def _reconcile(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int) -> Decision | None:
    """What happened and needs an answer; None when nothing does and the rules may speak."""
    if state.phase == "ending":
        return _conclude(state)
    if state.cancel_requested is not None:
        return _end(state, "cancelled")
    if state.phase == "submitted":
        return None
    if any(launch.failure == "invalid" for launch in state.launches.present.values()):
        return _end(state, "failed")
    if state.phase == "running":
        return _watch_round(state, fleet, signals, as_of_ms)
    if noticed_nodes(state):
        return _vacate(state, fleet, as_of_ms)
    if state.phase == "draining" and not _round_drained(state, as_of_ms):
        return NOTHING
    return _gather(state, fleet, signals, as_of_ms)


def _conclude(state: JobState) -> Decision:
    """An ending is final when nothing of the job exists any more and no launch is open."""
    if any(not launch.resolved for launch in state.launches.present.values()):
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
        drop_all(state),
    )


def _watch_round(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int) -> Decision | None:
    assert state.spec is not None
    members = state.nodes.named(state.member_nodes)
    present = [node for node in members if node.status == "joined"]
    if present and all(node.finished_round == state.round for node in present):
        return _end(state, "completed")
    broken = [node for node in members if node.status != "joined" or node.failed_round == state.round]
    if broken:
        return _answer_failure(state, fleet, as_of_ms)
    budget = job_budget(state, fleet, as_of_ms)
    if budget is not None:
        return _out_of_budget(state, signals, budget)
    if noticed_nodes(state):
        return _vacate(state, fleet, as_of_ms)
    if state.stuck and state.spec.on_stuck != "tell":
        return _end_stuck_round(state)
    if not state.round_active_ms:
        return None
    live = live_nodes(state)
    planned = [node for node in live if node.status == "planned"]
    joined = [node for node in live if node.status == "joined"]
    overdue = planned and as_of_ms - state.placement_ms >= state.spec.join_timeout_ms
    if planned and not overdue:
        return None
    if overdue:
        return _give_up(state, planned, f"{len(planned)} nodes did not join in {state.spec.join_timeout_ms // 1000} s")
    if len(joined) > len(members):
        return (ev.DrainDecided(round=state.round, reason="resize", grace_ms=state.spec.grace_ms),)
    if state.target_nodes > len(members):
        failures = sorted({launch.failure for launch in state.launches.present.values() if launch.failure})
        return _give_up(state, [], f"launch failed: {', '.join(failures) or 'nodes were lost'}")
    return None


def _answer_failure(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision:
    """A round that lost a member cannot go on: another from the last checkpoint, or the end of the budget."""
    assert state.spec is not None
    spent = budget_spent(state)
    if spent and as_of_ms >= settled_at_ms(state):
        return _end(state, "failed")
    lost = any(state.nodes[node].status != "joined" for node in state.member_nodes)
    reason = "node_lost" if lost else "failure"
    # While a notice may still show that the job may go on, nothing new is asked for.
    placement = None if spent or job_budget(state, fleet, as_of_ms) else replacement(state, fleet, as_of_ms)
    noticed = noticed_nodes(state)
    leaving = _all_leaving(noticed, placement)
    drain = ev.DrainDecided(round=state.round, reason=reason, leaving=leaving, grace_ms=state.spec.grace_ms)
    changes = placement is not None and (adds_nodes(placement) or len(leaving) > len(noticed))
    return (drain, placement) if placement is not None and changes else (drain,)


def _vacate(state: JobState, fleet: FleetState, as_of_ms: int) -> Decision:
    """Nodes that will be taken away leave in time, after a checkpoint, and are replaced."""
    noticed = noticed_nodes(state)
    trains = state.phase in ("running", "draining")
    members = [node for node in noticed if trains and node in state.member_nodes]
    ends_round = any(state.nodes[node].drained_round != state.round for node in members)
    placement = None if job_budget(state, fleet, as_of_ms) else replacement(state, fleet, as_of_ms)
    if placement is not None and not adds_nodes(placement):
        placement = None  # the job keeps the size it wants and asks again
    drain = ev.DrainDecided(
        round=state.round if ends_round else 0,
        reason="preempted",
        leaving=_all_leaving(noticed, placement),
        grace_ms=_notice_grace_ms(state, as_of_ms),
    )
    return (drain, placement) if placement is not None else (drain,)


def _notice_grace_ms(state: JobState, as_of_ms: int) -> int:
    assert state.spec is not None
    deadlines = [state.nodes[node].notice_deadline_ms for node in noticed_nodes(state)]
    given = [deadline_ms for deadline_ms in deadlines if deadline_ms]
    if not given:
        return state.spec.grace_ms
    left_ms = max(min(given) - as_of_ms, 0)
    return min(left_ms - min(NOTICE_SLACK_MS, left_ms // 3), max(state.spec.grace_ms, NOTICE_GRACE_MS))


def _all_leaving(noticed: tuple[str, ...], placement: ev.PlacementDecided | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*noticed, *(leaving_nodes(placement) if placement is not None else ()))))


def _end_stuck_round(state: JobState) -> Decision:
    """Workers that do not get on cannot agree on a step to stop at: the round is ended without one."""
    assert state.spec is not None
    if state.spec.on_stuck == "fail" or budget_spent(state):
        return _end(state, "failed")
    return (ev.DrainDecided(round=state.round, reason="stuck"),)


def _out_of_budget(state: JobState, signals: ev.Signals, budget: Standing) -> Decision:
    """The tenant's budget is used up: the job commits, gives its nodes back and waits for the next period."""
    numbers = {"limit": budget.limit, "used": budget.used}
    if not live_nodes(state):
        assert budget.frees_ms is not None
        return _hold(state, signals, "budget", budget_says(budget), budget.frees_ms, numbers)
    scale = ev.ScaleDecided(
        action="down",
        current_nodes=state.target_nodes,
        target_nodes=0,
        rule="budget",
        reason=budget_says(budget),
        checks=(ev.RuleCheck(rule="budget", spoke=True, numbers=numbers, says=budget_says(budget)),),
        signals=signals,
        next_change_ms=budget.frees_ms,
    )
    return (scale, *_with_drain(state, drop_all(state), reason="budget"))


def _over_quota(state: JobState, signals: ev.Signals, cap: NodeCap) -> Decision:
    """The tenant's other jobs leave this one less than it needs: it waits for their nodes."""
    numbers = {"limit_nodes": cap.limit, "other_nodes": cap.others, "min_nodes": state.min_nodes}
    return _hold(state, signals, "quota", f"{cap.says}; this one needs {state.min_nodes}", None, numbers)


def _hold(
    state: JobState, signals: ev.Signals, rule: str, reason: str, until_ms: int | None, numbers: dict[str, int]
) -> Decision:
    """Why nobody trains although nodes are there, and until when."""
    scale = ev.ScaleDecided(
        action="hold",
        current_nodes=state.target_nodes,
        target_nodes=state.target_nodes,
        rule=rule,
        reason=reason,
        checks=(ev.RuleCheck(rule=rule, spoke=True, numbers=numbers, says=reason),),
        signals=signals,
        next_change_ms=until_ms,
    )
    return (scale,) if _is_new_hold(state, scale) else NOTHING


def _round_drained(state: JobState, as_of_ms: int) -> bool:
    """Whether nothing of the last round trains any more, or has been waited for long enough."""
    if as_of_ms - state.drain_ms >= state.drain_grace_ms + DRAIN_SLACK_MS:
        return True
    return all(
        state.nodes[node].drained_round == state.round or state.nodes[node].status in ("left", "lost")
        for node in state.member_nodes
    )


def _gather(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int) -> Decision | None:
    """Nobody trains: form a world of the nodes that are there, or ask for those that are missing."""
    assert state.spec is not None
    spent = budget_spent(state)
    if spent:
        settled_ms = settled_at_ms(state)
        if as_of_ms >= settled_ms:
            return _end(state, "failed")
        reason = f"{spent}; a notice may still show that the infrastructure is to blame"
        return _hold(state, signals, "disruption", reason, settled_ms, {"app_failures": state.app_failures})
    budget = job_budget(state, fleet, as_of_ms)
    if budget is not None:
        return _out_of_budget(state, signals, budget)
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
    cap = node_cap(state, fleet)
    if cap is not None:
        if cap.nodes < state.min_nodes and not enough:
            return _over_quota(state, signals, cap)
        wanted = min(wanted, cap.nodes)
    if len(live) < wanted:
        placement = place_job(state, fleet, wanted, as_of_ms)
        if adds_nodes(placement) or leaving_nodes(placement):
            return _with_drain(state, placement)
        if not enough:
            return (placement,) if is_news(state, placement) else NOTHING
    if not enough:
        return NOTHING
    restart_ms = restart_at_ms(state)
    if as_of_ms < restart_ms:
        reason = f"the infrastructure failed {state.infra_charged} times; the next round begins after a pause"
        return _hold(state, signals, "back_off", reason, restart_ms, {"infra_charged": state.infra_charged})
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
    return _with_drain(state, placement_without(state, tuple(node.id for node in missing), why))


# --------------------------------------------------------------------------------------------------------------------
# The rules, and where what they want is placed
# --------------------------------------------------------------------------------------------------------------------


def _scale(state: JobState, fleet: FleetState, signals: ev.Signals, as_of_ms: int, policy_version: int) -> Decision:
    assert state.spec is not None
    budget = job_budget(state, fleet, as_of_ms)
    if budget is not None:
        return _out_of_budget(state, signals, budget)
    asked = situation(state, policy_version)
    cap = node_cap(state, fleet)
    if cap is not None:
        if cap.nodes < state.min_nodes:
            return _over_quota(state, signals, cap)
        asked = msgspec.structs.replace(asked, max_nodes=cap.nodes, start_nodes=min(asked.start_nodes, cap.nodes))
    ruling = rule_on(asked, signals, state.spec.scaling, as_of_ms)
    scale = _scale_event(state, ruling, signals)
    if cap is not None:
        scale = msgspec.structs.replace(scale, checks=(cap.check, *scale.checks))
    if ruling.action == "hold":
        return (scale,) if _is_new_hold(state, scale) else NOTHING
    placement = place_job(state, fleet, ruling.target_nodes, as_of_ms)
    if adds_nodes(placement) or leaving_nodes(placement):
        return (scale, *_with_drain(state, placement))
    return (scale, placement) if _is_new_hold(state, scale) or is_news(state, placement) else NOTHING


def _with_drain(state: JobState, placement: ev.PlacementDecided, *, reason: str = "resize") -> Decision:
    """The placement and, where it makes nodes leave, the drain that tells them."""
    assert state.spec is not None
    leaving = leaving_nodes(placement)
    if not leaving:
        return (placement,)
    members = state.member_nodes if state.phase == "running" else ()
    ends_round = state.round if any(node in members for node in leaving) else 0
    drain = ev.DrainDecided(round=ends_round, reason=reason, leaving=leaving, grace_ms=state.spec.grace_ms)
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
    return any(isinstance(data, ev.PlacementDecided) and adds_nodes(data) for data in decision)
