"""The last events of every job, for the case that its story has to be told."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from elasticgrid.core.events import Recorded
from elasticgrid.core.grid import JobKey
from elasticgrid.log.codec import decode

#: Events of a job that are kept.
STORY_EVENTS: Final = 10

#: Kept as bytes where there are some: they are a fraction of the size of the event, and few stories are ever told.
_Kept: TypeAlias = tuple[int, int, bytes] | Recorded


class Stories:
    """Told every event of every job, it keeps the last ones of each."""

    def __init__(self) -> None:
        self._kept: dict[JobKey, deque[_Kept]] = {}

    def add(self, key: JobKey, recorded: Recorded) -> None:
        """One more event of a job."""
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = deque(maxlen=STORY_EVENTS)
        raw = recorded.raw
        kept.append((recorded.sequence, recorded.recorded_ms, raw) if raw else recorded)

    def of(self, key: JobKey) -> list[Recorded]:
        """The last events of a job, in order."""
        return [
            each if isinstance(each, Recorded) else Recorded(each[0], each[1], decode(each[2]), each[2])
            for each in self._kept.get(key, ())
        ]
