"""What a decider says of itself."""

from __future__ import annotations

import msgspec


class DeciderStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the decider has read and done since it started.

    Attributes:
        sequence, samples_sequence: how far it has read the two streams.
        stopped_jobs: jobs of which nothing is decided any more, because that failed or an event is of an unknown type.
        oldest_sample_ms: when the last sample came of the job that trains and is silent the longest; None for none.
        ticked_ms: when it last looked at every job.
    """

    events: int
    sequence: int
    sample_messages: int
    samples: int
    samples_sequence: int
    refused: dict[str, int]
    decisions: int
    conflicts: int
    broken_jobs: int
    stopped_jobs: int
    oldest_sample_ms: int | None
    ticked_ms: int

    @staticmethod
    def begin() -> DeciderStats:
        """Of one that has done nothing yet."""
        return DeciderStats(
            events=0,
            sequence=0,
            sample_messages=0,
            samples=0,
            samples_sequence=0,
            refused={},
            decisions=0,
            conflicts=0,
            broken_jobs=0,
            stopped_jobs=0,
            oldest_sample_ms=None,
            ticked_ms=0,
        )
