"""What the fields of a job must be to each other; the ranges of single fields are in their types.

Files are checked with their lines by `job_file`; a job that arrives as a `JobSpec`, from a client of its own, say, is
checked by `require_sound`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

import msgspec

from elasticgrid.config.fields import plain
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.secret_looks import why_text, why_variable
from elasticgrid.core.spec import PPM, SECRET_FILE_ENDING, JobSpec, PlacementPolicy, ScalingPolicy

#: What the agent sets for every worker; a job's own value would be overwritten.
AGENT_SETS: Final = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A job may name so many; together they must fit into an environment.
MAX_SECRETS: Final = 32


class Finding(msgspec.Struct, frozen=True):
    """Something that cannot be meant. `path` is the field as job files name it."""

    path: str
    what: str
    hint: str


def require_sound(spec: JobSpec) -> None:
    """Refuse a job whose fields contradict each other.

    Raises:
        InvalidJob: they do; further findings are the error's story.
    """
    findings = list(job_findings(spec))
    if findings:
        first, *others = findings
        raise InvalidJob(
            first.what,
            where=first.path,
            hint=first.hint,
            story=[f"{finding.path}: {finding.what} ({finding.hint})" for finding in others],
        )


def job_findings(spec: JobSpec) -> Iterator[Finding]:
    """Every contradiction in a job whose single fields are in range."""
    yield from _sizes(spec)
    yield from _scaling(spec.scaling)
    yield from _placement(spec.placement)
    yield from _folders(spec)
    yield from _secrets(spec)


def job_warnings(spec: JobSpec) -> tuple[str, ...]:
    """What looks like a secret in a job and would be in the log for ever, a sentence each, without the secret."""
    found = [(f"env.{name}", why_variable(name, value)) for name, value in spec.env.items()]
    texts = {"run": spec.command, "setup": (spec.setup,)}
    found += [(path, why_text("\n".join(words).encode(errors="replace"))) for path, words in texts.items()]
    return tuple(
        f"{path} looks like a secret: {why}; the log would keep it for ever: "
        f"put it into a file and name that: secrets: {{{path.removeprefix('env.') if '.' in path else 'NAME'}: ./FILE}}"
        for path, why in found
        if why
    )


def _sizes(spec: JobSpec) -> Iterator[Finding]:
    if spec.min_nodes > spec.max_nodes:
        yield Finding(
            "nodes.min", f"the least, {spec.min_nodes}, is more than the most, {spec.max_nodes}", "exchange them"
        )
        return
    initial = spec.initial_nodes
    if initial is not None and not spec.min_nodes <= initial <= spec.max_nodes:
        yield Finding(
            "nodes.initial",
            f"{initial} is outside the bounds",
            f"at least {spec.min_nodes} and at most {spec.max_nodes}",
        )
    sizes = {"min": spec.min_nodes, "max": spec.max_nodes, "initial": spec.start_nodes}
    for name, size in sizes.items():
        if size % spec.quantum and (name != "initial" or initial is not None):
            below = size - size % spec.quantum
            near = [below, below + spec.quantum] if below else [spec.quantum]
            yield Finding(
                f"nodes.{name}",
                f"{size} is no multiple of the quantum, {spec.quantum}",
                f"nearest: {' or '.join(map(str, near))}",
            )


def _scaling(policy: ScalingPolicy) -> Iterator[Finding]:
    evidence_ms = policy.min_evidence_ms
    cooldowns = {"cooldown_up_s": policy.cooldown_up_ms, "cooldown_down_s": policy.cooldown_down_ms}
    for name, cooldown_ms in cooldowns.items():
        if cooldown_ms < evidence_ms:
            yield Finding(
                f"scaling.{name}",
                f"a cooldown of {plain(cooldown_ms, 1000)} s is over before the window can hold the "
                f"{plain(evidence_ms, 1000)} s of evidence a decision needs",
                f"at least {plain(evidence_ms, 1000)}, or a smaller min_evidence_s",
            )
    if policy.min_samples > policy.window_steps:
        yield Finding(
            "scaling.min_samples",
            f"{policy.min_samples} samples never fit into a window of {policy.window_steps} steps",
            "a larger window_steps or fewer min_samples",
        )
    if policy.idle_queue_ppm >= policy.target_queue_ppm:
        yield Finding(
            "scaling.idle_queue_share",
            f"a job with a queue share of {plain(policy.idle_queue_ppm, PPM)} would be both idle and queue-bound",
            f"less than target_queue_share, {plain(policy.target_queue_ppm, PPM)}",
        )


def _placement(policy: PlacementPolicy) -> Iterator[Finding]:
    if policy.spot == "require" and policy.max_spot_ppm < PPM:
        yield Finding(
            "placement.max_spot_share",
            "spot nodes are required and capped at once",
            "leave it out, or write spot: allow",
        )


def _folders(spec: JobSpec) -> Iterator[Finding]:
    for place in spec.file_mounts:
        path = PurePosixPath(place)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in place:
            yield Finding(
                f"file_mounts.{place}", "files are put into the job's folder only", "a relative path, such as data"
            )
    if spec.caches and not spec.setup:
        yield Finding("caches", "nothing fills them", "a setup that does, or leave them out")


def _secrets(spec: JobSpec) -> Iterator[Finding]:
    if len(spec.secrets) > MAX_SECRETS:
        yield Finding("secrets", f"there are {len(spec.secrets)}", f"at most {MAX_SECRETS}")
    for name in spec.secrets:
        path = f"secrets.{name[:64]}"
        file = f"{name}{SECRET_FILE_ENDING}"
        if VARIABLE.fullmatch(name) is None:
            yield Finding(path, "this cannot be the name of a variable", "letters, digits and _")
        elif name.startswith("ELASTICGRID_") or name in AGENT_SETS:
            yield Finding(path, "the node's agent sets this variable", "leave it out")
        elif name in spec.env:
            yield Finding(path, "the variable is in `env` as well", "leave it out there")
        elif file in spec.env or file in spec.secrets:
            yield Finding(path, f"{file} is set to the path of the secret's file", f"leave {file} out")
