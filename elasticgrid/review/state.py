"""The state of the grid at any place in the log, as bytes that are equal when the states are, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from elasticgrid.core.events import Recorded
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState
from elasticgrid.core.job_nodes import all_nodes
from elasticgrid.review.collector import rare_collections
from elasticgrid.review.differences import Difference, differences


class GridState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the log said by an event.

    Attributes:
        sequence, recorded_ms: of the last event folded; 0 before the first.
        jobs: by `<tenant>/<job>`.
    """

    sequence: int
    recorded_ms: int
    events: int
    unknown_events: int
    jobs: dict[str, JobState]
    fleet: FleetState


def state_at(
    records: Iterable[Recorded], *, sequence: int | None = None, time_ms: int | None = None, job: str | None = None
) -> GridState:
    """The state after event `sequence`, or as of `time_ms`; at the end of the log when neither is given.

    Args:
        job: only this job's, as `<tenant>/<job>`; the fleet is there all the same.
    """
    fold = GridFold(memory=1)
    with rare_collections():
        for recorded in records:
            if sequence is not None and recorded.sequence > sequence:
                break
            if time_ms is not None and recorded.recorded_ms > time_ms:
                break
            fold.apply(recorded)
    jobs = {f"{state.tenant}/{state.id}": state for state in fold.jobs()}
    return GridState(
        sequence=fold.sequence,
        recorded_ms=fold.recorded_ms,
        events=fold.events,
        unknown_events=fold.unknown_events,
        jobs=jobs if job is None else {name: state for name, state in jobs.items() if name == job},
        fleet=fold.fleet,
    )


def dump(state: GridState) -> bytes:
    """The state as indented JSON with sorted keys; equal states give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(_plain(state), order="sorted"), indent=2) + b"\n"


def state_differences(before: GridState, after: GridState) -> tuple[Difference, ...]:
    """Every field in which the second state is not the first, `expected` being the value in the first."""
    return tuple(differences(_plain(before), _plain(after)))


def _plain(state: GridState) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    if state.fleet.jobs:
        plain["fleet"]["jobs"] = msgspec.to_builtins(dict(all_nodes(state.fleet.jobs)), str_keys=True)
    for tenant, use in state.fleet.quotas.use.items():
        jobs = {job: each for shard in use.jobs for job, each in shard.items()}
        plain["fleet"]["quotas"]["use"][tenant]["jobs"] = msgspec.to_builtins(jobs, str_keys=True)
    return plain
