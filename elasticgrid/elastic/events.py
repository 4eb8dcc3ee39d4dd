"""Events of a run's life, routed by destination: `null`, `console`, `logging`, `bus`, and what is registered.

::

    events.register_handler("team", lambda event: rows.append(event))
    events.record(events.Event(name="epoch_done", metadata={"epoch": 3}), destination="team")

These are for people and their tools. What a run is decided by is in its log, whatever happens to these.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from elasticgrid import environment
from elasticgrid.bus.connect import BusAddress
from elasticgrid.core.errors import InvalidInput
from elasticgrid.elastic.bus_sender import BusSender

_log = logging.getLogger("elasticgrid.elastic.events")

MetadataValue: TypeAlias = str | int | float | bool | None
NULL: Final = "null"
BUS: Final = "bus"


class EventSource(StrEnum):
    """Who says it."""

    AGENT = "AGENT"
    WORKER = "WORKER"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Event(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """Something that happened; `timestamp_ms` is when, Unix milliseconds."""

    name: str
    source: EventSource = EventSource.WORKER
    timestamp_ms: int = msgspec.field(default_factory=_now_ms)
    metadata: dict[str, MetadataValue] = {}


class RdzvEvent(msgspec.Struct, frozen=True, kw_only=True, tag="rdzv"):
    """Something that happened while nodes came together.

    Attributes:
        name: `joined`, `world`, `drain`, `stuck`, `lost`, `left`, `ended` or `error`.
        node: the node that says it; `round` the round it is about, 0 before the first.
    """

    name: str
    run_id: str
    node: str
    round: int = 0
    message: str = ""
    timestamp_ms: int = msgspec.field(default_factory=_now_ms)


AnyEvent: TypeAlias = Event | RdzvEvent
Handler: TypeAlias = Callable[[AnyEvent], None]


def as_json(event: AnyEvent) -> str:
    """The event as one line of JSON."""
    return msgspec.json.encode(event).decode()


def _to_console(event: AnyEvent) -> None:
    sys.stderr.write(as_json(event) + "\n")


def _to_logging(event: AnyEvent) -> None:
    _log.info("%s", as_json(event))


class BusHandler:
    """Sends events to `grid.lifecycle.<run>.<name>` on a bus, from a thread of its own; drops what it cannot send.

    Args:
        address: the bus.
        run_id: the run they are about.
    """

    def __init__(self, address: BusAddress, run_id: str) -> None:
        self._sender = BusSender(address, "lifecycle", run_id)

    def __call__(self, event: AnyEvent) -> None:
        """Send it, some time."""
        self._sender.send(event.name, msgspec.json.encode(event))

    def close(self) -> None:
        """Send what waits, within a second or so, and end."""
        self._sender.close()


_handlers: dict[str, Handler] = {NULL: lambda _: None, "console": _to_console, "logging": _to_logging}


def register_handler(destination: str, handler: Handler) -> None:
    """Send what is recorded for `destination` to `handler` from now on."""
    _handlers[destination] = handler


def check_destination(destination: str) -> None:
    """Whether something may be recorded for a destination.

    Raises:
        InvalidInput: nobody serves it.
    """
    if destination not in _handlers and destination != BUS:
        known = ", ".join(sorted({*_handlers, BUS}))
        raise InvalidInput(f"{destination!r} is no destination of events", where="destination", hint=f"one of {known}")


def record(event: AnyEvent, destination: str = NULL) -> None:
    """Send an event to a destination. What its handler raises is logged and goes no further.

    Raises:
        InvalidInput: no such destination, or `bus` in a process that is no part of a run.
    """
    check_destination(destination)
    handler = _handlers.get(destination)
    if handler is None:
        address, run_id = BusAddress.from_environment(os.environ), os.environ.get(environment.JOB, "")
        if address is None or not run_id:
            raise InvalidInput(
                "this process is no part of a run, so there is no bus to send to",
                where=environment.NATS_URL,
                hint="register_handler('bus', BusHandler(address, run_id))",
            )
        handler = BusHandler(address, run_id)
        register_handler(BUS, handler)
    try:
        handler(event)
    except Exception:
        _log.exception("a handler of events failed: %s", event.name)


def record_rdzv_event(event: RdzvEvent, destination: str = NULL) -> None:
    """`record`, for events of nodes that come together."""
    record(event, destination)
