"""The pages of the job file and of the grid file: fields as people write them, in plain units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import inspect

from elasticgrid.config import grid_file, job_file
from elasticgrid.config.fields import Quantity, plain
from elasticgrid.config.templates import template
from elasticgrid.core.spec import JobSpec, OutputSpec, PlacementPolicy, ProviderSpec, ScalingPolicy
from elasticgrid.documents.pages.markdown import attributes, code, page, table
from elasticgrid.documents.pages.values import default_text, type_text

Struct = type[msgspec.Struct]
#: A field in a file and where it goes: the core's field, as it is or as a quantity.
Lines = Mapping[str, str | Quantity]

_JOB: Final[Lines] = {
    "name": "name",
    "run": "command",
    "workdir": "workdir",
    "env": "env",
    "secrets": "secrets",
    **job_file.TIMES,
    "band": "band",
    **job_file.DEADLINE,
    "checkpoint_dir": "checkpoint_dir",
    "on_stuck": "on_stuck",
    "setup": "setup",
    "caches": "caches",
    "file_mounts": "file_mounts",
    "bundle": "bundle",
}
_OUTPUT: Final[Lines] = {**job_file.OUTPUT, "tee": "tee"}
_PLACEMENT: Final[Lines] = {
    "prefer": "prefer",
    "spot": "spot",
    **job_file.SPOT_SHARE,
    "providers": "providers",
    "regions": "regions",
    "accelerators": "accelerators",
    **job_file.PRICE_CEILING,
}
_PROVIDER: Final[Lines] = {
    "name": "name",
    "engine": "engine",
    "region": "region",
    "zone": "zone",
    "market": "market",
    "accelerator": "accelerator",
    **grid_file.NUMBERS,
    "quota_pool": "quota_pool",
    "params": "params",
}
#: What the core's docstrings need not say.
_MEANINGS: Final = {
    "JobSpec.name": "of the job; its id is this with some letters behind it.",
    "JobSpec.command": "the command, as one line that is split as a shell would, or as a list of words. Each node's "
    "agent starts it `nproc_per_node` times, without a shell.",
    "JobSpec.workdir": "folder the command runs in, relative to the file.",
    "JobSpec.env": "variables for the workers, by name.",
    "JobSpec.secrets": "variables for the workers, and for each the file of the launcher's machine whose text it is "
    "set to, relative to the job file; [how they travel](../how-to/secure.md#secrets-of-a-job).",
    "JobSpec.nproc_per_node": "workers on each node.",
    "JobSpec.band": "who is served first when nodes are short; `high`, `normal` and `low` are read as the same three.",
    "JobSpec.join_timeout_ms": "how long launched nodes may take to join.",
    "JobSpec.deadline_ms": "the job should be done this long after its submission.",
    "JobSpec.checkpoint_dir": "folder that all nodes see, relative to the file; one of the grid's own when absent.",
    "ProviderSpec.region": "region, by which jobs may choose; that of the engine when absent.",
    "ProviderSpec.zone": "zone in the region; stock-outs are remembered for it.",
    "ProviderSpec.market": "`on_demand` or `spot`.",
    "ProviderSpec.accelerator": "accelerator of its nodes, by which jobs may choose.",
    "ProviderSpec.params": "handed to the engine as they are, by name.",
}
#: Fields that are written in more ways than they are kept.
_KINDS: Final = {"run": "text or list of text"}
_UNITS: Final = (
    ("_usd_per_hour", "US dollars an hour"),
    ("tokens_per_s", "tokens a second"),
    ("_s", "seconds"),
    ("_bytes", "bytes"),
    ("_share", "part of 1"),
    ("_factor", "factor"),
    ("_margin", "part of 1"),
    ("_efficiency", "ratio"),
)


def job_page() -> str:
    """The fields of a job file."""
    sections: tuple[tuple[str, str, Struct, Lines], ...] = (
        ("", "", JobSpec, _JOB),
        ("nodes", "Sizes in nodes. `nodes: 4` fixes the size.", JobSpec, job_file.NODES),
        ("restarts", "Failures that are answered before the job fails.", JobSpec, job_file.RESTARTS),
        ("output", "What workers write, on each node; `elasticgrid jobs logs` shows it.", OutputSpec, _OUTPUT),
        ("scaling", "When the size changes; [the rules](scaling-rules.md).", ScalingPolicy, job_file.SCALING),
        ("placement", "Where its nodes may run.", PlacementPolicy, _PLACEMENT),
    )
    renamed = {
        quantity if isinstance(quantity, str) else quantity.field: f"{prefix}.{name}" if prefix else name
        for prefix, _, cls, lines in sections
        if cls is JobSpec
        for name, quantity in lines.items()
    }
    parts = [
        "YAML, or JSON when the file's name ends in `.json`. Seconds, parts of 1 and dollars become exact integers; a "
        "number that would have to be rounded is refused. Everything wrong with a file is told at once, each with "
        "line, field and a hint: `elasticgrid validate job.yaml`.",
    ]
    for prefix, text, cls, lines in sections:
        parts += [f"## {prefix}" if prefix else "", text, _fields(lines, cls, prefix, renamed)]
    parts += ["## All of it", f"```yaml\n{template('job').strip()}\n```"]
    return page("Job file", *parts)


def grid_page() -> str:
    """The fields of a grid file."""
    return page(
        "Grid file",
        "YAML, or JSON when the file's name ends in `.json`: one list, `providers`. Each has these fields.",
        _fields(_PROVIDER, ProviderSpec, "", {}),
        "## All of it",
        f"```yaml\n{template('grid').strip()}\n```",
    )


def _fields(lines: Lines, cls: Struct, prefix: str, renamed: Mapping[str, str]) -> str:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    known = {field.name: field for field in info.fields}
    told = attributes(cls)

    def row(name: str, to: str | Quantity) -> tuple[str, str, str, str]:
        field = known[to if isinstance(to, str) else to.field]
        meaning = _MEANINGS.get(f"{cls.__name__}.{field.name}") or told[field.name]
        meaning = re.sub(r"`(\w+)`", lambda named: f"`{renamed.get(named[1], named[1])}`", meaning)
        kind = _number(name, to, field) if isinstance(to, Quantity) else _KINDS.get(name, type_text(field.type))
        return code(f"{prefix}.{name}" if prefix else name), kind, _default(field, to), meaning

    return table(("field", "is", "default", "meaning"), (row(name, to) for name, to in lines.items()))


def _default(field: inspect.Field, to: str | Quantity) -> str:
    if isinstance(field.default, bool):
        return code(str(field.default).lower())  # as a file says it
    if isinstance(to, Quantity) and isinstance(field.default, int):
        return code(plain(field.default, to.scale))
    return default_text(field)


def _number(name: str, quantity: Quantity, field: inspect.Field) -> str:
    unit = next((unit for end, unit in _UNITS if name.endswith(end)), "whole number")
    kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    for kind in kinds:
        if isinstance(kind, inspect.IntType):
            low = kind.ge if kind.ge is not None else None
            high = kind.le
            if kind.gt is not None:
                return f"{unit}, above {plain(kind.gt, quantity.scale)}" + (
                    f" and below {plain(kind.lt, quantity.scale)}" if kind.lt is not None else ""
                )
            if low is not None and high is not None:
                return f"{unit}, {plain(low, quantity.scale)} to {plain(high, quantity.scale)}"
            if low is not None and quantity.scale == 1:
                return f"{unit}, from {low}"
    return unit
