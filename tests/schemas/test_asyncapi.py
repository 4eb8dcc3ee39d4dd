"""The AsyncAPI document: every subject is in it, what it refers to exists, and its writers are who may write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticgrid.bus.accounts import launch_claims
from elasticgrid.bus.subjects import event_subject
from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, writer_of
from elasticgrid.documents import schemas
from elasticgrid.documents.asyncapi import DOCUMENT, WRITERS, asyncapi_text

COMMITTED = Path(__file__).parents[2] / "schemas"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    made: dict[str, Any] = json.loads((COMMITTED / DOCUMENT).read_text())
    return made


def walked(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from walked(each)
    elif isinstance(value, list):
        for each in value:
            yield from walked(each)


def resolved(document: dict[str, Any], pointer: str) -> Any:
    value: Any = document
    for part in pointer.removeprefix("#/").split("/"):
        value = value[part]
    return value


def test_the_document_is_one_of_the_generated_ones() -> None:
    assert schemas.generate()[DOCUMENT] == asyncapi_text()


def test_it_has_what_the_specification_demands(document: dict[str, Any]) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["title"]
    assert document["info"]["version"]
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = resolved(document, operation["channel"]["$ref"])
        for message in operation["messages"]:
            name = message["$ref"].rsplit("/", 1)[1]
            assert name in channel["messages"]


def test_every_event_type_has_its_subject_its_writer_and_its_schema(document: dict[str, Any]) -> None:
    for name in EVENT_TYPES:
        channel = document["channels"][name]
        assert channel["address"] == event_subject("{tenant}", "{job}", name)
        assert set(channel["parameters"]) == {"tenant", "job"}
        writers = [each for each in document["operations"] if each.endswith(f".{name}")]
        assert writers == [f"{WRITERS[writer_of(name)]}.{name}"]
        message = document["components"]["messages"][name]
        assert message["payload"]["schema"] == {"$ref": f"./events/{name}.v{SCHEMA_VERSIONS[name]}.json"}
        assert "ce-type" in message["headers"]["required"]


def test_no_two_subjects_are_the_same(document: dict[str, Any]) -> None:
    addresses = [each["address"] for each in document["channels"].values()]
    assert len(set(addresses)) == len(addresses)


def test_whatever_is_referred_to_is_there(document: dict[str, Any]) -> None:
    references = [each["$ref"] for each in walked(document) if "$ref" in each]
    assert len(references) > 3 * len(EVENT_TYPES)
    for reference in references:
        if reference.startswith("./"):
            assert (COMMITTED / reference).is_file(), reference
        else:
            assert resolved(document, reference), reference


def allows(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given) >= len(wanted) and all(
            one in ("*", two) for one, two in zip(wanted[:-1], given, strict=False)
        )
    return len(wanted) == len(given) and all(one in ("*", two) for one, two in zip(wanted, given, strict=True))


def test_the_server_lets_nodes_write_where_the_document_says_and_nowhere_else(document: dict[str, Any]) -> None:
    patterns = launch_claims("tenant", "job", "launch", "INBOX")["pub"]["allow"]
    for name, operation in document["operations"].items():
        address = resolved(document, operation["channel"]["$ref"])["address"]
        subject = address.replace("{", "").replace("}", "")
        may = any(allows(pattern, subject) for pattern in patterns)
        assert may == (name.split(".", 1)[0] in ("agent", "worker")), name


def test_what_agents_say_in_plain_messages_is_described(document: dict[str, Any]) -> None:
    described = document["components"]["schemas"]
    assert set(described) == {"Abandon", "AskStopAt", "AskWhere", "Heartbeat", "Position"}
    assert described["AskStopAt"]["properties"]["type"]["enum"] == ["ask_stop_at"]
    reply = document["operations"]["agent.rounds"]["reply"]
    assert resolved(document, reply["messages"][0]["$ref"])
