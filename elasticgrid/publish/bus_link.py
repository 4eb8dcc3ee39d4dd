"""The hook's way to the bus: samples in batches, each stored once, for as long as the bus takes to come back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import nats.errors
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.subjects import sample_subject
from elasticgrid.bus.windowed_publisher import WindowedPublisher
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, encode_batch
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.settings import HookSettings
from elasticgrid.publish.state import TrainerState

BATCH_SAMPLES = 50
BATCH_EVERY_S = 0.2
CONNECT_TIMEOUT_S = 2.0
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
GOODBYE_TIMEOUT_S = 0.3


class _Batch(msgspec.Struct, frozen=True):
    """A batch keeps its id over every attempt, so that the stream stores it once.

    `size` is its number of samples.
    """

    data: bytes
    msg_id: str
    size: int


class BusLink:
    """Connects, and connects again when a connection ended for good; one batch is under way at a time."""

    def __init__(self, settings: HookSettings, state: TrainerState, samples: SampleBuffer) -> None:
        self._settings = settings
        self._state = state
        self._samples = samples
        self._subject = sample_subject(settings.tenant, settings.job, settings.rank)
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._closing = False
        self._batch: _Batch | None = None

    def wake(self) -> None:
        """Send what there is now and not at the next turn. Call on the loop's thread."""
        self._news.set()

    async def run(self) -> None:
        """Send until cancelled; what is not acknowledged then counts as dropped."""
        address = BusAddress(self._settings.nats_url, self._settings.credentials)
        name = f"hook {self._settings.tenant}/{self._settings.job} rank {self._settings.rank}"
        retry_s = RETRY_FIRST_S
        connected_before = False
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
                    if await self._serve(client):
                        retry_s = RETRY_FIRST_S
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MOST_S)
        finally:
            if self._batch is not None:
                self._samples.settle(self._batch.size, sent=False)
                self._batch = None

    async def close(self, *, timeout_s: float) -> None:
        """Wait until everything was acknowledged, at most so long."""
        self._closing = True
        self._news.set()
        if self._samples.unsent:
            self._empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()

    async def _serve(self, client: Client) -> bool:
        """Send over one connection until it ended for good; returns whether anything was acknowledged over it."""
        publisher = WindowedPublisher(client, window=1)
        try:
            while not _ended(client):
                batch = self._batch or await self._next_batch()
                self._batch = batch
                failed_before = publisher.failed
                await publisher.publish(self._subject, batch.data, msg_id=batch.msg_id)
                while await publisher.flush(60.0):
                    pass
                refused = publisher.failed > failed_before
                if refused and _ended(client):
                    break  # the same batch goes over the next connection
                self._batch = None
                self._samples.settle(batch.size, sent=not refused)
                if refused:
                    self._state.problem = f"bus: {publisher.last_failure}"
                else:
                    self._state.published += batch.size
                if not self._samples.unsent:
                    self._empty.set()
        except ElasticGridError as error:
            self._state.problem = f"bus: {error}"
        finally:
            with suppress(TimeoutError, OSError, nats.errors.Error):
                async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                    await publisher.close()
                    await disconnect(client)
        return publisher.acked > 0

    async def _next_batch(self) -> _Batch:
        while True:
            if self._samples.waiting < BATCH_SAMPLES and not (self._closing and self._samples.waiting):
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_EVERY_S):
                        await self._news.wait()
            self._news.clear()
            samples = self._samples.take(BATCH_SAMPLES)
            if samples:
                settings = self._settings
                batch = SampleBatch(SAMPLE_VERSION, settings.round, settings.rank, samples)
                msg_id = f"{settings.tenant}.{settings.job}.{settings.round}.{settings.rank}.{samples[0].seq}"
                return _Batch(encode_batch(batch), msg_id, len(samples))

    async def _count_reconnect(self) -> None:
        self._state.reconnects += 1


def _ended(client: Client) -> bool:
    """Whether the connection ended for good, so that only a new one helps."""
    return client.is_closed
