"""Verification: every decision is taken again from what was known, and compared with the one in the log.

A decision names what it was taken from: the events and samples that had been read, and the time. The fold gives the
job and the fleet as they were after those events; the signals are rebuilt from raw samples where these are there, and
otherwise taken from the decision. What then comes out must be what stands in the log, to the last field.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState, initial_fleet
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.names import GRID_TENANT, derived_id, is_record
from elasticgrid.core.run_state import RUN_TENANT
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, read_header
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage, SampleRange
from elasticgrid.log.archive_salvage import ArchiveDamage, look_for_damage
from elasticgrid.review.batch import Batch, DecisionRecord, Mismatch, explain, retake
from elasticgrid.review.collector import rare_collections
from elasticgrid.review.deciders import CURRENT, DECIDERS
from elasticgrid.review.differences import Difference
from elasticgrid.review.laws import Laws
from elasticgrid.review.report import Divergence, StoppedJob, VerifyReport
from elasticgrid.review.sample_windows import SampleWindows
from elasticgrid.review.stories import Stories
from elasticgrid.review.timeline import story

#: Events behind which the fold can look without folding again.
_MEMORY: Final = 2_048
#: Differences of one decision that are told.
_MAX_DIFFERENCES: Final = 20

OnProgress = Callable[[int], None]


def verify(
    records: Iterable[ev.Recorded],
    samples: Iterable[SampleMessage] | None = None,
    *,
    samples_held: SampleRange | None = None,
    complete: bool = True,
    damage: ArchiveDamage = ArchiveDamage(),  # noqa: B008 - frozen
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Take every decision of a log again.

    Args:
        records: the log in order. A collection that can be read again (a list, `ArchivedEvents`) lets decisions be
            verified whose basis lies far back; of an iterator those are counted as unverifiable.
        samples: the samples stream in order, if it is there.
        samples_held: which part of the stream that is; all of it when absent.
        complete: whether the log is there from its first event with nothing left out. Otherwise what other jobs hold
            is not known, and decisions that looked for providers, or of jobs whose submission is not there, are
            counted as unverifiable when they cannot be confirmed.
        damage: what is missing from a damaged log. A decision behind missing events is confirmed or unverifiable, and
            laws are checked up to there; a window that has lost a sample is not rebuilt.
        on_progress: called now and then with how many events were read.

    Raises:
        Whatever reading `records` or `samples` raises; nothing that is in them.
    """
    windows = None
    if samples is not None:
        held = samples_held or SampleCoverage().held
        windows = SampleWindows(samples, SampleCoverage(held, damage.sample_gaps))
    verifier = _Verifier(windows, complete, damage)
    with rare_collections():
        for count, recorded in enumerate(records, 1):
            verifier.take(recorded)
            if on_progress is not None and count % 1_000 == 0:
                on_progress(count)
        verifier.close_batch()
        verifier.look_again(() if isinstance(records, Iterator) else records)
        return verifier.report()


def verify_archive(
    path: str | os.PathLike[str], *, salvage: bool = False, on_progress: OnProgress | None = None
) -> VerifyReport:
    """Take every decision of an archive again.

    Args:
        salvage: verify what is left of a damaged archive; the report says what is missing.
        on_progress: as in `verify`.

    Raises:
        NotFound, ArchiveDamaged: as `read_archive`.
    """
    header = read_header(path)
    return verify(
        ArchivedEvents(path, salvage=salvage),
        ArchivedSamples(path, salvage=salvage) if header.samples is not None else None,
        samples_held=header.samples,
        complete=header.filters.everything,
        damage=look_for_damage(path) if salvage else ArchiveDamage(),
        on_progress=on_progress,
    )


class _Open(msgspec.Struct):
    """A decision whose events are coming in, and what it was taken from."""

    batch: Batch
    state: JobState | None
    fleet: FleetState
    signals: ev.Signals
    far_back: bool


class _Verifier:
    """One pass over a log."""

    def __init__(self, windows: SampleWindows | None, complete: bool, damage: ArchiveDamage) -> None:
        self._windows = windows
        self._complete = complete
        self._missing = damage.missing
        #: The last event before the first that may be missing.
        self._whole_through = damage.event_gaps[0].after if damage.event_gaps else None
        self._broken = False
        #: The last decision of a record: (tenant, job, number).
        self._kept_decision: tuple[str, str, int] | None = None
        self._fold = GridFold(memory=_MEMORY)
        self._laws = Laws(complete=complete)
        self._open: _Open | None = None
        self._stories = Stories()
        self._submissions: dict[str, JobKey] = {}
        self._divergences: dict[JobKey, Divergence] = {}
        self._stopped: dict[JobKey, StoppedJob] = {}
        self._far_back: list[_Open] = []
        self._last: ev.Recorded | None = None
        self._first_sequence = 0
        self._decisions = self._verified = self._diverged = self._unverifiable = self._imported = 0
        self._from_samples = self._from_values = 0

    def take(self, recorded: ev.Recorded) -> None:
        """One more event."""
        event = recorded.event
        if is_record(event.tenant) and event.tenant != GRID_TENANT:
            self._of_a_record(recorded)
            return
        if self._whole_through is not None and recorded.sequence > self._whole_through:
            self._broken = True
        known = event if isinstance(event, ev.Event) else None
        if known is not None and known.basis is not None:
            self._decision(recorded, known, known.basis)
        elif self._open is not None:
            self.close_batch()
        self._first_sequence = self._first_sequence or recorded.sequence
        self._last = recorded
        key = self._fold.apply(recorded)
        state = self._fold.job(key) if key is not None else None
        if not self._broken:
            self._laws.event(recorded, state)
        if key is None or state is None:
            return
        self._stories.add(key, recorded)
        if isinstance(event, ev.Event):
            kind = type(event.data)
            if kind is ev.JobSubmitted:
                self._submissions[event.id] = key
            elif self._windows is not None and kind in (ev.WorldDecided, ev.OutcomeDecided):
                self._windows.open(state)
        else:
            self._stopped.setdefault(
                key, StoppedJob(tenant=key[0], job=key[1], sequence=recorded.sequence, event_type=event.type)
            )

    def _of_a_record(self, recorded: ev.Recorded) -> None:
        """An event that another grid's decider took, or no decider.

        What was imported is verified by its archive: this log does not have the facts of that grid. In a run without
        a grid the nodes decided, by settings of their own that are in no log.
        """
        self.close_batch()
        self._first_sequence = self._first_sequence or recorded.sequence
        self._last = recorded
        self._fold.apply(recorded)
        event = recorded.event
        if not isinstance(event, ev.Event) or event.basis is None:
            return
        decision = (event.tenant, event.job, event.basis.number)
        if decision != self._kept_decision:
            self._kept_decision = decision
            self._decisions += 1
            self._unverifiable += 1
            self._imported += event.tenant != RUN_TENANT

    def _decision(self, recorded: ev.Recorded, event: ev.Event, basis: ev.Basis) -> None:
        record = DecisionRecord(recorded.sequence, event, basis)
        opened = self._open
        if opened is not None and opened.batch.takes(record):
            opened.batch.records.append(record)
        else:
            self.close_batch()
            opened = self._open = self._opened(Batch(record), basis)
        if not self._broken:
            self._laws.decision(recorded, event, basis, opened.state, opened.fleet)

    def _opened(self, batch: Batch, basis: ev.Basis) -> _Open:
        """What the decision was taken from, as the log stands before it."""
        seen = self._fold.at(batch.key, basis.events_through)
        if seen is None:
            return _Open(batch, None, initial_fleet(), ev.Signals(), True)
        state, fleet = seen
        signals = ev.Signals()
        carried = batch.rests_on
        if carried is not None:
            signals = self._signals(carried.signals, state, basis)
        return _Open(batch, state, fleet, signals, False)

    def _signals(self, carried: ev.Signals, state: JobState | None, basis: ev.Basis) -> ev.Signals:
        if self._windows is not None and state is not None:
            version = DECIDERS.get((basis.policy, basis.policy_version), DECIDERS[CURRENT])
            rebuilt = self._windows.signals(state, basis.samples_through, basis.as_of_ms, read=version.signals_of)
            if rebuilt is not None:
                self._from_samples += 1
                return rebuilt
        self._from_values += 1
        return carried

    def close_batch(self) -> None:
        """No more event belongs to the decision that was coming in: compare it."""
        opened, self._open = self._open, None
        if opened is None:
            return
        self._decisions += 1
        if opened.batch.key in self._stopped:
            self._unverifiable += 1
        elif opened.far_back:
            self._far_back.append(opened)
        else:
            self._compare(opened, self._state_at(opened.batch.key))

    def _state_at(self, key: JobKey) -> Callable[[int], tuple[JobState | None, FleetState] | None]:
        return lambda sequence: self._fold.at(key, sequence)

    def _compare(self, opened: _Open, state_at: Callable[[int], tuple[JobState | None, FleetState] | None]) -> None:
        batch = opened.batch
        expected = retake(batch, opened.state, opened.fleet, opened.signals)
        if (
            expected is not None
            and len(expected) == len(batch.records)
            and all(record.event == must for record, must in zip(batch.records, expected, strict=True))
            and batch.first.basis.events_through < batch.first.sequence
        ):
            self._verified += 1
            return
        cut_off = opened.state is None or opened.state.spec is None
        if not self._complete and (cut_off or _looked_for_providers(batch, expected or [])):
            self._unverifiable += 1
            return
        if self._whole_through is not None and batch.records[-1].sequence >= self._whole_through:
            self._unverifiable += 1
            return
        self._diverged += 1
        if batch.key not in self._divergences:
            told = self._stories.of(batch.key)
            cause = batch.first.event.causation_id
            cause_at = next((each.sequence for each in told if each.event.id == cause), None)
            mismatch = self._misplaced(batch) or explain(batch, opened.signals, state_at, cause_at)
            self._divergences[batch.key] = self._divergence(batch, mismatch)

    def _misplaced(self, batch: Batch) -> Mismatch | None:
        """Whether the decision was taken about another job than the one it stands under."""
        first = batch.first
        owner = self._submissions.get(first.event.correlation_id)
        if owner is None or owner == batch.key:
            return None
        event_type = ev.type_of(first.event.data)
        for index in range(3):
            if first.event.id == derived_id(first.basis.as_of_ms, *owner, first.basis.number, event_type, index):
                found = tuple(
                    Difference(field, f'"{mine}"', f'"{theirs}"')
                    for field, mine, theirs in zip(("tenant", "job"), owner, batch.key, strict=True)
                    if mine != theirs
                )
                return Mismatch(first.sequence, event_type, found, "it was taken about another job")
        return None

    def _divergence(self, batch: Batch, mismatch: Mismatch) -> Divergence:
        first = mismatch.found[0]
        return Divergence(
            tenant=batch.key[0],
            job=batch.key[1],
            sequence=mismatch.sequence,
            number=batch.first.basis.number,
            event_type=mismatch.event_type,
            field=first.field,
            expected=first.expected,
            got=first.got,
            differences=mismatch.found[:_MAX_DIFFERENCES],
            note=mismatch.note,
            story=story(self._stories.of(batch.key)),
        )

    # ----------------------------------------------------------------------------------------------------------------
    # The end
    # ----------------------------------------------------------------------------------------------------------------

    def look_again(self, records: Iterable[ev.Recorded]) -> None:
        """Fold once more for what one pass could not tell: decisions from far back, identifiers that came late."""
        late = self._laws.ids.late
        if not self._far_back and not late:
            return
        waiting = sorted(self._far_back, key=lambda each: each.batch.first.basis.events_through)
        waiting.reverse()
        fold = GridFold(memory=1)
        for recorded in records:
            if late.get(recorded.event.id, 0) > recorded.sequence:
                self._laws.breach(
                    "unique_ids",
                    recorded.event,
                    late[recorded.event.id],
                    f"the identifier {recorded.event.id} was there before, at {recorded.sequence}",
                )
            while waiting and waiting[-1].batch.first.basis.events_through < recorded.sequence:
                self._again(waiting.pop(), fold)
            fold.apply(recorded)
        self._unverifiable += len(waiting)

    def _again(self, opened: _Open, fold: GridFold) -> None:
        key = opened.batch.key
        seen = (fold.job(key), fold.fleet)
        opened.state, opened.fleet = seen
        carried = opened.batch.rests_on
        if carried is not None:
            self._from_values += 1
            opened.signals = carried.signals
        through = opened.batch.first.basis.events_through
        self._compare(opened, lambda sequence: seen if sequence == through else None)

    def report(self) -> VerifyReport:
        """What was found."""
        jobs = {(state.tenant, state.id): state for state in self._fold.jobs()}
        open_intents = self._laws.end(jobs, self._last) if not self._broken else []
        last = self._last.sequence if self._last is not None else 0
        span = last - self._first_sequence + 1 if last else 0
        return VerifyReport(
            events=self._fold.events,
            jobs=len(jobs),
            first_sequence=self._first_sequence,
            last_sequence=last,
            missing_sequences=span - self._fold.events,
            decisions=self._decisions,
            verified=self._verified,
            diverged=self._diverged,
            unverifiable=self._unverifiable,
            from_samples=self._from_samples,
            from_values=self._from_values,
            divergences=tuple(sorted(self._divergences.values(), key=lambda each: each.sequence)),
            laws=tuple(self._laws.breaches),
            law_breaches=self._laws.count,
            open_intents=tuple(open_intents),
            stopped=tuple(self._stopped.values()),
            imported=self._imported,
            missing=self._missing,
        )


def _looked_for_providers(batch: Batch, expected: list[ev.Event]) -> bool:
    """Whether the decision, or what it should have been, depends on what other jobs hold or their tenant used."""
    decided = [record.event.data for record in batch.records] + [event.data for event in expected]
    return any(
        (isinstance(data, ev.PlacementDecided) and bool(data.candidates))
        or (isinstance(data, ev.ScaleDecided) and any(check.rule in ("budget", "quota") for check in data.checks))
        for data in decided
    )
