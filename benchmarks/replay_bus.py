"""The part of the replay benchmark that needs a real server: following the log, and the cold start of a decider."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_ROOT, SAMPLES_STREAM, event_filter
from elasticgrid.clock import SystemClock
from elasticgrid.core.events import Recorded
from elasticgrid.core.grid import GridFold
from elasticgrid.decider import snapshot
from elasticgrid.decider.service import Decider
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import mirrored_log
from elasticgrid.log.port import EventLog, Scope
from elasticgrid.log.restore import archive_source
from elasticgrid.log.restore_folder import restore_folder
from elasticgrid.review.collector import rare_collections
from elasticgrid.runtime.services import SNAPSHOT_EVENTS
from elasticgrid.testing.bus import bus_client, embedded_server

#: Events of the log that are followed.
_FOLLOWED: Final = 50_000
_ROUNDS: Final = 3

_MIRROR: Final = "mirror.sqlite"
_SNAPSHOT: Final = "decider/snapshot.zst"


def _run(measuring: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    # Standard output is for the figures.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return asyncio.run(measuring)


@asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[Client]:
    async with embedded_server(folder / "bus") as server, bus_client(server) as client:
        yield client


def prepare_bus(folder: Path) -> dict[str, float]:
    """Have the archive on a server, in atomic batches, with its mirror, and a snapshot of all but the last events."""
    return _run(_prepare(folder))


async def _prepare(folder: Path) -> dict[str, float]:
    began = time.perf_counter()
    restored = (await restore_folder(folder / "bus", archive_source(folder / "log.egz"))).restored
    seconds = time.perf_counter() - began
    tail = min(SNAPSHOT_EVENTS, restored.last_sequence // 3)
    grid = GridFold()
    async with _server(folder) as client, await Mirror.open(folder / _MIRROR) as mirror:
        log = mirrored_log(client, mirror)
        await log.fill()
        async for recorded in log.read(through=restored.last_sequence - tail):
            grid.apply(recorded)
        assert await snapshot.save(folder / _SNAPSHOT, grid, mirror)
    return {
        "restored_events_per_s": round(restored.last_sequence / seconds),
        "snapshot_mb": round((folder / _SNAPSHOT).stat().st_size / 1e6, 2),
        "tail_events": restored.last_sequence - grid.sequence,
    }


def measure_follow(folder: Path) -> dict[str, float]:
    """Following, decoding and folding beside merely reading the stream through the follower, in turns."""
    return _run(_follow(folder))


async def _follow(folder: Path) -> dict[str, float]:
    reading, folding = float("inf"), float("inf")
    async with _server(folder) as client:
        log = JetStreamLog(client)
        through = min(await log.last_sequence(), _FOLLOWED)
        with rare_collections():
            for _ in range(_ROUNDS):
                began = time.process_time()
                await _only_read(client, through)
                reading = min(reading, time.process_time() - began)
                began = time.process_time()
                await _fold(log, through)
                folding = min(folding, time.process_time() - began)
    return {
        "follower_events_per_s": round(through / reading),
        "follow_events_per_s": round(through / folding),
        "follow_ratio": round(reading / folding, 3),
    }


async def _only_read(client: Client, through: int) -> None:
    async with Follower(client, EVENTS_STREAM, event_filter()) as follower:
        while follower.last_sequence < through:
            await follower.next_batch()


async def _fold(log: JetStreamLog, through: int) -> None:
    fold = GridFold(memory=1)
    async for recorded in log.follow():
        fold.apply(recorded)
        if recorded.sequence >= through:
            return


class _CaughtUp(Exception):  # noqa: N818 - no error
    """The decider has folded the log and would go on to follow it."""


class _UntilCaughtUp:
    """A log that ends its decider once that has read all there is, before it decides anything."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.append = log.append
        self.follow = log.follow
        self.last_sequence = log.last_sequence

    async def read(
        self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()
    ) -> AsyncGenerator[Recorded]:
        async for recorded in self._log.read(after=after, through=through, scope=scope):
            yield recorded
        raise _CaughtUp


def measure_cold_start(folder: Path) -> dict[str, float]:
    """A decider's way from a snapshot to the whole log, as after a restart."""
    return _run(_cold_start(folder))


async def _cold_start(folder: Path) -> dict[str, float]:
    async with _server(folder) as client, await Mirror.open(folder / _MIRROR) as mirror:

        def open_samples(*, after: int) -> Follower:
            return Follower(client, SAMPLES_STREAM, f"{SAMPLES_ROOT}.>", after=after, lossy=True)

        began = time.perf_counter()
        log = mirrored_log(client, mirror)
        await log.verify()
        compared = time.perf_counter()
        grid = await snapshot.load(folder / _SNAPSHOT, mirror)
        loaded = time.perf_counter()
        decider = Decider(_UntilCaughtUp(log), open_samples, SystemClock(), grid=grid)
        with contextlib.suppress(_CaughtUp):
            await decider.run()
        ended = time.perf_counter()
        assert decider.grid.sequence == await log.last_sequence()
    return {
        "cold_start_s": round(ended - compared, 3),
        "load_s": round(loaded - compared, 3),
        "compare_s": round(compared - began, 3),
    }
