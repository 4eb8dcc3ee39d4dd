"""Events to bytes and back: JSON, unknown fields ignored, unknown types carried, old versions brought up to date.

An upcaster is a pure function on the raw mapping, from one schema version of one type to the next. They are looked up
by (type, version) and chained until the current version is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from elasticgrid.core.errors import UndecodableEvent
from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, Event, UnknownEvent, type_of

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

#: (type, version) -> the function that turns its raw mapping into the next version's.
UPCASTERS: dict[tuple[str, int], Upcaster] = {}

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
_schema_version = attrgetter("schema_version")


class _Head(msgspec.Struct):
    """What is read of an event whose data is not understood."""

    class _Data(msgspec.Struct):
        type: str

    data: _Data
    id: str
    tenant: str
    job: str
    time_ms: int
    schema_version: int = 1


_head_decoder = msgspec.json.Decoder(_Head)


def encode(event: Event) -> bytes:
    """The event's bytes; equal events have equal bytes."""
    return _encoder.encode(event)


def decode(
    data: bytes,
    *,
    upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
    versions: Mapping[str, int] = SCHEMA_VERSIONS,
) -> Event | UnknownEvent:
    """The event in `data`.

    A type that is not in the catalogue, or a later version than ours, comes back as `UnknownEvent`.

    Raises:
        UndecodableEvent: the bytes are no event at all, or one of a known type with wrong fields.
    """
    try:
        event = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _decode_slowly(data, error, upcasters, versions)
    if event.schema_version != versions[type_of(event.data)]:
        return _decode_slowly(data, None, upcasters, versions)
    return event


def decode_all(payloads: Sequence[bytes]) -> list[Event | UnknownEvent]:
    """The events in all of these, as `decode` gives them.

    Raises:
        UndecodableEvent: one of them is none.
    """
    try:
        decoded = list(map(_decoder.decode, payloads))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    else:
        # Mostly all types are of one version, and then nothing has to be looked up for each event.
        versions = set(SCHEMA_VERSIONS.values())
        if len(versions) == 1 and versions.issuperset(map(_schema_version, decoded)):
            return [*decoded]
    return [decode(payload) for payload in payloads]


def _decode_slowly(
    data: bytes,
    error: Exception | None,
    upcasters: Mapping[tuple[str, int], Upcaster],
    versions: Mapping[str, int],
) -> Event | UnknownEvent:
    try:
        head = _head_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as head_error:
        raise UndecodableEvent(f"these bytes are not an event: {head_error}") from head_error
    event_type = head.data.type
    version = head.schema_version
    current = versions.get(event_type)
    if event_type not in EVENT_TYPES or current is None or version > current:
        return UnknownEvent(
            id=head.id,
            type=event_type,
            schema_version=version,
            time_ms=head.time_ms,
            tenant=head.tenant,
            job=head.job,
            raw=data,
        )
    if version == current:
        raise UndecodableEvent(f"an event of type {event_type} has wrong fields: {error}", where=head.id) from error
    raw: dict[str, Any] = msgspec.json.decode(data)
    while version < current:
        upcast = upcasters.get((event_type, version))
        if upcast is None:
            raise UndecodableEvent(
                f"no upcaster from version {version} of {event_type}",
                where=head.id,
                hint="use the version that wrote it",
            )
        try:
            raw = upcast(raw)
        except Exception as upcast_error:  # a damaged old event must not get further than a damaged new one
            raise UndecodableEvent(
                f"version {version} of {event_type} cannot be brought up to date: {upcast_error!r}", where=head.id
            ) from upcast_error
        version += 1
        raw["schema_version"] = version
    try:
        return msgspec.convert(raw, Event)
    except msgspec.ValidationError as upcast_error:
        raise UndecodableEvent(
            f"the upcast event of type {event_type} has wrong fields: {upcast_error}", where=head.id
        ) from upcast_error
