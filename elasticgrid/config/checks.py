"""What the fields of a job must be to each other; the ranges of single fields are in their types.

Files are checked with their lines by `job_file`; a job that arrives as a `JobSpec`, from a client of its own, say, is
checked by `require_sound`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec

from elasticgrid.config.fields import plain
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.spec import PPM, JobSpec, PlacementPolicy, ScalingPolicy


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
