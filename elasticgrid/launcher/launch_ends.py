"""Which launches are over, and so whose credentials are revoked: a pure fold of launch events.

What is still valid follows from the log alone, so a launcher that starts anew finds the same, and nothing that another
one issued before it was killed is forgotten.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Of one tenant, how many are told to the server; those that ended last. The others end by themselves first.
MAX_REVOKED: Final = 1_500


class LaunchEnd(msgspec.Struct, frozen=True):
    """A launch that is over."""

    job: str
    launch: str
    ended_ms: int


class LaunchEnds:
    """Folds the ends of launches, by tenant.

    Args:
        life_ms: how long a credential is valid; one that ended before that is no longer of interest.
    """

    def __init__(self, life_ms: int) -> None:
        self._life_ms = life_ms
        self._ends: dict[str, dict[tuple[str, str], LaunchEnd]] = {}

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those with a launch that ended."""
        return tuple(self._ends)

    def end(self, tenant: str, job: str, launch: str, ended_ms: int) -> bool:
        """A launch is over; returns whether that is news."""
        ends = self._ends.setdefault(tenant, {})
        if (job, launch) in ends:
            return False
        ends[job, launch] = LaunchEnd(job, launch, ended_ms)
        return True

    def is_over(self, tenant: str, job: str, launch: str) -> bool:
        """Whether the launch ended, as far as that is still remembered."""
        return (job, launch) in self._ends.get(tenant, {})

    def recent(self, tenant: str, now_ms: int) -> tuple[LaunchEnd, ...]:
        """Launches whose credentials could still be valid, in the order they ended."""
        ends = self._ends.get(tenant, {})
        for key in [key for key, end in ends.items() if end.ended_ms + self._life_ms < now_ms]:
            del ends[key]
        return tuple(sorted(ends.values(), key=lambda end: (end.ended_ms, end.job, end.launch))[-MAX_REVOKED:])
