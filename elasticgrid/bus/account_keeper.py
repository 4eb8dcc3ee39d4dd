"""Brings tenants' accounts to the server, with what is revoked in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.authority import Authority
from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import write_credentials
from elasticgrid.core.errors import BusError, BusUnavailable

SYSTEM_FILE: Final = "system.json"
_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
_TIMEOUT_S: Final = 5.0


class _Told(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    data: _Told | None = None
    error: _Told | None = None


class AccountKeeper:
    """Keeps the server's accounts as they should be, over a connection of its own. Use as an async context manager.

    Args:
        authority: makes the accounts.
        bus: where the server is; its credential is not used.
        folder: where the credential for this is written.
        now_s: the clock, Unix seconds.
    """

    def __init__(
        self, authority: Authority, bus: BusAddress, folder: Path, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._authority = authority
        self._bus = bus
        self._path = folder / SYSTEM_FILE
        self._now_s = now_s
        self._client: Client | None = None
        self._known: dict[str, Mapping[str, int]] = {}
        self._connection = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def keep(self, tenant: str, revoked: Mapping[str, int]) -> bool:
        """See to it that the server knows the tenant's account with exactly this revoked.

        Whoever is connected with something that is revoked is cut off before this returns. Nothing is sent when the
        server was told so before; returns whether something was.

        Args:
            tenant: whose account.
            revoked: users by public key, and until when (Unix seconds) what was issued to them is refused.

        Raises:
            BusUnavailable: the server could not be told.
            BusError: it refused, as one does that another authority made.
        """
        client = await self._connected()
        if client.stats["reconnects"] != self._connection:
            self._known.clear()  # it may be another server, or one that has lost what it knew
            self._connection = client.stats["reconnects"]
        if self._known.get(tenant) == revoked:
            return False
        token = self._authority.tenant_account_token(tenant, int(self._now_s()), revoked)
        reply = await api.request(client, _UPDATE, token.encode(), timeout_s=_TIMEOUT_S)
        answer = msgspec.json.decode(reply.data, type=_Answer)
        if answer.data is None or answer.data.code != 200:
            told = answer.error or answer.data or _Told()
            raise BusError(
                f"the server did not take the account: {told.description or told.message}",
                where=tenant,
                hint="is the bus configured from the same secret?",
            )
        self._known[tenant] = dict(revoked)
        return True

    async def _connected(self) -> Client:
        if self._client is not None and self._client.is_closed:
            self._client = None
        if self._client is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_credentials(self._path, self._authority.system(int(self._now_s())))
            address = BusAddress(self._bus.url, str(self._path), self._bus.ca)
            self._client = await connect(address, name="accounts")
            self._known.clear()
            self._connection = self._client.stats["reconnects"]
        if not self._client.is_connected:
            raise BusUnavailable("not connected", where=self._bus.url, hint=api.UNREACHABLE_HINT)
        return self._client
