"""The hook on a real bus: every sample is stored exactly once, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator

import pytest
from nats.aio.client import Client

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_STREAM, sample_subject
from elasticgrid.core.samples import SampleBatch, StepSample, admit, decode_batch
from elasticgrid.testing.bus import launch_address

pytestmark = pytest.mark.server


@pytest.fixture
async def pub(embedded_server: EmbeddedServer, bus_client: Client) -> AsyncGenerator[elasticgrid.Publisher]:
    address = await launch_address(embedded_server, "acme", "lm")
    hook = elasticgrid.publisher(
        {
            env.NATS_URL: address.url,
            env.CREDENTIALS: address.credentials,
            env.TENANT: "acme",
            env.JOB: "lm",
            "RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            env.ROUND: "3",
            env.RESUME_STEP: "40",
        }
    )
    yield hook
    await asyncio.to_thread(hook.close, 1.0)


async def stored(client: Client, samples: int) -> list[StepSample]:
    """The first so many samples of rank 1, in order of their numbers."""
    found: list[StepSample] = []
    async with (
        asyncio.timeout(30),
        Follower(client, SAMPLES_STREAM, sample_subject("acme", "lm", 1), lossy=True) as follower,
    ):
        async for message in follower:
            batch = decode_batch(message.data)
            assert isinstance(batch, SampleBatch)
            assert (batch.round, batch.rank) == (3, 1)
            assert all(not isinstance(admit(batch, sample), str) for sample in batch.samples)
            found += batch.samples
            if len(found) >= samples and message.pending == 0:
                break
    return sorted(found, key=lambda sample: sample.seq)


def slow_loader() -> Iterator[int]:
    time.sleep(0.05)
    yield 7


def train_two_steps(pub: elasticgrid.Publisher) -> float:
    """One step on an item that was waited for, one that waits within; returns how long the first one's block took."""
    block_s = 0.0
    for tokens in pub.data(slow_loader()):
        time.sleep(0.05)  # between wait and step: counts for neither
        began = time.perf_counter()
        with pub.step(queue_s=0.25) as step:
            step.tokens = tokens
            step.loss = 2.5
        block_s = time.perf_counter() - began
    with pub.step(tokens=1) as step:
        for _ in pub.data(slow_loader()):
            step.data_wait_s = 0.001
    return block_s


async def test_a_step_arrives_as_it_was_measured(pub: elasticgrid.Publisher, bus_client: Client) -> None:
    block_s = train_two_steps(pub)
    assert await asyncio.to_thread(pub.flush, 10.0)

    first, second = await stored(bus_client, 2)
    assert (first.seq, first.step, first.tokens, first.nodes, first.queue_s, first.loss) == (0, 41, 7, 2, 0.25, 2.5)
    assert 0.05 <= first.data_wait_s <= first.duration_s <= first.data_wait_s + block_s
    assert abs(first.time_ms / 1000 - time.time()) < 60
    assert (second.seq, second.step) == (1, 42)
    assert math.isnan(second.loss)
    assert 0.051 <= second.data_wait_s <= second.duration_s + 0.001
    assert abs(first.compute_s - (first.duration_s - first.data_wait_s)) < 1e-9
    assert (first.checkpoint_s, second.checkpoint_s) == (0.0, 0.0)
    assert pub.stats == elasticgrid.PublisherStats(
        published=2, dropped=0, refused=0, buffered=0, reconnects=0, problem=""
    )


async def test_checkpoints_are_told_apart_from_the_steps_they_are_saved_between_and_in(
    pub: elasticgrid.Publisher, bus_client: Client
) -> None:
    with pub.step(tokens=1) as step:
        step.compute_s = 0.5
    with pub.checkpoint():
        await asyncio.sleep(0.05)
    with pub.step(tokens=1), pub.checkpoint():
        await asyncio.sleep(0.05)
    pub.report(duration_s=2.0, tokens=3, queue_s=0.1, data_wait_s=0.5, compute_s=1.2, checkpoint_s=0.7, loss=1.5)
    assert await asyncio.to_thread(pub.flush, 10.0)

    first, second, third = await stored(bus_client, 3)
    assert (first.compute_s, first.checkpoint_s) == (0.5, 0.0)
    assert second.checkpoint_s >= 0.1
    assert second.duration_s < 0.05
    assert (third.duration_s, third.tokens, third.queue_s, third.data_wait_s) == (2.0, 3, 0.1, 0.5)
    assert (third.compute_s, third.checkpoint_s, third.loss) == (1.2, 0.7, 1.5)


@pytest.mark.survive("D", "bus-cut")
async def test_every_sample_is_stored_once_through_restarts_of_the_server(
    pub: elasticgrid.Publisher, embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    async def take_steps(times: int) -> None:
        for _ in range(times):
            with pub.step(tokens=1):
                await asyncio.sleep(0.001)

    await take_steps(120)
    for _ in range(2):
        training = asyncio.create_task(take_steps(300))
        await embedded_server.stop()
        await embedded_server.start()
        await training
    await take_steps(80)
    assert await asyncio.to_thread(pub.flush, 20.0)

    samples = await stored(bus_client, 800)
    assert [sample.seq for sample in samples] == list(range(800))
    assert [sample.step for sample in samples] == list(range(41, 841))
    assert pub.stats.published == 800
    assert pub.stats.dropped == 0
    assert pub.stats.reconnects >= 1


@pytest.mark.survive("S")
async def test_training_is_as_fast_while_the_bus_is_away(
    pub: elasticgrid.Publisher, embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    with pub.step(tokens=1):
        pass
    assert await asyncio.to_thread(pub.flush, 10.0)
    await embedded_server.stop()
    began = time.perf_counter()
    for _ in range(2_000):
        with pub.step(tokens=1):
            pass
    assert (time.perf_counter() - began) / 2_000 < 0.001
    assert not await asyncio.to_thread(pub.flush, 0.1)
    assert pub.stats.buffered == 2_000
    await embedded_server.start()
    assert await asyncio.to_thread(pub.flush, 20.0)
    assert len(await stored(bus_client, 2_001)) == 2_001


async def test_closing_sends_what_is_left(pub: elasticgrid.Publisher, bus_client: Client) -> None:
    for _ in range(130):
        with pub.step(tokens=1):
            pass
    await asyncio.to_thread(pub.close)
    assert (pub.stats.published, pub.stats.dropped) == (130, 0)
    assert len(await stored(bus_client, 130)) == 130
