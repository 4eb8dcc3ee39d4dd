"""The whole grid as a fold: every job, and the fleet they share.

`GridFold` is the one place where states are replaced; what it applies is pure. It remembers, for the last events, what
each of them replaced, so that the state a decision was taken from can be looked at again after later events came in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Self, TypeAlias

import msgspec

from elasticgrid.core.events import Event, Recorded
from elasticgrid.core.fleet import FLEET_EVENTS, FleetState, evolve_fleet, initial_fleet
from elasticgrid.core.job import JobState, initial
from elasticgrid.core.job_fold import evolve
from elasticgrid.core.names import GRID_TENANT
from elasticgrid.core.quotas import QUOTA_EVENTS, evolve_quotas
from elasticgrid.core.tenancy import AccessState, evolve_access

JobKey = tuple[str, str]


#: What an event replaced: its sequence, its job, that job's state, and the fleet.
_Replaced: TypeAlias = tuple[int, JobKey | None, JobState | None, FleetState]

#: Types of the events that change what jobs share; most change no more than their job.
_SHARED: Final = FLEET_EVENTS | QUOTA_EVENTS


class GridSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a `GridFold` holds but its memory of replaced states; its fields are the fold's."""

    sequence: int
    recorded_ms: int
    events: int
    unknown_events: int
    fleet: FleetState
    access: AccessState
    jobs: tuple[JobState, ...]


class GridFold:
    """Folds recorded events, in order, into job states, the fleet, and who may do what.

    Args:
        memory: how many of the last events can be looked behind; 0 is quickest.
    """

    def __init__(self, *, memory: int = 4_096) -> None:
        self.sequence = 0
        self.recorded_ms = 0
        self.events = 0
        self.unknown_events = 0
        self.fleet: FleetState = initial_fleet()
        self.access = AccessState()
        self._jobs: dict[JobKey, JobState] = {}
        self._replaced: deque[_Replaced] = deque(maxlen=memory)
        self._remembers = memory > 0

    def apply(self, recorded: Recorded) -> JobKey | None:
        """Fold one event and return the job it concerned, None for the grid itself. A second time changes nothing."""
        sequence = recorded.sequence
        if sequence <= self.sequence:
            return None
        event = recorded.event
        self.sequence = sequence
        if recorded.recorded_ms > self.recorded_ms:
            self.recorded_ms = recorded.recorded_ms
        self.events += 1
        fleet = self.fleet
        key: JobKey | None = None
        before: JobState | None = None
        after: JobState | None = None
        if event.tenant == GRID_TENANT:
            self.access = evolve_access(self.access, recorded)
        else:
            key = (event.tenant, event.job)
            before = self._jobs.get(key)
            after = self._jobs[key] = evolve(before if before is not None else initial(*key), recorded)
        if not isinstance(event, Event):
            self.unknown_events += 1
        elif type(event.data) in _SHARED:
            self.fleet = _evolve_shared(fleet, before, after, recorded)
        if self._remembers:
            self._replaced.append((sequence, key, before, fleet))
        return key

    def snapshot(self) -> GridSnapshot:
        """The state as it is now; later events do not change it."""
        return GridSnapshot(
            sequence=self.sequence,
            recorded_ms=self.recorded_ms,
            events=self.events,
            unknown_events=self.unknown_events,
            fleet=self.fleet,
            access=self.access,
            jobs=tuple(self._jobs.values()),
        )

    @classmethod
    def restore_from(cls, snapshot: GridSnapshot, *, memory: int = 4_096) -> Self:
        """A fold that goes on from a snapshot as the one it was taken of; it looks no further back than that."""
        fold = cls(memory=memory)
        fold.sequence = snapshot.sequence
        fold.recorded_ms = snapshot.recorded_ms
        fold.events = snapshot.events
        fold.unknown_events = snapshot.unknown_events
        fold.fleet = snapshot.fleet
        fold.access = snapshot.access
        fold._jobs = {(job.tenant, job.id): job for job in snapshot.jobs}
        return fold

    def job(self, key: JobKey) -> JobState | None:
        """The job as of now."""
        return self._jobs.get(key)

    def jobs(self) -> Iterator[JobState]:
        """All jobs, in the order they first appeared."""
        return iter(self._jobs.values())

    def at(self, key: JobKey, sequence: int) -> tuple[JobState | None, FleetState] | None:
        """The job and the fleet as they were after event `sequence`; None when that is too far back."""
        if sequence >= self.sequence:
            return self._jobs.get(key), self.fleet
        if not self._replaced or self._replaced[0][0] > sequence + 1:
            return None
        job, fleet = self._jobs.get(key), self.fleet
        for later, changed, before, fleet_before in reversed(self._replaced):
            if later <= sequence:
                break
            fleet = fleet_before
            if changed == key:
                job = before
        return job, fleet


def _evolve_shared(
    fleet: FleetState, before: JobState | None, after: JobState | None, recorded: Recorded
) -> FleetState:
    """What jobs share after one more event, which made the job `after` of `before`."""
    fleet = evolve_fleet(fleet, recorded)
    quotas = evolve_quotas(fleet.quotas, before, after, recorded)
    return fleet if quotas is fleet.quotas else msgspec.structs.replace(fleet, quotas=quotas)
