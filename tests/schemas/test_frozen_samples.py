"""Events and samples of every version that ever was are still read, and what is not known is carried or refused."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.errors import UndecodableEvent
from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, Event, NodeLeft, NodeStarted, UnknownEvent, type_of
from elasticgrid.core.samples import StepSample, admit, decode_batch, encode_batch
from elasticgrid.documents.schemas import SAMPLE_FORMS, frozen_names
from elasticgrid.log.codec import decode, encode

SCHEMAS = Path(__file__).parents[2] / "schemas"
FROZEN = SCHEMAS / "frozen"
CURRENT = [f"{name}.v{version}.json" for name, version in SCHEMA_VERSIONS.items()]
LEFT = (FROZEN / "node.left.v1.json").read_bytes()
STARTED = (FROZEN / "node.started.v1.json").read_bytes()


def changed(event: bytes, *, data: dict[str, Any] | None = None, **envelope: Any) -> bytes:
    """The event's bytes with other or further fields."""
    raw = msgspec.json.decode(event)
    return msgspec.json.encode({**raw, **envelope, "data": {**raw["data"], **(data or {})}})


def test_there_is_a_frozen_sample_of_every_version_of_every_type_and_no_other() -> None:
    assert {path.relative_to(SCHEMAS).as_posix() for path in FROZEN.iterdir()} == set(frozen_names())


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FROZEN.glob("*.json") if not path.name.startswith("step-batch."))
)
def test_an_event_as_an_old_log_holds_it_is_decoded_as_its_type(name: str) -> None:
    event = decode((FROZEN / name).read_bytes())
    assert isinstance(event, Event)
    assert type_of(event.data) == name.rsplit(".v", 1)[0]


@pytest.mark.parametrize("name", CURRENT)
def test_an_event_of_the_current_version_is_encoded_to_the_same_bytes_and_says_all_its_fields(name: str) -> None:
    frozen = (FROZEN / name).read_bytes()
    event = decode(frozen)
    assert isinstance(event, Event)
    assert encode(event) == frozen
    assert decode(encode(event)) == event


@pytest.mark.parametrize("form", SAMPLE_FORMS)
def test_a_frozen_batch_of_samples_is_decoded_to_what_is_described_and_survives_being_encoded_again(form: str) -> None:
    frozen = (FROZEN / f"step-batch.{form}.msgpack").read_bytes()
    batch = decode_batch(frozen)
    assert not isinstance(batch, str)
    described = json.loads((FROZEN / f"step-batch.{form}.json").read_text())
    assert (batch.version, batch.round, batch.rank) == (described["version"], described["round"], described["rank"])
    later_fields = {"compute_s": None, "checkpoint_s": 0.0}
    assert [_named(sample) for sample in batch.samples] == [later_fields | sample for sample in described["samples"]]
    assert not any(isinstance(admit(batch, sample), str) for sample in batch.samples)
    again = decode_batch(encode_batch(batch))
    assert not isinstance(again, str)
    assert [_named(sample) for sample in again.samples] == [_named(sample) for sample in batch.samples]


def test_a_batch_as_it_is_written_today_is_encoded_to_the_same_bytes() -> None:
    frozen = (FROZEN / f"step-batch.{SAMPLE_FORMS[-1]}.msgpack").read_bytes()
    batch = decode_batch(frozen)
    assert not isinstance(batch, str)
    assert encode_batch(batch) == frozen


def test_fields_that_are_not_known_are_ignored() -> None:
    assert decode(changed(LEFT, colour="red", data={"farewell": [1, {"a": None}]})) == decode(LEFT)


def test_a_type_that_is_not_known_is_carried_with_its_bytes() -> None:
    foreign = changed(LEFT, data={"type": "node.promoted", "rank": 3})
    event = decode(foreign)
    assert isinstance(event, UnknownEvent)
    assert (event.type, event.schema_version, event.raw) == ("node.promoted", 1, foreign)
    assert event.job == "wikitext-small"


@pytest.mark.parametrize("data", [{}, {"node": 7}])
def test_a_later_version_of_a_known_type_is_carried_and_never_guessed_at(data: dict[str, Any]) -> None:
    later = changed(LEFT, schema_version=SCHEMA_VERSIONS["node.left"] + 1, data=data)
    event = decode(later)
    assert isinstance(event, UnknownEvent)
    assert (event.type, event.schema_version, event.raw) == ("node.left", 2, later)


GARBAGE = {
    "nothing": b"",
    "no JSON": b"\x00\xff\xfe",
    "cut off": LEFT[:-10],
    "another value": b"[1, 2]",
    "null": b"null",
    "no data": b'{"id":"a","time_ms":1,"tenant":"t","job":"j","actor":"x"}',
    "data without a type": b'{"id":"a","time_ms":1,"tenant":"t","job":"j","actor":"x","data":{}}',
    "a type that is a number": changed(LEFT, data={"type": 7}),
    "a wrong field": changed(LEFT, data={"node": 7}),
    "a version that is text": changed(LEFT, schema_version="1"),
    "a version below the first": changed(LEFT, schema_version=0),
    "a time that is text": changed(LEFT, time_ms="now"),
    "deep": b'{"data":' * 50_000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_bytes_that_are_no_event_are_refused_with_the_one_error_for_them(data: bytes) -> None:
    with pytest.raises(UndecodableEvent):
        decode(data)


@given(st.binary(max_size=80), st.integers(0, len(STARTED)), st.integers(0, len(STARTED)))
def test_a_damaged_event_is_decoded_or_refused_and_nothing_else_happens(junk: bytes, start: int, end: int) -> None:
    damaged = STARTED[: min(start, end)] + junk + STARTED[max(start, end) :]
    with contextlib.suppress(UndecodableEvent):
        assert isinstance(decode(damaged), Event | UnknownEvent)


def _step_from_index(raw: dict[str, Any]) -> dict[str, Any]:
    data = {**raw["data"], "step": raw["data"]["index"] + 1}
    return {**raw, "data": data}


def _index_from_position(raw: dict[str, Any]) -> dict[str, Any]:
    data = {**raw["data"], "index": raw["data"]["position"]}
    return {**raw, "data": data}


def _reason_from_cause(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "data": {"type": "node.left", "node": raw["data"]["node"], "reason": raw["data"]["cause"].lower()}}


VERSIONS = {**SCHEMA_VERSIONS, "node.started": 3, "node.left": 2}
UPCASTERS = {
    ("node.started", 1): _index_from_position,
    ("node.started", 2): _step_from_index,
    ("node.left", 1): _reason_from_cause,
}


def test_an_old_version_is_brought_up_to_date_step_by_step_by_the_upcasters_of_its_type() -> None:
    first = msgspec.json.decode(STARTED)
    del first["data"]["step"]
    first["data"]["position"] = 412
    event = decode(msgspec.json.encode(first), versions=VERSIONS, upcasters=UPCASTERS)
    assert isinstance(event, Event)
    assert event.schema_version == 3
    assert event.data == NodeStarted(node="wikitext-small-a2-0", round=3, step=413)
    second = {**first, "schema_version": 2, "data": {"type": "node.started", "node": "n", "round": 3, "index": 412}}
    event = decode(msgspec.json.encode(second), versions=VERSIONS, upcasters=UPCASTERS)
    assert isinstance(event, Event)
    assert event.data == NodeStarted(node="n", round=3, step=413)


def test_an_old_version_that_would_pass_for_the_new_one_is_brought_up_to_date_all_the_same() -> None:
    event = decode(changed(LEFT, data={"cause": "TOLD"}), versions=VERSIONS, upcasters=UPCASTERS)
    assert isinstance(event, Event)
    assert event.data == NodeLeft(node="wikitext-small-a2-0", reason="told")


def test_an_old_version_without_an_upcaster_or_with_a_useless_one_is_refused() -> None:
    with pytest.raises(UndecodableEvent, match="no upcaster from version 1"):
        decode(LEFT, versions=VERSIONS, upcasters={})
    with pytest.raises(UndecodableEvent, match="upcast event"):
        decode(
            LEFT, versions=VERSIONS, upcasters={("node.left", 1): lambda raw: {**raw, "data": {"type": "node.left"}}}
        )


def test_every_type_is_at_a_version() -> None:
    assert set(SCHEMA_VERSIONS) == set(EVENT_TYPES)


def _named(sample: StepSample) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
