"""Records an archive that is not there yet: `python tests/goldens/record_goldens.py`. What is there stays for ever.

`demo.egz` is a real run of `elasticgrid demo`; of its samples the first half was left out, as if it had aged out.
The others are simulated, with the decisions of the version that recorded them: `failures`, `cancelled` and `silent` of
version 1, which knew of no gaps in samples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, ArchiveWriter, SampleRange, read_header
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import StepTimes, Workload

HERE = Path(__file__).parent
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
PROVIDERS = (
    ProviderSpec(name="spot", max_nodes=2, market="spot", price_microdollars_per_hour=500_000),
    ProviderSpec(name="dear", max_nodes=6, price_microdollars_per_hour=2_000_000),
)


def _job(name: str, *, min_nodes: int = 1, max_nodes: int, max_restarts: int = 0) -> JobSpec:
    return JobSpec(
        name=name,
        command=("python", "train.py"),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        max_restarts=max_restarts,
        grace_ms=5_000,
        join_timeout_ms=60_000,
        scaling=SCALING,
    )


def failures() -> SimulatedGrid:
    """A launch and a node are lost, one job survives a failing worker and another does not."""
    grid = SimulatedGrid(PROVIDERS)
    grid.fail_launches("spot", "stockout", "ZONE_RESOURCE_POOL_EXHAUSTED: no more capacity in the zone")
    lucky = grid.submit(
        _job("lucky", max_nodes=4, max_restarts=1), Workload(total_steps=300, demand=((200_000, 4), (1, 1)))
    )
    doomed = grid.submit(_job("doomed", max_nodes=2), Workload(total_steps=300, demand=((1, 2),)))
    grid.at(120_000, lambda: grid.fail_worker(lucky))
    grid.at(190_000, lambda: grid.lose_node(lucky))
    grid.at(260_000, lambda: grid.lose_node(lucky, evidence="silent"))
    grid.at(310_000, lambda: grid.fail_worker(doomed, code=-9))
    grid.run()
    return grid


def cancelled() -> SimulatedGrid:
    """A job is paused, resumed, made smaller and cancelled while it grows; another waits for its nodes."""
    grid = SimulatedGrid(PROVIDERS)
    first = grid.submit(_job("first", min_nodes=2, max_nodes=8), Workload(total_steps=4_000, demand=((1, 8),)))
    grid.submit(_job("second", min_nodes=2, max_nodes=4), Workload(total_steps=100))
    grid.at(60_000, lambda: grid.request(first, ev.JobPauseRequested(reason="looking at it")))
    grid.at(120_000, lambda: grid.request(first, ev.JobResumeRequested()))
    grid.at(240_000, lambda: grid.request(first, ev.JobResizeRequested(min_nodes=1, max_nodes=3)))
    grid.at(320_000, lambda: grid.request(first, ev.JobResizeRequested(min_nodes=1, max_nodes=8)))
    grid.at(385_000, lambda: grid.request(first, ev.JobCancelRequested(reason="not needed any more")))
    grid.run()
    return grid


class OneLongStep(Workload, frozen=True, kw_only=True):
    """Every step is as the load says, but step 60 takes eight minutes."""

    def step_times(self, now_ms: int, nodes: int, step: int) -> StepTimes:
        """The times of a step."""
        return StepTimes(duration_ms=480_000) if step == 60 else super().step_times(now_ms, nodes, step)


def silent() -> SimulatedGrid:
    """A job grows, takes one long step, during which its load falls, and shrinks after it."""
    grid = SimulatedGrid(PROVIDERS)
    grid.submit(_job("quiet", max_nodes=4), OneLongStep(total_steps=200, demand=((200_000, 4), (1, 1))))
    grid.run()
    return grid


def gaps() -> SimulatedGrid:
    """A job's samples are silent four times, each for another cause."""
    grid = SimulatedGrid(PROVIDERS)
    key = grid.submit(_job("quiet", max_nodes=4), OneLongStep(total_steps=1_500, demand=((1, 3),)))
    grid.at(1_200_000, lambda: grid.hold_samples(key, 600_000))
    grid.at(2_000_000, lambda: grid.stall(key, 600_000))
    grid.at(2_800_000, lambda: grid.stall(key, 600_000))
    grid.at(3_200_000, lambda: _say_stuck(grid, key))
    grid.run()
    return grid


def _say_stuck(grid: SimulatedGrid, key: JobKey) -> None:
    running = grid.agents.running(key)
    node = running.members[0]
    stuck = ev.NodeStuck(
        node=node, round=running.round, what="no_step", last_step=running.step, since_ms=grid.now_ms - 400_000
    )
    grid.append(key, stuck, actor=f"agent:{node}")


SIMULATED: dict[str, Callable[[], SimulatedGrid]] = {
    "failures": failures,
    "cancelled": cancelled,
    "silent": silent,
    "gaps": gaps,
}


def record(name: str) -> None:
    """Simulate one and write it."""
    grid = SIMULATED[name]()
    held = SampleRange(0, grid.evidence.sequence)
    with ArchiveWriter(HERE / f"{name}.egz", created_ms=grid.now_ms, samples=held) as writer:
        for recorded in grid.recorded:
            writer.add_event(recorded)
        for message in grid.samples:
            writer.add_samples(message)


def reduce(source: Path) -> None:
    """Write `demo.egz` from the archive of a demonstration."""
    header = read_header(source)
    assert header.samples is not None
    middle = header.samples.through // 2
    with ArchiveWriter(
        HERE / "demo.egz", created_ms=header.created_ms, samples=SampleRange(middle, header.samples.through)
    ) as writer:
        for recorded in ArchivedEvents(source):
            writer.add_event(recorded)
        for message in ArchivedSamples(source):
            if message.sequence > middle:
                writer.add_samples(message)


if __name__ == "__main__":
    for each in SIMULATED:
        if not (HERE / f"{each}.egz").exists():
            record(each)
