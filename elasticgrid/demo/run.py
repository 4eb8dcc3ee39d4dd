"""The demonstration's course: a control plane, a job under a changing load, and the verification of what it left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from elasticgrid.bus.connect import BusAddress
from elasticgrid.config.grid_file import read_grid
from elasticgrid.demo.example import prepare
from elasticgrid.demo.look_back import keep, look_back
from elasticgrid.demo.progress import Progress
from elasticgrid.demo.report import DemoResult, judge
from elasticgrid.demo.view import View
from elasticgrid.demo.watch import TENANT, submit, watch
from elasticgrid.marked_processes import find_marked, send_signal
from elasticgrid.runtime.control_plane import ControlPlane
from elasticgrid.runtime.node_bus import NodeBus

#: Agents of a demonstration whose control plane was killed end by themselves.
ORPHAN_TIMEOUT_S: Final = 10.0
#: The job takes about a minute; after this it is given up.
TIMEOUT_S: Final = 240.0


async def run_demo(
    data_dir: Path,
    console: Console,
    *,
    nats_server: str | None = None,
    bus: BusAddress | None = None,
    node: NodeBus | None = None,
    example: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> DemoResult:
    """Run it and return its result.

    Args:
        data_dir: a folder of this run's own.
        console: where progress and the timeline go.
        nats_server: another nats-server binary than the installed one.
        bus: a bus that runs already.
        node: with `bus`, how agents get there.
        example: a folder with a `job.yaml` and a `grid.yaml` to show instead of the example's.
        timeout_s: how long the job may take.

    Raises:
        InvalidInput, NotFound: the files of `example` are wrong or not there.
        CannotPlace: the grid can never run the job.
        RunFailed: the job was refused for another reason, or did not end in time.
        ServerStartFailed, BusUnavailable: there is no bus.
    """
    began = time.monotonic()
    folder, spec = prepare(example, data_dir)
    archive = data_dir / "demo.egz"
    plane = ControlPlane(
        data_dir,
        read_grid(folder / "grid.yaml"),
        nats_server=nats_server,
        bus=bus,
        node=node,
        orphan_timeout_s=ORPHAN_TIMEOUT_S,
    )
    try:
        async with plane:
            key = (TENANT, await submit(plane, spec))
            view = View(key)
            with Progress(console, view) as progress:
                progress.note(f"the bus and the gateway run ({plane.url})")
                progress.note(f"job {key[1]} is submitted")
                await watch(plane, view, progress, timeout_s)
            await keep(plane, archive)
    finally:
        _kill_remains(plane.data_dir)
    return judge(look_back(console, archive, view, began))


def _kill_remains(data_dir: Path) -> None:
    """Kill what still runs of any launch; after a job that ended well there is nothing."""
    launches = data_dir / "launches"
    for launch in os.listdir(launches) if launches.is_dir() else ():
        send_signal(find_marked(launch), launch, signal.SIGKILL)
