"""The pages of the event catalogue and of the step samples."""

from __future__ import annotations

from typing import Final, get_args

from elasticgrid.bus.subjects import event_subject, sample_subject
from elasticgrid.core.events import EVENT_TYPES, SCHEMA_VERSIONS, Basis, Event, Writer, writer_of
from elasticgrid.core.samples import MAX_BATCH, MAX_STEP_S, SAMPLE_VERSION, Refusal, SampleBatch, StepSample
from elasticgrid.documents.pages.markdown import code, page, summary, table
from elasticgrid.documents.pages.values import fields_table, parts_of, value_section

_WHO: Final[dict[Writer, str]] = {
    "job": "the gateway",
    "decision": "the decider",
    "launch": "the launcher",
    "node": "a node's agent",
}


def events_page() -> str:
    """Every event type with its fields."""
    parts = [
        "Every fact and decision there is. An event stands in the log as JSON: the envelope, with the type's fields in "
        "`data`. The JSON Schema of each is in `schemas/events/`.",
        table(
            ("type", "version", "written by", "says"),
            (
                (f"[{name}](#{_anchor(name)})", str(SCHEMA_VERSIONS[name]), _WHO[writer_of(name)], _sentence(cls))
                for name, cls in EVENT_TYPES.items()
            ),
        ),
        "## The envelope",
        fields_table(Event, hidden=("data",)),
        value_section(Basis),
    ]
    for writer, who in _WHO.items():
        parts.append(f"## Written by {who}")
        for name, cls in EVENT_TYPES.items():
            if writer_of(name) == writer:
                parts += [f"### {name}", summary(cls), f"On {code(event_subject('TENANT', 'JOB', name))}."]
                parts.append(fields_table(cls))
    parts += ["## Values", *(value_section(cls) for cls in parts_of(*EVENT_TYPES.values(), Basis))]
    return page("Events", *parts)


def samples_page() -> str:
    """What workers publish."""
    return page(
        "Step samples",
        f"A message on {code(sample_subject('TENANT', 'JOB', 0).removesuffix('0') + 'RANK')} is one `SampleBatch` of "
        f"version {SAMPLE_VERSION} as a MessagePack array, its fields in this order, with at most {MAX_BATCH} samples. "
        "The JSON Schema is in `schemas/samples/`.",
        value_section(SampleBatch, level=2),
        value_section(StepSample, level=2),
        "## What is not let in",
        "Refused and counted, never an error: "
        + ", ".join(code(reason) for reason in get_args(Refusal))
        + f". The longest believable step is {MAX_STEP_S / 86_400:g} days. A queue or a wait for data that is longer "
        "than its step is cut to the step.",
    )


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _sentence(cls: type[object]) -> str:
    return summary(cls).split("\n\n", 1)[0]
