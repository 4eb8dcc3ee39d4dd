"""The AsyncAPI document of the bus: every subject, who may write to it, and what a message on it is.

It is made from the code and kept in `schemas/asyncapi.json`. Payloads of the two streams are references to the schemas
beside it; what agents say in plain messages is described in the document itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from elasticgrid.agent.agreement import Abandon, AskStopAt, AskWhere, Position
from elasticgrid.agent.heartbeat import Heartbeat
from elasticgrid.bus.streams import SAMPLES_MAX_AGE_S
from elasticgrid.bus.subjects import (
    EVENTS_STREAM,
    SAMPLES_STREAM,
    event_subject,
    heartbeat_subject,
    round_subject,
)
from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, Writer, writer_of
from elasticgrid.core.samples import SAMPLE_VERSION

#: The document's path in the folder of schemas.
DOCUMENT: Final = "asyncapi.json"
_JSON_SCHEMA: Final = "application/schema+json;version=draft-2020-12"
_COMPONENTS: Final = "#/components/schemas/{name}"

#: Who a subject's writer is.
WRITERS: Final[dict[Writer, str]] = {
    "job": "gateway",
    "decision": "decider",
    "launch": "launcher",
    "node": "agent",
}
_PARAMETERS: Final = {
    "tenant": "Whose it is; `_grid` for facts about the grid itself.",
    "job": "The job's id; `fleet` for facts about the grid itself.",
    "rank": "The worker's rank in its round, from 0.",
    "node": "The node's id, unique within the job.",
}
_HEADERS: Final = {
    "Nats-Msg-Id": "The event's id; the server recognises a second try by it.",
    "ce-specversion": "CloudEvents, binary mode.",
    "ce-id": "The event's id.",
    "ce-type": "The event's type, as in the payload's `data.type`.",
    "ce-source": "`/elasticgrid/<tenant>/<job>/<writer>`.",
    "ce-time": "When it happened by its writer's clock.",
    "content-type": "`application/json`.",
    "Grid-Recorded-Ms": "Of a restored event, when it was first recorded, Unix milliseconds.",
}


def asyncapi_text() -> str:
    """The text of the document; the same for the same code."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    """The document."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for name, kind in EVENT_TYPES.items():
        writer = WRITERS[writer_of(name)]
        messages[name] = _event(name, kind)
        channels[name] = _channel(event_subject("{tenant}", "{job}", name), [name], f"In the stream {EVENTS_STREAM}.")
        operations[f"{writer}.{name}"] = _writes(writer, name, [name], "atomically with the rest of its decision")
    _samples(channels, operations, messages)
    _heartbeats(channels, operations, messages)
    _rounds(channels, operations, messages)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "elasticgrid bus",
            "version": "1",
            "description": (
                "Every subject of the grid's bus. An operation's name begins with who may write: the subject says so,"
                " and the server refuses what its writer may not publish. Services may read everything, a tenant"
                " what is its own."
            ),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "{host}:{port}",
                "protocol": "nats",
                "description": "A nats-server with JetStream, embedded or of its own.",
                "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "4222"}},
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": _spoken()},
    }


def _event(name: str, kind: type[Any]) -> dict[str, Any]:
    said = (kind.__doc__ or "").strip().split("\n", 1)[0]
    headers = {header: {"type": "string", "description": text} for header, text in _HEADERS.items()}
    needed = [header for header in _HEADERS if header != "Grid-Recorded-Ms"]
    return {
        "name": name,
        "title": name,
        "summary": said,
        "contentType": "application/json",
        "headers": {"type": "object", "properties": headers, "required": needed},
        "payload": _beside(f"events/{name}.v{SCHEMA_VERSIONS[name]}.json"),
    }


def _samples(channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any]) -> None:
    messages["step-batch"] = {
        "name": "step-batch",
        "title": "step-batch",
        "summary": "Step samples of one rank of one round, an array-like MessagePack value.",
        "contentType": "application/msgpack",
        "payload": _beside(f"samples/step-batch.v{SAMPLE_VERSION}.json"),
    }
    kept = f"In the stream {SAMPLES_STREAM}, which forgets after {SAMPLES_MAX_AGE_S // 86_400} days or when it is full."
    channels["samples"] = _channel("grid.samples.{tenant}.{job}.{rank}", ["step-batch"], kept)
    operations["worker.samples"] = _writes("worker", "samples", ["step-batch"])


def _heartbeats(channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any]) -> None:
    messages["heartbeat"] = _plain("heartbeat", "A node lives, and how far its workers are.", ["Heartbeat"])
    plain = "Plain messages, in no stream; a heartbeat that is missed becomes a fact."
    channels["heartbeats"] = _channel(heartbeat_subject("{tenant}", "{job}", "{node}"), ["heartbeat"], plain)
    operations["agent.heartbeats"] = _writes("agent", "heartbeats", ["heartbeat"])


def _rounds(channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any]) -> None:
    asked = [kind.__name__ for kind in (AskWhere, AskStopAt, Abandon)]
    messages["round-question"] = _plain("round-question", "What the lead of a round asks a member.", asked)
    messages["round-position"] = _plain("round-position", "The member's answer, to the reply subject.", ["Position"])
    plain = "Plain requests, in no stream: the agents of a round agree at which step to stop."
    channels["rounds"] = _channel(round_subject("{tenant}", "{job}", "{node}"), ["round-question"], plain)
    channels["round-replies"] = {
        "address": None,
        "description": "The reply subject that the question names.",
        "messages": {"round-position": {"$ref": "#/components/messages/round-position"}},
    }
    operation = _writes("agent", "rounds", ["round-question"])
    operation["reply"] = {
        "address": {"location": "$message.header#/reply"},
        "channel": {"$ref": "#/channels/round-replies"},
        "messages": [{"$ref": "#/channels/round-replies/messages/round-position"}],
    }
    operations["agent.rounds"] = operation


def _channel(address: str, carried: list[str], description: str) -> dict[str, Any]:
    named = [name for name in _PARAMETERS if f"{{{name}}}" in address]
    return {
        "address": address,
        "description": description,
        "parameters": {name: {"description": _PARAMETERS[name]} for name in named},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in carried},
    }


def _writes(writer: str, channel: str, carried: list[str], how: str = "") -> dict[str, Any]:
    suffix = f", {how}" if how and writer == "decider" else ""
    return {
        "action": "send",
        "title": f"{writer} writes",
        "summary": f"Only the {writer} writes here{suffix}.",
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in carried],
        "tags": [{"name": writer}],
    }


def _plain(name: str, summary: str, kinds: list[str]) -> dict[str, Any]:
    schemas = [{"$ref": _COMPONENTS.format(name=kind)} for kind in kinds]
    schema = schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
    return {
        "name": name,
        "title": name,
        "summary": summary,
        "contentType": "application/json",
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": schema},
    }


def _beside(path: str) -> dict[str, Any]:
    return {"schemaFormat": _JSON_SCHEMA, "schema": {"$ref": f"./{path}"}}


def _spoken() -> dict[str, Any]:
    """Schemas of what agents say in plain messages."""
    kinds = (AskWhere, AskStopAt, Abandon, Position, Heartbeat)
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_COMPONENTS)
    return dict(sorted(schemas.items()))
