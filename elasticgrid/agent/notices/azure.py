"""Azure: the scheduled events of this machine, and word back that an event need not wait any longer.

The document names every event of the machine's group; only events about this machine count. `NotBefore` is the
earliest time at which the event begins, and is empty once it has begun. A freeze of a few seconds is no reason to
leave.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from elasticgrid.agent.notices.http import Answer, request
from elasticgrid.agent.notices.notice import TEXT_LENGTH, Notice, SourceTrouble

BASE_URL: Final = "http://169.254.169.254"
EVENTS_PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
#: The first question may take long: it turns the service on.
FIRST_TIMEOUT_S: Final = 120.0
TIMEOUT_S: Final = 5.0
_LEAVING: Final = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    """One event of the document."""

    event_id: str
    event_type: str
    resources: tuple[str, ...] = ()
    not_before: str = ""
    description: str = ""


class _Document(msgspec.Struct, frozen=True, rename="pascal"):
    """The whole document."""

    events: tuple[_Event, ...] = ()


class AzureSource:
    """Asks the metadata service at `base_url`; `pause_s` between two questions."""

    def __init__(self, base_url: str = BASE_URL, *, pause_s: float = 1.0) -> None:
        self.pause_s = pause_s
        self._base_url = base_url.rstrip("/")
        self._name = ""
        self._asked_before = False
        self._noticed: dict[str, None] = {}

    async def look(self) -> Notice | None:
        """The event about this machine that comes first."""
        if not self._name:
            self._name = (await self._ask("GET", NAME_PATH)).text
        answer = await self._ask("GET", EVENTS_PATH)
        self._asked_before = True
        try:
            document = msgspec.json.decode(answer.body, type=_Document)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SourceTrouble(f"the scheduled events are not what is documented: {error}") from error
        found = [
            (_starts_ms(event), event)
            for event in document.events
            if event.event_type in _LEAVING and self._name in event.resources
        ]
        if not found:
            return None
        self._noticed |= dict.fromkeys(event.event_id for _, event in found)
        deadline_ms, first = min(found, key=lambda each: each[0])
        text = " ".join(
            part for part in (first.event_type, first.event_id, first.not_before, first.description) if part
        )
        return Notice(source="azure", deadline_ms=deadline_ms, text=text[:TEXT_LENGTH])

    async def node_left(self) -> None:
        """The events that were noticed may begin now."""
        if self._noticed:
            start = {"StartRequests": [{"EventId": event_id} for event_id in self._noticed]}
            await self._ask("POST", EVENTS_PATH, msgspec.json.encode(start))

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        answer = await request(
            method,
            f"{self._base_url}{path}",
            headers={"Metadata": "true", **({"Content-Type": "application/json"} if body else {})},
            body=body,
            timeout_s=TIMEOUT_S if self._asked_before else FIRST_TIMEOUT_S,
        )
        if answer.status != 200:
            raise SourceTrouble(f"{path} answered {answer.status}: {answer.text[:200]}")
        return answer


def _starts_ms(event: _Event) -> int:
    """When the event begins, Unix milliseconds; now when that is not said: it has begun."""
    try:
        return round(parsedate_to_datetime(event.not_before).timestamp() * 1000)
    except (TypeError, ValueError, IndexError):
        return time.time_ns() // 1_000_000
