"""The demonstration under chaos: its job is trained while every part of the grid is killed, one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from elasticgrid.core.errors import ServerStartFailed
from elasticgrid.demo.chaos_plan import GAP_S, PlannedKill, chaos_plan
from elasticgrid.demo.example import prepare
from elasticgrid.demo.look_back import keep, look_back
from elasticgrid.demo.progress import Progress
from elasticgrid.demo.report import ChaosResult, Kill, judge_chaos
from elasticgrid.demo.view import View
from elasticgrid.demo.watch import TENANT, submit, watch
from elasticgrid.runtime.run_processes import find_run
from elasticgrid.runtime.supervised_grid import SupervisedGrid

#: Longer than the bus needs to come back; agents of a run that was killed end by themselves.
ORPHAN_TIMEOUT_S: Final = 30.0
#: The job takes a minute and a half; after this it is given up.
TIMEOUT_S: Final = 300.0
#: What a killed worker costs must be within the job's budget.
MIN_RESTARTS: Final = 3
#: How long what ended last may take to be gone from the list of processes.
GONE_S: Final = 3.0
_LOOK_S: Final = 0.1


async def run_chaos(
    data_dir: Path,
    console: Console,
    seed: int,
    *,
    nats_server: str | None = None,
    example: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ChaosResult:
    """Run it and return its result.

    Args:
        data_dir: a folder of this run's own.
        console: where progress and the timeline go.
        seed: what says which part is killed when.
        nats_server: another nats-server binary than the installed one.
        example: a folder with a `job.yaml` and a `grid.yaml` to show instead of the example's.
        timeout_s: how long the job may take.

    Raises:
        InvalidInput, NotFound: the files of `example` are wrong or not there.
        CannotPlace: the grid can never run the job.
        RunFailed: the job was refused for another reason, or did not end in time.
        ServerStartFailed: the bus or a service does not start.
    """
    began = time.monotonic()
    folder, spec = prepare(example, data_dir)
    spec = msgspec.structs.replace(spec, max_restarts=max(spec.max_restarts, MIN_RESTARTS))
    archive = data_dir / "demo.egz"
    plan = chaos_plan(seed)
    kills: list[Kill] = []
    grid = SupervisedGrid(data_dir, folder / "grid.yaml", nats_server=nats_server, orphan_timeout_s=ORPHAN_TIMEOUT_S)
    try:
        async with grid:
            key = (TENANT, await submit(grid, spec))
            view = View(key)
            with Progress(console, view) as progress:
                progress.note(f"bus, decider, launcher and gateway run ({grid.url})")
                progress.note(f"job {key[1]} is submitted")
                await watch(grid, view, progress, timeout_s, meanwhile=[_kill_all(grid, plan, kills, progress)])
            await grid.bus.wait_running()
            await keep(grid, archive)
    finally:
        orphans = await _orphans(grid.mark)
        for pid in orphans:
            _kill(pid)
    return judge_chaos(
        look_back(console, archive, view, began),
        seed=seed,
        planned=len(plan),
        kills=tuple(kills),
        orphans=len(orphans),
    )


async def _kill_all(grid: SupervisedGrid, plan: Iterable[PlannedKill], kills: list[Kill], progress: Progress) -> None:
    """Do every kill of the plan at its time, or as soon as after that there is something to kill."""
    began = time.monotonic()
    earliest_s = 0.0
    for planned in plan:
        await asyncio.sleep(max(planned.at_s, earliest_s) - (time.monotonic() - began))
        while (pid := await _kill_one(grid, planned)) is None:  # noqa: ASYNC110 - nothing tells of a new process
            await asyncio.sleep(_LOOK_S)
        at_s = time.monotonic() - began
        earliest_s = at_s + GAP_S
        kills.append(Kill(at_s=round(at_s, 2), what=planned.what, pid=pid))
        progress.note(f"killed the {planned.what}, process {pid}")


async def _kill_one(grid: SupervisedGrid, planned: PlannedKill) -> int | None:
    """kill -9; the process that was killed, None when nothing of that kind runs now."""
    what = planned.what
    if what in ("decider", "launcher", "gateway"):
        return grid.kill(what)
    if what == "bus":
        try:
            pid = grid.bus.pid
        except ServerStartFailed:
            return None
        await grid.bus.kill()
        return pid
    running = await asyncio.to_thread(grid.processes)
    agents = [process for process in running if process.is_agent]
    numbers = {process.pid for process in agents}
    found = agents if what == "agent" else [process for process in running if process.parent in numbers]
    found = found if what == "agent" else [process for process in found if process.is_worker]
    if not found:
        return None
    chosen = found[int(planned.pick * len(found))]
    return chosen.pid if _kill(chosen.pid) else None


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


async def _orphans(mark: str) -> list[int]:
    """What of the run still runs, after a moment for what is just ending."""
    deadline = time.monotonic() + GONE_S
    while True:
        found = [process.pid for process in await asyncio.to_thread(find_run, mark)]
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(_LOOK_S)
