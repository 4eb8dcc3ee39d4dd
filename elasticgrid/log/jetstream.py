"""The event log in the JetStream stream `GRID_EVENTS`.

An event's bytes are the message's data; its CloudEvents attributes are headers. A batch is stored whole or not at all.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
import stamina
import structlog
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.follower import BusMessage, Follower, read_through
from elasticgrid.bus.subjects import EVENTS_STREAM, event_filter
from elasticgrid.core.errors import BusUnavailable, Conflict, InvalidInput, LogGap, UndecodableEvent
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.batch import check_batch
from elasticgrid.log.codec import decode, encode
from elasticgrid.log.envelope import MSG_ID, headers_of, recorded_ms_of, refuse_foreign, subject_of
from elasticgrid.log.port import Expectation, Scope

_log = structlog.get_logger("elasticgrid.log")

#: For how long an append or a question is tried again while the bus is away.
PATIENCE_S: Final = 10.0
_ACK_TIMEOUT_S: Final = 2.0

_WRONG_LAST_SEQUENCE: Final = 10071
_WRONG_LAST_SEQUENCE_CLUSTER: Final = 10164
_DUPLICATE_IN_BATCH: Final = 10201
_DUPLICATE_IN_PROCESS: Final = 10158
_BATCH_INCOMPLETE: Final = 10176
#: Refusals after which the append may yet be found to have landed.
_PERHAPS_LANDED: Final = frozenset({_WRONG_LAST_SEQUENCE, _WRONG_LAST_SEQUENCE_CLUSTER, _DUPLICATE_IN_BATCH})
_TRY_AGAIN: Final = frozenset({_DUPLICATE_IN_PROCESS, _BATCH_INCOMPLETE})
#: Undecodable messages whose sequences are remembered, so that reading them again does not count them again.
_REMEMBERED: Final = 10_000

OnUndecodable = Callable[[BusMessage, UndecodableEvent], None]


class _PublishAck(api.ApiReply, frozen=True, kw_only=True):
    seq: int = 0


class _Message(msgspec.Struct, frozen=True):
    subject: str
    headers: dict[str, str]
    data: bytes


class JetStreamLog:
    """An `EventLog` on the bus.

    Args:
        client: a connection; the log does not close it.
        on_undecodable: called once for every message on an event subject that is not the event its subject says. Such a
            message is never yielded. Without a callback the first one is logged.

    Attributes:
        undecodable: how many such messages were met.
    """

    def __init__(
        self, client: Client, *, on_undecodable: OnUndecodable | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self.undecodable = 0
        self._client = client
        self._on_undecodable = on_undecodable or _log_first_of(self)
        self._patience_s = patience_s
        self._undecodable_at: set[int] = set()

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """See `EventLog.append`.

        Raises:
            NotAllowed: this credential may not write these events.
            BusError: the stream refused them for another reason, such as a full disk.
        """
        check_batch(events)
        messages = [self._message(event) for event in events]
        if expect is not None:
            messages[0].headers["Nats-Expected-Last-Subject-Sequence"] = str(expect.sequence)
            messages[0].headers["Nats-Expected-Last-Subject-Sequence-Subject"] = _filter(expect.scope)
        async for attempt in self._retrying():
            with attempt:
                return await self._append(events, messages, expect)
        raise AssertionError("the last attempt returns or raises")

    async def read(
        self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()
    ) -> AsyncGenerator[Recorded]:
        """See `EventLog.read`."""
        last = await self.last_sequence(scope)
        end = last if through is None else min(through, last)
        whole = scope == Scope()
        previous = max(after, 0)
        async for batch in read_through(self._client, EVENTS_STREAM, _filter(scope), after=previous, through=end):
            for message in batch:
                if whole and message.sequence != previous + 1:
                    raise _gap(previous, message.sequence)
                previous = message.sequence
                if (record := self._record(message)) is not None:
                    yield record

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """See `EventLog.follow`. LogDiverged is raised when the stream is no longer the one that was read."""
        whole = scope == Scope()
        previous = max(after, 0)
        read_again = False
        while True:
            async with Follower(self._client, EVENTS_STREAM, _filter(scope), after=previous) as follower:
                hole = False
                while not hole:
                    for message in await follower.next_batch():
                        if whole and message.sequence != previous + 1:
                            if read_again:
                                raise _gap(previous, message.sequence)
                            read_again = hole = True
                            break
                        read_again = False
                        previous = message.sequence
                        if (record := self._record(message)) is not None:
                            yield record

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """See `EventLog.last_sequence`.

        Raises:
            BusUnavailable: the stream could not be asked.
        """
        async for attempt in self._retrying():
            with attempt:
                message = await api.last_message(self._client, EVENTS_STREAM, _filter(scope), timeout_s=_ACK_TIMEOUT_S)
        return message.seq if message is not None else 0

    def _retrying(self) -> AsyncIterator[stamina.Attempt]:
        return stamina.retry_context(
            on=self._may_help,
            attempts=None,
            timeout=self._patience_s,
            wait_initial=0.02,
            wait_max=0.5,
            wait_jitter=0.02,
        )

    def _may_help(self, error: Exception) -> bool:
        return isinstance(error, BusUnavailable) and not self._client.is_closed

    def _message(self, event: Event) -> _Message:
        data = encode(event)
        headers = headers_of(event)
        # The server counts headers too and ends the connection of who sends more than it takes.
        size = len(data) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 512
        if size > self._client.max_payload:
            raise InvalidInput(
                f"an event of {size} bytes is larger than the bus takes ({self._client.max_payload})", where=event.id
            )
        return _Message(subject_of(event), headers, data)

    async def _append(
        self, events: Sequence[Event], messages: Sequence[_Message], expect: Expectation | None
    ) -> tuple[int, int]:
        """One attempt."""
        if len(messages) == 1:
            ack = await self._request(messages[0], messages[0].headers)
        else:
            ack = await self._publish_batch(messages)
        if ack.error is None:
            if ack.seq < len(messages):
                raise BusUnavailable("an acknowledgement without a sequence", where=messages[0].subject)
            return ack.seq - len(messages) + 1, ack.seq
        if ack.error.code == 503 or ack.error.err_code in _TRY_AGAIN:
            raise BusUnavailable(ack.error.description, where=messages[0].subject, hint=api.UNREACHABLE_HINT)
        if ack.error.err_code not in _PERHAPS_LANDED:
            raise api.ApiError(ack.error, where=messages[0].subject)
        landed = await self._landed(events, expect)
        if landed is not None:
            return landed
        raise Conflict(ack.error.description, where=messages[0].subject, hint="read again and decide again")

    async def _publish_batch(self, messages: Sequence[_Message]) -> _PublishAck:
        batch_id = secrets.token_hex(16)
        last = len(messages)
        for number, message in enumerate(messages, 1):
            headers = {**message.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number == last:
                return await self._request(message, {**headers, "Nats-Batch-Commit": "1"})
            if number == 1:
                # The first is answered, so that a refusal is known before the rest is sent.
                begun = await self._request(message, headers)
                if begun.error is not None:
                    return begun
                continue
            try:
                await self._client.publish(message.subject, message.data, headers=headers)
            except api.UNREACHABLE as error:
                raise BusUnavailable(f"a batch was not sent: {error}", where=message.subject) from error
        raise AssertionError("the last message of a batch returns")

    async def _request(self, message: _Message, headers: dict[str, str]) -> _PublishAck:
        reply = await api.request(
            self._client, message.subject, message.data, timeout_s=_ACK_TIMEOUT_S, headers=headers
        )
        if not reply.data:
            return _PublishAck()
        try:
            return msgspec.json.decode(reply.data, type=_PublishAck)
        except msgspec.MsgspecError as error:
            raise BusUnavailable(f"an acknowledgement that is none: {error}", where=message.subject) from error

    async def _landed(self, events: Sequence[Event], expect: Expectation | None) -> tuple[int, int] | None:
        """The sequences these events were stored at by an earlier attempt whose answer was lost, if that is so."""
        scope = Scope(events[0].tenant, events[0].job)
        wanted = [event.id for event in events]
        found: list[int] = []
        after = expect.sequence if expect is not None else 0
        end = await self.last_sequence(scope)
        async for batch in read_through(self._client, EVENTS_STREAM, _filter(scope), after=after, through=end):
            for message in batch:
                msg_id = (message.headers or {}).get(MSG_ID)
                if len(found) < len(wanted) and msg_id == wanted[len(found)]:
                    found.append(message.sequence)
                elif msg_id in wanted:
                    return None
        if len(found) < len(wanted):
            return None
        return found[0], found[-1]

    def _record(self, message: BusMessage) -> Recorded | None:
        try:
            event = decode(message.data)
            refuse_foreign(message.subject, event)
        except UndecodableEvent as error:
            if message.sequence not in self._undecodable_at:
                if len(self._undecodable_at) < _REMEMBERED:
                    self._undecodable_at.add(message.sequence)
                self.undecodable += 1
                self._on_undecodable(message, error)
            return None
        return Recorded(message.sequence, recorded_ms_of(message), event, message.data)


def _filter(scope: Scope) -> str:
    return event_filter(scope.tenant, scope.job, scope.writer)


def _gap(previous: int, found: int) -> LogGap:
    return LogGap(
        f"events are missing: {found} follows {previous}", where=EVENTS_STREAM, hint="restore from the mirror"
    )


def _log_first_of(log: JetStreamLog) -> OnUndecodable:
    def log_first(message: BusMessage, error: UndecodableEvent) -> None:
        if log.undecodable == 1:
            _log.warning(
                "a message on an event subject is not an event; it is skipped, and further ones are only counted",
                subject=message.subject,
                sequence=message.sequence,
                error=str(error),
            )

    return log_first
