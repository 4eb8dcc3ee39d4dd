"""A launcher as a process of its own that is killed at a given moment.

Its arguments are URL CREDENTIALS FOLDER MOMENT. MOMENT is `never`, or `before WHAT`, `after WHAT` or `during WHAT`: the
first time that it happens. WHAT is one of `fault_points.STEPS`: the append of an event of a type, a step of a provider
job, a call of an engine.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from fault_points import STEPS
from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.job import JobManager, JobState

from elasticgrid.bus.connect import BusAddress, connect
from elasticgrid.clock import SystemClock
from elasticgrid.core.errors import Conflict
from elasticgrid.core.events import Event, LaunchRequested, Recorded, type_of
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.engines.local import LocalProcesses
from elasticgrid.launcher.service import Launcher
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import EventLog, Expectation, Scope


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyLog:
    """An event log whose writer is killed at a moment; with `outrun`, another launcher is faster with an intent."""

    def __init__(self, log: EventLog, moment: str, *, outrun: bool) -> None:
        self._log = log
        self._when, _, self._type = moment.partition(" ")
        self._outrun = outrun

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        self._kill_if("before", events)
        if self._outrun and isinstance(events[0].data, LaunchRequested):
            self._outrun = False
            raise Conflict("another launcher was faster")
        sequences = await self._log.append(events, expect=expect)
        self._kill_if("after", events)
        return sequences

    def _kill_if(self, when: str, events: Sequence[Event]) -> None:
        if when == self._when and type_of(events[0].data) == self._type:
            die()

    def read(self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self._log.read(after=after, through=through, scope=scope)

    def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self._log.follow(after=after, scope=scope)

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        return await self._log.last_sequence(scope)


def doom(moment: str) -> None:
    """Make this process end at the moment, where that is a step and no append."""
    when, _, what = moment.partition(" ")
    if when == "during":
        _DURING[what]()
    elif what in STEPS:
        owner, name = STEPS[what]
        setattr(owner, name, _deadly(getattr(owner, name), when))


def _deadly(step: Callable[..., Any], when: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(step):

        @functools.wraps(step)
        async def deadly_soon(*args: Any, **kwargs: Any) -> Any:
            if when == "before":
                die()
            answer = await step(*args, **kwargs)
            die()
            return answer

        return deadly_soon

    @functools.wraps(step)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            die()
        answer = step(*args, **kwargs)
        die()
        return answer

    return deadly


def _half_a_start() -> None:
    """Only the first rank is started."""
    whole = LocalProcesses.start

    def start(self: LocalProcesses, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        whole(self, ClusterInfo(cluster.job_name, cluster.engine, cluster.nodes[:1], cluster.meta), commands, env)
        die()

    LocalProcesses.start = start  # type: ignore[method-assign] # what this process is for


def _half_a_record() -> None:
    """Only the first half of the state is written."""
    whole = JobManager.save

    def save(self: JobManager, state: JobState) -> None:
        whole(self, state)
        path = Path(state.job_dir) / "job.json"
        path.write_text(path.read_text()[: path.stat().st_size // 2])
        die()

    JobManager.save = save


_DURING = {"engine.start": _half_a_start, "manager.save": _half_a_record}


async def main(url: str, credentials: str, folder: str, moment: str) -> None:
    doom(moment)
    client = await connect(BusAddress(url, credentials), name="launcher")
    agent = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    config = LauncherConfig(data_dir=Path(folder), nats_url=url, poll_s=0.05, agent_command=agent)
    log = DeadlyLog(JetStreamLog(client), moment, outrun=moment.endswith("job.discard"))
    await Launcher(log, client, SystemClock(), config).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
