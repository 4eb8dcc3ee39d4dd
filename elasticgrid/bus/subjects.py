"""Subjects and streams: every name on the bus is made here and nowhere else."""

from __future__ import annotations

from elasticgrid.core.events import Writer, writer_of

EVENTS_STREAM = "GRID_EVENTS"
SAMPLES_STREAM = "GRID_SAMPLES"
EVENTS_ROOT = "grid.events"
SAMPLES_ROOT = "grid.samples"
HEARTBEATS_ROOT = "grid.heartbeats"
ROUNDS_ROOT = "grid.rounds"


def event_subject(tenant: str, job: str, event_type: str) -> str:
    """`grid.events.<tenant>.<job>.<writer>.<what>` for an event of this type."""
    writer = writer_of(event_type)
    what = event_type.removeprefix(f"{writer}.").replace(".", "-")
    return f"{EVENTS_ROOT}.{tenant}.{job}.{writer}.{what}"


def event_filter(tenant: str = "*", job: str = "*", writer: Writer | None = None) -> str:
    """The subjects of all events of a tenant, a job, or one writer about a job."""
    if writer is not None:
        return f"{EVENTS_ROOT}.{tenant}.{job}.{writer}.>"
    if job != "*":
        return f"{EVENTS_ROOT}.{tenant}.{job}.>"
    return f"{EVENTS_ROOT}.{tenant}.>" if tenant != "*" else f"{EVENTS_ROOT}.>"


def sample_subject(tenant: str, job: str, rank: int) -> str:
    """Where one rank's samples go."""
    return f"{SAMPLES_ROOT}.{tenant}.{job}.{rank}"


def parse_sample_subject(subject: str) -> tuple[str, str] | None:
    """(tenant, job) of a sample subject, or None for a foreign one."""
    parts = subject.split(".")
    if len(parts) != 5 or ".".join(parts[:2]) != SAMPLES_ROOT:
        return None
    return parts[2], parts[3]


def heartbeat_subject(tenant: str, job: str, node: str) -> str:
    """Where a node says that it lives; plain messages, in no stream."""
    return f"{HEARTBEATS_ROOT}.{tenant}.{job}.{node}"


def round_subject(tenant: str, job: str, node: str) -> str:
    """Where agents of one round agree at which step to stop; plain requests, in no stream."""
    return f"{ROUNDS_ROOT}.{tenant}.{job}.{node}"
