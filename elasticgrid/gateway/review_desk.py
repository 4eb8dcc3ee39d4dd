"""A job looked back at, from the views and the samples: its series, its decision cards, what led to what."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final

from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError, InvalidInput
from elasticgrid.core.samples import decode_batch
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.archive_format import ArchiveFilters
from elasticgrid.log.codec import decode
from elasticgrid.log.export import held_samples
from elasticgrid.projections.results import EventView
from elasticgrid.projections.views import MAX_PAGE
from elasticgrid.review.series import StepFold

#: Jobs whose samples are kept folded, so that who looks again reads only what is new.
_KEPT_JOBS: Final = 64
#: How long one request reads samples; the rest comes with the next.
_READING_S: Final = 1.5
#: Events of one job that are read at once; a longer history is looked at in an archive.
MAX_JOB_EVENTS: Final = 50_000


class ReviewDesk:
    """Reads for the routes that look back. One for an application."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, str], StepFold] = OrderedDict()
        self._reading: dict[tuple[str, str], asyncio.Lock] = {}
        self.what_if = asyncio.Lock()

    async def records(
        self, gateway: GatewayService, tenant: str, job: str, *, through: int | None = None
    ) -> list[ev.Recorded]:
        """The events of a job, in order, up to a sequence when given.

        Raises:
            NotFound: there is no such job.
            InvalidInput: they are more than a request may read.
        """
        await gateway.views.job_summary(tenant, job, as_of_ms=0)
        found: list[ev.Recorded] = []
        async for view in _events(gateway, tenant, job, through):
            found.append(recorded_of(view))
            if len(found) > MAX_JOB_EVENTS:
                raise InvalidInput(
                    f"the job has more than {MAX_JOB_EVENTS:,} events",
                    where="job",
                    hint="export an archive and look at that",
                )
        return found

    async def steps(
        self, gateway: GatewayService, tenant: str, job: str, nproc_per_node: int
    ) -> tuple[StepFold | None, bool]:
        """The job's samples so far, and whether more are there than could be read now; None without a bus."""
        if gateway.bus is None:
            return None, False
        key = (tenant, job)
        fold = self._steps.get(key)
        if fold is None:
            fold = self._steps[key] = StepFold(nproc_per_node)
        self._steps.move_to_end(key)
        while len(self._steps) > _KEPT_JOBS:
            self._reading.pop(self._steps.popitem(last=False)[0], None)
        async with self._reading.setdefault(key, asyncio.Lock()):
            return fold, await _read_samples(gateway, tenant, job, fold)


async def _read_samples(gateway: GatewayService, tenant: str, job: str, fold: StepFold) -> bool:
    """Take in what is new; returns whether there is more."""
    assert gateway.bus is not None
    try:
        held = await held_samples(gateway.bus, ArchiveFilters(tenant=tenant, job=job))
        if held.through <= fold.sequence:
            return False
        deadline_s = time.monotonic() + _READING_S
        subject = f"{SAMPLES_ROOT}.{tenant}.{job}.>"
        after = max(held.after, fold.sequence)
        async with Follower(gateway.bus, SAMPLES_STREAM, subject, after=after, lossy=True) as follower:
            while fold.sequence < held.through:
                for message in await follower.next_batch():
                    batch = decode_batch(message.data)
                    if not isinstance(batch, str):
                        fold.take(message.sequence, message.time_ms, batch)
                if follower.last_sequence >= held.through:
                    return False
                if time.monotonic() > deadline_s:
                    return True
                await asyncio.sleep(0)
    except BusError:
        # What was read before is still true; events tell the rest.
        return True
    return False


async def _events(gateway: GatewayService, tenant: str, job: str, through: int | None) -> AsyncGenerator[EventView]:
    after = 0
    while True:
        page = await gateway.views.events(after=after, through=through, tenant=tenant, job=job, limit=MAX_PAGE)
        for view in page.items:
            yield view
        if not page.more:
            return
        after = page.next_after


def recorded_of(view: EventView) -> ev.Recorded:
    """The event of a view as the log has it."""
    raw = bytes(view.event)
    return ev.Recorded(view.sequence, view.recorded_ms, decode(raw), raw)
