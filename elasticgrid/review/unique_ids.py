"""Whether every identifier in a log of any length is there once, in bounded memory.

Identifiers begin with their time. Those of the last minutes are kept; one that comes later than that is looked for in
a second pass, which is only needed when there is one.
"""

from __future__ import annotations

from typing import Final

_BUCKET_MS: Final = 60_000
#: How long after its own time an event may be recorded and still be compared at once, in buckets.
_BUCKETS: Final = 10


class UniqueIds:
    """Told every identifier in order, it says which ones were there before.

    Attributes:
        late: identifiers that came too late to be compared with all before them, and where they stand.
    """

    def __init__(self) -> None:
        self.late: dict[str, int] = {}
        self._recent: dict[int, set[str]] = {}
        self._oldest = 0

    def add(self, event_id: str, sequence: int, recorded_ms: int) -> bool:
        """Note an identifier; False when it is known to have been there before."""
        bucket = _bucket_of(event_id)
        oldest = recorded_ms // _BUCKET_MS - _BUCKETS
        if oldest > self._oldest:
            self._oldest = oldest
            for old in [each for each in self._recent if each < oldest]:
                del self._recent[old]
        if bucket < self._oldest:
            return self.late.setdefault(event_id, sequence) == sequence
        known = self._recent.setdefault(bucket, set())
        before = len(known)
        known.add(event_id)
        return len(known) > before


def _bucket_of(event_id: str) -> int:
    """The minute an identifier begins with; -1 for one that is not of our making."""
    try:
        return int(event_id[:12], 16) // _BUCKET_MS
    except ValueError:
        return -1
