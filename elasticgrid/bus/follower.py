"""The one follower: every message of a stream once and in order, through gaps, silence, reconnects and server restarts.

It pulls: two requests of `BATCH` messages are kept under way, and a new one is made only when half of the messages
asked for were taken by the reader, so a slow reader holds back the server and never overflows a buffer. Each message
carries its place in the consumer's own count, where a filter leaves no holes; a hole there, a heartbeat that tells of
more than has arrived, silence, a reconnect or a lost consumer all have the same cure: a new consumer from the message
after the last one that was handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from elasticgrid.bus import api
from elasticgrid.core.errors import BusUnavailable, LogDiverged, LogGap, NotFound

BATCH: Final = 500
CREDITS: Final = 2 * BATCH
HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 2.5
PULL_EXPIRES_S: Final = 30.0
#: How long the server keeps a consumer that nobody pulls from.
ABANDONED_AFTER_S: Final = 10.0
PATIENCE_S: Final = 5.0
_TICK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.02
_LAST_PAUSE_S: Final = 1.0
_REQUEST_TIMEOUT_S: Final = 2.0
_NS_PER_S: Final = 1_000_000_000

_STATUS: Final = "Status"
_RESTORE: Final = "messages were lost; restore the stream from the mirror or an archive"


class BusMessage(msgspec.Struct, frozen=True):
    """A message as it stands in a stream.

    Attributes:
        sequence: its place in the stream, from 1.
        time_ms: the server's clock when it was stored, Unix milliseconds.
        subject: what it was published to.
        headers: its headers, None when it has none.
        data: its bytes.
        pending: how many messages of the filter follow it, as known when it was sent.
    """

    sequence: int
    time_ms: int
    subject: str
    headers: dict[str, str] | None
    data: bytes
    pending: int


class Follower:
    """Iterates a stream's messages in order for ever.

    Iteration ends with `aclose`, and raises:
        LogGap: the stream no longer has messages that were not read yet.
        LogDiverged: the stream was cut, replaced, or holds something else at a sequence that was read before.
        NotFound: there is no such stream.
        BusUnavailable: the connection was closed for good; while it is only interrupted the follower waits.
        NotAllowed: this credential may not read the stream.

    On a lossy stream the first two are no errors. Expired messages are skipped and counted; after a cut (a crash of the
    server loses the last acknowledged messages of a stream that is not synced) it goes on with what was stored after
    the last message that was read, and sequences may then be lower than before.

    Args:
        client: a connection; it stays open after `aclose`.
        stream: the stream's name.
        filter_subject: which subjects, with wildcards.
        after: the last sequence that was read already; 0 for the beginning.
        lossy: the stream may drop messages, as `GRID_SAMPLES` does.
        patience_s: how long a stream that is missing, or ends before what was read, may still be recovering.

    Attributes:
        last_sequence: of the last message handed out, or `after`.
        recoveries: how often a new consumer was needed.
        gaps: how often messages had been lost on the way and were read again.
        skipped: how many sequences of a lossy stream had expired before they were read.
        cuts: how often the end of a lossy stream had been lost.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        filter_subject: str,
        *,
        after: int = 0,
        lossy: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.last_sequence = after
        self.recoveries = 0
        self.gaps = 0
        self.skipped = 0
        self.cuts = 0
        self._client = client
        self._stream = stream
        self._filter = filter_subject
        self._lossy = lossy
        self._patience_s = patience_s
        self._last_time_ns = 0
        self._created = ""
        self._consumer: _Consumer | None = None
        self._started = False
        self._closed = False
        self._closing = asyncio.Event()

    def __aiter__(self) -> AsyncGenerator[BusMessage]:
        return self._messages()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _messages(self) -> AsyncGenerator[BusMessage]:
        while batch := await self.next_batch():
            for message in batch:
                yield message

    async def next_batch(self) -> list[BusMessage]:
        """Wait for messages and return all that have arrived, in order, at most `CREDITS`; empty only when closed.

        Quicker than iterating one by one. Raises what iterating raises.
        """
        while not self._closed:
            consumer = self._consumer
            if consumer is None or consumer.reconnects != self._client.stats["reconnects"] or self._client.is_closed:
                await self._recover()
                continue
            if not consumer.arrived:
                await self._wait(consumer)
                if not consumer.arrived:
                    if consumer.lost or consumer.silent():
                        await self._drop()
                    continue
            batch, intact = consumer.take()
            if not intact:
                self.gaps += 1
                await self._drop()
            if batch:
                self.last_sequence = batch[-1].sequence
                self._last_time_ns = consumer.last_time_ns
                if intact:
                    await consumer.ask()
                return batch
        return []

    async def aclose(self) -> None:
        """Stop; a waiting reader gets the end. The connection stays open."""
        self._closed = True
        self._closing.set()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.wake.set()
            await consumer.close()

    async def _wait(self, consumer: _Consumer) -> None:
        """Until something arrived, was lost, or it is time to look at the connection."""
        consumer.wake.clear()
        await consumer.ask()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await consumer.wake.wait()

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _recover(self) -> None:
        """Go on from the message after the last one, however long that takes."""
        await self._drop()
        if self._started:
            self.recoveries += 1
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        doubt_since: float | None = None
        while not self._closed:
            if self._client.is_closed:
                raise BusUnavailable("the connection is closed", where=self._stream, hint="connect again")
            try:
                if self._client.is_connected:
                    await self._open(await self._verify())
                    self._started = True
                    return
            except (LogDiverged, LogGap, NotFound):
                # A server that has just become the leader may still be catching up.
                doubt_since = loop.time() if doubt_since is None else doubt_since
                if loop.time() - doubt_since > self._patience_s:
                    raise
            except BusUnavailable:
                doubt_since = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _verify(self) -> dict[str, object]:
        """Where to go on, if the stream still is the one that was read and still has what comes next."""
        try:
            info = await api.stream_info(self._client, self._stream, timeout_s=_REQUEST_TIMEOUT_S)
        except api.ApiError as error:
            if error.err_code != api.STREAM_NOT_FOUND:
                raise
            if self._started and not self._lossy:
                raise LogDiverged("the stream is gone", where=self._stream, hint=_RESTORE) from error
            raise NotFound("there is no such stream", where=self._stream, hint="start a service first") from error
        try:
            await self._verify_end(info)
        except LogDiverged:
            if not self._lossy:
                raise
            self.cuts += 1
            known_time_ns, self._last_time_ns = self._last_time_ns, 0
            self._created = info.created
            self.last_sequence = min(self.last_sequence, info.state.last_seq)
            if known_time_ns:
                return {"deliver_policy": "by_start_time", "opt_start_time": _rfc3339(known_time_ns + 1)}
        self._created = info.created
        next_sequence = self.last_sequence + 1
        if info.state.first_seq > next_sequence:
            if not self._lossy:
                raise LogGap(
                    f"the stream begins at {info.state.first_seq}, but {next_sequence} was not read yet",
                    where=self._stream,
                )
            self.skipped += info.state.first_seq - next_sequence
            self.last_sequence = info.state.first_seq - 1
            self._last_time_ns = 0
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last_sequence + 1}

    async def _verify_end(self, info: api.StreamInfo) -> None:
        """Whether what was read last is still there: a stream that was cut uses its sequences again."""
        if self._created and info.created != self._created:
            raise LogDiverged("the stream was made anew", where=self._stream, hint=_RESTORE)
        if info.state.last_seq < self.last_sequence:
            raise LogDiverged(
                f"the stream ends at {info.state.last_seq}, but {self.last_sequence} was read from it before",
                where=self._stream,
                hint=_RESTORE,
            )
        if not self._last_time_ns or info.state.first_seq > self.last_sequence:
            return
        stored = await api.message_at(self._client, self._stream, self.last_sequence, timeout_s=_REQUEST_TIMEOUT_S)
        # A missing one has expired since, on a lossy stream; on another the reader sees the hole.
        if stored is not None and unix_ns(stored.time) != self._last_time_ns:
            raise LogDiverged(
                "another message than the one that was read stands at this sequence",
                where=f"{self._stream} {self.last_sequence}",
                hint=_RESTORE,
            )

    async def _open(self, start: dict[str, object]) -> None:
        consumer = _Consumer(self._client, self._stream, self._filter)
        try:
            await consumer.open(start)
        except BaseException:
            await consumer.close()
            raise
        if self._closed:
            await consumer.close()
        else:
            self._consumer = consumer


class _Consumer:
    """One ephemeral consumer: its requests under way, what arrived, and whether that is all."""

    def __init__(self, client: Client, stream: str, filter_subject: str) -> None:
        self.arrived: deque[Msg] = deque()
        self.wake = asyncio.Event()
        self.lost = False
        self.reconnects: int = client.stats["reconnects"]
        self.last_time_ns = 0
        self._client = client
        self._stream = stream
        self._filter = filter_subject
        self._name = f"follower-{secrets.token_hex(8)}"
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._requested = 0
        self._received = 0
        self._taken = 0
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._heard = self._clock()

    async def open(self, start: dict[str, object]) -> None:
        """Create the consumer with this start and ask for messages."""
        self._subscription = await self._client.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=4 * CREDITS, pending_bytes_limit=0
        )
        config = {
            "name": self._name,
            **start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": self._filter,
            "inactive_threshold": int(ABANDONED_AFTER_S * _NS_PER_S),
            "mem_storage": True,
            "num_replicas": 1,
        }
        await api.call(
            self._client,
            f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._filter}",
            {"stream_name": self._stream, "config": config},
            api.ConsumerInfo,
            timeout_s=_REQUEST_TIMEOUT_S,
        )
        await self.ask()

    async def close(self) -> None:
        """Stop listening. The server forgets the consumer by itself."""
        self.lost = True
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def ask(self) -> None:
        """Keep two requests under way, counting what waits to be taken as still under way."""
        while not self.lost and self._requested - self._taken <= CREDITS - BATCH:
            self._requested += BATCH
            request = {
                "batch": BATCH,
                "expires": int(PULL_EXPIRES_S * _NS_PER_S),
                "idle_heartbeat": int(HEARTBEAT_S * _NS_PER_S),
            }
            subject = f"{api.API_ROOT}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            try:
                await self._client.publish(subject, msgspec.json.encode(request), reply=self._inbox)
            except (nats.errors.Error, OSError):
                self.lost = True

    def silent(self) -> bool:
        """Whether nothing, not even a heartbeat, came for too long although messages were asked for."""
        return self._clock() - self._heard > SILENCE_S

    def take(self) -> tuple[list[BusMessage], bool]:
        """What arrived, up to the first hole, and whether there was none."""
        batch: list[BusMessage] = []
        append = batch.append
        expected = self._taken
        for message in self.arrived:
            # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>, and with a domain
            # and an account's hash before the stream in the longer form.
            tokens = message.reply.split(".")
            at = 5 if len(tokens) < 11 else 7
            expected += 1
            if int(tokens[at + 1]) != expected:
                return batch, False
            time_ns = int(tokens[at + 2])
            append(
                BusMessage(
                    int(tokens[at]),
                    time_ns // 1_000_000,
                    message.subject,
                    message.headers,
                    message.data,
                    int(tokens[at + 3]),
                )
            )
            self.last_time_ns = time_ns
        self.arrived.clear()
        self._taken = expected
        # The reader may have kept the loop busy: silence is counted from when it came back.
        self._heard = self._clock()
        return batch, True

    async def _on_message(self, message: Msg) -> None:
        self._heard = self._clock()
        if message.reply.startswith("$JS.ACK."):
            self._received += 1
            self.arrived.append(message)
        elif message.headers is not None and _STATUS in message.headers:
            self._on_status(message.headers[_STATUS], message.headers)
        self.wake.set()

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        if status == "100":
            # A heartbeat says how far the server has sent; what is missing then will not come any more.
            told = headers.get("Nats-Last-Consumer", "")
            self.lost = self.lost or (told.isdigit() and int(told) > self._received)
        elif status == "408" or (status == "409" and "Nats-Pending-Messages" in headers):
            unused = headers.get("Nats-Pending-Messages", "")
            self._requested -= min(int(unused), BATCH) if unused.isdigit() else BATCH
        else:
            self.lost = True


def unix_ns(text: str) -> int:
    """The server's RFC 3339 time (UTC, up to nine decimals) as Unix nanoseconds."""
    whole, _, decimals = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * _NS_PER_S + int(decimals.ljust(9, "0"))


def _rfc3339(time_ns: int) -> str:
    seconds, decimals = divmod(time_ns, _NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{decimals:09d}Z"


async def read_through(
    client: Client, stream: str, filter_subject: str, *, after: int, through: int
) -> AsyncGenerator[list[BusMessage]]:
    """Yield lists of the filter's messages with after < sequence <= through, in order, and end.

    `through` must not be later than the last message of the filter: the read ends when it is reached.

    Raises what iterating a `Follower` raises.
    """
    if after >= through:
        return
    async with Follower(client, stream, filter_subject, after=after) as follower:
        while follower.last_sequence < through:
            batch = await follower.next_batch()
            if not batch:
                return
            if batch[-1].sequence > through:
                batch = [message for message in batch if message.sequence <= through]
                if batch:
                    yield batch
                return
            yield batch
