"""The demonstration's course: a control plane, a job under a changing load, and the verification of what it left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import structlog
from nats.aio.client import Client
from rich.console import Console
from rich.text import Text

from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.config.grid_file import read_grid
from elasticgrid.config.job_file import read_job
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, CannotPlace, NotFound, RunFailed
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.spec import JobSpec
from elasticgrid.demo.example import example_folder
from elasticgrid.demo.progress import Progress
from elasticgrid.demo.report import DemoResult, judge
from elasticgrid.demo.view import View
from elasticgrid.launcher.engines.marked_processes import find_marked, send_signal
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples
from elasticgrid.log.export import export_archive
from elasticgrid.log.port import Scope
from elasticgrid.review.summary import summarise
from elasticgrid.review.timeline import TimelineFilter, timeline
from elasticgrid.review.verify import verify_archive
from elasticgrid.runtime.control_plane import ControlPlane

_log = structlog.get_logger("demo")

TENANT = "default"
#: Agents of a demonstration whose control plane was killed end by themselves.
ORPHAN_TIMEOUT_S = 10.0
#: The job takes about a minute; after this it is given up.
TIMEOUT_S = 240.0
#: How long the job of a demonstration that ends early gets to end by itself before it is killed.
CANCEL_S = 10.0
REFRESH_S = 0.25


async def run_demo(
    data_dir: Path,
    console: Console,
    *,
    nats_server: str | None = None,
    bus: BusAddress | None = None,
    node_credentials: str = "",
    example: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> DemoResult:
    """Run it and return its result.

    Args:
        data_dir: a folder of this run's own.
        console: where progress and the timeline go.
        nats_server: another nats-server binary than the installed one.
        bus: a bus that runs already.
        node_credentials: with `bus`, the credential file that agents get.
        example: a folder with a `job.yaml` and a `grid.yaml` to show instead of the example's.
        timeout_s: how long the job may take.

    Raises:
        InvalidInput, NotFound: the files of `example` are wrong or not there.
        CannotPlace: the grid can never run the job.
        RunFailed: the job was refused for another reason, or did not end in time.
        ServerStartFailed, BusUnavailable: there is no bus.
    """
    began = time.monotonic()
    folder = data_dir / "example"
    _copy(example if example is not None else example_folder(), folder)
    spec = read_job(folder / "job.yaml", submitted_ms=time.time_ns() // 1_000_000)
    archive = data_dir / "demo.egz"
    plane = ControlPlane(
        data_dir,
        read_grid(folder / "grid.yaml"),
        nats_server=nats_server,
        bus=bus,
        node_credentials=node_credentials,
        orphan_timeout_s=ORPHAN_TIMEOUT_S,
    )
    try:
        async with plane:
            key = (TENANT, await _submit(plane, spec))
            view = View(key)
            with Progress(console, view, _steps_of(spec)) as progress:
                progress.note(f"the bus and the gateway run ({plane.url})")
                progress.note(f"job {key[1]} is submitted")
                await _watch(plane, view, progress, timeout_s)
            await export_archive(
                plane.log, plane.client, archive, created_ms=time.time_ns() // 1_000_000, with_samples=True
            )
    finally:
        _kill_remains(plane.data_dir)
    _print_timeline(console, archive, key)
    report = verify_archive(archive)
    summary = summarise(ArchivedEvents(archive), ArchivedSamples(archive), job=key)
    state = view.job
    assert state is not None
    return judge(
        summary,
        report,
        published=state.samples_published,
        dropped=state.samples_dropped,
        duration_s=time.monotonic() - began,
        archive=archive,
    )


def _copy(source: Path, folder: Path) -> None:
    """The example's files, readable for this user alone whatever they were before."""
    if not source.is_dir():
        raise NotFound("there is no such folder", where=str(source))
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)


def _steps_of(spec: JobSpec) -> int:
    """How many steps the example trains, for the progress bar."""
    words = list(spec.command)
    return int(words[words.index("--steps") + 1]) if "--steps" in words else 0


async def _submit(plane: ControlPlane, spec: JobSpec) -> str:
    headers = {"X-API-Key": plane.key_file.read_text().strip()}
    async with httpx.AsyncClient(base_url=plane.url, headers=headers, timeout=30.0, trust_env=False) as http:
        answer = await http.post("/v1/jobs", content=msgspec.json.encode(spec))
    said = answer.json()
    if answer.is_error:
        kind = CannotPlace if said.get("code") == CannotPlace.code else RunFailed
        raise kind(f"the job was refused: {said.get('detail')}", where=said.get("where", ""), hint=said.get("hint", ""))
    return str(said["job"]["id"])


async def _cancel(plane: ControlPlane, key: JobKey) -> None:
    """End the job and wait until nothing of it runs, but not for long."""
    headers = {"X-API-Key": plane.key_file.read_text().strip()}
    try:
        async with asyncio.timeout(CANCEL_S):
            async with httpx.AsyncClient(base_url=plane.url, headers=headers, trust_env=False) as http:
                await http.delete(f"/v1/jobs/{key[1]}", params={"reason": "the demonstration was ended"})
            async for recorded in plane.log.follow(scope=Scope(*key)):
                if isinstance(recorded.event, ev.Event) and isinstance(recorded.event.data, ev.OutcomeDecided):
                    return
    except (TimeoutError, httpx.HTTPError, BusUnavailable) as error:
        _log.warning("the job did not end by itself", job=key[1], error=str(error))


def _kill_remains(data_dir: Path) -> None:
    """Kill what still runs of any launch; after a job that ended well there is nothing."""
    launches = data_dir / "launches"
    for launch in os.listdir(launches) if launches.is_dir() else ():
        send_signal(find_marked(launch), launch, signal.SIGKILL)


async def _watch(plane: ControlPlane, view: View, progress: Progress, timeout_s: float) -> None:
    """Show the job's course until it is over; on any other end of the watch the job is ended too."""
    tasks = [
        asyncio.create_task(_follow_events(plane, view, progress), name="demo-events"),
        asyncio.create_task(_follow_samples(plane.client, view), name="demo-samples"),
        asyncio.create_task(_refresh(progress), name="demo-progress"),
        asyncio.create_task(plane.wait(), name="demo-services"),
    ]
    over = tasks[0]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if over not in done:
            raise RunFailed(f"the job was not over after {timeout_s:.0f} s", hint=f"see {plane.data_dir}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        state = view.job
        if (state is None or not state.terminal) and not tasks[-1].done():
            progress.note("ending the job ...")
            await _cancel(plane, view.key)


async def _follow_events(plane: ControlPlane, view: View, progress: Progress) -> None:
    shown = (view.last_change, 0)
    async for recorded in plane.log.follow():
        view.see_event(recorded)
        state = view.job
        if state is None:
            continue
        if view.last_change != shown[0]:
            progress.note(f"decided: {view.last_change}")
        if state.round != shown[1]:
            progress.note(_world_text(state, view.places()))
        shown = (view.last_change, state.round)
        if state.terminal:
            progress.update()
            reason = f": {state.ending_reason}" if state.ending_reason else ""
            progress.note(f"the job is {state.phase}{reason}")
            return


def _world_text(state: JobState, places: dict[str, int]) -> str:
    where = ", ".join(f"{count} on {provider}" for provider, count in places.items())
    begin = f"from step {state.checkpoint.step}" if state.checkpoint is not None else "from nothing"
    return f"round {state.round}: {len(state.members)} nodes ({where}), {begin}"


async def _follow_samples(client: Client, view: View) -> None:
    subjects = f"{SAMPLES_ROOT}.{view.key[0]}.{view.key[1]}.>"
    async with Follower(client, SAMPLES_STREAM, subjects, lossy=True) as follower:
        while batch := await follower.next_batch():
            for message in batch:
                view.see_samples(message.sequence, message.time_ms, message.data)


async def _refresh(progress: Progress) -> None:
    while True:
        progress.update()
        await asyncio.sleep(REFRESH_S)


def _shown(archive: Path, key: JobKey) -> Iterator[ev.Recorded]:
    """The job's events without the routine ones: holds that say nothing new and checkpoints in between."""
    for recorded in ArchivedEvents(archive):
        event = recorded.event
        if isinstance(event, ev.Event) and (event.tenant, event.job) == key:
            routine = isinstance(event.data, ev.NodeCheckpointed | ev.NodeStarted) or (
                isinstance(event.data, ev.ScaleDecided) and event.data.action == "hold"
            )
            if not routine:
                yield recorded


def _print_timeline(console: Console, archive: Path, key: JobKey) -> None:
    """What happened, one line each: seconds since the submission, sequence, event, and what it says."""
    console.print(Text("\nThe timeline, without holds, first steps and checkpoints:\n"))
    began_ms: int | None = None
    for line in timeline(_shown(archive, key), TimelineFilter()):
        began_ms = line.time_ms if began_ms is None else began_ms
        arrow = f"{line.before} -> {line.after}" if line.before else line.after
        node = line.node if line.node and line.node not in arrow + line.reason else ""
        reason = f"({line.reason})" if line.reason else ""
        said = " ".join(filter(None, (node, arrow, reason)))
        when = f"{(line.time_ms - began_ms) / 1000:7.2f} s {'#' + str(line.sequence):>4}  "
        what = f"{line.what:<21} "
        if console.is_terminal:
            beside = console.width - len(when + what)
            said = textwrap.indent(textwrap.fill(said, max(beside, 20)), " " * len(when + what)).lstrip()
        console.print(Text.assemble((when, "" if console.no_color else "dim"), what, said), soft_wrap=True)
