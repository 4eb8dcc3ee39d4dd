"""Times as people read them: UTC, from Unix milliseconds; and how long something took."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: The last millisecond that has a date with four digits.
_LAST_MS: Final = 253_402_300_799_999


def moment(time_ms: int) -> str:
    """Date and time to the second, such as `2026-01-31 12:30:00`."""
    return f"{day(time_ms)} {time_of_day(time_ms)}"


def precise(time_ms: int) -> str:
    """Date and time to the millisecond, such as `2026-01-31 12:30:00.125`."""
    return f"{day(time_ms)} {time_of_day(time_ms, fine=True)}"


def time_of_day(time_ms: int, *, fine: bool = False) -> str:
    """Only the time; with `fine` to the millisecond."""
    text = _at(time_ms).strftime("%H:%M:%S.%f")
    return text[:-3] if fine else text[:-7]


def day(time_ms: int) -> str:
    """Only the date."""
    return _at(time_ms).strftime("%Y-%m-%d")


def lasted(duration_ms: int) -> str:
    """A duration, in the unit that suits it."""
    if abs(duration_ms) < 1_000:
        return f"{duration_ms} ms"
    seconds = duration_ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(time_ms, 0), _LAST_MS) / 1000, UTC)
