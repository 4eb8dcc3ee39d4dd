"""Behind the first different decision: the jobs in virtual time, in the world that the record shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.review.whatif_change import Change
from elasticgrid.review.whatif_record import Loss, RunRecord
from elasticgrid.review.whatif_training import RecordedTraining
from elasticgrid.review.whatif_walk import Different, Walk
from elasticgrid.sim.grid import SimulatedGrid
from elasticgrid.sim.training import Training

#: A simulation that takes so many times as long as the record did is not going to end.
_MOST_TIMES: Final = 20
_LEAST_LIMIT_MS: Final = 3_600_000

_REQUESTS = (
    ev.JobCancelRequested
    | ev.JobPauseRequested
    | ev.JobResumeRequested
    | ev.JobResizeRequested
    | ev.ProviderDeclared
    | ev.ProviderWithdrawn
    | ev.ProviderCordoned
    | ev.ProviderUncordoned
)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What was simulated.

    Attributes:
        recorded, samples: the log behind the first different decision.
        jobs: every job in it; `training` those of them that were simulated.
        end_ms: when the simulation ended.
        stopped: why it could not go on to the end; empty when it did.
    """

    recorded: list[ev.Recorded]
    samples: list[SampleMessage]
    jobs: frozenset[JobKey]
    training: dict[JobKey, RecordedTraining]
    end_ms: int
    stopped: str


def simulate(
    records: Iterable[ev.Recorded], change: Change, record: RunRecord, walk: Walk, different: Different
) -> Simulation:
    """Go on from where the walk ended.

    Raises:
        InvalidInput: a job has no recorded step to go on with.
    """
    grid = SimulatedGrid((), start_ms=different.time_ms, timings=record.timings(), machines=record)
    known = {(state.tenant, state.id): state for state in walk.fold.jobs()}
    live = {key: RecordedTraining(record.jobs[key]) for key, state in known.items() if not state.terminal}
    adopted: dict[JobKey, Training] = dict(live)
    grid.adopt(walk.fold, walk.evidence, adopted)
    began_ms = min([state.submitted_ms for state in known.values()], default=different.time_ms)
    for recorded in records:
        event = recorded.event
        if recorded.sequence <= different.after_sequence or not isinstance(event, ev.Event):
            continue
        other = change.event(event)
        if other is None:
            continue
        key, wait_ms = (event.tenant, event.job), recorded.recorded_ms - different.time_ms
        if isinstance(other.data, ev.JobSubmitted):
            live[key] = RecordedTraining(record.jobs[key])
            grid.expect(key, live[key])
            grid.at(wait_ms, _submission(grid, key, other.data))
        elif isinstance(other.data, _REQUESTS):
            grid.at(wait_ms, _request(grid, key, other))
    for loss in record.losses:
        if loss.time_ms > different.time_ms:
            grid.at(loss.time_ms - different.time_ms, _loss(grid, loss))
    span_ms = record.last_ms - began_ms
    all_over = all(record.jobs[key].over for key in live)
    limit_ms = max(_MOST_TIMES * span_ms, _LEAST_LIMIT_MS) if all_over else record.last_ms - different.time_ms
    stopped = ""
    try:
        grid.run(limit_ms=max(limit_ms, 0))
    except InvalidInput as error:
        stopped = f"{error.what}: {error.hint}" if error.hint else error.what
    else:
        if all_over and not grid.idle:
            stopped = f"the jobs were not over after {limit_ms // 1_000} s"
    return Simulation(
        recorded=grid.recorded,
        samples=grid.samples,
        jobs=frozenset((state.tenant, state.id) for state in grid.fold.jobs()),
        training=live,
        end_ms=grid.now_ms if all_over else max(grid.now_ms, record.last_ms),
        stopped=stopped,
    )


def _submission(grid: SimulatedGrid, key: JobKey, data: ev.JobSubmitted) -> Callable[[], None]:
    return lambda: grid.submitted(key, data)


def _request(grid: SimulatedGrid, key: JobKey, event: ev.Event) -> Callable[[], None]:
    def request() -> None:
        state: JobState | None = grid.fold.job(key)
        if state is None or not state.terminal:
            grid.append(key, event.data, actor=event.actor)

    return request


def _loss(grid: SimulatedGrid, loss: Loss) -> Callable[[], None]:
    def lose() -> None:
        # What has no node there now has none to lose.
        with suppress(NotFound):
            if loss.failure is not None:
                grid.fail_worker(loss.key, code=loss.code, failure=loss.failure)
            else:
                grid.lose_node(loss.key, provider=loss.provider, evidence=loss.evidence)

    return lose
