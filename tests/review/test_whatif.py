"""What if: the same policy gives the same run, and another one what it would really have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from simulated_jobs import QUICK, job, providers

from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.events import Event, JobCancelRequested, WorldDecided
from elasticgrid.core.grid import JobKey
from elasticgrid.core.spec import PlacementPolicy, ProviderSpec, ScalingPolicy
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage, SampleRange, SequenceGap
from elasticgrid.review.whatif import WhatIf, WhatIfJob, what_if
from elasticgrid.review.whatif_change import Change
from elasticgrid.review.whatif_figures import Figures, figures
from elasticgrid.sim.grid import SimulatedGrid
from elasticgrid.sim.training import StepTimes, Training, Workload

Happenings = Callable[[SimulatedGrid, JobKey], object]
DEMAND = ((200_000, 4), (300_000, 1), (1, 3))


def scaling(**changes: Any) -> ScalingPolicy:
    return msgspec.structs.replace(QUICK, **changes)


def ran(
    policy: ScalingPolicy = QUICK,
    training: Callable[[int], Training] = lambda index: Workload(
        total_steps=600, demand=((200_000 + 50_000 * index, 4), *DEMAND[1:])
    ),
    *,
    jobs: int = 1,
    grid: tuple[ProviderSpec, ...] | None = None,
    happens: Happenings = lambda _grid, _key: None,
    **spec: Any,
) -> SimulatedGrid:
    """A grid whose jobs ran under a policy."""
    made = SimulatedGrid(grid or providers())
    keys = [
        made.submit(job(f"job{index}", scaling=policy, **spec), training(index), tenant="demo") for index in range(jobs)
    ]
    happens(made, keys[0])
    made.run()
    return made


def asked(grid: SimulatedGrid, change: Change) -> WhatIf:
    return what_if(grid.recorded, grid.samples, change)


def truth(grid: SimulatedGrid) -> dict[JobKey, Figures]:
    keys = [(state.tenant, state.id) for state in grid.fold.jobs()]
    return figures(grid.recorded, grid.samples, keys, end_ms=grid.now_ms)


def told(answer: WhatIfJob, figure: str) -> Any:
    return next(line.what_if for line in answer.table if line.figure == figure)


def recorded(answer: WhatIfJob, figure: str) -> Any:
    return next(line.recorded for line in answer.table if line.figure == figure)


def cancel_late(grid: SimulatedGrid, key: JobKey) -> None:
    grid.at(700_000, lambda: grid.request(key, JobCancelRequested(reason="enough")))


def lose_and_fail(grid: SimulatedGrid, key: JobKey) -> None:
    grid.at(190_000, lambda: grid.lose_node(key))
    grid.at(300_000, lambda: grid.fail_worker(key))


def stockout(grid: SimulatedGrid, key: JobKey) -> None:
    grid.fail_launches("spot", "stockout", "no more capacity in the zone", times=1)


# --------------------------------------------------------------------------------------------------------------------
# Nothing changes
# --------------------------------------------------------------------------------------------------------------------


def test_the_same_policy_reproduces_the_recorded_run_exactly(one_job: SimulatedGrid, many_jobs: SimulatedGrid) -> None:
    for grid in (one_job, many_jobs):
        answer = asked(grid, Change())
        assert answer.differences == 0
        assert answer.first_difference is None
        assert answer.rederived > 20
        assert answer.why_none.startswith("the policy is the recorded one")
        for each in answer.jobs:
            assert each.extrapolated_from_ms is None
            assert each.model is None
            assert all(line.recorded == line.what_if and not line.extrapolated for line in each.table)


def test_where_a_change_makes_no_difference_the_answer_says_why() -> None:
    grid = ran(happens=cancel_late)
    answer = asked(grid, Change(scaling=scaling(grow_factor_ppm=4_000_000)))
    assert answer.differences == 0
    assert answer.why_none.startswith("no decision depended on scaling.grow_factor")
    calm = ran(training=lambda _: Workload(total_steps=100))
    answer = asked(calm, Change(scaling=scaling(cooldown_up_ms=0, cooldown_down_ms=0)))
    assert "read by `cooldown` only, which held nothing back" in answer.why_none


def test_a_hold_for_another_reason_is_told_and_is_no_difference() -> None:
    grid = ran(max_nodes=1, training=lambda _: Workload(demand=((1, 4),)))
    answer = asked(grid, Change(scaling=scaling(min_evidence_ms=60_000)))
    assert answer.differences == 0
    assert set(answer.other_holds) == {"queue_bound -> evidence"}


# --------------------------------------------------------------------------------------------------------------------
# Something changes: compared with a run that really had the other policy
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "options"),
    [
        pytest.param({"cooldown_up_ms": 0, "cooldown_down_ms": 0, "reversal_ms": 0}, {}, id="no cooldown"),
        pytest.param({"cooldown_down_ms": 600_000}, {}, id="shrinks late"),
        pytest.param({"target_queue_ppm": 900_000}, {}, id="never grows"),
        pytest.param({"cooldown_down_ms": 400_000}, {"happens": lose_and_fail}, id="nodes and workers are lost"),
        pytest.param({"cooldown_down_ms": 300_000}, {"jobs": 3}, id="several jobs"),
        pytest.param({"cooldown_down_ms": 500_000}, {"happens": cancel_late}, id="cancelled later"),
        pytest.param({"cooldown_up_ms": 0}, {"happens": stockout}, id="a launch fails"),
        pytest.param({"target_tokens_per_s": None}, {}, id="no target"),
    ],
)
def test_what_would_have_been_is_told_within_three_percent(other: dict[str, Any], options: dict[str, Any]) -> None:
    grid, real = ran(**options), truth(ran(scaling(**other), **options))
    answer = asked(grid, Change(scaling=scaling(**other)))
    assert answer.differences == 1
    assert not answer.stopped
    for each in answer.jobs:
        really = real[each.tenant, each.job]
        assert told(each, "cost") == pytest.approx(really.cost_microdollars / 1e6, rel=0.03)
        assert told(each, "node-hours") == pytest.approx(really.node_ms / 3_600_000, rel=0.03)
        assert told(each, "queue time") == pytest.approx(really.queue_s, rel=0.05, abs=4)
        assert told(each, "changes") == really.changes
        assert told(each, "outcome") == really.phase
        assert told(each, "lost steps") == pytest.approx(really.lost_steps, abs=5)
        assert all(line.extrapolated for line in each.table)


def test_without_cooldowns_a_restless_load_changes_the_size_more_often() -> None:
    slow = scaling(cooldown_up_ms=300_000, cooldown_down_ms=300_000)
    grid = ran(slow, lambda _: Workload(total_steps=600, demand=((90_000, 4), (90_000, 1)), repeat=True))
    answer = asked(grid, Change(scaling_values={"cooldown_up_ms": 0, "cooldown_down_ms": 0, "reversal_ms": 0}))
    (each,) = answer.jobs
    assert told(each, "changes") > recorded(each, "changes")
    assert {setting.setting for setting in each.settings} == {
        "scaling.cooldown_up_s",
        "scaling.cooldown_down_s",
        "scaling.reversal_s",
    }
    assert answer.first_difference is not None
    assert answer.first_difference.rule == "queue_bound"
    assert answer.first_difference.recorded.endswith("(cooldown)")


def test_both_runs_are_the_same_up_to_the_first_difference() -> None:
    answer = asked(ran(), Change(scaling=scaling(cooldown_down_ms=600_000)))
    (each,) = answer.jobs
    assert answer.first_difference is not None
    assert each.extrapolated_from_ms == answer.first_difference.time_ms
    before = [change for change in each.recorded_changes if change.time_ms < answer.first_difference.time_ms]
    assert before
    assert list(each.what_if_changes[: len(before)]) == before


def test_on_another_grid_the_job_runs_where_that_grid_puts_it() -> None:
    elsewhere = (ProviderSpec(name="new", max_nodes=8, price_microdollars_per_hour=100_000),)
    answer = asked(ran(), Change(providers=elsewhere))
    (each,) = answer.jobs
    assert answer.first_difference is not None
    assert "add 1 on new" in answer.first_difference.what_if
    assert told(each, "cost") == pytest.approx(told(each, "node-hours") * 0.1, rel=0.001)
    assert told(each, "changes") == recorded(each, "changes")


def test_another_placement_policy_places_otherwise() -> None:
    answer = asked(ran(), Change(placement=PlacementPolicy(spot="forbid")))
    (each,) = answer.jobs
    assert told(each, "cost") == pytest.approx(2 * told(each, "node-hours"), rel=0.001)


def test_only_the_named_jobs_policy_changes() -> None:
    grid = ran(jobs=2)
    answer = asked(grid, Change(scaling=scaling(cooldown_down_ms=600_000), job=("demo", "job1")))
    (each,) = answer.jobs
    assert each.job == "job1"
    with pytest.raises(NotFound, match="no job demo/nobody"):
        asked(grid, Change(job=("demo", "nobody")))


def test_sizes_beyond_twice_the_largest_measured_one_are_not_told() -> None:
    shy = scaling(cooldown_up_ms=100_000_000)
    grid = ran(shy, lambda _: Workload(total_steps=400, demand=((1, 16),)), max_nodes=8)
    answer = asked(grid, Change(scaling=QUICK))
    assert "8 nodes cannot be told from measurements with at most 2" in answer.stopped
    (each,) = answer.jobs
    assert told(each, "finished after") is None
    assert each.model is not None
    assert each.model.largest_nodes == 4


def test_what_cannot_be_told_is_refused_and_says_what_is_missing() -> None:
    grid = ran()
    with pytest.raises(
        InvalidInput, match=r"no step of the job was recorded(.|\n)*what if: 0 -> 1 nodes; add 1 on new"
    ):
        what_if(grid.recorded, [], Change(providers=(ProviderSpec(name="new", max_nodes=4),)))
    with pytest.raises(NotFound, match="no job was submitted in this log"):
        what_if([], [], Change())


# --------------------------------------------------------------------------------------------------------------------
# Samples that are not all there
# --------------------------------------------------------------------------------------------------------------------


def aged(grid: SimulatedGrid, share: float) -> tuple[list[SampleMessage], SampleCoverage]:
    """The samples that are left when the oldest have aged out."""
    left = grid.samples[int(len(grid.samples) * share) :]
    return left, SampleCoverage(SampleRange(left[0].sequence - 1, left[-1].sequence))


def between(grid: SimulatedGrid, gap: SequenceGap) -> tuple[list[SampleMessage], SampleCoverage]:
    """The samples without some in the middle."""
    left = [each for each in grid.samples if not gap.after < each.sequence < (gap.before or 1 << 62)]
    return left, SampleCoverage(SampleRange(0, grid.samples[-1].sequence), (gap,))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_no_answer_is_given_for_a_time_whose_samples_have_aged_out(share: float) -> None:
    grid = ran()
    left, coverage = aged(grid, share)
    for change in (
        Change(scaling=scaling(grow_factor_ppm=4_000_000)),
        Change(scaling=scaling(cooldown_up_ms=0, cooldown_down_ms=0)),
        Change(scaling=scaling(target_queue_ppm=900_000)),
        Change(placement=PlacementPolicy(spot="forbid")),
    ):
        answer = what_if(grid.recorded, left, change, coverage=coverage)
        (each,) = answer.jobs
        (span,) = answer.untold
        assert span.from_ms < left[0].time_ms
        assert "no decision depended" not in answer.why_none
        first = answer.first_difference
        if first is None:
            assert "cannot be told" in answer.why_none
        if first is None or span.until_ms > first.time_ms:
            assert {line.what_if for line in each.table} == {None}
            assert each.model is None
            assert each.what_if_changes == ()
        for figure in ("queue time", "tokens", "lost steps"):
            assert recorded(each, figure) is None
        assert recorded(each, "cost") is not None


def test_a_difference_in_a_decision_is_found_from_the_values_that_it_carries() -> None:
    grid = ran()
    whole = asked(grid, Change(scaling=scaling(target_queue_ppm=900_000))).first_difference
    left, coverage = aged(grid, 0.9)
    answer = what_if(grid.recorded, left, Change(scaling=scaling(target_queue_ppm=900_000)), coverage=coverage)
    assert whole is not None
    assert answer.first_difference is not None
    assert answer.first_difference.after_sequence == whole.after_sequence
    assert answer.first_difference.what_if == whole.what_if
    assert "not all there" in answer.stopped


def test_behind_the_time_whose_samples_are_gone_everything_is_told_as_with_all_of_them() -> None:
    late = scaling(cooldown_down_ms=600_000)
    grid = ran()
    whole = asked(grid, Change(scaling=late))
    known = [each.event for each in grid.recorded if isinstance(each.event, Event)]
    second = next(each for each in known if isinstance(each.data, WorldDecided) and each.data.round == 2)
    assert second.basis is not None
    after = second.basis.samples_through
    left = [each for each in grid.samples if each.sequence > after]
    coverage = SampleCoverage(SampleRange(after, grid.samples[-1].sequence))
    answer = what_if(grid.recorded, left, Change(scaling=late), coverage=coverage)
    assert answer.first_difference == whole.first_difference
    assert not answer.stopped
    (each,), (in_whole,) = answer.jobs, whole.jobs
    for figure in ("changes", "cost", "finished after"):
        assert told(each, figure) == pytest.approx(told(in_whole, figure), rel=0.03)


def test_samples_that_are_missing_in_the_middle_leave_only_their_round_untold() -> None:
    grid = ran()
    middle = len(grid.samples) // 2
    gap = SequenceGap(grid.samples[middle].sequence, grid.samples[middle + 2].sequence)
    left, coverage = between(grid, gap)
    answer = what_if(grid.recorded, left, Change(scaling=scaling(grow_factor_ppm=4_000_000)), coverage=coverage)
    (span,) = answer.untold
    assert span.from_ms < grid.samples[middle + 1].time_ms < span.until_ms
    same = what_if(grid.recorded, left, Change(), coverage=coverage)
    assert same.differences == 0


# --------------------------------------------------------------------------------------------------------------------
# How the arrival of work is read
# --------------------------------------------------------------------------------------------------------------------


class Queued:
    """Items arrive by the clock and wait in a queue; each node takes 8 of them a step, which takes 800 ms.

    The job is done with the items that came in, however many steps that takes.
    """

    checkpoint_steps = 25
    total_items = 6_000

    def __init__(self, begin_ms: int = 1_750_000_030_000) -> None:
        self._begin_ms = begin_ms
        self._taken: dict[int, int] = {0: 0}
        self._last = (0, 1)

    @property
    def total_steps(self) -> int:
        step, nodes = self._last
        return step + max(-(-(self.total_items - self._taken[step]) // self.step_tokens(nodes)), 0)

    def step_tokens(self, nodes: int) -> int:
        return 8 * nodes

    def loss(self, step: int) -> float:
        return 1.0

    def _arrival_ms(self, item: int) -> int:
        """36 items a second for two minutes, then 8."""
        burst = 120 * 36
        return self._begin_ms + (item * 1_000 // 36 if item < burst else 120_000 + (item - burst) * 125)

    def step_times(self, now_ms: int, nodes: int, step: int) -> StepTimes:
        taken = self._taken[step - 1]
        self._taken[step] = taken + self.step_tokens(nodes)
        self._last = (step, nodes)
        wait_ms = max(self._arrival_ms(self._taken[step] - 1) - now_ms, 0)
        waited_ms = max(now_ms - self._arrival_ms(taken + 4 * nodes), 0)
        queue_ms = waited_ms if not wait_ms and waited_ms > 800 else 0
        return StepTimes(duration_ms=800 + wait_ms, queue_ms=queue_ms, data_wait_ms=wait_ms)


def test_work_that_queues_is_told_from_how_long_it_waited() -> None:
    options: dict[str, Any] = {"training": lambda _: Queued()}
    policy = scaling(target_tokens_per_s=None, target_step_us=4_000_000)
    late = msgspec.structs.replace(policy, cooldown_up_ms=150_000)
    grid, real = ran(policy, **options), truth(ran(late, **options))
    answer = asked(grid, Change(scaling=late))
    (each,) = answer.jobs
    really = real[each.tenant, each.job]
    assert each.model is not None
    assert each.model.demand == "backlog"
    assert "every node brings tokens of its own" in each.model.assumes
    assert told(each, "changes") == really.changes
    assert told(each, "cost") == pytest.approx(really.cost_microdollars / 1e6, rel=0.1)
    assert told(each, "queue time") == pytest.approx(really.queue_s, rel=0.15)
    # Fewer nodes take more steps for the same work: both runs are compared over as many tokens.
    assert told(each, "tokens") == pytest.approx(recorded(each, "tokens"), rel=0.01)
    assert told(each, "tokens") == pytest.approx(really.tokens, rel=0.01)
    assert told(each, "steps") == pytest.approx(really.steps, rel=0.03)
    assert told(each, "steps") > recorded(each, "steps")


def test_where_nothing_ever_waits_there_is_always_work() -> None:
    grid = ran(training=lambda _: Workload(total_steps=200, demand=((1, 1),)), max_nodes=1)
    elsewhere = (ProviderSpec(name="new", max_nodes=8, price_microdollars_per_hour=100_000),)
    (each,) = asked(grid, Change(providers=elsewhere)).jobs
    assert each.model is not None
    assert each.model.demand == "unlimited"
    assert each.model.error_ppm is None
    assert "only 1 nodes were measured, so how steps scale is a guess" in each.model.assumes
