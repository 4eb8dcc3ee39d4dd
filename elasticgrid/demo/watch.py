"""Submitting the demonstration's job to a control plane and watching it to its end, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError, BusUnavailable, CannotPlace, RunFailed
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.spec import JobSpec
from elasticgrid.demo.progress import Progress
from elasticgrid.demo.view import View
from elasticgrid.log.port import EventLog, Scope

_log = structlog.get_logger("demo")

TENANT: Final = "default"
#: How long the job of a demonstration that ends early gets to end by itself before it is killed.
CANCEL_S: Final = 5.0
REFRESH_S: Final = 0.25
_AGAIN_S: Final = 0.5


class Plane(Protocol):
    """A control plane that runs: in this process, or in several of their own."""

    data_dir: Path

    @property
    def client(self) -> Client:
        """A connection to its bus as a service."""
        ...

    @property
    def log(self) -> EventLog:
        """Its event log."""
        ...

    @property
    def url(self) -> str:
        """Where its gateway listens."""
        ...

    @property
    def key_file(self) -> Path:
        """The file with the admin key."""
        ...

    async def wait(self) -> None:
        """Wait until it does not run any more, and raise why."""
        ...


async def submit(plane: Plane, spec: JobSpec) -> str:
    """Submit the job and return its id.

    Raises:
        CannotPlace: the grid can never run it.
        RunFailed: it was refused for another reason.
    """
    headers = {"X-API-Key": plane.key_file.read_text().strip()}
    async with httpx.AsyncClient(base_url=plane.url, headers=headers, timeout=30.0, trust_env=False) as http:
        answer = await http.post("/v1/jobs", content=msgspec.json.encode(spec))
    said = answer.json()
    if answer.is_error:
        kind = CannotPlace if said.get("code") == CannotPlace.code else RunFailed
        raise kind(f"the job was refused: {said.get('detail')}", where=said.get("where", ""), hint=said.get("hint", ""))
    return str(said["job"]["id"])


async def watch(
    plane: Plane,
    view: View,
    progress: Progress,
    timeout_s: float,
    *,
    meanwhile: Sequence[Coroutine[Any, Any, None]] = (),
) -> None:
    """Show the job's course until it is over; on any other end of the watch the job is ended too.

    Args:
        meanwhile: what else is done until then; it may end before.

    Raises:
        RunFailed: the job was not over in time.
    """
    over = asyncio.create_task(_follow_events(plane, view, progress), name="demo-events")
    services = asyncio.create_task(plane.wait(), name="demo-services")
    running = {
        over,
        services,
        asyncio.create_task(_follow_samples(plane.client, view), name="demo-samples"),
        asyncio.create_task(_refresh(progress), name="demo-progress"),
        *(asyncio.create_task(each) for each in meanwhile),
    }
    tasks = set(running)
    try:
        async with asyncio.timeout(timeout_s):
            while not over.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
    except TimeoutError:
        raise RunFailed(f"the job was not over after {timeout_s:.0f} s", hint=f"see {plane.data_dir}") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        state = view.job
        if (state is None or not state.terminal) and services.cancelled():
            progress.note("ending the job ...")
            await _cancel(plane, view.key)


async def _cancel(plane: Plane, key: JobKey) -> None:
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


async def _follow_events(plane: Plane, view: View, progress: Progress) -> None:
    shown = (view.last_change, 0)
    after = 0
    while True:
        try:
            async with contextlib.aclosing(plane.log.follow(after=after)) as events:
                async for recorded in events:
                    after = recorded.sequence
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
                        # What it lived through is no reason for having been completed.
                        told = state.ending_reason if state.phase != "completed" else ""
                        reason = f": {told}" if told else ""
                        progress.note(f"the job is {state.phase}{reason}")
                        return
        except (BusError, nats.errors.Error, OSError) as error:
            _log.warning("the log cannot be followed now", error=str(error))
        await asyncio.sleep(_AGAIN_S)


def _world_text(state: JobState, places: dict[str, int]) -> str:
    where = ", ".join(f"{count} on {provider}" for provider, count in places.items())
    begin = f"from step {state.checkpoint.step}" if state.checkpoint is not None else "from nothing"
    return f"round {state.round}: {len(state.members)} nodes ({where}), {begin}"


async def _follow_samples(client: Client, view: View) -> None:
    subjects = f"{SAMPLES_ROOT}.{view.key[0]}.{view.key[1]}.>"
    after = 0
    while True:
        try:
            async with Follower(client, SAMPLES_STREAM, subjects, after=after, lossy=True) as follower:
                while batch := await follower.next_batch():
                    for message in batch:
                        after = message.sequence
                        view.see_samples(message.sequence, message.time_ms, message.data)
        except (BusError, nats.errors.Error, OSError) as error:
            _log.warning("the samples cannot be followed now", error=str(error))
        await asyncio.sleep(_AGAIN_S)


async def _refresh(progress: Progress) -> None:
    while True:
        progress.update()
        await asyncio.sleep(REFRESH_S)
