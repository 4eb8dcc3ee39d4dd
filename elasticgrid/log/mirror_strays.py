"""Messages among the events that are none: the mirror keeps them too, so that a restored log has the same sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from elasticgrid.bus.follower import BusMessage
from elasticgrid.core.errors import UndecodableEvent
from elasticgrid.log.envelope import recorded_ms_of
from elasticgrid.log.mirror_record import LogRecord

_log = structlog.get_logger("elasticgrid.log.mirrored")

#: More than this between two events are not kept; a restored log has placeholders where they were.
MOST_STRAYS: Final = 1_000


class Strays:
    """Messages on event subjects that are no events, until the mirror has them.

    Args:
        on_stray: told of each that is met.
    """

    def __init__(self, on_stray: Callable[[], None] | None = None) -> None:
        self._on_stray = on_stray
        self._records: dict[int, LogRecord] = {}
        self._met = 0

    def keep(self, message: BusMessage, error: UndecodableEvent) -> None:
        """Take note of one; see `JetStreamLog`."""
        self._met += 1
        if self._on_stray is not None:
            self._on_stray()
        if self._met == 1:
            _log.warning(
                "a message on an event subject is not an event; it is mirrored but not read, and no others are told",
                subject=message.subject,
                sequence=message.sequence,
                error=str(error),
            )
        if len(self._records) < MOST_STRAYS:
            self._records[message.sequence] = LogRecord(
                message.sequence, recorded_ms_of(message), message.subject, message.data, is_event=False
            )

    def merge(self, records: Sequence[LogRecord], *, after: int) -> Sequence[LogRecord]:
        """The records with the strays that stand between `after` and the last of them."""
        if not self._records:
            return records
        last = records[-1].sequence
        strays = [record for sequence, record in self._records.items() if after < sequence < last]
        return sorted([*records, *strays], key=lambda record: record.sequence)

    def forget(self, *, through: int) -> None:
        """Let go of what is mirrored."""
        if self._records:
            self._records = {number: record for number, record in self._records.items() if number > through}
