"""One decision as it stands in the log: the events that share its number, and whether they are what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.decider import Reading
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.review.deciders import CURRENT, DECIDERS
from elasticgrid.review.differences import Difference, differences

#: The job and the fleet after an event of the log; None when they cannot be had.
StateAt: TypeAlias = Callable[[int], tuple[JobState | None, FleetState] | None]

#: A missing or superfluous event counts as so many wrong fields when explanations are compared.
_WHOLE_EVENT = 50


class DecisionRecord(msgspec.Struct, frozen=True):
    """An event of a decision, with its envelope's basis."""

    sequence: int
    event: ev.Event
    basis: ev.Basis


class Batch:
    """The events of one decision, in order."""

    def __init__(self, first: DecisionRecord) -> None:
        self.records = [first]
        self.key: JobKey = (first.event.tenant, first.event.job)

    @property
    def first(self) -> DecisionRecord:
        """Its first event."""
        return self.records[0]

    def takes(self, record: DecisionRecord) -> bool:
        """Whether a record that follows at once belongs to the same decision, even if one field of it were forged."""
        if (record.event.tenant, record.event.job) != self.key:
            return False
        mine, other = self.first.basis, record.basis
        agreeing = (
            (other.number == mine.number)
            + (other.as_of_ms == mine.as_of_ms)
            + (other.events_through == mine.events_through)
            + (record.event.causation_id == self.first.event.id)
        )
        return agreeing >= 3

    @property
    def rests_on(self) -> ev.ScaleDecided | ev.GapDecided | None:
        """The part of it that carries signals, when there is one."""
        kinds = ev.ScaleDecided | ev.GapDecided
        return next((r.event.data for r in self.records if isinstance(r.event.data, kinds)), None)


class Mismatch(msgspec.Struct, frozen=True):
    """The first event of a decision that is not what it must be."""

    sequence: int
    event_type: str
    found: tuple[Difference, ...]
    note: str = ""


class _Premise(msgspec.Struct, frozen=True):
    """What a decision may have been taken from."""

    as_of_ms: int
    reading: Reading
    signals: ev.Signals


def retake(batch: Batch, state: JobState | None, fleet: FleetState, signals: ev.Signals) -> list[ev.Event] | None:
    """The events that must stand there, by the decision's own basis; None when they cannot be told.

    That is so when its policy is not known, or cannot be asked about a state that no true log leads to.
    """
    basis = batch.first.basis
    reading = Reading(basis.events_through, basis.samples_through)
    return _expected((basis.policy, basis.policy_version), state, fleet, _Premise(basis.as_of_ms, reading, signals))


def _expected(
    policy: tuple[str, int], state: JobState | None, fleet: FleetState, premise: _Premise
) -> list[ev.Event] | None:
    version = DECIDERS.get(policy)
    if version is None:
        return None
    if state is None:
        return []
    try:
        decision = version.decide(state, fleet, premise.signals, premise.as_of_ms)
        return version.decision_events(state, decision, premise.as_of_ms, premise.reading) if decision else []
    except Exception:  # a forged log may lead to states that the policy was never made for
        return None


def explain(batch: Batch, signals: ev.Signals, state_at: StateAt, cause_at: int | None) -> Mismatch:
    """Which field of the decision is wrong.

    A wrong input of a decision (its time, how far it had read, a signal) makes everything behind it look wrong. So
    each input that other fields speak against is tried in its other value as well, and of all explanations the one
    that leaves the fewest fields wrong is told.

    Args:
        signals: what the decision was re-taken from.
        state_at: looks the state up.
        cause_at: sequence of the event that the decision names as its cause, if that is known.
    """
    policy = (batch.first.basis.policy, batch.first.basis.policy_version)
    if policy not in DECIDERS:
        policy = CURRENT
    least = 0
    best: list[Mismatch] = []
    for premise in _premises(batch, signals, cause_at):
        seen = state_at(premise.reading.events_through)
        if seen is None:
            continue
        expected = _expected(policy, *seen, premise)
        if expected is None:
            continue
        score, mismatch = _compare(batch, expected)
        if mismatch is None or (best and score > least):
            continue
        if not best or score < least:
            best = []
        least = score
        best.append(mismatch)
    if not best:
        first = batch.first
        return Mismatch(
            first.sequence,
            ev.type_of(first.event.data),
            (Difference("", "", ev.type_of(first.event.data)),),
            "no decision can be taken from the state it names",
        )
    others = _distinct([each.found[0].field for each in best if each.found[0].field != best[0].found[0].field])
    if others and not best[0].note:
        return replace(best[0], note=f"it cannot be told from a wrong {' or '.join(others)}")
    return best[0]


def _premises(batch: Batch, signals: ev.Signals, cause_at: int | None) -> Iterator[_Premise]:
    """What the decision says it was taken from first, then every other reading of it."""
    latest = batch.first.sequence - 1
    own = batch.first.basis
    bases = [record.basis for record in batch.records]
    causes = [] if cause_at is None else [min(cause_at, latest)]
    times = _distinct([own.as_of_ms, *(time for record in batch.records for time in _times_of(record))])
    reads = _distinct([*(min(basis.events_through, latest) for basis in (own, *bases)), latest, *causes])
    sampled = _distinct([own.samples_through, *(basis.samples_through for basis in bases)])
    said = _distinct([signals, *_signals_said(batch)])
    for as_of_ms in times:
        for events_through in reads:
            for samples_through in sampled:
                for each in said:
                    yield _Premise(as_of_ms, Reading(events_through, samples_through), each)


_T = TypeVar("_T")


def _distinct(values: Iterable[_T]) -> list[_T]:
    found: list[_T] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _times_of(record: DecisionRecord) -> Iterator[int]:
    """Where an event says when its decision was taken: its basis, its own time, and its identifier."""
    yield record.basis.as_of_ms
    yield record.event.time_ms
    with suppress(ValueError):
        yield int(record.event.id[:12], 16)


def _signals_said(batch: Batch) -> Iterator[ev.Signals]:
    """The signals the decision carries, and the same with what else it says that these were."""
    data = batch.rests_on
    if data is None:
        return
    signals = data.signals
    yield signals
    for field, value in _gap_said(data) if isinstance(data, ev.GapDecided) else _compared(data, batch.first.basis):
        if field in signals.__struct_fields__ and getattr(signals, field) != value:
            yield replace(signals, **{field: value})


def _compared(scale: ev.ScaleDecided, basis: ev.Basis) -> Iterator[tuple[str, int]]:
    """Signals by what the rules say that they compared."""
    for check in scale.checks:
        for name, value in check.numbers.items():
            if name == "age_ms":
                yield "last_sample_ms", basis.as_of_ms - value
            yield "round_steps" if name == "steps" else name, value


def _gap_said(gap: ev.GapDecided) -> Iterator[tuple[str, int]]:
    """Signals by what the decision itself says of the gap."""
    yield "round", gap.round
    yield "gap_from_ms", gap.from_ms
    yield "gap_until_ms", gap.until_ms
    yield "gap_threshold_ms", gap.threshold_ms
    yield "gap_steps", gap.steps
    yield "gap_work_us", gap.work_us
    yield "gap_longest_us", gap.longest_step_us


# --------------------------------------------------------------------------------------------------------------------
# What stands there against what must stand there
# --------------------------------------------------------------------------------------------------------------------


def _compare(batch: Batch, expected: list[ev.Event]) -> tuple[int, Mismatch | None]:
    """How many fields are wrong, and the first event that is."""
    score = 0
    first: Mismatch | None = None
    for record, must in _paired(batch.records, expected):
        mismatch = _mismatch(batch, record, must)
        if mismatch is None:
            continue
        score += len(mismatch.found) if record is not None and must is not None else _WHOLE_EVENT
        first = first or mismatch
    return score, first


def _paired(
    records: list[DecisionRecord], expected: list[ev.Event]
) -> Iterator[tuple[DecisionRecord | None, ev.Event | None]]:
    """Records with the events that must stand there; of a batch of another length, by type."""
    if len(records) == len(expected):
        yield from zip(records, expected, strict=True)
        return
    left = list(expected)
    for record in records:
        event_type = type(record.event.data)
        must = next((each for each in left if type(each.data) is event_type), None)
        if must is not None:
            left.remove(must)
        yield record, must
    for must in left:
        yield None, must


def _mismatch(batch: Batch, record: DecisionRecord | None, must: ev.Event | None) -> Mismatch | None:
    if record is None:
        assert must is not None
        missing = ev.type_of(must.data)
        return Mismatch(batch.records[-1].sequence, missing, (Difference("", missing, ""),), "the event is missing")
    event_type = ev.type_of(record.event.data)
    if must is None:
        found = (Difference("", "", event_type),)
        return Mismatch(record.sequence, event_type, found, "no such decision follows from what was known")
    if must == record.event:
        return None
    return Mismatch(record.sequence, event_type, tuple(differences(must, record.event)))
