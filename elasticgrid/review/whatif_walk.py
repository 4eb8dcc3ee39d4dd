"""Along a recorded log under another policy: where would the first different decision have been taken?

The other policy is asked wherever the record moves: at every decision (from exactly what it was taken from), after
every event and every completed step, and now and then in between. As long as it does what was done, the recorded facts
are what would have happened, so they are its inputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.decider import Decision, decide
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.fleet import evolve_fleet
from elasticgrid.core.gaps import without_gap
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.names import FLEET, GRID_TENANT, derived_id
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.log.codec import encode
from elasticgrid.review.whatif_change import Change

#: Where nothing is recorded for long, the policy is asked so often.
_TICK_MS: Final = 10_000
_MEMORY: Final = 8_192

Effect = tuple[object, ...]


class Different(msgspec.Struct, frozen=True):
    """The first decision that would have been another.

    Attributes:
        time_ms: when, Unix milliseconds.
        after_sequence: the last event of the log before it.
        samples_through: the last message of samples before it.
        key: whose.
        recorded, what_if: both decisions; empty for none.
    """

    time_ms: int
    after_sequence: int
    samples_through: int
    key: JobKey
    recorded: Decision
    what_if: Decision


class Walk:
    """One walk along a log.

    Args:
        records, samples: the log in order.
        change: what is different.
        untold: of each job the rounds whose samples are not all there. In those no policy is asked between decisions,
            and at a decision it is asked from the values that the decision carries.

    Attributes:
        fold, evidence: under the other policy, as of where the walk ended.
        asked: how often rules were asked about a job that could have changed.
        held_by: how often each rule of the recorded policy held a size.
        other_holds: of (recorded rule, other rule), how often the size was held for another reason.
        rederived: decisions of the record that were taken again.
    """

    def __init__(
        self,
        records: Iterable[ev.Recorded],
        samples: Iterable[SampleMessage],
        change: Change,
        untold: Mapping[JobKey, Set[int]],
    ) -> None:
        self._records = records
        self._samples = samples
        self._change = change
        self._untold = untold
        self._recorded = GridFold(memory=_MEMORY)
        self._recorded_evidence = EvidenceFold()
        self.fold = GridFold(memory=_MEMORY)
        self.evidence = EvidenceFold()
        self.asked = 0
        self.rederived = 0
        self.held_by: dict[str, int] = {}
        self.other_holds: dict[tuple[str, str], int] = {}
        self._now_ms = 0
        self._found: Different | None = None
        self._providers_there = change.providers is None

    def run(self) -> Different | None:
        """Walk to the first different decision, or to the end."""
        batch: list[ev.Recorded] = []
        for item in _interleaved(self._records, self._samples, _reading_points(self._records)):
            if batch and not (isinstance(item, ev.Recorded) and _same_decision(batch[-1], item)):
                self._take_decision(batch)
                batch = []
            if self._found is None:
                self._let_time_pass(item.time_ms if isinstance(item, SampleMessage) else item.recorded_ms)
            if self._found is not None:
                return self._found
            if isinstance(item, SampleMessage):
                self._take_samples(item)
            elif isinstance(item.event, ev.Event) and item.event.basis is not None:
                batch.append(item)
            else:
                self._apply(item)
                self._ask_about(item.event.tenant, item.event.job)
        if batch and self._found is None:
            self._take_decision(batch)
        return self._found

    def _let_time_pass(self, now_ms: int) -> None:
        while self._now_ms and now_ms - self._now_ms > _TICK_MS and self._found is None:
            self._now_ms += _TICK_MS
            self._ask_about(GRID_TENANT, FLEET)
            if not any(not state.terminal for state in self.fold.jobs()):
                break
        if self._found is None:
            self._now_ms = max(self._now_ms, now_ms)

    def _take_samples(self, message: SampleMessage) -> None:
        key = parse_sample_subject(message.subject)
        if key is None:
            return
        done = [
            each.apply(key, message.sequence, message.time_ms, message.data)
            for each in (self._recorded_evidence, self.evidence)
        ]
        if any(done):
            self._ask(key)

    def _apply(self, recorded: ev.Recorded) -> None:
        if not self._providers_there:
            self._providers_there = True
            self._declare(recorded)
        self._recorded.apply(recorded)
        event = recorded.event
        other = self._change.event(event) if isinstance(event, ev.Event) else event
        if other is not None:
            raw = recorded.raw if other is event else encode(other) if isinstance(other, ev.Event) else b""
            self.fold.apply(ev.Recorded(recorded.sequence, recorded.recorded_ms, other, raw))
        for fold, evidence in ((self._recorded, self._recorded_evidence), (self.fold, self.evidence)):
            state = fold.job((event.tenant, event.job))
            if state is not None:
                evidence.close((event.tenant, event.job)) if state.terminal else evidence.open(state)

    def _declare(self, first: ev.Recorded) -> None:
        """Another grid is there from the beginning: its providers stand before the log's first event."""
        for event in declarations(self._change, first.recorded_ms):
            self.fold.fleet = evolve_fleet(self.fold.fleet, ev.Recorded(0, first.recorded_ms, event))

    # ----------------------------------------------------------------------------------------------------------------
    # Asking
    # ----------------------------------------------------------------------------------------------------------------

    def _ask_about(self, tenant: str, job: str) -> None:
        if tenant != GRID_TENANT:
            self._ask((tenant, job))
            return
        for state in list(self.fold.jobs()):
            if self._found is None:
                self._ask((state.tenant, state.id))

    def _ask(self, key: JobKey) -> None:
        """Ask both policies about a job as it is now."""
        mine, theirs = self.fold.job(key), self._recorded.job(key)
        if mine is None or theirs is None or mine.terminal or mine.round in self._untold.get(key, ()):
            return
        self.asked += 1
        recorded = decide(theirs, self._recorded.fleet, _seen(self._recorded_evidence, key), self._now_ms)
        what_if = decide(mine, self.fold.fleet, _seen(self.evidence, key), self._now_ms)
        self._compare(key, recorded, what_if, self._now_ms, self.fold.sequence)

    def _take_decision(self, batch: list[ev.Recorded]) -> None:
        """Ask the other policy what was decided here, from what it was decided from."""
        first = batch[0].event
        assert isinstance(first, ev.Event)
        assert first.basis is not None
        key, basis = (first.tenant, first.job), first.basis
        seen = self.fold.at(key, basis.events_through)
        recorded = tuple(data for data in map(_decided, batch) if data is not None)
        state, fleet = seen if seen is not None else (None, self.fold.fleet)
        if any(isinstance(data, ev.GapDecided) for data in recorded):
            self.rederived += 1  # no policy is asked about it
        elif state is not None:
            self.rederived += 1
            told = state.round not in self._untold.get(key, ())
            what_if = decide(state, fleet, _seen(self.evidence, key), basis.as_of_ms) if told else ()
            if not told or (effect(what_if) != effect(recorded) and not self._rederives(key, basis, recorded)):
                # The samples are not all there; what the decision says of them is.
                signals = next((data.signals for data in recorded if isinstance(data, ev.ScaleDecided)), ev.Signals())
                what_if = decide(state, fleet, without_gap(signals), basis.as_of_ms)
            self._compare(key, recorded, what_if, basis.as_of_ms, batch[0].sequence - 1)
        if self._found is None:
            for each in batch:
                self._now_ms = max(self._now_ms, each.recorded_ms)
                self._apply(each)
            self._ask(key)

    def _rederives(self, key: JobKey, basis: ev.Basis, recorded: Decision) -> bool:
        """Whether the recorded policy says what was recorded."""
        seen = self._recorded.at(key, basis.events_through)
        if seen is None or seen[0] is None:
            return False
        again = decide(seen[0], seen[1], _seen(self._recorded_evidence, key), basis.as_of_ms)
        return effect(again) == effect(recorded)

    def _compare(self, key: JobKey, recorded: Decision, what_if: Decision, at_ms: int, after: int) -> None:
        if effect(recorded) == effect(what_if):
            self._count_holds(key, _rule(recorded), _rule(what_if))
            return
        self._found = Different(
            time_ms=max(at_ms, self.fold.recorded_ms),
            after_sequence=after,
            samples_through=self.evidence.sequence,
            key=key,
            recorded=recorded,
            what_if=what_if,
        )

    def _count_holds(self, key: JobKey, recorded: str, what_if: str) -> None:
        """Count why the size was held. A hold whose reason is no news is not told; it is that of the last one."""
        state = self.fold.job(key)
        last = state.last_scale.rule if state is not None and state.last_scale is not None else ""
        if recorded:
            self.held_by[recorded] = self.held_by.get(recorded, 0) + 1
        rules = (recorded or last, what_if or last)
        if (recorded or what_if) and all(rules) and rules[0] != rules[1]:
            self.other_holds[rules] = self.other_holds.get(rules, 0) + 1


def _seen(evidence: EvidenceFold, key: JobKey) -> ev.Signals:
    """What a policy goes by. That a gap has to be put on record is not its business, and an older log has none."""
    return without_gap(evidence.signals(key))


def _rule(decision: Decision) -> str:
    return next((data.rule for data in decision if isinstance(data, ev.ScaleDecided)), "")


def declarations(change: Change, at_ms: int) -> list[ev.Event]:
    """The facts that make the other grid."""
    return [
        ev.Event(
            id=derived_id(at_ms, GRID_TENANT, FLEET, "what-if", provider.name),
            time_ms=at_ms,
            tenant=GRID_TENANT,
            job=FLEET,
            actor="what-if",
            data=ev.ProviderDeclared(provider=provider),
        )
        for provider in change.providers or ()
    ]


def effect(decision: Decision) -> Effect:
    """What a decision does; reasons and numbers that change nothing are left out."""
    found: list[object] = []
    for data in decision:
        if isinstance(data, ev.ScaleDecided):
            if data.action != "hold":
                found.append(("scale", data.target_nodes))
        elif isinstance(data, ev.PlacementDecided):
            lines = [(each.provider, each.action, each.nodes, each.leaving) for each in data.assignments]
            prices = [each.price_microdollars_per_hour for each in data.assignments if each.action == "add"]
            found.append(("placement", data.demand_nodes, data.placed_nodes, lines, prices))
        elif isinstance(data, ev.DrainDecided):
            found.append(("drain", data.round, data.reason, data.leaving))
        elif isinstance(data, ev.WorldDecided):
            found.append(("world", data.round, data.members, data.resume))
        elif isinstance(data, ev.OutcomeDecided):
            found.append(("outcome", data.outcome))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------------------
# The two streams in the order in which the decider read them
# --------------------------------------------------------------------------------------------------------------------


def _reading_points(records: Iterable[ev.Recorded]) -> tuple[list[int], list[int]]:
    """Sequences of decisions, and for each how far at most the samples had been read by then."""
    sequences, through = [], []
    for recorded in records:
        event = recorded.event
        if isinstance(event, ev.Event) and event.basis is not None:
            sequences.append(recorded.sequence)
            through.append(event.basis.samples_through)
    for index in range(len(through) - 2, -1, -1):
        through[index] = min(through[index], through[index + 1])
    return sequences, through


def _interleaved(
    records: Iterable[ev.Recorded], samples: Iterable[SampleMessage], points: tuple[list[int], list[int]]
) -> Iterator[ev.Recorded | SampleMessage]:
    """Events and samples by time, but before a decision exactly the samples that it had read."""
    waiting = iter(samples)
    message = next(waiting, None)
    sequences, through = points
    for recorded in records:
        event = recorded.event
        decision = isinstance(event, ev.Event) and event.basis is not None
        index = bisect_right(sequences, recorded.sequence - 1)
        most = through[index] if index < len(through) else None
        while message is not None and (most is None or message.sequence <= most):
            if not decision and message.time_ms > recorded.recorded_ms:
                break
            if decision and most is None:
                break
            yield message
            message = next(waiting, None)
        yield recorded
    while message is not None:
        yield message
        message = next(waiting, None)


def _decided(recorded: ev.Recorded) -> ev.DecisionData | None:
    data = recorded.event.data if isinstance(recorded.event, ev.Event) else None
    return data if isinstance(data, ev.DecisionData) else None


def _same_decision(one: ev.Recorded, other: ev.Recorded) -> bool:
    first, second = one.event, other.event
    if not isinstance(first, ev.Event) or not isinstance(second, ev.Event):
        return False
    if first.basis is None or second.basis is None:
        return False
    return (first.tenant, first.job, first.basis.number) == (second.tenant, second.job, second.basis.number)
