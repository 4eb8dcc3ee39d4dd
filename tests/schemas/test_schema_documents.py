"""The committed documents are those that the code generates, and `schemas check` notices when they are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from elasticgrid.core.events import EVENT_TYPES
from elasticgrid.documents import schemas

COMMITTED = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(COMMITTED, tmp_path / "schemas"))


def test_the_committed_documents_are_what_the_code_says() -> None:
    assert schemas.check(COMMITTED) == []


def test_every_event_type_has_a_schema_of_its_envelope_and_data() -> None:
    for name in EVENT_TYPES:
        document = json.loads((COMMITTED / f"events/{name}.v1.json").read_text())
        envelope = document["$defs"]["Event"]
        data = document["$defs"][envelope["properties"]["data"]["$ref"].removeprefix("#/$defs/")]
        assert data["properties"]["type"]["enum"] == [name]
        assert {"id", "time_ms", "tenant", "job", "actor", "data"} == set(envelope["required"])


def test_documents_are_json_that_every_reader_takes() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for text in schemas.generate().values():
        json.loads(text, parse_constant=refuse)


def test_writing_restores_what_was_changed_or_lost_and_nothing_else(copy: Path) -> None:
    changed, lost = copy / "events/node.left.v1.json", copy / "samples/step-batch.v1.json"
    changed.write_text("{}")
    lost.unlink()
    assert len(schemas.check(copy)) == 2
    assert schemas.write(copy) == ["events/node.left.v1.json", "samples/step-batch.v1.json"]
    assert schemas.check(copy) == []
    assert schemas.write(copy) == []


def test_writing_into_an_empty_folder_leaves_the_frozen_samples_to_be_added(tmp_path: Path) -> None:
    assert set(schemas.write(tmp_path)) == set(schemas.generate())
    assert len(schemas.check(tmp_path)) == len(list(schemas.frozen_names()))


def test_a_lost_frozen_sample_and_a_document_of_no_type_are_noticed(copy: Path) -> None:
    (copy / "frozen/node.left.v1.json").unlink()
    (copy / "events/node.vanished.v1.json").write_text("{}")
    missing, foreign = schemas.check(copy)
    assert missing.startswith("frozen/node.left.v1.json is missing")
    assert foreign.startswith("events/node.vanished.v1.json belongs to nothing")
