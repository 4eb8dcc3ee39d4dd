"""How an event stands on the bus: its subject and its headers, the same when it is appended and when it is restored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from elasticgrid.bus.follower import BusMessage
from elasticgrid.bus.subjects import EVENTS_ROOT, event_subject
from elasticgrid.core.errors import UndecodableEvent
from elasticgrid.core.events import EVENT_TYPES, Event, UnknownEvent, type_of, writer_of

MSG_ID: Final = "Nats-Msg-Id"
#: When a restored event was first recorded, Unix milliseconds.
RECORDED_MS: Final = "Grid-Recorded-Ms"
#: The end of the year 9999, the last one a date can be written in.
_LAST_MS: Final = 253_402_300_799_999


#: How the subjects of each type end; looked up for every event that is read.
_PLACES: Final = {
    cls: event_subject("", "", event_type).removeprefix(f"{EVENTS_ROOT}..") for event_type, cls in EVENT_TYPES.items()
}


def subject_of(event: Event | UnknownEvent) -> str:
    """Where the event is published, and nowhere else."""
    if isinstance(event, Event):
        return f"{EVENTS_ROOT}.{event.tenant}.{event.job}{_PLACES[type(event.data)]}"
    event_type = event.type
    try:
        return event_subject(event.tenant, event.job, event_type)
    except KeyError:
        # A type of an unknown writer; its subject's writer is its first word.
        writer, _, what = event_type.partition(".")
        return f"{EVENTS_ROOT}.{event.tenant}.{event.job}.{writer}.{what.replace('.', '-')}"


def headers_of(event: Event | UnknownEvent) -> dict[str, str]:
    """The event's id as the message's, and its CloudEvents attributes (binary mode)."""
    event_type = _type_of(event)
    try:
        writer: str = writer_of(event_type)
    except KeyError:
        writer = event_type.partition(".")[0]
    time = datetime.fromtimestamp(min(max(event.time_ms, 0), _LAST_MS) / 1000, UTC)
    return {
        MSG_ID: event.id,
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-type": event_type,
        "ce-source": f"/elasticgrid/{event.tenant}/{event.job}/{writer}",
        "ce-time": time.isoformat(timespec="milliseconds"),
        "content-type": "application/json",
    }


def recorded_ms_of(message: BusMessage) -> int:
    """When the message was recorded: the server's time, or the earlier one a restored message was first recorded at."""
    text = message.headers.get(RECORDED_MS) if message.headers is not None else None
    if text is None or not text.isdecimal() or len(text) >= 16:
        return message.time_ms
    return min(int(text), message.time_ms)


def refuse_foreign(subject: str, event: Event | UnknownEvent) -> None:
    """Refuse an event that claims to be another writer's: each can publish under its own subjects only.

    Raises:
        UndecodableEvent: it was published where it does not belong.
    """
    expected = subject_of(event)
    if subject != expected:
        raise UndecodableEvent(f"an event that belongs to {expected} was published elsewhere", where=subject)


def _type_of(event: Event | UnknownEvent) -> str:
    return event.type if isinstance(event, UnknownEvent) else type_of(event.data)
