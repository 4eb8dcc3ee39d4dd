"""Connecting to the bus: where it is, with what credential, and a connection that survives its restarts.

Needs nats-py and msgspec only: the hook inside a training process connects with this too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client, RawCredentials

from elasticgrid import environment
from elasticgrid.bus.credentials import DEFAULT_INBOX_PREFIX, Credentials, read_credentials
from elasticgrid.core.errors import BusUnavailable, CredentialRefused, InvalidInput

_log = logging.getLogger("elasticgrid.bus")

Callback = Callable[[], Awaitable[None]]

RECONNECT_WAIT_S = 0.1
#: The server is taken for dead when this many pings in a row, one per interval, stay unanswered.
PING_INTERVAL_S = 10
MAX_OUTSTANDING_PINGS = 2
#: What may wait in memory to be sent while disconnected, in bytes; beyond it publishing raises.
OUTBOUND_BUFFER_BYTES = 2 * 1024 * 1024
DISCONNECT_TIMEOUT_S = 3.0
_SCHEMES = ("nats", "tls", "ws", "wss")
_TLS_SCHEMES = ("tls", "wss")


class BusAddress(msgspec.Struct, frozen=True):
    """Where the bus is and with what credential to enter.

    Attributes:
        url: such as `nats://127.0.0.1:4222`; several, separated by commas, for a cluster. With `tls://` the server has
            to show a certificate.
        credentials: path of a credential file; empty for a bus that asks for none.
        ca: path of the certificates, as PEM, that the server's is checked with; empty for those in the credential
            file, or else those that the machine trusts.
    """

    url: str
    credentials: str = ""
    ca: str = ""

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> BusAddress | None:
        """The address in `ELASTICGRID_NATS_URL`, with what else is said of the bus; None when there is no URL."""
        url = environ.get(environment.NATS_URL, "").strip()
        if not url:
            return None
        return BusAddress(
            url=url,
            credentials=environ.get(environment.CREDENTIALS, "").strip(),
            ca=environ.get(environment.NATS_CA, "").strip(),
        )

    @property
    def secured(self) -> bool:
        """Whether the server has to show a certificate."""
        return any(url.strip().split("://")[0] in _TLS_SCHEMES for url in self.url.split(","))


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
        CredentialRefused: likewise, and it was that the server does not let this credential in.
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
                inbox_prefix=credentials.inbox_prefix if credentials else DEFAULT_INBOX_PREFIX,
                **_entry(client, address, credentials),
            )
            if address.secured:
                _refuse_clear(client)
    except TimeoutError:
        await _abandon(client)
        refused = bool(last_error) and _is_refusal(last_error[0])
        raise (CredentialRefused if refused else BusUnavailable)(
            f"no connection within {connect_timeout_s:g} s", where=address.url, hint=_hint(last_error, address)
        ) from (last_error[0] if last_error else None)
    except (ValueError, nats.errors.Error) as error:
        await _abandon(client)
        raise InvalidInput(
            f"cannot connect with this address: {error}", where=address.url, hint="expected nats://host:port"
        ) from error
    except ImportError as error:
        raise InvalidInput(
            f"a library for this is not installed: {error.name}",
            where=address.credentials or address.url,
            hint=f"pip install {error.name}",
        ) from error
    except BaseException:
        await _abandon(client)
        raise
    return client


async def disconnect(client: Client) -> None:
    """End a connection quickly: send what is buffered, then close. Never raises, never waits for a stuck callback."""
    if client.is_closed:
        await _end_reconnecting(client)
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
    finally:
        await _end_reconnecting(client)


async def _end_reconnecting(client: Client) -> None:
    """End what tries to reach the server again.

    It is cancelled when the client is closed, but takes a connection that is refused in the same moment for the answer
    and tries on for ever, which also keeps the event loop from being closed.
    """
    trying = client._reconnection_task
    until_s = time.monotonic() + DISCONNECT_TIMEOUT_S
    while trying is not None and not trying.done() and time.monotonic() < until_s:
        trying.cancel()
        await asyncio.wait({trying}, timeout=RECONNECT_WAIT_S)


def _entry(client: Client, address: BusAddress, credentials: Credentials | None) -> dict[str, Any]:
    """What shows the server who this is, and what the server's own certificate is checked with."""
    proof = _proof(address, credentials)
    if not address.secured:
        return proof

    def only_by_tls(show: Callable[[], Any]) -> Callable[[], Any]:
        def checked() -> Any:
            _refuse_clear(client)
            return show()

        return checked

    # Asked for at every connect, so nothing secret is shown to who takes the server's place in the clear.
    shown: dict[str, Any] = {name: only_by_tls(proof[name]) for name in ("user_jwt_cb", "user") if name in proof}
    return {**proof, **shown, "tls": _trusting(address, credentials)}


def _refuse_clear(client: Client) -> None:
    """nats-py goes on in the clear with a server that does not ask for TLS, whatever the address says.

    Raises:
        nats.errors.Error: it is such a server.
    """
    url = client.connected_url
    if url is not None and url.scheme == "wss":
        return  # its TLS is that of HTTP
    if not client._server_info.get("tls_required"):
        raise nats.errors.SecureConnRequiredError


def _proof(address: BusAddress, credentials: Credentials | None) -> dict[str, Any]:
    if credentials is None:
        return {}
    if credentials.nats_creds:
        return {"user_credentials": RawCredentials(credentials.nats_creds)}
    if not credentials.token:
        user, password = credentials.user, credentials.password
        return {"user": lambda: user, "password": password} if user else {}

    def token() -> bytes:
        # Read at every connect: a launch's credential is renewed in its file.
        try:
            return read_credentials(address.credentials).token.encode()
        except InvalidInput:
            return credentials.token.encode()

    return {"user_jwt_cb": token, "signature_cb": lambda _nonce: b""}


def _trusting(address: BusAddress, credentials: Credentials | None) -> ssl.SSLContext:
    """What the server's certificate is checked with.

    Raises:
        InvalidInput: the certificates cannot be read.
    """
    try:
        if address.ca:
            return ssl.create_default_context(cafile=address.ca)
        return ssl.create_default_context(cadata=credentials.ca if credentials and credentials.ca else None)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"the certificates that the server's is checked with cannot be used: {error}",
            where=address.ca or address.credentials,
            hint=f"{environment.NATS_CA} names a PEM file",
        ) from error


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
    error = last_error[0]
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        checked = address.ca or "what the machine or the credential file trusts"
        return f"its certificate is not trusted ({checked}): {error.verify_message}; {environment.NATS_CA} names the CA"
    if isinstance(error, ssl.SSLError):
        return f"the two could not agree on TLS: {text}"
    if _is_refusal(error):
        return _why_refused(address)
    return f"is a nats-server running there? the last attempt met: {text}"


def _why_refused(address: BusAddress) -> str:
    if not address.credentials:
        return f"the server refused the credential (none: set {environment.CREDENTIALS})"
    try:
        expires_s = read_credentials(address.credentials).expires_s
    except InvalidInput:
        expires_s = 0
    if expires_s and expires_s <= time.time():
        return f"the credential expired ({address.credentials}); ask for a new one"
    return f"the server refused the credential ({address.credentials})"


def _is_refusal(error: Exception) -> bool:
    text = str(error).lower()
    return "authorization" in text or "authentication" in text
