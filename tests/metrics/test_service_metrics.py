"""What decider and log measure of themselves: how long a decision takes, how old samples are, what appends come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from exported import FAILURES, log_of, values

from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, Conflict
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.decider.metrics import DeciderMetrics, decision_latency
from elasticgrid.decider.service import RETRY_S, Decider
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import AppendOutcome, MirroredLog
from elasticgrid.log.port import Expectation, Scope
from elasticgrid.metrics.append_metrics import append_metrics
from elasticgrid.metrics.registry import expose, new_registry
from elasticgrid.projections.log_counts import LAUNCH_BUCKETS_S
from elasticgrid.projections.rows import ViewFold
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.log_contract import a_decision, an_event
from elasticgrid.testing.samples import SampleStream


class AwayLog(MemoryLog):
    """Cannot be reached the first times that a decision is appended."""

    def __init__(self, clock: VirtualClock, times: int) -> None:
        super().__init__(clock)
        self._times = times

    async def append(self, events: Sequence[ev.Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        if events[0].basis is not None and self._times:
            self._times -= 1
            raise BusUnavailable("it is away")
        return await super().append(events, expect=expect)


def fact(number: int, data: ev.EventData, *, tenant: str = "default", job: str = "j") -> ev.Event:
    return ev.Event(id=f"fact{number}", time_ms=0, tenant=tenant, job=job, actor="test", data=data)


@asynccontextmanager
async def running(decider: Decider) -> AsyncIterator[None]:
    task = asyncio.create_task(decider.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_decisions_latency_begins_with_what_asked_for_it_and_ends_in_the_log() -> None:
    clock = VirtualClock()
    log = AwayLog(clock, 2)
    latencies: list[int] = []
    spec = ProviderSpec(name="here", max_nodes=4)
    await log.append([fact(1, ev.ProviderDeclared(provider=spec), tenant="_grid", job="fleet")])
    async with running(Decider(log, SampleStream(clock).open, clock, on_decided=latencies.append)):
        await clock.run_for(3)
        await log.append([fact(2, ev.JobSubmitted(spec=JobSpec(name="j", command=("x",))))])
        await clock.run_for(3)
        assert len(latencies) == 1
        assert latencies[0] == pytest.approx(2 * RETRY_S * 1000, abs=10)
        await clock.run_for(30)
        assert len(latencies) == 1


async def test_looking_at_every_job_is_told_and_so_is_how_far_the_log_was_read() -> None:
    clock = VirtualClock()
    log = await log_of(FAILURES, clock, first=40)
    decider = Decider(log, SampleStream(clock).open, clock)
    registry = new_registry()
    decision_latency(registry)
    registry.register(DeciderMetrics(lambda: decider.stats, clock.now_ms))
    async with running(decider):
        await clock.run_for(5)
        told = expose(registry).body.decode()
        ticked = values(told, "elasticgrid_decider_last_tick_timestamp_seconds")[()]
        assert 0 <= clock.now_ms() / 1000 - ticked <= 2
        assert values(told, "elasticgrid_decider_sequence")[()] == await log.last_sequence()
        assert values(told, "elasticgrid_decider_stopped_jobs")[()] == 0


async def test_the_sample_age_is_that_of_the_job_that_is_silent_the_longest() -> None:
    clock = VirtualClock()
    log = await log_of(FAILURES, clock, first=60)
    decider = Decider(log, SampleStream(clock).open, clock)
    registry = new_registry()
    registry.register(DeciderMetrics(lambda: decider.stats, clock.now_ms))

    def age() -> float:
        return values(expose(registry).body.decode(), "elasticgrid_sample_age_seconds")[()]

    async with running(decider):
        await clock.run_for(2)
        active = [job.round_active_ms for job in decider.grid.jobs() if job.round_active_ms and job.phase == "running"]
        assert active
        assert age() == pytest.approx((clock.now_ms() - min(active)) / 1000)
        before = age()
        await clock.run_for(100)
        assert age() == pytest.approx(before + 100, abs=1)


async def test_a_grid_that_trains_nothing_has_no_old_samples() -> None:
    clock = VirtualClock()
    decider = Decider(MemoryLog(clock), SampleStream(clock).open, clock)
    assert decider.stats.oldest_sample_ms is None


async def test_appends_are_told_by_writer_and_outcome(tmp_path: Path) -> None:
    clock = VirtualClock()
    told: list[tuple[str, AppendOutcome]] = []
    registry = new_registry()
    remember = append_metrics(registry)

    def note(writer: str, outcome: AppendOutcome, duration_s: float) -> None:
        assert duration_s >= 0
        told.append((writer, outcome))
        remember(writer, outcome, duration_s)

    decisions = Scope("acme", "j1", "decision")
    async with await Mirror.open(tmp_path / "mirror.sqlite") as mirror:
        log = MirroredLog(AwayLog(clock, 0), mirror, on_append=note)
        await log.append([an_event(1)])
        await log.append([a_decision(2)], expect=Expectation(decisions, 0))
        with pytest.raises(Conflict):
            await log.append([a_decision(3)], expect=Expectation(decisions, 0))
    assert told == [("node", "appended"), ("decision", "appended"), ("decision", "conflict")]
    counted = values(expose(registry).body.decode(), "elasticgrid_append_duration_seconds_count")
    assert counted == {("appended", "node"): 1, ("appended", "decision"): 1, ("conflict", "decision"): 1}


async def test_launch_times_are_those_from_intent_to_start() -> None:
    fold = ViewFold()
    requested: dict[str, int] = {}
    seconds: list[float] = []
    log = await log_of(FAILURES, VirtualClock())
    async for recorded in log.read():
        fold.apply(recorded)
        data = recorded.event.data if isinstance(recorded.event, ev.Event) else None
        if isinstance(data, ev.LaunchRequested):
            requested[f"{recorded.event.job}/{data.attempt}"] = recorded.recorded_ms
        elif isinstance(data, ev.LaunchStarted):
            seconds.append((recorded.recorded_ms - requested[f"{recorded.event.job}/{data.attempt}"]) / 1000)
    assert seconds
    assert sum(fold.counts.launch_seconds) == len(seconds)
    assert fold.counts.launch_seconds_sum == pytest.approx(sum(seconds))
    for place, bound in enumerate(LAUNCH_BUCKETS_S, 1):
        assert sum(fold.counts.launch_seconds[:place]) == sum(each <= bound for each in seconds)
