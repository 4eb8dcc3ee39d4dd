"""Policies by themselves: the `scaling:` and `placement:` sections of a job file, and single settings of them."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from elasticgrid.config.document import Items, Node, Table, Text, load
from elasticgrid.config.fields import Fields, choices
from elasticgrid.config.files import read_source
from elasticgrid.config.job_file import PRICE_CEILING, SCALING, SPOT_SHARE
from elasticgrid.config.problems import Problems, name_hint
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.spec import PlacementPolicy, ScalingPolicy

SECTIONS = ("scaling", "placement")
#: What else a job file says; a policy is read out of a whole job file as well.
_OF_THE_JOB = (
    "name",
    "run",
    "workdir",
    "env",
    "nodes",
    "nproc_per_node",
    "grace_s",
    "join_timeout_s",
    "band",
    "restarts",
    "deadline_s",
    "checkpoint_dir",
)
_LISTS = ("providers", "regions", "accelerators")


class PolicyValues(msgspec.Struct, frozen=True, kw_only=True):
    """What was given, by the core's field names and in its units; None for a section that is not there."""

    scaling: dict[str, Any] | None = None
    placement: dict[str, Any] | None = None


def read_policy(path: Path) -> PolicyValues:
    """The policy in the file at `path`.

    Raises:
        NotFound: there is no such file.
        InvalidInput: the file is wrong; the error tells every problem with its line.
    """
    problems = Problems(str(path))
    root = load(read_source(path, InvalidInput), problems)
    if root is None:
        problems.raise_as(InvalidInput)
        raise AssertionError("text without a tree has a problem")
    fields = Fields(root, problems)
    for name in _OF_THE_JOB:
        fields.node(name)
    values = _values(fields)
    if values == PolicyValues() and not any(map(problems.concerns, SECTIONS)):
        fields.missing("scaling", "a policy has a section `scaling:` or `placement:`, as in a job file")
    fields.done()
    problems.raise_as(InvalidInput)
    return values


def parse_settings(settings: Iterable[str]) -> PolicyValues:
    """Single settings, each as `scaling.cooldown_up_s=0`; of lists as `placement.providers=a,b`.

    Raises:
        InvalidInput: one is no setting of a policy, or has a wrong value.
    """
    problems = Problems("--set")
    sections: dict[str, dict[str, Node]] = {}
    for setting in settings:
        path, given, text = setting.partition("=")
        section, _, name = path.partition(".")
        if not given or not name:
            problems.add(1, path, "a setting is wanted", "write scaling.cooldown_up_s=0")
        elif section not in SECTIONS:
            problems.add(1, path, "this is no setting of a policy", name_hint(section, SECTIONS))
        else:
            node: Node = Text(1, path, text, quoted=False)
            if name in _LISTS:
                words = [word.strip() for word in text.split(",") if word.strip()]
                node = Items(1, path, tuple(Text(1, path, word, quoted=True) for word in words))
            sections.setdefault(section, {})[name] = node
    tables: dict[str, Node] = {section: Table(1, section, fields) for section, fields in sections.items()}
    values = _values(Fields(Table(1, "", tables), problems))
    problems.raise_as(InvalidInput)
    return values


def setting_values(policy: ScalingPolicy | PlacementPolicy) -> dict[str, str]:
    """A policy's settings in the names and units of a job file, each value as JSON; empty where none is set."""
    quantities = SCALING if isinstance(policy, ScalingPolicy) else {**SPOT_SHARE, **PRICE_CEILING}
    told: dict[str, str] = {}
    for name, quantity in quantities.items():
        value: int | None = getattr(policy, quantity.field)
        told[name] = "" if value is None else f"{(Decimal(value) / quantity.scale).normalize():f}"
    fields = {quantity.field for quantity in quantities.values()}
    for name in policy.__struct_fields__:
        if name not in fields:
            told[name] = msgspec.json.encode(getattr(policy, name)).decode()
    return told


def _values(fields: Fields) -> PolicyValues:
    return PolicyValues(scaling=_scaling(fields), placement=_placement(fields))


def _scaling(fields: Fields) -> dict[str, Any] | None:
    if fields.absent("scaling"):
        return None
    section = fields.section("scaling")
    values = section.quantities(SCALING, ScalingPolicy)
    section.done()
    return dict(values)


def _placement(fields: Fields) -> dict[str, Any] | None:
    if fields.absent("placement"):
        return None
    section = fields.section("placement")
    words = {
        "prefer": section.choice("prefer", choices(("cost", "balance")), None),
        "spot": section.choice("spot", choices(("allow", "require", "forbid")), None),
    }
    lists = {name: None if section.absent(name) else section.texts(name) for name in _LISTS}
    values = {
        **section.quantities({**SPOT_SHARE, **PRICE_CEILING}, PlacementPolicy),
        **{name: value for name, value in {**words, **lists}.items() if value is not None},
    }
    section.done()
    return values
