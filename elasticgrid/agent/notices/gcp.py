"""Google Compute Engine: the metadata keys `preempted` and `maintenance-event`, waited for where they change.

A question with `wait_for_change` is answered when the value differs from the one with `last_etag`, or after
`timeout_sec`. A preempted machine is gone 30 seconds after the key turned TRUE. A maintenance that moves the machine
while it runs is no reason to leave it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import urlencode

from elasticgrid.agent.notices.http import request
from elasticgrid.agent.notices.notice import TEXT_LENGTH, Notice, SourceTrouble

BASE_URL: Final = "http://metadata.google.internal"
PREEMPTED: Final = "preempted"
MAINTENANCE: Final = "maintenance-event"
#: How long before the machine is gone each key says so.
AHEAD_MS: Final = {PREEMPTED: 30_000, MAINTENANCE: 60_000}
_SAYS_SO: Final = {PREEMPTED: "TRUE", MAINTENANCE: "TERMINATE_ON_HOST_MAINTENANCE"}
_SLACK_S: Final = 5.0


class GcpSource:
    """Asks the metadata server at `base_url`.

    Args:
        wait_s: how long one question waits for a change.
        pause_s: between two questions; a change is told at once, so it matters only after trouble.
    """

    def __init__(self, base_url: str = BASE_URL, *, wait_s: int = 30, pause_s: float = 0.5) -> None:
        self.pause_s = pause_s
        self._base_url = base_url.rstrip("/")
        self._wait_s = wait_s
        self._etags: dict[str, str] = {}

    async def look(self) -> Notice | None:
        """The first of both keys that says so, as soon as one changes."""
        asked = [asyncio.create_task(self._ask(key)) for key in (PREEMPTED, MAINTENANCE)]
        try:
            for answered in asyncio.as_completed(asked):
                notice = await answered
                if notice is not None:
                    return notice
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return None

    async def node_left(self) -> None:
        """Nothing: the machine is taken at its time whatever is said."""

    async def _ask(self, key: str) -> Notice | None:
        query = {"wait_for_change": "true", "timeout_sec": str(self._wait_s), "last_etag": self._etags.get(key, "0")}
        answer = await request(
            "GET",
            f"{self._base_url}/computeMetadata/v1/instance/{key}?{urlencode(query)}",
            headers={"Metadata-Flavor": "Google"},
            timeout_s=self._wait_s + _SLACK_S,
        )
        if answer.headers.get("metadata-flavor") != "Google":
            raise SourceTrouble(f"{self._base_url} is not the metadata server of Google")
        if answer.status != 200:
            raise SourceTrouble(f"{key} answered {answer.status}")
        self._etags[key] = answer.headers.get("etag", "0")
        if answer.text.upper() != _SAYS_SO[key]:
            return None
        deadline_ms = time.time_ns() // 1_000_000 + AHEAD_MS[key]
        return Notice(source="gcp", deadline_ms=deadline_ms, text=f"{key}: {answer.text}"[:TEXT_LENGTH])
