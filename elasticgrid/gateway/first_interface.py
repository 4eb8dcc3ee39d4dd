"""The service's first interface, for clients that were written for it: what they send and what they read.

They submit a command line for the shell and a fixed number of nodes, and read flat answers. Their fields stand beside
ours in every answer about one job; where a name means something else in ours, a job that such a client submitted is
shown to a request without parameters as that client knows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.job import JobState
from elasticgrid.core.spec import JobSpec, PositiveInt
from elasticgrid.gateway.bodies import decode_body
from elasticgrid.log.archive_secrets import shown_command, shown_text, shown_values
from elasticgrid.projections.standing import shown_phase

MAX_METADATA: Final = 16 * 1024
#: Such programs rarely know the hook, and then nothing comes of waiting for them to stop by themselves.
GRACE_MS: Final = 10_000
FirstState = Literal["queued", "provisioning", "running", "preempted", "resuming", "succeeded", "failed", "cancelled"]
#: Their states, and the phases of ours that they stand for; none is `preempted`, as that is not the job's state here.
PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    "queued": ("submitted",),
    "provisioning": ("starting",),
    "running": ("running",),
    "resuming": ("draining",),
    "succeeded": ("completed",),
    "failed": ("failed",),
    "cancelled": ("cancelled", "ending"),
}

_STATES: Final = {phase: state for state, phases in PHASES.items() for phase in phases}
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


class FirstSubmit(msgspec.Struct, frozen=True, kw_only=True):
    """What such a client submits.

    Attributes:
        command: one line for the shell.
        workdir, checkpoint_dir: relative ones are in the folder that the gateway runs in.
        metadata: kept, and shown again.
    """

    name: str
    command: str
    nodes: PositiveInt = 1
    idempotency_key: str | None = None
    workdir: str = "."
    checkpoint_dir: str = ""
    metadata: dict[str, Any] = {}


_FIELDS: Final = frozenset(FirstSubmit.__struct_fields__)


class _Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a submission besides the job."""

    name: str
    command: str
    metadata: dict[str, Any] = {}


class FirstFields(msgspec.Struct, frozen=True, kw_only=True):
    """A job as such a client knows it.

    Attributes:
        state: `queued`, `provisioning`, `running`, `resuming`, `succeeded`, `failed` or `cancelled`.
        step: of the last checkpoint.
        log_file: always empty: output is read by its own route.
        created_at, updated_at: ISO 8601, UTC.
    """

    job_id: str
    tenant_id: str
    name: str
    command: str
    state: str
    nodes: int
    step: int
    idempotency_key: str
    workdir: str
    checkpoint_dir: str
    log_file: str
    created_at: str
    updated_at: str
    error: str
    metadata: dict[str, Any]


def is_first_submit(body: bytes) -> bool:
    """Whether this is what such a client submits: a command of one line, where ours is a list of words.

    With a field that only our jobs have it is one of ours with a wrong command.
    """
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and isinstance(raw.get("command"), str) and raw.keys() <= _FIELDS


def read_first_submit(body: bytes, folder: Path) -> tuple[JobSpec, str, str]:
    """The job, the idempotency key in the body, and what is kept besides.

    Args:
        body: of the request.
        folder: what relative paths are in.

    Raises:
        InvalidInput: it is no such submission.
    """
    asked = decode_body(body, FirstSubmit, error=InvalidJob)
    if not asked.name.strip() or not asked.command.strip():
        raise InvalidJob("a job has a name and a command", where="name" if not asked.name.strip() else "command")
    kept = msgspec.json.encode(_Kept(name=asked.name, command=asked.command, metadata=asked.metadata))
    if len(kept) > MAX_METADATA:
        raise InvalidJob(f"this is more than {MAX_METADATA:,} bytes", where="metadata", hint="keep it elsewhere")
    spec = JobSpec(
        name=job_name(asked.name),
        command=("sh", "-c", asked.command),
        workdir=str(folder / asked.workdir),
        min_nodes=asked.nodes,
        max_nodes=asked.nodes,
        grace_ms=GRACE_MS,
        checkpoint_dir=str(folder / asked.checkpoint_dir) if asked.checkpoint_dir else "",
    )
    return spec, asked.idempotency_key or "", kept.decode()


def job_name(name: str) -> str:
    """A name of ours that is as near to theirs as it may be."""
    return _NOT_IN_NAMES.sub("-", name.lower()).strip("-")[:48].strip("-") or "job"


def first_fields(state: JobState) -> FirstFields:
    """The job as such a client knows it, without credentials; one that another client submitted, too."""
    assert state.spec is not None
    kept = msgspec.json.decode(state.metadata, type=_Kept) if state.metadata else None
    spec = state.spec
    phase: str = shown_phase(state)
    if phase == "ending" and state.cancel_requested is not None:
        phase = "cancelled"
    return FirstFields(
        job_id=state.id,
        tenant_id=state.tenant,
        name=kept.name if kept is not None else spec.name,
        command=shown_command(kept.command if kept is not None else " ".join(spec.command)),
        state=_STATES[phase] if phase != "ending" else "running",
        nodes=state.target_nodes or spec.start_nodes,
        step=state.checkpoint.step if state.checkpoint is not None else 0,
        idempotency_key=state.idempotency_key,
        workdir=spec.workdir,
        checkpoint_dir=spec.checkpoint_dir,
        log_file="",
        created_at=_iso(state.submitted_ms),
        updated_at=_iso(state.last_event_ms),
        error=shown_text(state.ending_reason or state.failure_text) if state.phase == "failed" else "",
        metadata=shown_values(kept.metadata) if kept is not None else {},
    )


def is_of_first(state: JobState) -> bool:
    """Whether such a client submitted the job."""
    return bool(state.metadata)


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1_000, UTC).isoformat()
