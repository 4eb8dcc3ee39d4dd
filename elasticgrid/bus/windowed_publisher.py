"""Publishing many small messages into a stream, each stored once, with a bounded number under way.

Nothing waits on a future per message: every message carries a number in its reply subject, one subscription takes all
acknowledgements, and what is not acknowledged in time, or was under way when the connection broke, is sent again with
the same message id, by which the stream knows it. Needs nats-py and msgspec only.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from elasticgrid.bus.api import ApiFailure, refuse_if_not_allowed
from elasticgrid.core.errors import BusUnavailable, InvalidInput, NotAllowed

MSG_ID_HEADER: Final = "Nats-Msg-Id"
#: `NATS/1.0`, the header's name, and line ends.
_HEADER_BYTES: Final = 32
_TICK_S: Final = 0.05
_YIELD_EVERY: Final = 32


class _Ack(msgspec.Struct, frozen=True):
    error: ApiFailure | None = None


class _UnderWay:
    __slots__ = ("attempts", "data", "msg_id", "sent_at", "subject")

    def __init__(self, subject: str, data: bytes, msg_id: str) -> None:
        self.subject = subject
        self.data = data
        self.msg_id = msg_id
        self.sent_at = 0.0
        self.attempts = 0


_ack_decoder = msgspec.json.Decoder(_Ack)


class WindowedPublisher:
    """Publishes to one connection with at most `window` messages unacknowledged.

    A message that is sent again may be stored behind later ones; the order within a stream is not the order of
    publishing. A second sending is recognised within the stream's duplicate window (two minutes).

    Args:
        client: a connection; it stays open after `close`.
        window: how many messages may be unacknowledged. With messages of b bytes about `window * b` bytes are held.
        ack_timeout_s: after how long without an acknowledgement a message is sent again.
        max_attempts: how often a message is sent over a working connection before it counts as failed.

    Attributes:
        published: messages taken.
        acked: messages the stream has stored.
        retried: sendings after the first.
        failed: messages given up: refused by the stream, sent `max_attempts` times, or unacknowledged at `close`.
        last_failure: why the last one failed.
    """

    def __init__(
        self, client: Client, *, window: int = 256, ack_timeout_s: float = 5.0, max_attempts: int = 10
    ) -> None:
        if window < 1:
            raise InvalidInput("a window holds at least one message", where="window")
        self.published = 0
        self.acked = 0
        self.retried = 0
        self.failed = 0
        self.last_failure = ""
        self._client = client
        self._window = window
        self._ack_timeout_s = ack_timeout_s
        self._max_attempts = max_attempts
        self._under_way: dict[int, _UnderWay] = {}
        self._next_token = 0
        self._room = asyncio.Event()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._opening = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._inbox = ""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def unacknowledged(self) -> int:
        """How many messages are under way."""
        return len(self._under_way)

    async def publish(self, subject: str, data: bytes, *, msg_id: str) -> None:
        """Take a message; waits only while the window is full.

        Raises:
            BusUnavailable: the publisher or its connection was closed for good.
            InvalidInput: the message is larger than the server takes.
        """
        # The server counts headers too and ends the connection of who sends more than it takes.
        size = len(data) + len(msg_id) + _HEADER_BYTES
        if size > self._client.max_payload:
            raise InvalidInput(
                f"a message of {size} bytes is larger than the server takes ({self._client.max_payload})",
                where=subject,
            )
        if self._keeper is None:
            await self._open()
        while len(self._under_way) >= self._window and not self._gone():
            self._room.clear()
            await self._room.wait()
        if self._gone():
            raise BusUnavailable("the publisher is closed", where=subject, hint="connect again")
        token = self._next_token
        self._next_token += 1
        message = _UnderWay(subject, data, msg_id)
        self._under_way[token] = message
        self.published += 1
        self._none.clear()
        self._some.set()
        await self._send(token, message)
        if self.published % _YIELD_EVERY == 0:
            await asyncio.sleep(0)

    async def flush(self, timeout_s: float) -> int:
        """Wait until everything is acknowledged or given up, at most that long; returns how many are not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none.wait()
        return len(self._under_way)

    async def close(self) -> None:
        """Stop at once; what is not acknowledged counts as failed. Call `flush` before to wait for it."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()
            self._subscription = None
        for token in list(self._under_way):
            self._give_up(token, "closed before it was acknowledged")
        self._room.set()

    def _gone(self) -> bool:
        return self._closed or self._client.is_closed

    async def _open(self) -> None:
        async with self._opening:
            if self._keeper is not None or self._gone():
                return
            self._inbox = self._client.new_inbox()
            try:
                self._subscription = await self._client.subscribe(
                    f"{self._inbox}.*", cb=self._on_ack, pending_msgs_limit=4 * self._window + 64, pending_bytes_limit=0
                )
            except (nats.errors.Error, OSError) as error:
                raise BusUnavailable(f"cannot listen for acknowledgements: {error}", hint="connect again") from error
            self._keeper = asyncio.create_task(self._keep(), name="windowed publisher")

    async def _send(self, token: int, message: _UnderWay) -> None:
        if not self._client.is_connected:
            return
        message.sent_at = asyncio.get_running_loop().time()
        message.attempts += 1
        if message.attempts > 1:
            self.retried += 1
        # What cannot be sent now is sent again by the keeper.
        with contextlib.suppress(nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError, OSError):
            try:
                await self._client.publish(
                    message.subject,
                    message.data,
                    reply=f"{self._inbox}.{token}",
                    headers={MSG_ID_HEADER: message.msg_id},
                )
            except (nats.errors.BadSubjectError, nats.errors.MaxPayloadError, nats.errors.BadHeaderError) as error:
                self._give_up(token, str(error))

    async def _on_ack(self, message: Msg) -> None:
        tail = message.subject.rpartition(".")[2]
        token = int(tail) if tail.isdecimal() else -1
        if token not in self._under_way:
            return
        if message.headers is not None and message.headers.get("Status") == "503":
            return  # no stream or no leader there just now; the keeper tries again
        try:
            ack = _ack_decoder.decode(message.data)
        except msgspec.MsgspecError:
            return
        if ack.error is None:
            self.acked += 1
            self._remove(token)
        elif ack.error.code < 500:
            self._give_up(token, f"{ack.error.description} (err_code {ack.error.err_code})")

    def _remove(self, token: int) -> None:
        del self._under_way[token]
        self._room.set()
        if not self._under_way:
            self._some.clear()
            self._none.set()

    def _give_up(self, token: int, why: str) -> None:
        self.failed += 1
        self.last_failure = why
        self._remove(token)

    async def _keep(self) -> None:
        """Send again what was lost, as long as there is something under way."""
        loop = asyncio.get_running_loop()
        connection: int = self._client.stats["reconnects"]
        while True:
            await self._some.wait()
            await asyncio.sleep(_TICK_S)
            if self._client.is_closed:
                for token in list(self._under_way):
                    self._give_up(token, "the connection was closed for good")
                self._room.set()
                continue
            if not self._client.is_connected:
                continue
            broken = connection != self._client.stats["reconnects"]
            connection = self._client.stats["reconnects"]
            overdue_before = loop.time() - self._ack_timeout_s
            for token, message in list(self._under_way.items()):
                if token not in self._under_way or not (broken or message.sent_at < overdue_before):
                    continue
                if not broken and self._hopeless(message):
                    self._give_up(token, f"not acknowledged after {message.attempts} attempts")
                else:
                    await self._send(token, message)
            await asyncio.sleep(0)

    def _hopeless(self, message: _UnderWay) -> bool:
        if message.attempts >= self._max_attempts:
            return True
        try:
            refuse_if_not_allowed(self._client, message.subject)
        except NotAllowed:
            return True
        return False
