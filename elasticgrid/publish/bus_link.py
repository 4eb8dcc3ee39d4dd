"""The hook's way to the bus: samples in batches, each stored once, for as long as the bus takes to come back.

While the bus is away, or takes nothing, samples beyond half of what memory holds go to a file in the node's folder,
when there is one. What is in the file goes first when the bus is back.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.subjects import sample_subject
from elasticgrid.bus.windowed_publisher import WindowedPublisher
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.samples import MAX_BATCH, SAMPLE_VERSION, SampleBatch, encode_batch
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.settings import HookSettings
from elasticgrid.publish.spool import SUFFIX, Batch, Spool, left_behind
from elasticgrid.publish.state import TrainerState

BATCH_EVERY_S = 0.2
#: Between two batches, so that a loop of very short steps shares little of its processor with this thread.
BATCH_PAUSE_S = 0.02
CONNECT_TIMEOUT_S = 2.0
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
GOODBYE_TIMEOUT_S = 0.3
#: After so long without an acknowledgement, with samples to send, the bus counts as away.
AWAY_AFTER_S = 1.0
SPOOL_EVERY_S = 0.2
#: Samples that stay in memory while the bus is away.
KEPT_SAMPLES = 4_096


class BusLink:
    """Connects, and connects again when a connection ended for good; one batch is under way at a time."""

    def __init__(self, settings: HookSettings, state: TrainerState, samples: SampleBuffer) -> None:
        self._settings = settings
        self._state = state
        self._samples = samples
        self._subject = sample_subject(settings.tenant, settings.job, settings.rank)
        self._token = secrets.token_hex(4)  # a process started again without a new round counts from 0 again
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._closing = False
        self._batch: Batch | None = None
        self._origin: Spool | None = None
        self._folder = Path(settings.node_dir, "spool") if settings.node_dir else None
        self._spool: Spool | None = None
        self._older: list[Spool] = []
        self._took_at = 0.0

    def wake(self) -> None:
        """Send what there is now and not at the next turn. Call on the loop's thread."""
        self._news.set()

    @property
    def unsent(self) -> int:
        """Samples of this hook that are not acknowledged yet, in memory or in its spool."""
        return self._samples.unsent + self._state.spooled

    async def run(self) -> None:
        """Send until cancelled; what is not acknowledged then is spooled, or counts as dropped."""
        address = BusAddress(self._settings.nats_url, self._settings.credentials)
        name = f"hook {self._settings.tenant}/{self._settings.job} rank {self._settings.rank}"
        retry_s = RETRY_FIRST_S
        connected_before = False
        self._took_at = asyncio.get_running_loop().time()
        spooling = asyncio.create_task(self._keep_spooling())
        try:
            while True:
                try:
                    client = await connect(
                        address, name=name, connect_timeout_s=CONNECT_TIMEOUT_S, on_reconnect=self._count_reconnect
                    )
                except ElasticGridError as error:
                    self._state.problem = f"bus: {error}"
                else:
                    if connected_before:
                        await self._count_reconnect()
                    connected_before = True
                    self._find_older()
                    if await self._serve(client):
                        retry_s = RETRY_FIRST_S
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MOST_S)
        finally:
            spooling.cancel()
            self._put_away()

    async def close(self, *, timeout_s: float) -> None:
        """Wait until everything was acknowledged, at most so long; then spool what was not."""
        self._closing = True
        self._news.set()
        if self.unsent:
            self._empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
        self._spool_down_to(0)

    async def _serve(self, client: Client) -> bool:
        """Send over one connection until it ended for good; returns whether anything was acknowledged over it."""
        publisher = WindowedPublisher(client, window=1)
        try:
            while not _ended(client):
                batch = self._batch or await self._next_batch()
                failed_before = publisher.failed
                await publisher.publish(batch.subject, batch.data, msg_id=batch.msg_id)
                while await publisher.flush(60.0):
                    pass
                refused = publisher.failed > failed_before
                if refused and _ended(client):
                    break  # the same batch goes over the next connection
                if refused:
                    self._state.problem = f"bus: {publisher.last_failure}"
                self._settle(batch, stored=not refused)
                if not self._closing:
                    await asyncio.sleep(BATCH_PAUSE_S)
        except ElasticGridError as error:
            self._state.problem = f"bus: {error}"
        finally:
            with suppress(TimeoutError, OSError, nats.errors.Error):
                async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                    await publisher.close()
                    await disconnect(client)
        return publisher.acked > 0

    async def _next_batch(self) -> Batch:
        """What goes next, and is under way from now on: what is spooled, else what waits.

        What others left behind goes when little else is there.
        """
        while True:
            self._took_at = asyncio.get_running_loop().time()
            if self._take_from(self._spool) or (
                self._samples.waiting < MAX_BATCH and any(map(self._take_from, list(self._older)))
            ):
                break
            if self._samples.waiting < MAX_BATCH and not (self._closing and self._samples.waiting):
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_EVERY_S):
                        await self._news.wait()
            self._news.clear()
            if self._samples.waiting:
                self._batch, self._origin = self._take_from_memory(), None
                break
        assert self._batch is not None
        return self._batch

    def _take_from(self, spool: Spool | None) -> bool:
        if spool is None:
            return False
        held = spool.samples
        self._batch = spool.first()
        if self._batch is None and held and spool is self._spool:  # somebody damaged the file
            self._samples.lose(held)
            self._tell_spooled()
        self._origin = None if self._batch is None else spool
        return self._batch is not None

    def _take_from_memory(self) -> Batch:
        settings = self._settings
        samples = self._samples.take()
        return Batch(
            subject=self._subject,
            msg_id=f"{settings.tenant}.{settings.job}.{settings.round}.{settings.rank}.{self._token}.{samples[0].seq}",
            size=len(samples),
            data=encode_batch(SampleBatch(SAMPLE_VERSION, settings.round, settings.rank, samples)),
        )

    def _settle(self, batch: Batch, *, stored: bool) -> None:
        """The batch under way was stored, or will never be."""
        origin, self._batch, self._origin = self._origin, None, None
        if origin is None:
            self._samples.settle(batch.size, lost=not stored)
        else:
            origin.remove_first()
        if origin in self._older:
            if not origin.samples:
                self._older.remove(origin)
                origin.close()
        elif stored:
            self._state.published += batch.size
        elif origin is not None:
            self._samples.lose(batch.size)
        self._tell_spooled()
        if not self.unsent:
            self._empty.set()

    async def _keep_spooling(self) -> None:
        loop = asyncio.get_running_loop()
        while self._folder is not None:
            await asyncio.sleep(SPOOL_EVERY_S)
            if loop.time() - self._took_at > AWAY_AFTER_S:
                self._spool_down_to(KEPT_SAMPLES)

    def _spool_down_to(self, kept: int) -> None:
        """Move the oldest samples to the spool until memory holds no more than `kept`, or the spool is full.

        The batch under way is older than they are and goes before them.
        """
        from_memory = self._batch if self._origin is None else None
        if self._samples.waiting <= kept and (kept or from_memory is None):
            return
        spool = self._own_spool()
        if spool is None:
            return
        try:
            if from_memory is not None and spool.has_room:
                spool.append(from_memory)
                self._samples.settle(from_memory.size)
                self._origin = spool
            while self._samples.waiting > kept and spool.has_room:
                batch = self._take_from_memory()
                try:
                    spool.append(batch)
                except OSError:
                    self._samples.settle(batch.size, lost=True)
                    raise
                self._samples.settle(batch.size)
        except OSError as error:
            self._state.problem = f"spool: {error}"
            self._folder = None
        self._tell_spooled()

    def _own_spool(self) -> Spool | None:
        if self._spool is None and self._folder is not None:
            name = f"samples-round-{self._settings.round}-rank-{self._settings.rank}-{self._token}{SUFFIX}"
            try:
                self._spool = Spool(self._folder / name)
            except OSError as error:
                self._state.problem = f"spool: {error}"
                self._folder = None
        return self._spool

    def _find_older(self) -> None:
        """What earlier processes on this node could not send."""
        if self._folder is not None:
            subject = self._subject.rpartition(".")[0]
            self._older += left_behind(self._folder, f"{subject}.")

    def _put_away(self) -> None:
        """The end: nothing is under way any more."""
        self._spool_down_to(0)
        if self._batch is not None and self._origin is None:
            self._samples.settle(self._batch.size, lost=True)
        self._batch = self._origin = None
        for spool in (self._spool, *self._older):
            if spool is not None:
                spool.close()
        self._older.clear()
        self._spool = self._folder = None

    def _tell_spooled(self) -> None:
        self._state.spooled = 0 if self._spool is None else self._spool.samples

    async def _count_reconnect(self) -> None:
        self._state.reconnects += 1


def _ended(client: Client) -> bool:
    """Whether the connection ended for good, so that only a new one helps."""
    return client.is_closed
