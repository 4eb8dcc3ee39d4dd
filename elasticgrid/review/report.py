"""What a verification found, as values."""

from __future__ import annotations

import msgspec

from elasticgrid.log.archive_format import MissingRecords
from elasticgrid.review.differences import Difference


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision of a job that does not follow from what was known.

    Attributes:
        sequence, event_type: the event that differs.
        number: the decision's number.
        field: the first field that differs, such as `data.target_nodes`; empty when the whole event should not be
            there or is missing.
        expected, got: that field's values as JSON.
        differences: all fields that differ, that one first; at most 20.
        note: what else is known about it, in a sentence.
        story: the job's last lines up to the decision, oldest first.
    """

    tenant: str
    job: str
    sequence: int
    number: int
    event_type: str
    field: str
    expected: str
    got: str
    differences: tuple[Difference, ...] = ()
    note: str = ""
    story: tuple[str, ...] = ()


class LawBreach(msgspec.Struct, frozen=True, kw_only=True):
    """A law of the log that does not hold at an event."""

    law: str
    tenant: str
    job: str
    sequence: int
    says: str


class OpenIntent(msgspec.Struct, frozen=True, kw_only=True):
    """An intent of a running job whose outcome is not in the log (yet).

    Attributes:
        what: `launch` or `stop`.
        sequence: where it was asked for.
    """

    tenant: str
    job: str
    attempt: str
    what: str
    sequence: int


class StoppedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that could not be verified any further: an event of a type that this version does not know."""

    tenant: str
    job: str
    sequence: int
    event_type: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    Attributes:
        events, jobs: how many were folded.
        first_sequence, last_sequence: of the events; 0 when there are none.
        missing_sequences: sequences between those two that are not there.
        decisions: decisions (batches of events) in the log; each is one of the next three.
        verified: re-taken with the same result.
        diverged: re-taken with another result, or not decidable at all.
        unverifiable: of jobs that stopped, or whose history is not all there; `imported` of them are of jobs that came
            out of another grid's archive, which is what can be verified.
        from_samples, from_values: of the re-taken decisions with signals, those whose window was rebuilt from raw
            samples, and those that were re-taken from the values they carry.
        divergences: the first one of each job.
        laws: breaches of the laws; at most 1,000, `law_breaches` counts all.
        open_intents: of jobs that are not over.
        stopped: jobs with events of unknown types.
        missing: records that a salvage of a damaged archive did not find.
    """

    events: int
    jobs: int
    first_sequence: int
    last_sequence: int
    missing_sequences: int
    decisions: int
    verified: int
    diverged: int
    unverifiable: int
    from_samples: int
    from_values: int
    divergences: tuple[Divergence, ...] = ()
    laws: tuple[LawBreach, ...] = ()
    law_breaches: int = 0
    open_intents: tuple[OpenIntent, ...] = ()
    stopped: tuple[StoppedJob, ...] = ()
    imported: int = 0
    missing: tuple[MissingRecords, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing diverged and every law holds."""
        return not self.diverged and not self.law_breaches
