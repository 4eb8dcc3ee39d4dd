"""A launcher as a process of its own that is killed at a given moment.

Its arguments are URL CREDENTIALS FOLDER MOMENT.
MOMENT is `before EVENT_TYPE` or `after EVENT_TYPE`, around the append of its first event of that type, or `never`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from elasticgrid.bus.connect import BusAddress, connect
from elasticgrid.clock import SystemClock
from elasticgrid.core.events import Event, Recorded, type_of
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.service import Launcher
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import EventLog, Expectation, Scope


class DeadlyLog:
    """An event log whose writer is killed at a moment."""

    def __init__(self, log: EventLog, moment: str) -> None:
        self._log = log
        self._when, _, self._type = moment.partition(" ")

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        self._kill_if("before", events)
        sequences = await self._log.append(events, expect=expect)
        self._kill_if("after", events)
        return sequences

    def _kill_if(self, when: str, events: Sequence[Event]) -> None:
        if when == self._when and type_of(events[0].data) == self._type:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self._log.read(after=after, through=through, scope=scope)

    def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        return self._log.follow(after=after, scope=scope)

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        return await self._log.last_sequence(scope)


async def main(url: str, credentials: str, folder: str, moment: str) -> None:
    client = await connect(BusAddress(url, credentials), name="launcher")
    agent = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    config = LauncherConfig(data_dir=Path(folder), nats_url=url, poll_s=0.05, agent_command=agent)
    await Launcher(DeadlyLog(JetStreamLog(client), moment), client, SystemClock(), config).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
