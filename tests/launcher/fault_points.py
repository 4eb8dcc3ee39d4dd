"""Every step of a launcher around which it can be killed, read off the code, so that a new one is not forgotten."""

from __future__ import annotations

import inspect
from typing import Any, Final

from iroh_tinker.cloud.engines import Engine
from iroh_tinker.cloud.job import JobManager

from elasticgrid.core import events as ev
from elasticgrid.core.events.envelope import EVENT_TYPES
from elasticgrid.launcher.bundle_store import BundleStore
from elasticgrid.launcher.credential_desk import CredentialDesk
from elasticgrid.launcher.engines.local import LocalProcesses
from elasticgrid.launcher.provider_job import ProviderJob


def _public(owner: type[Any]) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and name != "probe"
    ]


#: Steps that are calls: where each is found.
STEPS: Final[dict[str, tuple[type[Any], str]]] = {
    **{f"job.{name}": (ProviderJob, name) for name in _public(ProviderJob)},
    **{f"engine.{name}": (LocalProcesses, name) for name in _public(Engine)},
    "store.bundle": (BundleStore, "bundle"),
    "credentials.issue": (CredentialDesk, "issue"),
    "credentials.ended": (CredentialDesk, "ended"),
    "manager.save": (JobManager, "save"),
}
#: Those that leave everything as it was: before and after are the same.
READS: Final = frozenset(
    (
        "job.bundle_sha256",
        "job.failure",
        "job.request_id",
        "job.statuses",
        "job.tail",
        "engine.logs",
        "engine.status",
    )
)
#: Facts that a launcher records.
FACTS: Final = tuple(name for name in EVENT_TYPES if ev.writer_of(name) == "launch")
#: Steps that can be half done.
HALVES: Final = ("engine.start", "manager.save")

#: All moments at which a launcher can be killed.
FAULT_POINTS: Final = frozenset(
    [
        *(f"{when} {what}" for what in (*FACTS, *(STEPS.keys() - READS)) for when in ("before", "after")),
        *(f"before {what}" for what in READS),
        *(f"during {what}" for what in HALVES),
    ]
)
