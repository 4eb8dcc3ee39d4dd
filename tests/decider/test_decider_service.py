"""The decider as a service: it decides once, alone or beside another, and nothing on the bus can stop it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.errors import LogDiverged
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.decider.service import Decider
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Expectation, Scope
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.samples import SampleStream


class Bench:
    """A log, a samples stream and a clock, with the facts of a small grid."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log = MemoryLog(self.clock)
        self.samples = SampleStream(self.clock)
        self._facts = 0

    async def fact(self, data: ev.EventData, *, tenant: str = "default", job: str = "j1") -> None:
        self._facts += 1
        event = ev.Event(
            id=f"fact{self._facts}", time_ms=self.clock.now_ms(), tenant=tenant, job=job, actor="test", data=data
        )
        await self.log.append([event])

    async def provider(self, nodes: int = 4) -> None:
        spec = ProviderSpec(name="local", max_nodes=nodes, price_microdollars_per_hour=1_000_000)
        await self.fact(ev.ProviderDeclared(provider=spec), tenant="_grid", job="fleet")

    async def submit(self, job: str = "j1") -> None:
        scaling = ScalingPolicy(min_evidence_ms=0, warmup_steps=0)
        spec = JobSpec(name=job, command=("train",), min_nodes=1, max_nodes=4, scaling=scaling)
        await self.fact(ev.JobSubmitted(spec=spec), job=job)

    def decider(self) -> Decider:
        return Decider(self.log, self.samples.open, self.clock)

    async def decisions(self, job: str = "j1") -> list[ev.EventData]:
        scope = Scope("default", job, "decision")
        return [r.event.data async for r in self.log.read(scope=scope) if isinstance(r.event, ev.Event)]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


@contextlib.asynccontextmanager
async def running(*deciders: Decider) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(decider.run()) for decider in deciders]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_submitted_job_is_sized_and_placed_in_one_batch(bench: Bench) -> None:
    await bench.provider()
    async with running(bench.decider()):
        await bench.submit()
        await bench.clock.run_for(2)
    scale, placement = await bench.decisions()
    assert isinstance(scale, ev.ScaleDecided)
    assert (scale.action, scale.target_nodes) == ("up", 1)
    assert isinstance(placement, ev.PlacementDecided)
    assert placement.placed_nodes == 1


async def test_a_job_that_was_there_before_the_decider_is_decided_on(bench: Bench) -> None:
    await bench.provider()
    await bench.submit()
    async with running(bench.decider()):
        await bench.clock.run_for(2)
    assert len(await bench.decisions()) == 2


async def test_two_deciders_take_each_decision_once(bench: Bench) -> None:
    await bench.provider()
    first, second = bench.decider(), bench.decider()
    async with running(first, second):
        for number in range(10):
            await bench.submit(f"j{number}")
        await bench.clock.run_for(5)
    for number in range(10):
        events = [r.event async for r in bench.log.read(scope=Scope("default", f"j{number}", "decision"))]
        numbers = [e.basis.number for e in events if isinstance(e, ev.Event) and e.basis is not None]
        types = [(e.basis.number, ev.type_of(e.data)) for e in events if isinstance(e, ev.Event) and e.basis]
        assert numbers == [1, 1]
        assert len(set(types)) == len(types)
    assert first.stats.broken_jobs == second.stats.broken_jobs == 0


async def test_two_jobs_submitted_at_once_do_not_take_the_same_nodes(bench: Bench) -> None:
    await bench.provider(nodes=1)
    async with running(bench.decider()):
        await bench.submit("j1")
        await bench.submit("j2")
        await bench.clock.run_for(5)
    placed = [
        data.placed_nodes
        for job in ("j1", "j2")
        for data in await bench.decisions(job)
        if isinstance(data, ev.PlacementDecided)
    ]
    assert sorted(placed) == [0, 1]


async def test_what_cannot_be_placed_waits_and_is_said_once(bench: Bench) -> None:
    await bench.provider(nodes=0)
    async with running(bench.decider()):
        await bench.submit()
        await bench.clock.run_for(30)
        waiting = await bench.decisions()
        await bench.provider(nodes=4)
        await bench.clock.run_for(2)
    assert [type(data) for data in waiting] == [ev.ScaleDecided, ev.PlacementDecided]
    assert isinstance(waiting[1], ev.PlacementDecided)
    assert "local" in waiting[1].waiting
    placed = (await bench.decisions())[-1]
    assert isinstance(placed, ev.PlacementDecided)
    assert placed.placed_nodes == 1


async def test_garbage_among_the_samples_is_counted_and_stalls_nobody(bench: Bench) -> None:
    await bench.provider()
    decider = bench.decider()
    async with running(decider):
        bench.samples.publish_raw("grid.samples.default.j1.0", b"\xff garbage")
        bench.samples.publish_raw("some.other.subject", b"")
        bench.samples.publish_raw("grid.samples.default.nobody.0", b"{}")
        await bench.submit()
        await bench.clock.run_for(2)
    assert len(await bench.decisions()) == 2
    assert decider.stats.refused == {"undecodable": 2}


class UntrustedLog(MemoryLog):
    """A log that was found to differ from its mirror."""

    async def append(self, events: Sequence[ev.Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        if events[0].actor == "decider":
            raise LogDiverged("the stream ends before the mirror")
        return await super().append(events, expect=expect)


async def test_a_log_that_cannot_be_trusted_ends_the_decider_with_that_error(bench: Bench) -> None:
    bench.log = UntrustedLog(bench.clock)
    await bench.provider()
    await bench.submit()
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(bench.decider().run(), 5)
    assert raised.group_contains(LogDiverged)


async def test_a_cancelled_job_that_has_nothing_ends_at_once(bench: Bench) -> None:
    await bench.provider(nodes=0)
    async with running(bench.decider()):
        await bench.submit()
        await bench.clock.run_for(1)
        await bench.fact(ev.JobCancelRequested(reason="not needed"))
        await bench.clock.run_for(2)
    outcome = (await bench.decisions())[-1]
    assert isinstance(outcome, ev.OutcomeDecided)
    assert (outcome.outcome, outcome.reason) == ("cancelled", "not needed")
