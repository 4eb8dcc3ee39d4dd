"""A simulation that goes on from any moment of a recorded run comes to a sound end."""

from __future__ import annotations

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.review.summary import summarise
from elasticgrid.review.verify import verify
from elasticgrid.sim.grid import SimulatedGrid
from elasticgrid.sim.training import Training, Workload

SCALING = ScalingPolicy(
    cooldown_up_ms=30_000,
    cooldown_down_ms=60_000,
    reversal_ms=60_000,
    target_tokens_per_s=5_000,
    default_restart_ms=10_000,
    min_evidence_ms=10_000,
    max_restart_ppm=1_000_000,
    max_changes_per_hour=30,
)
WORKLOAD = Workload(total_steps=250, demand=((150_000, 4), (1, 1)), checkpoint_steps=30)


def spec(name: str) -> JobSpec:
    return JobSpec(
        name=name,
        command=("python", "train.py"),
        max_nodes=4,
        max_restarts=1,
        grace_ms=5_000,
        join_timeout_ms=60_000,
        scaling=SCALING,
    )


@pytest.fixture(scope="module")
def run() -> SimulatedGrid:
    grid = SimulatedGrid(
        (
            ProviderSpec(name="spot", max_nodes=2, market="spot", price_microdollars_per_hour=500_000),
            ProviderSpec(name="dear", max_nodes=6, price_microdollars_per_hour=2_000_000),
        )
    )
    grid.fail_launches("spot", "stockout", "no more capacity in the zone")
    keys = [grid.submit(spec(name), WORKLOAD) for name in ("one", "two")]
    grid.at(100_000, lambda: grid.fail_worker(keys[0]))
    grid.at(170_000, lambda: grid.lose_node(keys[0]))
    grid.at(260_000, lambda: grid.request(keys[1], ev.JobCancelRequested(reason="enough")))
    grid.run()
    assert [grid.job(key).phase for key in keys] == ["completed", "cancelled"]
    return grid


def adopted(run: SimulatedGrid, sequence: int) -> SimulatedGrid:
    """A grid that goes on after event `sequence`."""
    fold, evidence = GridFold(), EvidenceFold()
    now_ms = run.recorded[sequence - 1].recorded_ms
    samples = iter([message for message in run.samples if message.time_ms <= now_ms])
    message = next(samples, None)
    for recorded in run.recorded[:sequence]:
        while message is not None and message.time_ms <= recorded.recorded_ms:
            tenant, job = message.subject.split(".")[2:4]
            evidence.apply((tenant, job), message.sequence, message.time_ms, message.data)
            message = next(samples, None)
        key = fold.apply(recorded)
        state = fold.job(key) if key is not None else None
        if state is not None:
            evidence.open(state)
    grid = SimulatedGrid((), start_ms=now_ms)
    live: dict[JobKey, Training] = {
        (state.tenant, state.id): WORKLOAD for state in fold.jobs() if state.spec is not None and not state.terminal
    }
    grid.adopt(fold, evidence, live)
    return grid


def whole(run: SimulatedGrid, sequence: int) -> bool:
    """Whether no decision is cut in two after this event."""
    before, after = (run.recorded[index].event for index in (sequence - 1, sequence))
    assert isinstance(before, ev.Event)
    assert isinstance(after, ev.Event)
    return before.basis is None or (before.job, before.basis) != (after.job, after.basis)


def test_whenever_it_is_taken_over_every_job_ends_and_the_whole_log_verifies(run: SimulatedGrid) -> None:
    phases = set()
    for sequence in (each for each in range(3, len(run.recorded)) if whole(run, each)):
        grid = adopted(run, sequence)
        phases |= {state.phase for state in grid.fold.jobs()}
        grid.run(limit_ms=6 * 3_600_000)
        log = [*run.recorded[:sequence], *grid.recorded]
        assert grid.idle, sequence
        assert {state.phase for state in grid.fold.jobs()} <= {"completed", "cancelled"}, sequence
        assert [state.illegal for state in grid.fold.jobs()] == [0] * len(list(grid.fold.jobs())), sequence
        report = verify(log)
        assert not report.law_breaches, (sequence, report.laws)
        assert not report.diverged, (sequence, report.divergences)
        assert not report.open_intents, sequence
    assert phases >= {"submitted", "starting", "running", "draining", "ending", "cancelled"}


def test_no_step_of_the_committed_line_runs_twice_or_is_left_out(run: SimulatedGrid) -> None:
    for sequence in range(40, len(run.recorded), 15):
        grid = adopted(run, sequence)
        grid.run(limit_ms=6 * 3_600_000)
        log = [*run.recorded[:sequence], *grid.recorded]
        samples = [message for message in run.samples if message.sequence <= grid.evidence.sequence - len(grid.samples)]
        summary = summarise(log, [*samples, *grid.samples], job=("demo", "one"))
        assert summary.duplicate_steps == 0, sequence
        assert summary.steps == 250
