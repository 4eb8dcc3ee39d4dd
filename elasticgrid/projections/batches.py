"""A stream of events in batches: one by one while they come singly, many at once when the reader is behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from elasticgrid.core.events import Recorded


class _Ended(msgspec.Struct, frozen=True):
    """The source has ended, with an error unless None."""

    error: Exception | None


async def in_batches(source: AsyncGenerator[Recorded], most: int) -> AsyncGenerator[list[Recorded]]:
    """Yield what `source` has at hand, at least one and at most `most` events, as soon as there is one.

    An error of the source is raised after what came before it. Closing this closes the source.
    """
    queue: asyncio.Queue[Recorded | _Ended] = asyncio.Queue(maxsize=most)

    async def pump() -> None:
        error = None
        try:
            async with aclosing(source):
                async for recorded in source:
                    await queue.put(recorded)
        except Exception as failure:  # it is raised again where the batches are read
            error = failure
        await queue.put(_Ended(error))

    task = asyncio.create_task(pump(), name="projection-source")
    try:
        ended: _Ended | None = None
        while ended is None:
            batch: list[Recorded] = []
            item = await queue.get()
            while True:
                if isinstance(item, _Ended):
                    ended = item
                    break
                batch.append(item)
                if len(batch) >= most or queue.empty():
                    break
                item = queue.get_nowait()
            if batch:
                yield batch
        if ended.error is not None:
            raise ended.error
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
