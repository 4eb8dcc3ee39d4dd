"""JSON Schemas of the events and of the step samples, written to a folder and compared with it.

    events/<type>.v<version>.json        an event as it stands in the log: envelope and data
    samples/step-batch.v<version>.json   what a worker publishes (as MessagePack)
    openapi.json, asyncapi.json          the gateway's interface, and every subject of the bus
    frozen/<type>.v<version>.json        one real event of each version that ever was, to the byte
    frozen/step-batch.v<version>.msgpack the same of a batch of samples, described in a .json beside it; one more,
                                         `step-batch.v<version>-<fields>-fields`, for each time fields were added

All but the frozen ones are generated. Those never are: they are what a log of that time holds, and stay for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, Event
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch
from elasticgrid.documents.asyncapi import DOCUMENT as ASYNCAPI
from elasticgrid.documents.asyncapi import asyncapi_text
from elasticgrid.gateway.openapi_document import DOCUMENT as OPENAPI
from elasticgrid.gateway.openapi_document import openapi_text

SAMPLE_NAME = "step-batch"
#: What samples looked like, as the ends of the frozen samples' names: fields are added at the end only.
SAMPLE_FORMS = ("v1", "v1-11-fields")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WRITE_HINT = "run `elasticgrid schemas write`"


def generate() -> dict[str, str]:
    """The text of every generated document, by its path in the folder."""
    documents = {
        f"events/{name}.v{SCHEMA_VERSIONS[name]}.json": _schema(_event_type(cls), name)
        for name, cls in EVENT_TYPES.items()
    }
    documents[f"samples/{SAMPLE_NAME}.v{SAMPLE_VERSION}.json"] = _schema(SampleBatch, SAMPLE_NAME)
    documents[OPENAPI] = openapi_text()
    documents[ASYNCAPI] = asyncapi_text()
    return documents


def frozen_names() -> Iterator[str]:
    """The path in the folder of every frozen sample there must be."""
    for name, version in SCHEMA_VERSIONS.items():
        for number in range(1, version + 1):
            yield f"frozen/{name}.v{number}.json"
    for form in SAMPLE_FORMS:
        yield f"frozen/{SAMPLE_NAME}.{form}.msgpack"
        yield f"frozen/{SAMPLE_NAME}.{form}.json"


def write(folder: Path) -> list[str]:
    """Write the generated documents that are missing or differ, and return their paths.

    Documents of earlier versions stay as they are, and so do the frozen samples.
    """
    changed = []
    for name, text in generate().items():
        path = folder / name
        if _text_at(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def check(folder: Path) -> list[str]:
    """What is wrong with the folder, a sentence each: outdated, missing or foreign documents. Else empty."""
    generated = generate()
    differences = []
    for name, text in generated.items():
        found = _text_at(folder / name)
        if found is None:
            differences.append(f"{name} is missing: {_WRITE_HINT}")
        elif found != text:
            differences.append(f"{name} is not what the code says: {_WRITE_HINT}")
    frozen = set(frozen_names())
    differences += [f"{name} is missing: add a real sample" for name in sorted(frozen) if not (folder / name).is_file()]
    known = {*generated, *frozen, *_earlier_schemas()}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix in (".json", ".msgpack") and name not in known:
            differences.append(f"{name} belongs to nothing in the code: delete it, or restore its type")
    return differences


def _earlier_schemas() -> Iterator[str]:
    for name, version in SCHEMA_VERSIONS.items():
        for number in range(1, version):
            yield f"events/{name}.v{number}.json"
    for number in range(1, SAMPLE_VERSION):
        yield f"samples/{SAMPLE_NAME}.v{number}.json"


def _event_type(data: type[Any]) -> type[msgspec.Struct]:
    """The envelope with this one type of data in it."""
    hints = get_type_hints(Event, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(Event):
        kind = data if field.name == "data" else hints[field.name]
        fields.append((field.name, kind) if field.required else (field.name, kind, field.default))
    return msgspec.defstruct("Event", fields, kw_only=True, frozen=True, namespace={"__doc__": Event.__doc__})


def _schema(kind: type[Any], name: str) -> str:
    (root,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    document = {"$schema": _DIALECT, "title": name, **root, "$defs": components}
    return json.dumps(_without_nan(document), indent=2, ensure_ascii=False) + "\n"


def _without_nan(value: Any) -> Any:
    """The schema without defaults that JSON cannot say."""
    if isinstance(value, dict):
        return {
            key: _without_nan(item)
            for key, item in value.items()
            if not (key == "default" and isinstance(item, float) and math.isnan(item))
        }
    return [_without_nan(item) for item in value] if isinstance(value, list) else value


def _text_at(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None
