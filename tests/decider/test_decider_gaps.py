"""The decider puts gaps on record by itself, by samples that it has all read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.samples import StepSample
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.decider.service import Decider
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.samples import SampleStream

SILENT_S = 600
JOB = ("default", "j1")


class Bench:
    """A log with one job that trains on one node, and its samples."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log, self.stream = MemoryLog(self.clock), SampleStream(self.clock)
        self.step = 0
        self._facts = 0
        self._running: asyncio.Task[None] | None = None

    def start_decider(self) -> None:
        self._running = asyncio.create_task(Decider(self.log, self.stream.open, self.clock).run())

    async def stop_decider(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def fact(self, data: ev.EventData, tenant: str = JOB[0], job: str = JOB[1]) -> None:
        self._facts += 1
        event = ev.Event(
            id=f"f{self._facts}", time_ms=self.clock.now_ms(), tenant=tenant, job=job, actor="test", data=data
        )
        await self.log.append([event])

    def report(self, steps: int) -> None:
        """Samples of so many steps of a second each arrive now, in one message for each."""
        for _ in range(steps):
            self.step += 1
            sample = StepSample(self.step - 1, self.step, 1.0, 0.0, 0.0, 8, 1, self.clock.now_ms())
            self.stream.publish(*JOB, 1, 0, [sample])

    async def train(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.clock.run_for(1)
            self.report(1)
        await self.clock.run_for(0.1)

    async def begin(self) -> None:
        provider = ProviderSpec(name="local", max_nodes=2)
        await self.fact(ev.ProviderDeclared(provider=provider), "_grid", "fleet")
        scaling = ScalingPolicy(min_evidence_ms=5_000)
        await self.fact(ev.JobSubmitted(spec=JobSpec(name="j1", command=("train",), max_nodes=2, scaling=scaling)))
        await self.clock.run_for(1)
        await self.fact(
            ev.LaunchRequested(
                attempt="p1a1",
                assignment="p1a1",
                provider="local",
                engine="local",
                nodes=1,
                node_ids=("p1a1-0",),
                price_microdollars_per_hour=0,
            )
        )
        await self.fact(ev.LaunchStarted(attempt="p1a1", handle="h"))
        joined = ev.NodeJoined(node="p1a1-0", attempt="p1a1", provider="local", host="host", free_port=1, pid=1)
        await self.fact(joined)
        await self.clock.run_for(1)
        await self.fact(ev.NodeStarted(node="p1a1-0", round=1, step=1))
        await self.train(20)

    async def gaps(self) -> list[tuple[int, ev.GapDecided]]:
        """Gaps on record, each with when it was recorded."""
        events = [(each.recorded_ms, each.event) async for each in self.log.read(scope=Scope(*JOB, "decision"))]
        return [
            (recorded_ms, event.data)
            for recorded_ms, event in events
            if isinstance(event, ev.Event) and isinstance(event.data, ev.GapDecided)
        ]


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    """A bench whose decider runs."""
    made = Bench()
    made.start_decider()
    await made.begin()
    yield made
    await made.stop_decider()


async def test_a_gap_is_on_record_when_time_has_shown_its_cause_though_no_further_sample_comes(bench: Bench) -> None:
    await bench.clock.run_for(SILENT_S)
    bench.report(SILENT_S)
    came_ms = bench.clock.now_ms()
    await bench.clock.run_for(9)
    assert await bench.gaps() == []
    await bench.clock.run_for(2)
    ((recorded_ms, gap),) = await bench.gaps()
    assert (gap.cause, gap.until_ms, gap.steps, gap.work_us) == ("late", came_ms, SILENT_S, SILENT_S * 1_000_000)
    assert 10_000 < recorded_ms - came_ms <= 11_000
    await bench.train(60)
    assert len(await bench.gaps()) == 1


async def test_a_decider_that_comes_back_behind_a_gap_judges_it_by_all_samples_of_then(bench: Bench) -> None:
    """Reading them takes a while, in which it knows of the first ones only, long after they came."""
    await bench.clock.run_for(SILENT_S)
    await bench.stop_decider()
    bench.report(SILENT_S)
    await bench.train(120)
    bench.start_decider()
    await bench.train(5)
    ((_, gap),) = await bench.gaps()
    assert gap.cause == "late"
    assert gap.steps >= SILENT_S


async def test_a_decider_that_begins_anew_records_no_gap_twice(bench: Bench) -> None:
    await bench.clock.run_for(SILENT_S)
    await bench.train(30)
    before = await bench.gaps()
    assert [gap.cause for _, gap in before] == ["unknown"]
    await bench.stop_decider()
    bench.start_decider()
    await bench.train(30)
    assert await bench.gaps() == before
