"""Connecting to the bus: where it is, with what credential, and a connection that survives its restarts.

Needs nats-py and msgspec only: the hook inside a training process connects with this too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.client import Client

from elasticgrid import environment
from elasticgrid.core.errors import BusUnavailable, InvalidInput

_log = logging.getLogger("elasticgrid.bus")

Callback = Callable[[], Awaitable[None]]

RECONNECT_WAIT_S = 0.1
#: The server is taken for dead when this many pings in a row, one per interval, stay unanswered.
PING_INTERVAL_S = 10
MAX_OUTSTANDING_PINGS = 2
#: What may wait in memory to be sent while disconnected, in bytes; beyond it publishing raises.
OUTBOUND_BUFFER_BYTES = 2 * 1024 * 1024
DISCONNECT_TIMEOUT_S = 3.0
DEFAULT_INBOX_PREFIX = "_INBOX"
_SCHEMES = ("nats", "tls", "ws", "wss")


class BusAddress(msgspec.Struct, frozen=True):
    """Where the bus is and with what credential to enter.

    Attributes:
        url: such as `nats://127.0.0.1:4222`; several, separated by commas, for a cluster.
        credentials: path of a JSON file `{"user": ..., "password": ..., "inbox_prefix": ...}` that only its owner may
            read; empty for a bus that asks for none.
    """

    url: str
    credentials: str = ""

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> BusAddress | None:
        """The address in `ELASTICGRID_NATS_URL` and `ELASTICGRID_CREDENTIALS`, or None when no URL is given."""
        url = environ.get(environment.NATS_URL, "").strip()
        if not url:
            return None
        return BusAddress(url=url, credentials=environ.get(environment.CREDENTIALS, "").strip())


class Credentials(msgspec.Struct, frozen=True):
    """What a credential file holds. `inbox_prefix` is where this role may receive its answers."""

    user: str
    password: str
    inbox_prefix: str = DEFAULT_INBOX_PREFIX


def read_credentials(path: str | Path) -> Credentials:
    """The credential in a file.

    Raises:
        InvalidInput: the file cannot be read or is not a credential.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Credentials)
    except OSError as error:
        raise InvalidInput(
            f"the credential file cannot be read: {error.strerror}",
            where=str(path),
            hint=f"{environment.CREDENTIALS} names a file written by the embedded server or the operator",
        ) from error
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"the credential file is not valid: {error}",
            where=str(path),
            hint='expected {"user": ..., "password": ...}',
        ) from error


async def connect(
    address: BusAddress,
    *,
    name: str,
    connect_timeout_s: float = 5.0,
    on_disconnect: Callback | None = None,
    on_reconnect: Callback | None = None,
    on_closed: Callback | None = None,
) -> Client:
    """A connection that reconnects for ever.

    The callbacks may raise: that is logged and changes nothing. `on_closed` runs when the connection ended for good,
    either by `disconnect` or because the server refused it (a revoked credential); only a new `connect` helps then.

    Args:
        address: where to and as whom.
        name: shown in the server's list of connections.
        connect_timeout_s: how long the first connect may take.

    Raises:
        BusUnavailable: not connected in that time; the hint says what the last attempt met.
        InvalidInput: the URL or the credential file is not usable.
    """
    credentials = read_credentials(address.credentials) if address.credentials else None
    client = Client()
    last_error: list[Exception] = []

    async def on_error(error: Exception) -> None:
        # A server that refuses may also reset the connection; what it said is what helps.
        if not (last_error and _is_refusal(last_error[0])):
            last_error[:] = [error]
        _log.debug("bus connection %s: %r", name, error)

    try:
        async with asyncio.timeout(connect_timeout_s):
            await client.connect(
                servers=_servers(address),
                name=name,
                error_cb=on_error,
                disconnected_cb=_guarded(on_disconnect, name),
                reconnected_cb=_guarded(on_reconnect, name),
                closed_cb=_guarded(on_closed, name),
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type] # a float is what it sleeps for
                connect_timeout=max(1, round(min(connect_timeout_s, 2.0))),
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_OUTSTANDING_PINGS,
                pending_size=OUTBOUND_BUFFER_BYTES,
                flush_timeout=connect_timeout_s,
                drain_timeout=round(DISCONNECT_TIMEOUT_S),
                user=credentials.user if credentials else None,
                password=credentials.password if credentials else None,
                inbox_prefix=credentials.inbox_prefix if credentials else DEFAULT_INBOX_PREFIX,
            )
    except TimeoutError:
        await _abandon(client)
        raise BusUnavailable(
            f"no connection within {connect_timeout_s:g} s", where=address.url, hint=_hint(last_error, address)
        ) from (last_error[0] if last_error else None)
    except (ValueError, nats.errors.Error) as error:
        await _abandon(client)
        raise InvalidInput(
            f"cannot connect with this address: {error}", where=address.url, hint="expected nats://host:port"
        ) from error
    except BaseException:
        await _abandon(client)
        raise
    return client


async def disconnect(client: Client) -> None:
    """End a connection quickly: send what is buffered, then close. Never raises, never waits for a stuck callback."""
    if client.is_closed:
        return
    try:
        async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
            if client.is_connected:
                await client.flush(timeout=round(DISCONNECT_TIMEOUT_S))
    except (TimeoutError, OSError, nats.errors.Error) as error:
        _log.debug("bus connection: not everything was sent before closing: %r", error)
    await _abandon(client)


async def _abandon(client: Client) -> None:
    try:
        async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
            await client.close()
    except (TimeoutError, OSError, nats.errors.Error, AssertionError) as error:
        _log.debug("bus connection: closed uncleanly: %r", error)


def _servers(address: BusAddress) -> list[str]:
    servers = [url.strip() for url in address.url.split(",") if url.strip()]
    if not servers or not all(url.split("://")[0] in _SCHEMES for url in servers):
        raise ValueError("not a URL of a nats-server")
    return servers


def _guarded(callback: Callback | None, name: str) -> Callback | None:
    """The callback, with its exceptions logged: nats-py lets them end its own tasks."""
    if callback is None:
        return None

    async def guarded() -> None:
        try:
            await callback()
        except Exception:
            _log.exception("bus connection %s: a callback failed", name)

    return guarded


def _hint(last_error: list[Exception], address: BusAddress) -> str:
    if not last_error:
        return "is a nats-server running there?"
    text = str(last_error[0]) or type(last_error[0]).__name__
    if _is_refusal(last_error[0]):
        which = address.credentials or f"none: set {environment.CREDENTIALS}"
        return f"the server refused the credential ({which})"
    return f"is a nats-server running there? the last attempt met: {text}"


def _is_refusal(error: Exception) -> bool:
    return "authorization" in str(error).lower()
