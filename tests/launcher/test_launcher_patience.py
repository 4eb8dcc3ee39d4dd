"""What a launcher does not take for the end of a node: an engine that hangs or does not answer now and then."""

from __future__ import annotations

import time

import pytest
from launcher_bench import Bench, eventually, running

from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold
from elasticgrid.core.launching import launch_actions

DAY_MS = 86_400_000
SILENT_S = 1.0


@pytest.mark.survive("A")
@pytest.mark.server
async def test_twenty_five_status_calls_that_time_out_lose_no_node_and_each_answer_begins_the_patience_anew(
    bus_bench: Bench,
) -> None:
    bench = bus_bench
    await bench.provider("far", "module=provider_engines:Flaky")
    await bench.submit()
    await bench.place(provider="far")
    asked = bench.folder / "asked"
    async with running(bench.launcher(silent_after_s=SILENT_S)):
        await bench.handle()
        await eventually(asked.exists)
        began_s = time.monotonic()
        # Nothing is heard of its agent either: without the answers in between it would be lost after one second.
        await eventually(lambda: asked.stat().st_size >= 50 and time.monotonic() - began_s > 2 * SILENT_S)
        assert await bench.kinds() == ["requested", "started"]
        (bench.folder / "dead").touch()
        dead_s = time.monotonic()
        (lost,) = await bench.until(ev.NodeLost)
        assert lost.evidence == "silent"
        assert time.monotonic() - dead_s > SILENT_S / 2


@pytest.mark.survive("15")
async def test_a_node_whose_agent_reports_is_kept_however_long_its_creation_hangs(bench: Bench) -> None:
    await bench.provider("far", "module=provider_engines:HangsOnceStarted")
    await bench.submit()
    await bench.place(provider="far")
    async with running(bench.launcher()):
        await eventually(lambda: len(bench.processes()) == 1)
        await bench.joined("p1a1-0")
        fold = GridFold()
        async for recorded in bench.log.read():
            fold.apply(recorded)
        state = fold.job(("default", "j1"))
        assert state is not None
        assert (state.launches["p1a1"].status, state.nodes["p1a1-0"].status) == ("requested", "joined")
        for later_ms in (0, DAY_MS, 365 * DAY_MS):
            assert launch_actions(state, bench.clock.now_ms() + later_ms) == ()
        assert await bench.kinds() == ["requested"]
        (bench.folder / "gate").touch()
        await bench.handle()
        assert len(bench.processes()) == 1
    assert await bench.kinds() == ["requested", "started"]
