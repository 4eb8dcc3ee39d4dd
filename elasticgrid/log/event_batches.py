"""A stream of events in batches: one by one while they come singly, many at once when the reader is behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from elasticgrid.core.events import Recorded


async def in_batches(source: AsyncGenerator[Recorded], most: int) -> AsyncGenerator[list[Recorded]]:
    """Yield what `source` has at hand, at least one and at most `most` events, as soon as there is one.

    While a batch is used the next one is collected. An error of the source is raised after what came before it.
    Closing this closes the source.
    """
    collected: list[Recorded] = []
    arrived, taken = asyncio.Event(), asyncio.Event()

    async def collect() -> None:
        async with aclosing(source):
            async for recorded in source:
                collected.append(recorded)
                arrived.set()
                if len(collected) >= most:
                    taken.clear()
                    await taken.wait()

    task = asyncio.create_task(collect(), name="event-batches")
    task.add_done_callback(lambda _: arrived.set())
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            batch = collected.copy()
            collected.clear()
            taken.set()
            if batch:
                yield batch
            elif task.done():
                task.result()
                return
            if task.done():
                arrived.set()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
