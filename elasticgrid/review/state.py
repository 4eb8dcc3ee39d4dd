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
from elasticgrid.core.quotas import HOUR_MS, JobUse, Opened, charged_jobs
from elasticgrid.review.collector import rare_collections
from elasticgrid.review.differences import differences


class GridState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the log said by an event.

    Attributes:
        sequence, recorded_ms: of the last event folded; 0 before the first.
        jobs: by `<tenant>/<job>`.
        charged: what each tenant's jobs are charged for, by tenant and job.
    """

    sequence: int
    recorded_ms: int
    events: int
    unknown_events: int
    jobs: dict[str, JobState]
    fleet: FleetState
    charged: dict[str, dict[str, JobUse]]


class Change(msgspec.Struct, frozen=True):
    """A field of the state that is not the same at two moments: its path, and both values as JSON; absent is empty."""

    field: str
    before: str
    after: str


def state_at(
    records: Iterable[Recorded], *, sequence: int | None = None, time_ms: int | None = None, job: str | None = None
) -> GridState:
    """The state after event `sequence`, or as of `time_ms`; at the end of the log when neither is given.

    Args:
        job: only this job's, as `<tenant>/<job>`, if it is there by then; the fleet is there all the same.
    """
    fold = GridFold(memory=0)
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
        charged=charged_jobs(fold.jobs()),
    )


def dump(state: GridState) -> bytes:
    """The state as indented JSON with sorted keys; equal states give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(_plain(state), order="sorted"), indent=2) + b"\n"


def state_changes(before: GridState, after: GridState) -> tuple[Change, ...]:
    """Every field in which the second state is not the first."""
    found = differences(_plain(before), _plain(after))
    return tuple(Change(each.field, each.expected, each.got) for each in found)


def _plain(state: GridState) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    if state.fleet.jobs:
        plain["fleet"]["jobs"] = msgspec.to_builtins(dict(all_nodes(state.fleet.jobs)), str_keys=True)
    for job in plain["jobs"].values():
        for parts in ("nodes", "launches"):
            job[parts] = job[parts]["past"] | job[parts]["present"]
    charged = plain.pop("charged")
    for tenant, use in state.fleet.quotas.use.items():
        plain["fleet"]["quotas"]["use"][tenant] = {
            "active": use.active,
            "hours": msgspec.to_builtins(
                {hour: each for day in use.hours.values() for hour, each in day.items()}, str_keys=True
            ),
            "jobs": charged.get(tenant, {}),
            "opened": {str(hour): _since_1970(hour * HOUR_MS, each) for hour, each in use.opened.items()},
        }
    return plain


def _since_1970(hour_ms: int, opened: Opened) -> dict[str, int]:
    """What is charged since some time of an hour, with times as the log has them."""
    return {
        "accelerators": opened.accelerators,
        "accelerator_since": opened.accelerators * hour_ms + opened.accelerator_after,
        "price": opened.price,
        "price_since": opened.price * hour_ms + opened.price_after,
    }
