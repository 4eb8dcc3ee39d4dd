"""Which job of a log is meant, and which there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.events import Recorded
from elasticgrid.core.grid import JobKey
from elasticgrid.core.names import GRID_TENANT

#: How many jobs an error names.
_NAMED = 5


def find_job(jobs: Iterable[JobKey], tenant: str | None, job: str) -> JobKey:
    """The one job of these that is called so; of any tenant when none is named.

    Raises:
        NotFound: there is none.
        InvalidInput: several tenants have one, and none is named.
    """
    there = list(jobs)
    found = [key for key in there if key[1] == job and tenant in (None, key[0])]
    if not found:
        raise no_such_job(there, tenant, job)
    if len(found) > 1:
        names = ", ".join(sorted("/".join(key) for key in found)[:_NAMED])
        raise InvalidInput(f"{len(found)} tenants have a job {job}", hint=f"name one: {names}")
    return found[0]


def no_such_job(jobs: Iterable[JobKey], tenant: str | None, job: str) -> NotFound:
    """The error for a job that is not among these."""
    names = sorted("/".join(key) for key in jobs)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    told = f"it has {', '.join(names[:_NAMED])}{more}" if names else "it has no job"
    return NotFound(f"there is no job {f'{tenant}/' if tenant else ''}{job} in this log", hint=told)


class SeenJobs:
    """Records, and beside them the jobs that were met while reading them.

    Attributes:
        jobs: those of the last reading, in the order they were met.
        last_sequence, last_ms: of the last event that was read, and when it was recorded; 0 before the first.
    """

    def __init__(self, records: Iterable[Recorded]) -> None:
        self._records = records
        self.jobs: dict[JobKey, None] = {}
        self.last_sequence = self.last_ms = 0

    def __iter__(self) -> Iterator[Recorded]:
        self.jobs = {}
        self.last_sequence = self.last_ms = 0
        for recorded in self._records:
            event = recorded.event
            self.last_sequence, self.last_ms = recorded.sequence, recorded.recorded_ms
            if event.tenant != GRID_TENANT:
                self.jobs[event.tenant, event.job] = None
            yield recorded


def jobs_of(records: Iterable[Recorded]) -> tuple[JobKey, ...]:
    """Every job of a log, in the order they came."""
    seen = SeenJobs(records)
    for _ in seen:
        pass
    return tuple(seen.jobs)
