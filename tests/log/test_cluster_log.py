"""The log on three replicas: retries, conflicts and the death of the stream's leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import EVENTS_STREAM
from elasticgrid.core.errors import Conflict
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Expectation
from elasticgrid.testing.bus import cluster_address, cluster_of_three, connection
from elasticgrid.testing.log_contract import DECISIONS, a_decision, an_event, read_all, take

pytestmark = pytest.mark.server


class _Cluster(msgspec.Struct, frozen=True):
    leader: str = ""


class _Leader(api.ApiReply, frozen=True, kw_only=True):
    cluster: _Cluster = _Cluster()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncGenerator[list[EmbeddedServer]]:
    async with cluster_of_three(tmp_path) as servers:
        yield servers


@pytest.fixture
async def client(servers: list[EmbeddedServer]) -> AsyncGenerator[Client]:
    async with connection(cluster_address(servers)) as client:
        await ensure_streams(client, replicas=3)
        yield client


async def test_three_replicas_recognise_retries_and_survive_their_leaders_death(
    servers: list[EmbeddedServer], client: Client
) -> None:
    log = JetStreamLog(client, patience_s=30)
    # A retried append, alone and as a batch, with and without an expectation.
    single, batch = [a_decision(1)], [a_decision(2), a_decision(3)]
    assert await log.append(single, expect=Expectation(DECISIONS, 0)) == (1, 1)
    assert await log.append(single, expect=Expectation(DECISIONS, 0)) == (1, 1)
    assert await log.append(batch, expect=Expectation(DECISIONS, 1)) == (2, 3)
    assert await log.append(batch, expect=Expectation(DECISIONS, 1)) == (2, 3)
    assert await log.append(single) == (1, 1)
    assert await log.append(batch) == (2, 3)
    for losing in ([a_decision(4)], [a_decision(5), a_decision(6)]):
        with pytest.raises(Conflict):
            await log.append(losing, expect=Expectation(DECISIONS, 2))
    assert await log.last_sequence() == 3

    # The leader dies while events are appended and followed.
    records = log.follow()
    assert [record.sequence for record in await take(records, 3)] == [1, 2, 3]
    info = await api.call(client, f"STREAM.INFO.{EVENTS_STREAM}", {}, _Leader)
    leader = servers[int(info.cluster.leader.removeprefix("s")) - 1]

    async def append_many() -> None:
        for number in range(10, 30):
            await log.append([an_event(number), an_event(100 + number)])

    appending = asyncio.create_task(append_many())
    await take(records, 4)
    await leader.kill()
    await appending
    assert [record.sequence for record in await take(records, 36, timeout_s=30)] == list(range(8, 44))
    assert [record.sequence for record in await read_all(log)] == list(range(1, 44))
    ids = [record.event.id for record in await read_all(log)]
    assert len(set(ids)) == len(ids)
    await records.aclose()
