"""The part of the replay benchmark that needs a real server: following the log, and the cold start of a decider."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import EVENTS_STREAM, event_filter
from elasticgrid.core.grid import GridFold
from elasticgrid.decider import snapshot
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import mirrored_log
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


def measure_cold_start(folder: Path) -> dict[str, float]:
    """A decider's way from nothing to the whole log, as after a restart."""
    return _run(_cold_start(folder))


async def _cold_start(folder: Path) -> dict[str, float]:
    async with _server(folder) as client:
        began = time.perf_counter()
        async with await Mirror.open(folder / _MIRROR) as mirror:
            log = mirrored_log(client, mirror)
            await log.verify()
            verified = time.perf_counter()
            grid = await snapshot.load(folder / _SNAPSHOT, mirror)
            loaded = time.perf_counter()
            assert grid is not None
            async for recorded in log.read(after=grid.sequence):
                grid.apply(recorded)
            ended = time.perf_counter()
            assert grid.sequence == await log.last_sequence()
    return {
        "cold_start_s": round(ended - began, 3),
        "compare_s": round(verified - began, 3),
        "load_s": round(loaded - verified, 3),
        "tail_s": round(ended - loaded, 3),
    }
