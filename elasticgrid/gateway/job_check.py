"""What is asked of a job that arrives over the network, beyond what its types say. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from elasticgrid.config.checks import Finding, require_sound
from elasticgrid.config.job_file import MAX_NODES
from elasticgrid.core.errors import Conflict, InvalidInput, InvalidJob
from elasticgrid.core.job import JobState
from elasticgrid.core.placement import check_placeable
from elasticgrid.core.spec import JobSpec, ProviderSpec

MAX_NPROC_PER_NODE: Final = 1_024
#: Larger numbers are slips, and no program that reads the event could hold them.
_MAX_NUMBER: Final = 2**53

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_acceptable(spec: JobSpec) -> None:
    """Refuse a job that cannot be meant, whatever the grid is.

    Raises:
        InvalidJob: it cannot; further findings are the error's story.
    """
    findings = list(_findings(spec))
    if findings:
        first, *others = findings
        story = [f"{each.path}: {each.what} ({each.hint})" for each in others]
        raise InvalidJob(first.what, where=first.path, hint=first.hint, story=story)
    require_sound(spec)


def require_placeable(spec: JobSpec, providers: Iterable[ProviderSpec]) -> None:
    """Refuse a job that these providers could never run, however empty they were.

    Raises:
        CannotPlace: they could not.
    """
    refusal = check_placeable(spec, providers)
    if refusal is not None:
        raise refusal


def require_going_on(state: JobState) -> None:
    """Refuse to change a job that is over.

    Raises:
        Conflict: it is.
    """
    if state.terminal:
        raise Conflict(f"the job is over: {state.phase}", where=state.id, hint="nothing about it can change any more")


def resized(state: JobState, min_nodes: int | None, max_nodes: int | None) -> JobSpec:
    """The job with new bounds; one that is None stays.

    Raises:
        InvalidInput: the bounds cannot be meant.
    """
    assert state.spec is not None
    if min_nodes is None and max_nodes is None:
        raise InvalidInput("no bound is given", where="max_nodes", hint="give min_nodes, max_nodes or both")
    low = state.min_nodes if min_nodes is None else min_nodes
    high = state.max_nodes if max_nodes is None else max_nodes
    for where, value in (("min_nodes", low), ("max_nodes", high)):
        if not 1 <= value <= MAX_NODES:
            raise InvalidInput(f"{value} is no number of nodes", where=where, hint=f"from 1 to {MAX_NODES}")
        if value % state.spec.quantum:
            raise InvalidInput(f"{value} is no multiple of the job's quantum, {state.spec.quantum}", where=where)
    if low > high:
        raise InvalidInput(f"the least, {low}, is more than the most, {high}", where="min_nodes")
    return replace(state.spec, min_nodes=low, max_nodes=high, initial_nodes=None)


def _findings(spec: JobSpec) -> Iterator[Finding]:
    limits = {
        "max_nodes": (spec.max_nodes, MAX_NODES),
        "min_nodes": (spec.min_nodes, MAX_NODES),
        "initial_nodes": (spec.initial_nodes, MAX_NODES),
        "quantum": (spec.quantum, MAX_NODES),
        "nproc_per_node": (spec.nproc_per_node, MAX_NPROC_PER_NODE),
        "grace_ms": (spec.grace_ms, _MAX_NUMBER),
        "join_timeout_ms": (spec.join_timeout_ms, _MAX_NUMBER),
        "max_restarts": (spec.max_restarts, _MAX_NUMBER),
        "max_infra_restarts": (spec.max_infra_restarts, _MAX_NUMBER),
        "deadline_ms": (spec.deadline_ms, _MAX_NUMBER),
        "placement.max_price_microdollars_per_hour": (spec.placement.max_price_microdollars_per_hour, _MAX_NUMBER),
    }
    limits |= {f"scaling.{name}": (getattr(spec.scaling, name), _MAX_NUMBER) for name in spec.scaling.__struct_fields__}
    for path, (value, most) in limits.items():
        if value is not None and abs(value) > most:
            yield Finding(path, f"{str(value)[:30]} is too large", f"at most {most}")
    yield from _paths(spec)
    yield from _environment(spec)
    if any("\0" in word for word in spec.command):
        yield Finding("command", "a word has a zero character", "leave it out")
    if not spec.command[0]:
        yield Finding("command", "the program has no name", "the first word is the program")


def _paths(spec: JobSpec) -> Iterator[Finding]:
    if not spec.workdir.startswith("/") or "\0" in spec.workdir:
        yield Finding("workdir", "the folder is not absolute", "the gateway does not know the folder you are in")
    if spec.checkpoint_dir and (not spec.checkpoint_dir.startswith("/") or "\0" in spec.checkpoint_dir):
        yield Finding("checkpoint_dir", "the folder is not absolute", "leave it out for one of the grid's own")
    for name, path in spec.secrets.items():
        # What stands there is not said: it may be the secret.
        if not path.startswith("/") or "\0" in path:
            yield Finding(
                f"secrets.{name[:64]}", "this is no absolute path", "the path of a file of the launcher's machine"
            )


def _environment(spec: JobSpec) -> Iterator[Finding]:
    for name, value in spec.env.items():
        path = f"env.{name[:64]}"
        if not _VARIABLE.fullmatch(name):
            yield Finding(path, "this cannot be the name of a variable", "letters, digits and _")
        elif name.startswith("ELASTICGRID_"):
            yield Finding(path, "the node's agent sets this variable", "leave it out")
        elif "\0" in value:
            yield Finding(path, "the value has a zero character", "leave it out")
