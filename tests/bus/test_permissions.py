"""What the credential of a launch is for, and what no credential may; `tests/security` tries what it is not for."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus import api
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM, heartbeat_subject, round_subject, sample_subject
from elasticgrid.core.errors import NotAllowed
from elasticgrid.core.events import JobPauseRequested, LaunchStopped
from elasticgrid.log.asked import AskedLog
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.log_contract import a_decision, an_event, take

pytestmark = pytest.mark.server


async def test_a_node_publishes_samples_and_heartbeats_appends_its_facts_and_follows_the_log(
    bus_client: Client, node_client: Client
) -> None:
    await node_client.request(sample_subject("acme", "j1", 0), b"x", timeout=2)
    heartbeats = await bus_client.subscribe("grid.heartbeats.>")
    await bus_client.flush()
    await node_client.publish(heartbeat_subject("acme", "j1", "n1"), b"alive")
    assert (await heartbeats.next_msg(timeout=2)).data == b"alive"
    everything = JetStreamLog(bus_client)
    await everything.append([a_decision(1)])
    log = AskedLog(node_client)
    assert await log.append([an_event(2)]) == (2, 2)
    assert await log.append([an_event(2)]) == (2, 2)
    await everything.append([a_decision(3), a_decision(4)])
    decisions = Scope("acme", "j1", "decision")
    assert await log.last_sequence(decisions) == 4
    records = log.follow(scope=decisions)
    assert [record.sequence for record in await take(records, 3)] == [1, 3, 4]
    following = asyncio.create_task(anext(records))
    await everything.append([an_event(5), a_decision(6)])
    assert (await asyncio.wait_for(following, 2)).sequence == 5 + 1
    await records.aclose()
    assert [record.sequence async for record in log.read(scope=decisions, after=1, through=4)] == [3, 4]


async def test_nodes_ask_and_answer_each_other_about_rounds(node_client: Client) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"at step 7")

    await node_client.subscribe(round_subject("acme", "j1", "n1"), cb=answer)
    reply = await node_client.request(round_subject("acme", "j1", "n1"), b"where?", timeout=2)
    assert reply.data == b"at step 7"


@pytest.mark.parametrize(
    "event",
    [a_decision(1), an_event(1, JobPauseRequested()), an_event(1, LaunchStopped(attempt="a", reason="r"))],
    ids=["decision", "job", "launch"],
)
async def test_a_node_cannot_append_what_others_decide_or_record(
    bus_client: Client, node_client: Client, event: object
) -> None:
    assert isinstance(event, type(an_event(1)))
    with pytest.raises(NotAllowed):
        await AskedLog(node_client).append([event])
    assert await JetStreamLog(bus_client).last_sequence() == 0


DESTRUCTIVE = [
    f"{verb}.{stream}"
    for stream in (EVENTS_STREAM, SAMPLES_STREAM)
    for verb in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE", "STREAM.RESTORE")
]


async def test_nobody_may_delete_purge_or_overwrite_a_stream(bus_client: Client, node_client: Client) -> None:
    await JetStreamLog(bus_client).append([an_event(1)])
    for client in (bus_client, node_client):
        for operation in DESTRUCTIVE:
            with pytest.raises(NotAllowed):
                await api.call(client, operation, {"seq": 1}, api.ApiReply, timeout_s=0.1)
    assert (await api.stream_info(bus_client, EVENTS_STREAM)).state.last_seq == 1
    await api.stream_info(bus_client, SAMPLES_STREAM)


async def test_a_node_cannot_change_streams_or_read_samples_or_stop_other_readers(node_client: Client) -> None:
    operations = [
        f"STREAM.UPDATE.{EVENTS_STREAM}",
        "STREAM.CREATE.MINE",
        "STREAM.NAMES",
        f"CONSUMER.DELETE.{EVENTS_STREAM}.x",
        f"CONSUMER.CREATE.{SAMPLES_STREAM}.x.grid.samples.>",
        f"CONSUMER.CREATE.{EVENTS_STREAM}.x",
        f"STREAM.INFO.{EVENTS_STREAM}",
        f"STREAM.MSG.GET.{EVENTS_STREAM}",
        f"DIRECT.GET.{EVENTS_STREAM}",
    ]
    for operation in operations:
        with pytest.raises(NotAllowed):
            await api.call(node_client, operation, {}, api.ApiReply, timeout_s=0.1)


async def test_a_node_cannot_listen_to_heartbeats_or_to_other_roles_answers(
    bus_client: Client, node_client: Client
) -> None:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    for subject in ("grid.heartbeats.>", "_INBOX_service.>", "grid.samples.>", ">"):
        await node_client.subscribe(subject, cb=hear)
    await node_client.flush()
    await bus_client.publish("grid.heartbeats.acme.j1.n1", b"alive")
    await api.stream_info(bus_client, EVENTS_STREAM)
    await bus_client.flush()
    await node_client.flush()
    await asyncio.sleep(0)
    assert heard == []
