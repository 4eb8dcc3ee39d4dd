"""Times as people type them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from elasticgrid.core.errors import InvalidInput

_AGO = re.compile(r"^(\d{1,12})(s|m|h|d)$")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def time_ms(text: str, *, where: str) -> int:
    """Unix milliseconds of an ISO time (UTC unless it says otherwise) or of so long ago (`90s`, `15m`, `2h`, `1d`).

    Raises:
        InvalidInput: it is neither.
    """
    ago = _AGO.match(text)
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a time", where=where, hint="2026-01-31T12:30:00 in UTC, or 90s, 15m, 2h, 1d ago"
        ) from error
    return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def seconds(text: str, *, where: str) -> int:
    """A span of time such as `90s`, `15m`, `12h` or `30d`, in seconds.

    Raises:
        InvalidInput: it is none.
    """
    span = _AGO.match(text)
    if span is None:
        raise InvalidInput(f"{text!r} is no span of time", where=where, hint="90s, 15m, 12h, 30d")
    return int(span[1]) * _UNIT_MS[span[2]] // 1_000


def optional_time_ms(text: str | None, *, where: str) -> int | None:
    """The same, and None for None."""
    return None if text is None else time_ms(text, where=where)
