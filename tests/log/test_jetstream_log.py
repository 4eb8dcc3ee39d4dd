"""The log on a real server passes the contract, and survives what servers, networks and strangers do."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.connect import disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import BusMessage
from elasticgrid.bus.subjects import EVENTS_STREAM, event_subject
from elasticgrid.core.errors import BusUnavailable, InvalidInput, LogGap, UndecodableEvent
from elasticgrid.core.events import NodeLeft, OutcomeDecided, UnknownEvent
from elasticgrid.log.codec import encode
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import EventLog, Expectation
from elasticgrid.testing.bus import Proxy, bus_client, connection, until
from elasticgrid.testing.log_contract import DECISIONS, EventLogContract, a_decision, an_event, read_all, take

pytestmark = pytest.mark.server

NODE_SUBJECT = event_subject("acme", "j1", "node.left")


class TestJetStreamLog(EventLogContract):
    @pytest.fixture
    def log(self, jetstream_log: JetStreamLog) -> EventLog:
        return jetstream_log


async def test_the_recorded_time_is_the_servers(jetstream_log: JetStreamLog) -> None:
    before = time.time_ns() // 1_000_000
    await jetstream_log.append([an_event(1)])
    (record,) = await read_all(jetstream_log)
    assert before <= record.recorded_ms <= time.time_ns() // 1_000_000


async def test_a_restored_event_keeps_the_time_it_was_first_recorded_at(
    jetstream_log: JetStreamLog, bus_client: Client
) -> None:
    for text in ("1234567", "99999999999999", "later"):
        await bus_client.request(NODE_SUBJECT, encode(an_event(1)), headers={"Grid-Recorded-Ms": text}, timeout=2)
    restored, in_future, no_number = await read_all(jetstream_log)
    assert restored.recorded_ms == 1234567
    assert in_future.recorded_ms < 99999999999999
    assert no_number.recorded_ms > 1234567


async def test_the_headers_are_the_cloudevents_attributes(jetstream_log: JetStreamLog, bus_client: Client) -> None:
    event = an_event(1)
    await jetstream_log.append([event])
    stored = await api.message_at(bus_client, EVENTS_STREAM, 1)
    assert stored is not None
    assert stored.subject == NODE_SUBJECT
    lines = set(stored.hdrs.decode().split("\r\n"))
    assert lines >= {
        f"Nats-Msg-Id: {event.id}",
        "ce-specversion: 1.0",
        f"ce-id: {event.id}",
        "ce-type: node.left",
        "ce-source: /elasticgrid/acme/j1/node",
        "ce-time: 2025-06-15T15:06:40.001+00:00",
        "content-type: application/json",
    }


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("expecting", [True, False])
async def test_an_append_whose_answer_was_lost_is_stored_once(
    embedded_server: EmbeddedServer, size: int, expecting: bool
) -> None:
    async with bus_client(embedded_server) as observer, Proxy(embedded_server.address) as proxy:
        await JetStreamLog(observer).append([an_event(99)])
        async with connection(proxy.address) as client:
            log = JetStreamLog(client)
            await log.last_sequence()
            events = [a_decision(n) for n in range(size)]
            proxy.swallow_answers_after(b"Nats-Batch-Commit" if size > 1 else b"ce-id")
            append = asyncio.create_task(log.append(events, expect=Expectation(DECISIONS, 0) if expecting else None))
            async with asyncio.timeout(10):
                await proxy.swallowed.wait()
            assert await JetStreamLog(observer).last_sequence() == 1 + size
            proxy.cut()
            assert await append == (2, 1 + size)
        assert await JetStreamLog(observer).last_sequence() == 1 + size


async def test_an_append_waits_for_a_server_that_is_being_restarted(
    embedded_server: EmbeddedServer, jetstream_log: JetStreamLog
) -> None:
    await jetstream_log.append([an_event(1)])
    await embedded_server.kill()
    assert await jetstream_log.append([an_event(2)]) == (2, 2)


async def test_an_append_to_a_bus_that_stays_away_says_so_and_does_not_land_later(
    embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    log = JetStreamLog(bus_client, patience_s=0.3)
    await embedded_server.stop()
    with pytest.raises(BusUnavailable):
        await log.append([an_event(1)])
    with pytest.raises(BusUnavailable):
        await log.last_sequence()
    await embedded_server.start()
    await until(lambda: bus_client.is_connected)
    await bus_client.flush()
    assert await log.last_sequence() == 0
    await disconnect(bus_client)
    begun = time.monotonic()
    with pytest.raises(BusUnavailable):
        await JetStreamLog(bus_client, patience_s=30).append([an_event(1)])
    assert time.monotonic() - begun < 5


async def test_nothing_acknowledged_is_lost_by_kill_9_and_following_goes_on(
    embedded_server: EmbeddedServer, jetstream_log: JetStreamLog
) -> None:
    records = jetstream_log.follow()
    for restart in range(3):
        for number in range(5):
            await jetstream_log.append([an_event(10 * restart + number)])
        assert len(await take(records, 3)) == 3
        await embedded_server.kill()
        await embedded_server.wait_running()
    await jetstream_log.append([an_event(100)])
    rest = await take(records, 7)
    assert [record.sequence for record in rest] == list(range(10, 17))
    await records.aclose()


async def test_strange_bytes_on_event_subjects_are_counted_once_and_never_stop_a_reader(bus_client: Client) -> None:
    met: list[tuple[int, str]] = []

    def on_undecodable(message: BusMessage, error: UndecodableEvent) -> None:
        met.append((message.sequence, error.code))

    log = JetStreamLog(bus_client, on_undecodable=on_undecodable)
    good = an_event(1)
    strange = [
        b"",
        b"\xff\x00",
        b"[" * 10_000,
        b'{"id": 7}',
        msgspec.json.encode({**msgspec.to_builtins(good), "data": {"type": "node.left"}}),
    ]
    for data in strange:
        await bus_client.request(NODE_SUBJECT, data, timeout=2)
    await log.append([good])
    for _ in range(2):
        assert [record.event for record in await read_all(log)] == [good]
    records = log.follow()
    assert [record.event for record in await take(records, 1)] == [good]
    await records.aclose()
    assert met == [(sequence, "undecodable_event") for sequence in range(1, len(strange) + 1)]
    assert log.undecodable == len(strange)


async def test_an_event_that_claims_to_be_another_writers_tenants_or_jobs_is_not_believed(
    jetstream_log: JetStreamLog, bus_client: Client
) -> None:
    forged = [
        an_event(1, OutcomeDecided(outcome="cancelled", reason="forged")),
        an_event(2, tenant="other"),
        an_event(3, job="j2"),
    ]
    for event in forged:
        await bus_client.request(NODE_SUBJECT, encode(event), timeout=2)
    assert await read_all(jetstream_log) == []
    assert jetstream_log.undecodable == 3


async def test_an_event_of_an_unknown_type_is_carried(jetstream_log: JetStreamLog, bus_client: Client) -> None:
    for subject, event_type in (("node.moved", "node.moved"), ("audit.seen-twice", "audit.seen.twice")):
        raw = {**msgspec.to_builtins(an_event(1)), "data": {"type": event_type, "to": "the moon"}}
        await bus_client.request(f"grid.events.acme.j1.{subject}", msgspec.json.encode(raw), timeout=2)
    records = await read_all(jetstream_log)
    assert [r.event.type for r in records if isinstance(r.event, UnknownEvent)] == ["node.moved", "audit.seen.twice"]
    assert jetstream_log.undecodable == 0


async def test_an_event_larger_than_the_bus_takes_is_refused_and_the_connection_lives(
    jetstream_log: JetStreamLog,
) -> None:
    for size in (262_144, 262_000):
        with pytest.raises(InvalidInput):
            await jetstream_log.append([an_event(1, NodeLeft(node="n", reason="x" * size))])
    assert await jetstream_log.append([an_event(2, NodeLeft(node="n", reason="x" * 261_000))]) == (1, 1)


async def test_missing_sequences_are_an_error_and_never_skipped(embedded_server: EmbeddedServer) -> None:
    async with connection(embedded_server.address) as client:
        # A stream in our place that forgets: of each subject it keeps only the last message.
        config = {"name": EVENTS_STREAM, "subjects": ["grid.events.>"], "max_msgs_per_subject": 1, "storage": "file"}
        await api.call(client, f"STREAM.CREATE.{EVENTS_STREAM}", config, api.StreamInfo)
        log = JetStreamLog(client)
        await log.append([a_decision(1)])
        await log.append([an_event(2)])
        await log.append([an_event(3)])
        with pytest.raises(LogGap):
            await read_all(log)
        with pytest.raises(LogGap):
            await take(log.follow(), 2)
