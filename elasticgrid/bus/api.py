"""JetStream's own request API, raw: the fields nats-py does not know, and typed errors."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.core.errors import BusError, BusUnavailable, NotAllowed

API_ROOT: Final = "$JS.API"
#: How often a waiting question looks at its connection.
_LOOK_S: Final = 0.05

STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
NO_MESSAGE_FOUND = 10037
NO_SUITABLE_PEERS = 10005

#: What nats-py raises when the connection, the server or the stream's leader is not there just now.
UNREACHABLE = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    OSError,
)

UNREACHABLE_HINT = "is the bus running? a retry may help"


class ApiFailure(msgspec.Struct, frozen=True):
    """What JetStream says when it refuses."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiReply(msgspec.Struct, frozen=True, kw_only=True):
    """The part that every answer has."""

    error: ApiFailure | None = None


class ApiError(BusError):
    """JetStream refused a request.

    Attributes:
        err_code: JetStream's own code, such as 10059 for a stream that does not exist.
    """

    def __init__(self, failure: ApiFailure, *, where: str) -> None:
        super().__init__(f"JetStream refused: {failure.description} (err_code {failure.err_code})", where=where)
        self.err_code = failure.err_code


Reply = TypeVar("Reply", bound=ApiReply)


async def request(
    client: Client, subject: str, data: bytes, *, timeout_s: float, headers: dict[str, str] | None = None
) -> Msg:
    """Ask and return the answer; gives up as soon as the answer can no longer come.

    Raises:
        BusUnavailable: no answer in time, nobody to answer, or the connection broke meanwhile.
        NotAllowed: this credential may not publish to `subject`.
    """
    if not client.is_connected:
        # nats-py would keep the question and ask it after reconnecting, when nobody waits for the answer.
        raise BusUnavailable("not connected", where=subject, hint=UNREACHABLE_HINT)
    connection = client.stats["reconnects"]
    asking = asyncio.create_task(client.request(subject, data, timeout=timeout_s, headers=headers))
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        while not (await asyncio.wait({asking}, timeout=_LOOK_S))[0]:
            refuse_if_not_allowed(client, subject)
            if not client.is_connected or client.stats["reconnects"] != connection:
                raise BusUnavailable("the connection broke before the answer", where=subject, hint=UNREACHABLE_HINT)
        return asking.result()
    except UNREACHABLE as error:
        refuse_if_not_allowed(client, subject)
        raise BusUnavailable(f"no answer ({type(error).__name__})", where=subject, hint=UNREACHABLE_HINT) from error
    finally:
        asking.cancel()


async def call(
    client: Client, operation: str, body: object, reply_type: type[Reply], *, timeout_s: float = 5.0
) -> Reply:
    """Ask `$JS.API.<operation>` and return its decoded answer.

    Raises:
        ApiError: JetStream refused.
        BusUnavailable: no answer in time, or JetStream has no leader or no resources just now.
        NotAllowed: this credential may not ask that.
    """
    subject = f"{API_ROOT}.{operation}"
    message = await request(client, subject, msgspec.json.encode(body), timeout_s=timeout_s)
    try:
        reply = msgspec.json.decode(message.data, type=reply_type)
    except msgspec.MsgspecError as error:
        raise BusError(f"an answer that is not JetStream's: {error}", where=subject) from error
    if reply.error is not None:
        if reply.error.code == 503:
            raise BusUnavailable(reply.error.description, where=subject, hint=UNREACHABLE_HINT)
        raise ApiError(reply.error, where=subject)
    return reply


def refuse_if_not_allowed(client: Client, subject: str) -> None:
    """Raise NotAllowed if the server said that this connection may not publish to `subject`.

    The server reports a refusal beside the connection and never answers the request, so without this a forbidden
    request looks like a slow one.
    """
    text = str(client.last_error or "").lower()
    if "permissions violation" in text and f'"{subject.lower()}"' in text:
        raise NotAllowed("this credential may not publish here", where=subject, hint="use a credential of another role")


class StreamState(msgspec.Struct, frozen=True):
    """Where a stream begins and ends, by sequence."""

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamConfig(msgspec.Struct, frozen=True):
    """The part of a stream's configuration that is compared."""

    name: str
    subjects: list[str] = []
    storage: str = "file"
    deny_delete: bool = False
    deny_purge: bool = False
    allow_atomic: bool = False
    num_replicas: int = 1
    persist_mode: str = "default"
    republish: dict[str, str | bool] | None = None


class StreamInfo(ApiReply, frozen=True, kw_only=True):
    """A stream as it is."""

    config: StreamConfig | None = None
    state: StreamState = StreamState()
    created: str = ""


class ConsumerInfo(ApiReply, frozen=True, kw_only=True):
    """A consumer as it was created."""

    name: str = ""
    num_pending: int = 0


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as `STREAM.MSG.GET` returns it; `hdrs` are raw header lines."""

    subject: str
    seq: int
    time: str
    hdrs: bytes = b""
    data: bytes = b""


class MessageReply(ApiReply, frozen=True, kw_only=True):
    """The answer to `STREAM.MSG.GET`."""

    message: StoredMessage | None = None


async def stream_info(client: Client, stream: str, *, timeout_s: float = 5.0) -> StreamInfo:
    """The stream as its leader knows it.

    Raises:
        ApiError: with `STREAM_NOT_FOUND` when there is none.
    """
    return await call(client, f"STREAM.INFO.{stream}", {}, StreamInfo, timeout_s=timeout_s)


async def last_message(
    client: Client, stream: str, subject_filter: str, *, timeout_s: float = 5.0
) -> StoredMessage | None:
    """The last message on the subjects of the filter, asked of the leader, so never stale; None when there is none."""
    return await _get(client, stream, {"last_by_subj": subject_filter}, timeout_s)


async def message_at(client: Client, stream: str, sequence: int, *, timeout_s: float = 5.0) -> StoredMessage | None:
    """The message at exactly this sequence, asked of the leader; None when there is none."""
    return await _get(client, stream, {"seq": sequence}, timeout_s)


async def _get(client: Client, stream: str, body: object, timeout_s: float) -> StoredMessage | None:
    try:
        reply = await call(client, f"STREAM.MSG.GET.{stream}", body, MessageReply, timeout_s=timeout_s)
    except ApiError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return None
        raise
    return reply.message
