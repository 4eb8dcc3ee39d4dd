"""The decision card: why a job has the size it has, with every number, and when that may change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.scaling import RULES


class RuleLine(msgspec.Struct, frozen=True):
    """One rule of the policy: whether it decided, let the next one speak, or was not asked any more."""

    rule: str
    verdict: Literal["decided", "passed", "not asked"]
    numbers: dict[str, int]
    says: str


class DecisionCard(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a job's size that holds at a time, and what it rests on.

    Attributes:
        asked_ms: the time the card is about, Unix milliseconds.
        sequence, time_ms, number: of the decision.
        sample_age_ms: how old the last sample was when it was taken; None when there was none.
        rules: of its policy, in order.
        placed_nodes, demand_nodes, candidates, waiting, policy_broken: of the last placement by that time that looked
            for providers; `placement_sequence` is 0 when there is none.
        next_change_ms: when time alone may change the answer; None when only new evidence can.
    """

    tenant: str
    job: str
    asked_ms: int
    sequence: int
    time_ms: int
    number: int
    action: ev.ScaleAction
    current_nodes: int
    target_nodes: int
    rule: str
    reason: str
    policy: str
    policy_version: int
    config_digest: str
    events_through: int
    samples_through: int
    signals: ev.Signals
    sample_age_ms: int | None
    rules: tuple[RuleLine, ...]
    placement_sequence: int = 0
    demand_nodes: int = 0
    placed_nodes: int = 0
    candidates: tuple[ev.Candidate, ...] = ()
    waiting: str = ""
    policy_broken: str = ""
    next_change_ms: int | None = None


def decision_card(
    records: Iterable[ev.Recorded], tenant: str, job: str, *, sequence: int | None = None, time_ms: int | None = None
) -> DecisionCard:
    """The card of a job after event `sequence`, or at `time_ms`, or at the end of the log.

    Raises:
        NotFound: the log has no such job, or no decision about it by then.
    """
    scale: tuple[ev.Recorded, ev.Basis, ev.ScaleDecided] | None = None
    placement: tuple[ev.Recorded, ev.PlacementDecided] | None = None
    known = False
    asked_ms = 0
    for recorded in records:
        if sequence is not None and recorded.sequence > sequence:
            break
        if time_ms is not None and recorded.recorded_ms > time_ms:
            break
        asked_ms = recorded.recorded_ms
        event = recorded.event
        if (event.tenant, event.job) != (tenant, job):
            continue
        known = True
        if isinstance(event, ev.UnknownEvent):
            continue
        if isinstance(event.data, ev.ScaleDecided) and event.basis is not None:
            scale = (recorded, event.basis, event.data)
        elif isinstance(event.data, ev.PlacementDecided) and event.data.candidates:
            placement = (recorded, event.data)
    if scale is None:
        what = f"no decision on the size of {tenant}/{job} by then" if known else f"there is no job {tenant}/{job}"
        raise NotFound(what, hint="`elasticgrid jobs list` shows the jobs" if not known else "ask for a later time")
    return _card(*scale, placement, time_ms if time_ms is not None else asked_ms)


def _card(
    recorded: ev.Recorded,
    basis: ev.Basis,
    data: ev.ScaleDecided,
    placement: tuple[ev.Recorded, ev.PlacementDecided] | None,
    asked_ms: int,
) -> DecisionCard:
    placed = placement[1] if placement is not None else ev.PlacementDecided(demand_nodes=0, placed_nodes=0)
    last_ms = data.signals.last_sample_ms
    return DecisionCard(
        tenant=recorded.event.tenant,
        job=recorded.event.job,
        asked_ms=asked_ms,
        sequence=recorded.sequence,
        time_ms=recorded.recorded_ms,
        number=basis.number,
        action=data.action,
        current_nodes=data.current_nodes,
        target_nodes=data.target_nodes,
        rule=data.rule,
        reason=data.reason,
        policy=basis.policy,
        policy_version=basis.policy_version,
        config_digest=basis.config_digest,
        events_through=basis.events_through,
        samples_through=basis.samples_through,
        signals=data.signals,
        sample_age_ms=basis.as_of_ms - last_ms if last_ms else None,
        rules=_rules(data),
        placement_sequence=placement[0].sequence if placement is not None else 0,
        demand_nodes=placed.demand_nodes,
        placed_nodes=placed.placed_nodes,
        candidates=placed.candidates,
        waiting=placed.waiting,
        policy_broken=placed.policy_broken,
        next_change_ms=data.next_change_ms,
    )


def _rules(data: ev.ScaleDecided) -> tuple[RuleLine, ...]:
    asked = [
        RuleLine(check.rule, "decided" if check.spoke else "passed", check.numbers, check.says) for check in data.checks
    ]
    names = {line.rule for line in asked}
    return (*asked, *(RuleLine(name, "not asked", {}, "") for name, _ in RULES if name not in names))


# --------------------------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------------------------


def card_lines(card: DecisionCard) -> list[str]:
    """The card for people."""
    change = f"{card.current_nodes} -> {card.target_nodes}" if card.action != "hold" else f"stay at {card.target_nodes}"
    signals = card.signals
    age = f"the last {_seconds(card.sample_age_ms)} before" if card.sample_age_ms is not None else "none yet"
    lines = [
        f"{card.tenant}/{card.job}: {change} nodes, because of {card.rule}: {card.reason}",
        f"  decision {card.number} at {_clock(card.time_ms)} (event {card.sequence}), {_ago(card)}",
        f"  policy {card.policy} version {card.policy_version}, configuration {card.config_digest}",
        f"  read events through {card.events_through}, samples through {card.samples_through}",
        f"  evidence: {signals.steps} steps of round {signals.round} with {signals.nodes} nodes"
        f" over {_seconds(signals.evidence_ms)}; samples: {age}",
    ]
    if signals.steps:
        lines.append(
            f"  step {signals.step_us / 1e6:.3f} s, of it waiting for a worker {signals.queue_us / 1e6:.3f} s"
            f" and for input {signals.data_wait_us / 1e6:.3f} s (medians)"
        )
    lines.append("  rules:")
    for line in card.rules:
        numbers = ", ".join(f"{name}={value}" for name, value in line.numbers.items())
        lines.append(f"    {line.verdict:<9} {line.rule:<11} {' '.join(filter(None, (line.says, numbers)))}".rstrip())
    if card.placement_sequence:
        lines.append(
            f"  placement (event {card.placement_sequence}): {card.placed_nodes} of {card.demand_nodes} nodes"
            + (f"; {card.waiting}" if card.waiting else "")
        )
        for each in card.candidates:
            until = f", until {_clock(each.until_ms)}" if each.until_ms is not None else ""
            why = f"refused: {each.refused} ({each.detail}{until})" if each.refused else "not needed further"
            lines.append(f"    {each.provider}: took {each.taken} of {each.free} free; {why}")
        if card.policy_broken:
            lines.append(f"    the policy was broken: {card.policy_broken}")
    if card.next_change_ms is None:
        lines.append("  only new evidence can change this")
    else:
        lines.append(f"  time alone may change this at {_clock(card.next_change_ms)}")
    return lines


def _ago(card: DecisionCard) -> str:
    return f"{_seconds(card.asked_ms - card.time_ms)} before the time asked about; nothing else was decided since"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
