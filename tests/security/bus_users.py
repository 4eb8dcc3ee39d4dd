"""A bus with two tenants, and users of all kinds on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus import api
from elasticgrid.bus.account_keeper import AccountKeeper
from elasticgrid.bus.accounts import Role
from elasticgrid.bus.authority import LaunchKey
from elasticgrid.bus.connect import BusAddress, connect
from elasticgrid.bus.credentials import Credentials, read_credentials, write_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.nkey_tokens import KeyPair, signed_token
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM
from elasticgrid.core.errors import CredentialRefused

ATTACKER, VICTIM = "mallory", "alice"
JOB = "j1"


class Trying:
    """A connection that keeps everything the server refuses it. Use as an async context manager."""

    def __init__(self, address: BusAddress) -> None:
        self.client = Client()
        self._address = address
        self._told: list[str] = []
        self._heard = asyncio.Event()
        self._barriers = 0

    async def __aenter__(self) -> Self:
        credentials = read_credentials(self._address.credentials)
        await self.client.connect(
            self._address.url,
            user_jwt_cb=credentials.token.encode,
            signature_cb=lambda _nonce: b"",
            inbox_prefix=credentials.inbox_prefix,
            error_cb=self._on_error,
            allow_reconnect=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()

    async def _on_error(self, error: Exception) -> None:
        self._told.append(str(error).lower())
        self._heard.set()

    async def publish(self, subject: str, data: bytes = b"x", *, reply: str = "") -> bool:
        """Publish, and return whether the server refused it."""
        return await self._refused("publish to", subject, self.client.publish(subject, data, reply=reply))

    async def subscribe(self, subject: str) -> bool:
        """Subscribe, and return whether the server refused it."""

        async def ignore(_message: Msg) -> None:
            return

        return await self._refused("subscription to", subject, self.client.subscribe(subject, cb=ignore))

    async def _refused(self, what: str, subject: str, doing: Coroutine[Any, Any, Any]) -> bool:
        """Refusals come in order: what was not refused by the time that something later is, was allowed."""
        await doing
        self._barriers += 1
        barrier = f"nobody.may.{self._barriers}"
        await self.client.publish(barrier, b"")
        async with asyncio.timeout(10):
            while not self._was_told("publish to", barrier):
                self._heard.clear()
                await self._heard.wait()
        return self._was_told(what, subject)

    def _was_told(self, what: str, subject: str) -> bool:
        return f'nats: permissions violation for {what} "{subject.lower()}"' in self._told


class Users:
    """Makes connections as whoever is asked for."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.authority = server.authority
        self._folder = folder
        self._files = 0

    def address(self, credentials: Credentials) -> BusAddress:
        """An address with this credential in a file of its own."""
        self._files += 1
        path = self._folder / f"user{self._files}.json"
        write_credentials(path, credentials)
        return BusAddress(self.server.url, str(path))

    def launch(self, tenant: str = ATTACKER, launch: str = "l1", *, lasts_s: int = 600) -> BusAddress:
        now_s = int(time.time())
        key = LaunchKey(tenant, JOB, launch)
        return self.address(self.authority.launch(key, now_s, expires_s=now_s + lasts_s))

    def watcher(self, tenant: str = ATTACKER, **changes: Any) -> BusAddress:
        now_s = int(time.time())
        return self.address(self.authority.watcher(tenant, "board", now_s, **({"expires_s": now_s + 600} | changes)))

    def role(self, role: Role) -> BusAddress:
        return self.server.service_address(role)

    def unrestricted(self, tenant: str = ATTACKER) -> BusAddress:
        """A user of the tenant's account that no permission holds back: what is left is what the account allows."""
        secret = bytes.fromhex(self.server.authority_file.read_text().strip())
        account, user = KeyPair(secret, f"tenant {tenant}", "account"), KeyPair(secret, "anything", "user")
        claims = {"bearer_token": True, "subs": -1, "data": -1, "payload": -1}
        token = signed_token(account, user.public, "anything", "user", claims, issued_s=int(time.time()))
        return self.address(Credentials(token=token))

    async def revoke(self, tenant: str, *launches: str) -> None:
        until_s = int(time.time()) + 600
        revoked = {self.authority.launch_user(LaunchKey(tenant, JOB, launch)): until_s for launch in launches}
        async with AccountKeeper(self.authority, self.server.address, self._folder) as keeper:
            await keeper.keep(tenant, revoked)


async def ends(client: Client) -> tuple[int, int]:
    """The last sequences of both streams."""
    found = [await api.stream_info(client, stream) for stream in (EVENTS_STREAM, SAMPLES_STREAM)]
    return found[0].state.last_seq, found[1].state.last_seq


async def settled(client: Client) -> tuple[int, int]:
    """How many messages both streams hold without the two that this puts behind all that was sent before."""
    for subject in (f"grid.events.{VICTIM}.j9.node.last", f"grid.samples.{VICTIM}.j9.9"):
        assert b'"seq"' in (await client.request(subject, b"last", timeout=5)).data
    events, samples = await ends(client)
    return events - 1, samples - 1


async def until_closed(client: Client) -> None:
    """Wait until the server has ended the connection for good."""
    async with asyncio.timeout(15):
        while not client.is_closed:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def refusal(address: BusAddress) -> str:
    """What is said to who is not let in."""
    with pytest.raises(CredentialRefused) as caught:
        await connect(address, name="refused", connect_timeout_s=1.0)
    return str(caught.value)
