"""What the gateway answers with, besides what the views do; clients read the same types without the web framework."""

from __future__ import annotations

from typing import Literal

import msgspec

from elasticgrid.gateway.providers import ProviderView
from elasticgrid.gateway.worker_logs import LogText
from elasticgrid.projections.results import JobSummary


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a submission.

    Attributes:
        accepted: the job would be, or was, accepted.
        dry_run: nothing was submitted.
        job: the job; None after a dry run.
    """

    accepted: bool
    dry_run: bool
    job: JobSummary | None = None


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """The end of what a job's workers wrote.

    Attributes:
        job_id: the job's.
        log: all of it as one text; where it is of several workers each line says of which.
        pieces: the same by worker.
        elsewhere: when there is no output here, the nodes that joined: their providers have it.
    """

    job_id: str
    log: str
    pieces: tuple[LogText, ...]
    elsewhere: tuple[str, ...] = ()


class ProviderList(msgspec.Struct, frozen=True, kw_only=True):
    """All providers, by name."""

    items: tuple[ProviderView, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway is well. `sequence` is the last event that answers contain, where it was asked for."""

    status: Literal["ok"] = "ok"
    sequence: int | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which software answers, and which interface it speaks."""

    version: str
    api: str = "v1"
