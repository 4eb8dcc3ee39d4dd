"""Logs to look at, made by the simulation: one that looks like a working day, and one of many jobs.

As a program it serves one of them until its standard input is closed, and prints where.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable
from elasticgrid.core.names import FLEET, GRID_TENANT
from elasticgrid.core.spec import JobSpec, PlacementPolicy, ProviderSpec, ScalingPolicy
from elasticgrid.gateway.server import serve_gateway
from elasticgrid.gateway.service import open_gateway
from elasticgrid.log.memory import MemoryLog
from elasticgrid.logs import configure_logging
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

MINUTE_MS: Final = 60_000
START_MS: Final = 1_750_000_000_000
NASTY: Final = "<img src=x onerror=\"document.title='owned'\">"

PROVIDERS: Final = (
    ProviderSpec(name="aws-spot", max_nodes=8, market="spot", price_microdollars_per_hour=920_000),
    ProviderSpec(name="gcp-spot", max_nodes=4, market="spot", price_microdollars_per_hour=1_050_000),
    ProviderSpec(name="aws-steady", max_nodes=12, price_microdollars_per_hour=3_060_000),
)
POLICY: Final = ScalingPolicy(
    cooldown_up_ms=90_000,
    cooldown_down_ms=180_000,
    reversal_ms=120_000,
    target_tokens_per_s=60_000,
    default_restart_ms=20_000,
    min_evidence_ms=20_000,
    max_restart_ppm=1_000_000,
    max_changes_per_hour=30,
)


def spec(name: str, **changes: Any) -> JobSpec:
    made = JobSpec(
        name=name,
        command=("python", "train.py"),
        min_nodes=1,
        max_nodes=8,
        max_restarts=2,
        grace_ms=10_000,
        join_timeout_ms=120_000,
        scaling=POLICY,
    )
    return msgspec.structs.replace(made, **changes)


@cache
def a_day() -> SimulatedGrid:
    """Four jobs: one runs and has lost a node, one is done, one failed, one is called as no job should be."""
    grid = SimulatedGrid(PROVIDERS, start_ms=START_MS)
    grid.fail_launches("aws-spot", "stockout", f"no capacity in eu-west-1a {NASTY}", times=1)
    phases = ((4 * MINUTE_MS, 2), (9 * MINUTE_MS, 6), (8 * MINUTE_MS, 3), (1, 5))
    llama = grid.submit(
        spec("llama-finetune-k3x9", min_nodes=2, deadline_ms=START_MS + 75 * MINUTE_MS),
        Workload(total_steps=6_000, step_ms=2_400, demand=phases, tokens_per_step=262_144),
        tenant="research",
    )
    grid.advance(2 * MINUTE_MS)
    short = Workload(total_steps=260, step_ms=3_000, demand=((1, 2),))
    grid.submit(spec("tokenizer-ablation-2b7q", max_nodes=3), short, tenant="research")
    grid.advance(3 * MINUTE_MS)
    broken = grid.submit(
        spec("vision-sweep-77d1", max_nodes=2, max_restarts=1), Workload(total_steps=4_000), tenant="vision"
    )
    grid.at(2 * MINUTE_MS, lambda: grid.fail_worker(broken, code=1))
    grid.at(5 * MINUTE_MS, lambda: grid.fail_worker(broken, code=1))
    grid.at(11 * MINUTE_MS, lambda: grid.lose_node(llama))
    grid.advance(14 * MINUTE_MS)
    placed = PlacementPolicy(spot="forbid")
    grid.submit(
        spec("reward-model-p0aa", max_nodes=4, placement=placed),
        Workload(total_steps=9_000, step_ms=5_000, demand=((3 * MINUTE_MS, 2), (1, 4))),
        tenant="vision",
    )
    grid.append((GRID_TENANT, FLEET), ev.ProviderCordoned(name="gcp-spot", reason=NASTY), actor="key:simulated")
    grid.advance(16 * MINUTE_MS)
    return grid


def many(jobs: int) -> Iterator[tuple[int, ev.Event]]:
    """(when, event) of so many jobs: the jobs of `a_day` under other names, begun one after the other."""
    day = a_day().recorded
    grid_facts = [(each.recorded_ms, each.event) for each in day if each.event.tenant == GRID_TENANT]
    by_job: dict[tuple[str, str], list[ev.Recorded]] = {}
    for each in day:
        if each.event.tenant != GRID_TENANT:
            by_job.setdefault((each.event.tenant, each.event.job), []).append(each)
    originals = list(by_job.values())
    copies = (_copy(originals[number % len(originals)], number) for number in range(jobs))
    for when, event in heapq.merge(grid_facts, *copies, key=lambda each: each[0]):
        assert isinstance(event, ev.Event)
        yield when, event


def _copy(original: list[ev.Recorded], number: int) -> Iterator[tuple[int, ev.Event]]:
    later_ms = number * 2_000
    name = f"{original[0].event.job.rsplit('-', 1)[0]}-{number:04d}"
    for each in original:
        event = each.event
        assert isinstance(event, ev.Event)
        data = event.data
        if isinstance(data, ev.JobSubmitted):
            data = msgspec.structs.replace(data, spec=msgspec.structs.replace(data.spec, name=name))
        yield (
            each.recorded_ms + later_ms,
            msgspec.structs.replace(
                event,
                id=f"{event.id}-{number}",
                time_ms=event.time_ms + later_ms,
                job=name,
                causation_id=f"{event.causation_id}-{number}" if event.causation_id else "",
                correlation_id=f"{event.correlation_id}-{number}" if event.correlation_id else "",
                data=data,
            ),
        )


async def serve(facts: Iterable[tuple[int, ev.Event]], folder: Path) -> None:
    """Serve a gateway over these events until standard input ends; the clock stands at the last of them."""
    clock = VirtualClock(START_MS - 1)
    log = MemoryLog(clock)
    for when_ms, event in facts:
        clock.advance(max(when_ms - clock.now_ms(), 0) / 1_000)
        await log.append([event])
    async with open_gateway(log, folder, clock=clock) as gateway:
        while True:
            with contextlib.suppress(BusUnavailable):  # that only says that it takes long
                await gateway.caught_up()
                break
        async with await serve_gateway(gateway) as server:
            said = {"url": server.url, "key": gateway.key_file.read_text().strip(), "events": await log.last_sequence()}
            sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    configure_logging(level="error")
    wanted, where = sys.argv[1:]
    day = ((each.recorded_ms, each.event) for each in a_day().recorded)
    asyncio.run(serve(day if wanted == "day" else many(int(wanted)), Path(where)))  # type: ignore[arg-type] # all are events
