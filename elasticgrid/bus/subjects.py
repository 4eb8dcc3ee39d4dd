"""Subjects and streams: every name on the bus is made here and nowhere else."""

from __future__ import annotations

import re
from typing import Final, Literal

from elasticgrid.core.events import Writer, writer_of

EVENTS_STREAM = "GRID_EVENTS"
SAMPLES_STREAM = "GRID_SAMPLES"
EVENTS_ROOT = "grid.events"
SAMPLES_ROOT = "grid.samples"
HEARTBEATS_ROOT = "grid.heartbeats"
ROUNDS_ROOT = "grid.rounds"
#: What runs without a grid say of themselves: events of their life, and figures.
LIFECYCLE_ROOT = "grid.lifecycle"
METRICS_ROOT = "grid.metrics"
_NOT_IN_A_TOKEN: Final = re.compile(r"[^A-Za-z0-9_-]+")
#: What is stored in `GRID_EVENTS` is published here again, with its sequence as a header.
LIVE_ROOT = "grid.live"
#: Questions for events, by who may not read the stream itself.
READ_ROOT = "grid.read"
#: Stands for every job, or every writer, in the subject of a question; no name is written so.
ALL = "ALL"
#: Questions of launches for the next credential, and of the gateway for one that only reads.
RENEWALS_ROOT = "grid.renewals"
WATCHERS_ROOT = "grid.watchers"


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


def live_filter(tenant: str, job: str = "*", writer: Writer | None = None) -> str:
    """Where events are heard as they are stored: those of one writer about a job, or of all, or about all jobs."""
    return f"{LIVE_ROOT}.{tenant}.{job}.{writer or '*'}.>"


def read_subject(tenant: str, job: str = ALL, writer: Writer | None = None) -> str:
    """Where events are asked for: those of one writer about a job, or of all writers, or about all jobs."""
    return f"{READ_ROOT}.{tenant}.{job}.{writer or ALL}"


def renewal_subject(tenant: str, job: str, launch: str) -> str:
    """Where a launch asks for its next credential."""
    return f"{RENEWALS_ROOT}.{tenant}.{job}.{launch}"


def watcher_subject(tenant: str) -> str:
    """Where the gateway asks for a credential that reads a tenant's events."""
    return f"{WATCHERS_ROOT}.{tenant}"


def run_subject(kind: Literal["lifecycle", "metrics"], run: str, what: str) -> str:
    """Where a run without a grid sends events of its life and figures; plain messages, in no stream."""
    root = LIFECYCLE_ROOT if kind == "lifecycle" else METRICS_ROOT
    return f"{root}.{run}.{_NOT_IN_A_TOKEN.sub('_', what) or '_'}"
