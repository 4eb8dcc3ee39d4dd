"""The envelope, the union of all types, and what is known of each type."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from elasticgrid.core.events.base import Value
from elasticgrid.core.events.decisions import (
    DrainDecided,
    GapDecided,
    OutcomeDecided,
    PlacementDecided,
    ScaleDecided,
    WorldDecided,
)
from elasticgrid.core.events.launches import (
    LaunchFailed,
    LaunchRequested,
    LaunchStarted,
    LaunchStopped,
    LaunchStopRequested,
    NodeLost,
)
from elasticgrid.core.events.nodes import (
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeJoined,
    NodeLeft,
    NodePreemptionNotice,
    NodeReclassified,
    NodeStarted,
    NodeStuck,
)
from elasticgrid.core.events.requests import (
    JobCancelRequested,
    JobInterruptRequested,
    JobPauseRequested,
    JobPriorityRequested,
    JobResizeRequested,
    JobResumeRequested,
    JobSubmitted,
    ProviderCordoned,
    ProviderDeclared,
    ProviderUncordoned,
    ProviderWithdrawn,
)
from elasticgrid.core.events.tenants import KeyCreated, KeyRevoked, QuotaSet, TenantCreated

EventData: TypeAlias = (
    JobSubmitted
    | JobCancelRequested
    | JobPauseRequested
    | JobResumeRequested
    | JobResizeRequested
    | JobPriorityRequested
    | JobInterruptRequested
    | ProviderDeclared
    | ProviderWithdrawn
    | ProviderCordoned
    | ProviderUncordoned
    | TenantCreated
    | KeyCreated
    | KeyRevoked
    | QuotaSet
    | ScaleDecided
    | PlacementDecided
    | DrainDecided
    | WorldDecided
    | OutcomeDecided
    | GapDecided
    | LaunchRequested
    | LaunchStarted
    | LaunchFailed
    | LaunchStopRequested
    | LaunchStopped
    | NodeLost
    | NodeJoined
    | NodeStarted
    | NodeCheckpointed
    | NodeDrained
    | NodeFinished
    | NodeFailed
    | NodeLeft
    | NodePreemptionNotice
    | NodeStuck
    | NodeReclassified
)


class Basis(Value, frozen=True, kw_only=True):
    """What a decision was taken from; together with the log it re-derives the decision.

    Attributes:
        number: counts the job's decisions from 1; all events of one decision share it.
        as_of_ms: the time the decision was taken at, an argument of it.
        events_through, samples_through: stream sequences that had been read.
        policy, policy_version, config_digest: the rules and their numbers.
    """

    number: int
    as_of_ms: int
    events_through: int
    samples_through: int
    policy: str
    policy_version: int
    config_digest: str


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The envelope.

    Attributes:
        id: time-ordered, unique, the same on a second try.
        schema_version: of `data`'s type.
        time_ms: when it happened by its writer's clock, Unix milliseconds; the log adds when it was recorded.
        causation_id: the event that directly caused it; empty for what came from outside.
        correlation_id: the event the whole story began with: the job's submission.
        actor: who wrote it, such as `decider`, `launcher`, `agent:<node>`, `key:<prefix>`.
        basis: on decisions only.
    """

    id: str
    schema_version: int = 1
    time_ms: int
    tenant: str
    job: str
    causation_id: str = ""
    correlation_id: str = ""
    actor: str
    basis: Basis | None = None
    data: EventData


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of a type (or later version) that this software does not know: carried and counted, never guessed at."""

    id: str
    type: str
    schema_version: int
    time_ms: int
    tenant: str
    job: str
    raw: bytes


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event as it stands in the log.

    Attributes:
        sequence: its place, from 1.
        recorded_ms: the log's clock when it was appended; what everything is folded by.
        event: the event.
        raw: its bytes, as appended.
    """

    sequence: int
    recorded_ms: int
    event: Event | UnknownEvent
    raw: bytes = b""


_TYPES: tuple[type[Any], ...] = EventData.__args__
#: Every event class by its type string.
EVENT_TYPES: dict[str, type[Any]] = {str(cls.__struct_config__.tag): cls for cls in _TYPES}
_TYPE_OF: dict[type[Any], str] = {cls: name for name, cls in EVENT_TYPES.items()}
#: The current schema version of each event type; a type not listed is at version 1.
SCHEMA_VERSIONS: dict[str, int] = dict.fromkeys(EVENT_TYPES, 1)

Writer = Literal["job", "decision", "launch", "node"]
_WRITERS: dict[str, Writer] = {
    "job": "job",
    "provider": "job",
    "tenant": "job",
    "key": "job",
    "quota": "job",
    "decision": "decision",
    "launch": "launch",
    "node": "node",
}


def type_of(data: EventData) -> str:
    """The stable type string of an event's data, such as `decision.scale`."""
    return _TYPE_OF[type(data)]


def writer_of(event_type: str) -> Writer:
    """Who may write events of this type.

    Raises:
        KeyError: the type's first word names no writer.
    """
    return _WRITERS[event_type.split(".", 1)[0]]
