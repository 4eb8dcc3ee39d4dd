"""Running, silent for ten minutes, running: one gap is on record with its cause, and nothing follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.decider import decide
from elasticgrid.core.gaps import SETTLE_MS
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import JobSpec, ScalingPolicy
from elasticgrid.review.summary import summarise
from elasticgrid.review.verify import verify
from elasticgrid.sim.grid import SimulatedGrid
from elasticgrid.sim.training import Workload

MINUTE_MS = 60_000
SILENT_MS = 10 * MINUTE_MS

Happening = Callable[[SimulatedGrid, JobKey], None]
D = TypeVar("D")


def running() -> tuple[SimulatedGrid, JobKey]:
    """A job that has grown to the two nodes that its load needs, and trained on them for ten minutes."""
    grid = SimulatedGrid()
    spec = JobSpec(name="train", command=("true",), max_nodes=4, scaling=ScalingPolicy(cooldown_up_ms=30_000))
    key = grid.submit(spec, Workload(total_steps=1_500, demand=((1, 2),)))
    grid.advance(15 * MINUTE_MS)
    assert grid.job(key).target_nodes == len(grid.job(key).members) == 2
    return grid, key


def told(grid: SimulatedGrid, kind: type[D]) -> list[D]:
    data = [each.event.data for each in grid.recorded if isinstance(each.event, ev.Event)]
    return [each for each in data if isinstance(each, kind)]


def samples_are_late(grid: SimulatedGrid, key: JobKey) -> None:
    grid.hold_samples(key, SILENT_MS)


def a_step_takes_long(grid: SimulatedGrid, key: JobKey) -> None:
    grid.lengthen_step(key, SILENT_MS)


def workers_stall(grid: SimulatedGrid, key: JobKey) -> None:
    grid.stall(key, SILENT_MS)


def workers_stall_and_a_node_says_so(grid: SimulatedGrid, key: JobKey) -> None:
    grid.stall(key, SILENT_MS)
    state = grid.job(key)
    data = ev.NodeStuck(
        node=state.members[0].node, round=state.round, what="no_step", last_step=0, since_ms=grid.now_ms
    )
    grid.at(5 * MINUTE_MS, lambda: grid.append(key, data, actor=f"agent:{data.node}"))


CAUSES: dict[str, Happening] = {
    "late": samples_are_late,
    "long_step": a_step_takes_long,
    "stuck": workers_stall_and_a_node_says_so,
    "unknown": workers_stall,
}


@pytest.mark.survive("D")
@pytest.mark.parametrize("cause", CAUSES)
def test_one_gap_is_on_record_with_its_cause_and_the_size_stays(cause: str) -> None:
    grid, key = running()
    CAUSES[cause](grid, key)
    changes = [each for each in told(grid, ev.ScaleDecided) if each.action != "hold"]
    grid.advance(SILENT_MS + MINUTE_MS)

    (gap,) = told(grid, ev.GapDecided)
    assert (gap.cause, gap.round) == (cause, grid.job(key).round)
    assert SILENT_MS - 10_000 <= gap.until_ms - gap.from_ms <= SILENT_MS + 10_000
    assert gap.signals.gap_until_ms == gap.until_ms == grid.job(key).gap_until_ms

    grid.run()
    assert grid.job(key).phase == "completed"
    assert told(grid, ev.GapDecided) == [gap]
    assert [each for each in told(grid, ev.ScaleDecided) if each.action != "hold"] == changes
    assert len(told(grid, ev.WorldDecided)) == grid.job(key).round == 2
    summary = summarise(grid.recorded, grid.samples, job=key)
    assert (summary.steps, summary.duplicate_steps, summary.unreported_steps) == (1_500, 0, 0)
    for report in (verify(grid.recorded), verify(grid.recorded, grid.samples)):
        assert report.ok, (report.divergences, report.laws)
        assert report.verified == report.decisions


@pytest.mark.survive("D")
def test_behind_a_gap_only_steps_of_after_it_are_evidence() -> None:
    grid, key = running()
    before = grid.evidence.signals(key)
    grid.lengthen_step(key, SILENT_MS)
    grid.advance(SILENT_MS + 30_000)

    (gap,) = told(grid, ev.GapDecided)
    seen = grid.evidence.signals(key)
    assert seen.evidence_ms <= grid.now_ms - gap.until_ms - SETTLE_MS
    assert seen.step_mean_us == before.step_us
    assert seen.window_us < MINUTE_MS * 1_000


def test_a_job_that_is_silent_again_at_once_still_has_its_gap_on_record() -> None:
    grid, key = running()
    grid.lengthen_step(key, SILENT_MS)
    grid.at(SILENT_MS + 5_000, lambda: grid.stall(key, 4 * MINUTE_MS))
    grid.advance(SILENT_MS + MINUTE_MS)
    assert [gap.cause for gap in told(grid, ev.GapDecided)] == ["long_step"]


def test_every_gap_of_a_round_is_on_record_by_itself() -> None:
    grid, key = running()
    for cause in ("late", "long_step", "unknown", "late"):
        CAUSES[cause](grid, key)
        grid.advance(SILENT_MS + MINUTE_MS)
    assert [gap.cause for gap in told(grid, ev.GapDecided)] == ["late", "long_step", "unknown", "late"]
    assert verify(grid.recorded, grid.samples).ok


def test_a_new_round_has_no_gap_of_the_one_before_it() -> None:
    grid, key = running()
    grid.hold_samples(key, SILENT_MS)
    grid.at(SILENT_MS + 1_000, lambda: grid.fail_worker(key, failure="infra_failed", code=75))
    grid.advance(SILENT_MS + 5 * MINUTE_MS)
    assert grid.job(key).round == 3
    assert told(grid, ev.GapDecided) == []
    assert grid.evidence.signals(key).gap_until_ms == 0


@pytest.mark.parametrize("reason", ["", "cancelled", "preempted", "failed"])
def test_whatever_is_urgent_is_answered_as_if_there_were_no_gap(reason: str) -> None:
    grid, key = running()
    grid.lengthen_step(key, SILENT_MS)
    grid.advance(SILENT_MS + SETTLE_MS // 2)
    due_ms = grid.now_ms + SETTLE_MS
    node = grid.job(key).members[0].node
    if reason == "cancelled":
        grid.request(key, ev.JobCancelRequested())
    elif reason == "preempted":
        notice = ev.NodePreemptionNotice(node=node, source="aws", deadline_ms=due_ms + MINUTE_MS)
        grid.append(key, notice, actor=f"agent:{node}")
    elif reason == "failed":
        grid.fail_worker(key)
    decided = decide(grid.job(key), grid.fold.fleet, grid.evidence.signals(key), due_ms)

    assert any(isinstance(each, ev.GapDecided) for each in decided) == (not reason)
    assert [each.reason for each in decided if isinstance(each, ev.DrainDecided)] == ([reason] if reason else [])
