"""The decision card: why a job has the size it has, with every number, and when that may change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Final, Literal

import msgspec

from elasticgrid import utc
from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.job_fold import ENDINGS
from elasticgrid.core.names import GRID_TENANT
from elasticgrid.core.scaling import RULES
from elasticgrid.review.job_names import no_such_job
from elasticgrid.review.timeline import TimelineLine, line_of, nodes_text

#: Of what was decided later, the last ones are told.
LATER_TOLD: Final = 10


class RuleLine(msgspec.Struct, frozen=True):
    """One rule of the policy: whether it decided, let the next one speak, or was not asked any more."""

    rule: str
    verdict: Literal["decided", "passed", "not asked"]
    numbers: dict[str, int]
    says: str


class DecisionCard(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a job's size that holds at a time, and what it rests on.

    Attributes:
        asked: whether it is about an event, a time, or the end of the log.
        asked_sequence, asked_ms: the last event looked at but for the rest of its decision, and the time the card is
            about, Unix milliseconds.
        sequence, time_ms, number: of the decision; `through_sequence` is that of its last event.
        sample_age_ms: how old the last sample was when it was taken; None when there was none.
        rules: of its policy, in order.
        placement_sequence, placement_number: the placement that is told: this decision's own; else the last one that
            looked for providers after it; else the last one before it. 0 when there is none.
        placed_nodes, demand_nodes, assignments, candidates, waiting, policy_broken: of that placement.
        later: what else was decided by then, without another word on the size: the last ones, in order;
            `later_left_out` were before them.
        outcome, outcome_ms: how the job had ended, or was about to, by then; and when, None while it had not.
        next_change_ms: when time alone may change the answer; None when only new evidence can, or nothing any more.
    """

    tenant: str
    job: str
    asked: Literal["event", "time", "end"]
    asked_sequence: int
    asked_ms: int
    sequence: int
    through_sequence: int
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
    placement_number: int = 0
    demand_nodes: int = 0
    placed_nodes: int = 0
    assignments: tuple[ev.Assignment, ...] = ()
    candidates: tuple[ev.Candidate, ...] = ()
    waiting: str = ""
    policy_broken: str = ""
    later: tuple[TimelineLine, ...] = ()
    later_left_out: int = 0
    outcome: ev.Outcome | Literal[""] = ""
    outcome_ms: int | None = None
    next_change_ms: int | None = None


def decision_card(
    records: Iterable[ev.Recorded], tenant: str, job: str, *, sequence: int | None = None, time_ms: int | None = None
) -> DecisionCard:
    """The card of a job after event `sequence`, or at `time_ms`, or at the end of the log.

    All events of a decision belong to it: asked for one of them, the card is of the whole decision.

    Raises:
        NotFound: the log has no such job, or no decision about it by then.
    """
    decided = _Decided()
    jobs: dict[tuple[str, str], None] = {}
    known = 0
    last: ev.Recorded | None = None
    following = iter(records)
    beyond: ev.Recorded | None = None
    for recorded in following:
        if (sequence is not None and recorded.sequence > sequence) or (
            time_ms is not None and recorded.recorded_ms > time_ms
        ):
            beyond = recorded
            break
        last = recorded
        key = (recorded.event.tenant, recorded.event.job)
        if key == (tenant, job):
            known += 1
            decided.take(recorded)
        elif key[0] != GRID_TENANT:
            jobs[key] = None
    rest = following if beyond is None else chain((beyond,), following)
    if not decided.scale:
        if known:
            raise NotFound(f"no decision on the size of {tenant}/{job} by then", hint="ask for a later time")
        first = None
        for recorded in rest:
            key = (recorded.event.tenant, recorded.event.job)
            if key == (tenant, job):
                first = recorded
                break
            if key[0] != GRID_TENANT:
                jobs[key] = None
        if first is None:
            raise no_such_job(jobs, tenant, job)
        begins = f"it begins with event {first.sequence} at {utc.moment(first.recorded_ms)} UTC"
        raise NotFound(f"there was no job {tenant}/{job} yet: {begins}", hint="ask for a later time")
    assert last is not None
    # One decision is one append, so nothing stands between its events.
    for recorded in rest:
        if (recorded.event.tenant, recorded.event.job) != (tenant, job) or not decided.goes_on(recorded):
            break
        decided.take(recorded)
    asked: Literal["event", "time", "end"] = "end" if beyond is None else "event" if sequence is not None else "time"
    asked_ms = time_ms if asked == "time" and time_ms is not None else last.recorded_ms
    return _card(decided, asked, last.sequence, asked_ms)


class _Decided:
    """What was decided about a job: the last word on its size, and what belongs to it or came after it."""

    def __init__(self) -> None:
        self.scale: tuple[ev.Recorded, ev.Basis, ev.ScaleDecided] | None = None
        self.scale_through = 0
        #: The last placement before the decision on the size, its own, and the last later one that looked around.
        self.placements: dict[str, tuple[ev.Recorded, int, ev.PlacementDecided]] = {}
        self.later: deque[ev.Recorded] = deque(maxlen=LATER_TOLD)
        self.later_events = 0
        self.outcome: tuple[int, ev.OutcomeDecided] | None = None
        self.ending: ev.Outcome | Literal[""] = ""
        self._last = 0

    def goes_on(self, recorded: ev.Recorded) -> bool:
        """Whether an event is of the decision that the last event was of."""
        event = recorded.event
        return isinstance(event, ev.Event) and event.basis is not None and event.basis.number == self._last

    def take(self, recorded: ev.Recorded) -> None:
        event = recorded.event
        self._last = 0
        if isinstance(event, ev.UnknownEvent) or event.basis is None:
            return
        data, number = event.data, event.basis.number
        self._last = number
        if isinstance(data, ev.ScaleDecided):
            self.scale = (recorded, event.basis, data)
            self.scale_through = recorded.sequence
            before = next(reversed(self.placements.values()), None)
            self.placements = {"earlier": before} if before is not None else {}
            self.later.clear()
            self.later_events = 0
            return
        is_own = self.scale is not None and self.scale[1].number == number
        if is_own:
            self.scale_through = recorded.sequence
        if isinstance(data, ev.PlacementDecided):
            self._place(recorded, number, data, is_own=is_own)
        elif isinstance(data, ev.OutcomeDecided):
            self.outcome = (recorded.recorded_ms, data)
        elif isinstance(data, ev.DrainDecided):
            self.ending = ENDINGS.get(data.reason, self.ending)
        if self.scale is not None and not is_own:
            self.later.append(recorded)
            self.later_events += 1

    def _place(self, recorded: ev.Recorded, number: int, data: ev.PlacementDecided, *, is_own: bool) -> None:
        when = "own" if is_own else "earlier" if self.scale is None else "later"
        # What came later and looked at no provider is told among what was decided later.
        self.placements.pop(when, None)
        self.placements[when] = (recorded, number, data)

    def placement(self) -> tuple[ev.Recorded, int, ev.PlacementDecided] | None:
        """The placement that is told."""
        later = self.placements.get("later")
        if later is not None and later[2].candidates:
            return later
        return self.placements.get("own") or self.placements.get("earlier")


def _card(
    decided: _Decided, asked: Literal["event", "time", "end"], asked_sequence: int, asked_ms: int
) -> DecisionCard:
    assert decided.scale is not None
    recorded, basis, data = decided.scale
    placement = decided.placement()
    placed = placement[2] if placement is not None else ev.PlacementDecided(demand_nodes=0, placed_nodes=0)
    last_ms = data.signals.last_sample_ms
    return DecisionCard(
        tenant=recorded.event.tenant,
        job=recorded.event.job,
        asked=asked,
        asked_sequence=asked_sequence,
        asked_ms=asked_ms,
        sequence=recorded.sequence,
        through_sequence=decided.scale_through,
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
        placement_number=placement[1] if placement is not None else 0,
        demand_nodes=placed.demand_nodes,
        placed_nodes=placed.placed_nodes,
        assignments=placed.assignments,
        candidates=placed.candidates,
        waiting=placed.waiting,
        policy_broken=placed.policy_broken,
        later=tuple(line_of(each) for each in decided.later),
        later_left_out=decided.later_events - len(decided.later),
        outcome=decided.outcome[1].outcome if decided.outcome is not None else decided.ending,
        outcome_ms=decided.outcome[0] if decided.outcome is not None else None,
        next_change_ms=None if decided.outcome is not None or decided.ending else data.next_change_ms,
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
    signals = card.signals
    age = f"the last {utc.lasted(card.sample_age_ms)} before" if card.sample_age_ms is not None else "none yet"
    lines = [
        f"{card.tenant}/{card.job}: {_change(card)}, because of {card.rule}: {card.reason}",
        f"  decision {card.number} at {utc.moment(card.time_ms)} UTC (event {card.sequence}){_since(card)}",
        f"  policy {card.policy} version {card.policy_version}, configuration {card.config_digest}",
        f"  read events through {card.events_through}, samples through {card.samples_through}",
        f"  evidence: {signals.steps} step{'' if signals.steps == 1 else 's'} of round {signals.round} with"
        f" {nodes_text(signals.nodes)} over {signals.evidence_ms / 1000:.1f} s; samples: {age}",
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
    lines += _placement_lines(card)
    if card.later:
        lines.append("  decided since:")
        if card.later_left_out:
            lines.append(f"    ({card.later_left_out} more before these)")
        lines += [f"    {utc.moment(line.time_ms)} {later_text(line)}" for line in card.later]
    lines.append(f"  {next_text(card)}")
    return lines


def later_text(line: TimelineLine) -> str:
    """What else was decided, in a line without its time."""
    change = f"{line.before} -> {line.after}" if line.before else line.after
    why = f"({line.reason})" if line.reason else ""
    return " ".join(filter(None, (f"#{line.sequence}", line.what, change, why)))


def placement_title(card: DecisionCard) -> str:
    """Which placement a card tells of, and what was placed; empty where it tells of none."""
    if not card.placement_sequence:
        return ""
    which = ""
    if card.placement_number != card.number:
        which = "earlier " if card.placement_sequence < card.sequence else "later "
    waits = f"; {card.waiting}" if card.waiting else ""
    return (
        f"{which}placement (event {card.placement_sequence}): {card.placed_nodes} of {nodes_text(card.demand_nodes)}"
        f"{waits}"
    )


def next_text(card: DecisionCard) -> str:
    """When the answer may change."""
    if card.outcome_ms is not None:
        return f"the job {_ENDED[card.outcome]} at {utc.moment(card.outcome_ms)} UTC; nothing changes any more"
    if card.outcome:
        return f"the job is ending: {card.outcome}"
    if card.next_change_ms is None:
        return "only new evidence can change this"
    return f"time alone may change this at {utc.moment(card.next_change_ms)} UTC"


_ENDED: Final[dict[str, str]] = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}


def _placement_lines(card: DecisionCard) -> list[str]:
    if not card.placement_sequence:
        return []
    lines = [f"  {placement_title(card)}"]
    if card.assignments:
        moves = ", ".join(f"{each.action} {each.nodes} on {each.provider}" for each in card.assignments)
        lines.append(f"    {moves}")
    for candidate in card.candidates:
        until = f", until {utc.moment(candidate.until_ms)} UTC" if candidate.until_ms is not None else ""
        refused = f"refused: {candidate.refused} ({candidate.detail}{until})"
        why = refused if candidate.refused else "not needed further"
        lines.append(f"    {candidate.provider}: took {candidate.taken} of {candidate.free} free; {why}")
    if card.policy_broken:
        lines.append(f"    the policy was broken: {card.policy_broken}")
    return lines


def _change(card: DecisionCard) -> str:
    if card.action == "hold":
        return f"stay at {nodes_text(card.target_nodes)}"
    return f"{card.current_nodes} -> {nodes_text(card.target_nodes)}"


def _since(card: DecisionCard) -> str:
    """How long before what was asked about the decision was taken, and whether it was the last one."""
    if card.asked == "event" and card.asked_sequence <= card.through_sequence:
        return ""
    what = {"event": f"event {card.asked_sequence}", "time": "the time asked about", "end": "the end of the log"}
    ago = f", {utc.lasted(card.asked_ms - card.time_ms)} before {what[card.asked]}"
    return f"{ago}; nothing else was decided since" if not card.later else ago
