"""A server that crashes loses samples that were read already: windows then hold what the stream holds."""

from __future__ import annotations

import asyncio

from elasticgrid.core import events as ev
from elasticgrid.core.samples import StepSample
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.decider.service import Decider
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.samples import SampleStream


async def test_samples_that_were_lost_and_sent_again_count_once() -> None:
    clock = VirtualClock()
    log, stream = MemoryLog(clock), SampleStream(clock)

    async def fact(number: int, data: ev.EventData, tenant: str = "default", job: str = "j1") -> None:
        await log.append(
            [ev.Event(id=f"f{number}", time_ms=clock.now_ms(), tenant=tenant, job=job, actor="test", data=data)]
        )

    def step(number: int) -> None:
        sample = StepSample(number - 1, number, 1.0, 0.0, 0.0, 8, 1, clock.now_ms())
        stream.publish("default", "j1", 1, 0, [sample])

    decider = Decider(log, stream.open, clock)
    running = asyncio.create_task(decider.run())
    try:
        await fact(1, ev.ProviderDeclared(provider=ProviderSpec(name="local", max_nodes=2)), "_grid", "fleet")
        scaling = ScalingPolicy(min_evidence_ms=0, warmup_steps=0, min_samples=6)
        await fact(2, ev.JobSubmitted(spec=JobSpec(name="j1", command=("train",), max_nodes=2, scaling=scaling)))
        await clock.run_for(1)
        await fact(
            3,
            ev.LaunchRequested(
                attempt="p1a1",
                assignment="p1a1",
                provider="local",
                engine="local",
                nodes=1,
                node_ids=("p1a1-0",),
                price_microdollars_per_hour=0,
            ),
        )
        await fact(4, ev.LaunchStarted(attempt="p1a1", handle="h"))
        await fact(5, ev.NodeJoined(node="p1a1-0", attempt="p1a1", provider="local", host="host", free_port=1, pid=1))
        await clock.run_for(1)
        await fact(6, ev.NodeStarted(node="p1a1-0", round=1, step=1))
        for number in range(1, 5):
            step(number)
            await clock.run_for(1)
        stream.cut(2)
        for number in range(3, 9):  # what had not been acknowledged is sent again
            step(number)
            await clock.run_for(1)
        decided = [r.event async for r in log.read(scope=Scope("default", "j1", "decision"))]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    last = decided[-1]
    assert isinstance(last, ev.Event)
    assert isinstance(last.data, ev.ScaleDecided)
    assert last.basis is not None
    signals = last.data.signals
    assert (signals.dropped, signals.round_steps, signals.last_step) == (0, 6, 6)
    assert last.basis.samples_through == 6
