"""Facts the gateway records: what people asked for, and what the grid consists of."""

from __future__ import annotations

from elasticgrid.core.events.base import Value
from elasticgrid.core.spec import Band, JobSpec, ProviderSpec


class JobSubmitted(Value, frozen=True, kw_only=True, tag_field="type", tag="job.submitted"):
    """A job was accepted.

    Attributes:
        spec: the job as it will be run; `workdir` is absolute.
        idempotency_key: the submitter's key, empty when none was given.
        metadata: what a client of the service's first interface sent along, as JSON; empty for every other client.
    """

    spec: JobSpec
    idempotency_key: str = ""
    metadata: str = ""


class JobCancelRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.cancel_requested"):
    """Somebody wants the job to end."""

    reason: str = ""


class JobPauseRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.pause_requested"):
    """Hold the job at the size it has."""

    reason: str = ""


class JobResumeRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.resume_requested"):
    """Take decisions about the job again."""

    reason: str = ""


class JobResizeRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.resize_requested"):
    """The job has new bounds."""

    min_nodes: int
    max_nodes: int
    reason: str = ""


class JobPriorityRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.priority_requested"):
    """The job is of another band from now on: whose nodes are placed first."""

    band: Band
    reason: str = ""


class JobInterruptRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="job.interrupt_requested"):
    """Somebody says of these nodes of the job that they will be taken away, as a provider's own notice would.

    Attributes:
        provider: where they run.
        nodes: their ids.
        deadline_ms: when they are to be gone, Unix milliseconds; 0 when no time is given.
    """

    provider: str
    nodes: tuple[str, ...]
    deadline_ms: int = 0
    reason: str = ""


class ProviderDeclared(Value, frozen=True, kw_only=True, tag_field="type", tag="provider.declared"):
    """A provider is part of the grid from now on, or has new properties (a new price, say)."""

    provider: ProviderSpec


class ProviderWithdrawn(Value, frozen=True, kw_only=True, tag_field="type", tag="provider.withdrawn"):
    """A provider left the configuration: it takes no new work and drains."""

    name: str


class ProviderCordoned(Value, frozen=True, kw_only=True, tag_field="type", tag="provider.cordoned"):
    """A provider takes no new nodes until it is uncordoned."""

    name: str
    reason: str = ""


class ProviderUncordoned(Value, frozen=True, kw_only=True, tag_field="type", tag="provider.uncordoned"):
    """A cordoned provider takes nodes again."""

    name: str
