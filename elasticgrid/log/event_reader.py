"""Answers questions for events, for those who may not read the stream itself.

A tenant's user has no JetStream: what one may ask JetStream stands in the body of the question, which no permission
covers. Here it stands in the subject, `grid.read.<tenant>.<job>.<writer>`, and the server carries over only what the
asker's account and user may ask. Every service answers; the server gives each question to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus import api
from elasticgrid.bus.follower import BusMessage, unix_ns
from elasticgrid.bus.subjects import ALL, EVENTS_ROOT, EVENTS_STREAM, READ_ROOT
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.log.envelope import recorded_ms_of

_log = structlog.get_logger("elasticgrid.log")

QUEUE: Final = "readers"
#: Of events in one answer: how many, and how many bytes.
MAX_EVENTS: Final = 200
MAX_BYTES: Final = 128 * 1024
_TIMEOUT_S: Final = 2.0
_AT_ONCE: Final = 32


class ReadQuestion(msgspec.Struct, frozen=True):
    """Which events are asked for: those after this sequence."""

    after: int = 0


class StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event as it stands in the stream."""

    sequence: int
    recorded_ms: int
    subject: str
    data: bytes


class ReadAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked for, from its beginning.

    Attributes:
        events: in order; empty when there are none.
        end: sequence of the last one there is, in this answer or behind it; 0 when there is none at all.
        problem: why there is no answer; empty when there is one.
    """

    events: tuple[StoredEvent, ...] = ()
    end: int = 0
    problem: str = ""


question_encoder: Final = msgspec.json.Encoder()
_questions: Final = msgspec.json.Decoder(ReadQuestion)
_answers: Final = msgspec.msgpack.Encoder()
answer_decoder: Final = msgspec.msgpack.Decoder(ReadAnswer)


@asynccontextmanager
async def event_reader(client: Client) -> AsyncIterator[None]:
    """Answer questions over this connection, which may read the streams, until the block ends."""
    room = asyncio.Semaphore(_AT_ONCE)
    tasks: set[asyncio.Task[None]] = set()

    def on_answered(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        room.release()

    async def on_question(message: Msg) -> None:
        await room.acquire()
        task = asyncio.create_task(_answer(client, message))
        tasks.add(task)
        task.add_done_callback(on_answered)

    subscription = await client.subscribe(f"{READ_ROOT}.>", QUEUE, cb=on_question)
    try:
        yield
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(client: Client, message: Msg) -> None:
    try:
        question = _questions.decode(message.data or b"{}")
        wanted = message.subject.removeprefix(f"{READ_ROOT}.").split(".")
        if len(wanted) != 3 or not all(wanted):
            raise ValueError("events are asked for by tenant, job and writer")
        wanted_filter = ".".join("*" if token == ALL else token for token in wanted)
        answer = await _read(client, f"{EVENTS_ROOT}.{wanted_filter}.>", max(question.after, 0))
    except (ElasticGridError, nats.errors.Error, OSError, TimeoutError, ValueError, RecursionError) as error:
        answer = ReadAnswer(problem=str(error) or type(error).__name__)
    with contextlib.suppress(nats.errors.Error, OSError):  # who asked asks again
        await client.publish(message.reply, _answers.encode(answer))


async def _read(client: Client, subject_filter: str, after: int) -> ReadAnswer:
    """One batch of a direct read. What it gives may be behind; the leader of the stream says where the end is."""
    last = await api.last_message(client, EVENTS_STREAM, subject_filter, timeout_s=_TIMEOUT_S)
    end = last.seq if last is not None else 0
    if end <= after:
        return ReadAnswer(end=end)
    events = [_stored(message) async for message in _direct(client, subject_filter, after)]
    return ReadAnswer(tuple(events), end)


def _stored(message: Msg) -> StoredEvent:
    headers = message.headers or {}
    time_ms = unix_ns(headers["Nats-Time-Stamp"]) // 1_000_000
    sequence, subject = int(headers["Nats-Sequence"]), headers["Nats-Subject"]
    found = BusMessage(sequence, time_ms, subject, message.headers, message.data, 0)
    return StoredEvent(sequence, recorded_ms_of(found), subject, message.data)


async def _direct(client: Client, subject_filter: str, after: int) -> AsyncGenerator[Msg]:
    inbox = client.new_inbox()
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    subscription = await client.subscribe(inbox, cb=arrived.put)
    body = {"batch": MAX_EVENTS, "max_bytes": MAX_BYTES, "seq": after + 1, "next_by_subj": subject_filter}
    try:
        await client.publish(f"{api.API_ROOT}.DIRECT.GET.{EVENTS_STREAM}", msgspec.json.encode(body), reply=inbox)
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                message = await arrived.get()
                status = (message.headers or {}).get("Status", "")
                if status in ("204", "404"):
                    return
                if status:
                    raise ValueError(f"the stream does not answer: {status} {(message.headers or {})}")
                yield message
    finally:
        await subscription.unsubscribe()
