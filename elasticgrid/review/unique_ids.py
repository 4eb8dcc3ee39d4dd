"""Whether every identifier in a log of any length is there once, in bounded memory.

Identifiers begin with their time. Those of the last minutes are kept; one that comes later than that is looked for in
a second pass, which is only needed when there is one.
"""

from __future__ import annotations

from typing import Final

#: Identifiers are kept by their first digits: so many name a span of 2 ** 16 ms, about a minute.
_DIGITS: Final = 8
_BUCKET_BITS: Final = 16
#: How long after its own time an event may be recorded and still be compared at once, in buckets.
_BUCKETS: Final = 10


class UniqueIds:
    """Told every identifier in order, it says which ones were there before.

    Attributes:
        late: identifiers that came too late to be compared with all before them, and where they stand.
    """

    def __init__(self) -> None:
        self.late: dict[str, int] = {}
        self._recent: dict[str, set[str]] = {}
        self._now = 0
        self._oldest = ""

    def add(self, event_id: str, sequence: int, recorded_ms: int) -> bool:
        """Note an identifier; False when it is known to have been there before."""
        bucket = event_id[:_DIGITS]
        now = recorded_ms >> _BUCKET_BITS
        if now > self._now:
            self._now = now
            self._oldest = f"{max(now - _BUCKETS, 0):0{_DIGITS}x}"
            for old in [each for each in self._recent if each < self._oldest]:
                del self._recent[old]
        if bucket < self._oldest:
            return self.late.setdefault(event_id, sequence) == sequence
        known = self._recent.get(bucket)
        if known is None:
            known = self._recent[bucket] = set()
        before = len(known)
        known.add(event_id)
        return len(known) > before
