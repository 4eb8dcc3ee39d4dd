"""The agent's way to the bus: a connection that is made anew whenever it ended, however long the bus is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.clock import Clock
from elasticgrid.core.errors import BusError, BusUnavailable, CredentialRefused, ElasticGridError, InvalidInput
from elasticgrid.log.asked import AskedLog
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import EventLog

_log = structlog.get_logger("elasticgrid.agent")

RETRY_PAUSE_S: Final = 0.5


class BusLink:
    """Keeps a connection.

    Args:
        address: where the bus is.
        name: shown in the server's list of connections.
        on_connect: called with each new connection, to subscribe on it.
        clock: how to wait.
    """

    def __init__(
        self, address: BusAddress, *, name: str, on_connect: Callable[[Client], Awaitable[None]], clock: Clock
    ) -> None:
        self._address = address
        self._name = name
        self._on_connect = on_connect
        self._clock = clock
        self._client: Client | None = None
        self._event_log: EventLog | None = None
        self._ready = asyncio.Event()
        self._away_since: float | None = monotonic()
        self._refused_since: float | None = None

    @property
    def connected(self) -> bool:
        """Whether the bus can be reached now."""
        return self._client is not None and self._client.is_connected

    @property
    def away_s(self) -> float:
        """How long the bus has been away, in seconds; 0 while it is there."""
        return 0.0 if self._away_since is None else monotonic() - self._away_since

    @property
    def refused_s(self) -> float:
        """How long the bus has been there and not let this node in although its credential has not expired."""
        return 0.0 if self._refused_since is None else monotonic() - self._refused_since

    async def current(self) -> EventLog:
        """The log, as soon as there is a connection."""
        while self._event_log is None:
            await self._ready.wait()
        return self._event_log

    async def run(self) -> None:
        """Connect, and connect again whenever the connection ended for good; ends only when cancelled.

        Raises:
            InvalidInput: the address or the credential is not usable. Not raised once there was a connection: then the
                bus counts as away.
        """
        away: tuple[type[ElasticGridError], ...] = (BusError,)
        while True:
            ended = asyncio.Event()
            try:
                client = await self._connect(ended)
            except away as error:
                self._note_refusal(error)
                _log.warning("the bus is not there; trying on", bus=self._address.url, error=str(error))
                await self._clock.sleep(RETRY_PAUSE_S)
                continue
            try:
                await self._on_connect(client)
                self._client, self._event_log = client, self._log_over(client)
                self._refused_since = None
                self._away_since = None
                away = (BusError, InvalidInput)
                self._ready.set()
                await ended.wait()
            except (nats.errors.Error, OSError) as error:
                _log.warning("the connection to the bus ended as it began", error=str(error))
            finally:
                self._ready.clear()
                self._client = self._event_log = None
                await disconnect(client)
            await self._clock.sleep(RETRY_PAUSE_S)

    def _note_refusal(self, error: ElasticGridError) -> None:
        expired = False
        if isinstance(error, CredentialRefused) and self._address.credentials:
            with contextlib.suppress(InvalidInput):
                ends_s = read_credentials(self._address.credentials).expires_s
                expired = bool(ends_s) and ends_s * 1000 <= self._clock.now_ms()
        if not isinstance(error, CredentialRefused) or expired:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = monotonic()

    def _log_over(self, client: Client) -> EventLog:
        asks = bool(self._address.credentials) and read_credentials(self._address.credentials).asks
        return AskedLog(client) if asks else JetStreamLog(client)

    async def _connect(self, ended: asyncio.Event) -> Client:
        async def on_disconnect() -> None:
            self._away_since = monotonic() if self._away_since is None else self._away_since

        async def on_reconnect() -> None:
            self._away_since = None

        async def on_closed() -> None:
            await on_disconnect()
            ended.set()

        return await connect(
            self._address,
            name=self._name,
            on_disconnect=on_disconnect,
            on_reconnect=on_reconnect,
            on_closed=on_closed,
        )

    async def publish(self, subject: str, data: bytes) -> None:
        """Send a message nobody waits for; nothing happens while the bus is away."""
        if self._client is None or not self._client.is_connected:
            return
        try:
            await self._client.publish(subject, data)
        except (nats.errors.Error, OSError) as error:
            _log.debug("a plain message was not sent", subject=subject, error=str(error))

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes | None:
        """The answer to a question; None when nobody listens or nobody answered in time.

        Raises:
            BusUnavailable: the bus is away.
        """
        if self._client is None or not self._client.is_connected:
            raise BusUnavailable("the bus is away", where=subject)
        try:
            answer = await self._client.request(subject, data, timeout=timeout_s)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError, TimeoutError) as error:
            if not self.connected:
                raise BusUnavailable("the bus went away", where=subject) from error
            return None
        except (nats.errors.Error, OSError) as error:
            raise BusError(f"a question was not sent: {error}", where=subject) from error
        return answer.data
