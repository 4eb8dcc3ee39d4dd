"""Gives each launch its credential for the bus, renews it while the launch lives, and revokes it when it is over.

With the bus's secret (an `Authority`) every launch gets a credential of its own. Without, as on a bus that somebody
else runs, launches get the one that the operator has set up for nodes. Either way it is a private file in the launch's
folder, together with the tenant's rendezvous secret, and its path is all that is said elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus.account_keeper import AccountKeeper
from elasticgrid.bus.authority import Authority, LaunchKey, keep_authority, read_authority
from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.credential_requests import MAX_WATCHER_S, Issued, WatcherWish
from elasticgrid.bus.credentials import Credentials, read_credentials, write_credentials
from elasticgrid.bus.subjects import RENEWALS_ROOT, WATCHERS_ROOT
from elasticgrid.clock import Clock
from elasticgrid.core.errors import BusError, ElasticGridError, InvalidInput, NotAllowed
from elasticgrid.core.names import is_name
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.launch_ends import LaunchEnds
from elasticgrid.launcher.launch_files import CREDENTIAL_FILE
from elasticgrid.launcher.secret_files import forget_secrets

_log = structlog.get_logger("launcher")

#: Where the secret is that rendezvous secrets are made from, when there is no authority.
RENDEZVOUS_FILE: Final = "rendezvous.key"
_RETRY_S: Final = 1.0


class CredentialDesk:
    """Issues, renews and revokes.

    Args:
        config: where launches have their folders, and which secret or file credentials are made from.
        clock: for the times in them.
        client: the connection on which renewals are asked for; with None nobody can ask.
        is_live: whether the log knows a launch of this tenant, job and name that was requested and is not over.

    Raises:
        InvalidInput: the secret cannot be used.
    """

    def __init__(
        self,
        config: LauncherConfig,
        clock: Clock,
        client: Client | None,
        is_live: Callable[[LaunchKey], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._client = client
        self._is_live = is_live
        self._authority = read_authority(Path(config.authority)) if config.authority else None
        self._ends = LaunchEnds(config.credential_life_s * 1000)
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._rendezvous: Authority | None = self._authority
        self._ca = Path(config.nats_ca).read_text() if config.nats_ca else ""
        own = BusAddress(config.own_nats_url or config.nats_url, ca=config.nats_ca)
        self._keeper = (
            AccountKeeper(self._authority, own, config.data_dir.absolute() / "bus-accounts", now_s=self._now_s)
            if self._authority is not None
            else None
        )

    def path(self, launch: str) -> Path:
        """The launch's credential file."""
        return self._config.launches_dir / launch / CREDENTIAL_FILE

    async def issue(self, key: LaunchKey) -> None:
        """Write the launch's credential file; the bus lets its holder in when this returns.

        Raises:
            BusError: the bus could not be told of the tenant.
            InvalidInput: the operator's file cannot be used.
        """
        if self._keeper is not None:
            await self._keep(key.tenant)
        await asyncio.to_thread(write_credentials, self.path(key.launch), self._made(key))

    def ended(self, key: LaunchKey, ended_ms: int) -> None:
        """The log says that a launch is over: its credential and its job's secrets are needed no more."""
        forget_secrets(self.path(key.launch).parent)
        with contextlib.suppress(OSError):
            self.path(key.launch).unlink(missing_ok=True)
        if self._keeper is not None and self._ends.end(key.tenant, key.job, key.launch, ended_ms):
            self._dirty.add(key.tenant)
            self._wake.set()

    async def run(self) -> None:
        """Revoke what is over and answer who asks, until cancelled."""
        if self._keeper is None:
            return
        async with self._keeper:
            if self._client is not None:
                for subject, answer in ((f"{RENEWALS_ROOT}.>", self._renew), (f"{WATCHERS_ROOT}.*", self._watch)):
                    await self._client.subscribe(subject, cb=answer)
            while True:
                await self._wake.wait()
                self._wake.clear()
                for tenant in sorted(self._dirty):
                    try:
                        await self._keep(tenant)
                    except (BusError, nats.errors.Error, OSError) as error:
                        _log.warning("what is over could not be revoked yet", tenant=tenant, error=str(error))
                        self._wake.set()
                        await self._clock.sleep(_RETRY_S)
                    else:
                        self._dirty.discard(tenant)

    def refresh(self, key: LaunchKey) -> None:
        """Write the file of a launch that goes on anew: it may be old, or made from another secret."""
        if self._authority is None:
            return
        if self.path(key.launch).exists():  # else it is of another launcher's folder
            write_credentials(self.path(key.launch), self._made(key))

    # ----------------------------------------------------------------------------------------------------------------

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1000

    def _made(self, key: LaunchKey) -> Credentials:
        if self._authority is not None:
            now_s = self._now_s()
            made = self._authority.launch(key, now_s, expires_s=now_s + self._config.credential_life_s)
        else:
            given = self._config.node_credentials
            made = read_credentials(given) if given else Credentials()
            if self._rendezvous is None:
                self._rendezvous = keep_authority(self._config.data_dir.absolute() / RENDEZVOUS_FILE)
            made = msgspec.structs.replace(made, rendezvous_secret=self._rendezvous.rendezvous_secret(key.tenant))
        return msgspec.structs.replace(made, ca=made.ca or self._ca)

    async def _keep(self, tenant: str) -> None:
        assert self._keeper is not None
        assert self._authority is not None
        async with self._turn:
            revoked = {}
            for end in self._ends.recent(tenant, self._clock.now_ms()):
                user = self._authority.launch_user(LaunchKey(tenant, end.job, end.launch))
                # No credential is issued to it any more, so what was issued until any later time is refused, too.
                revoked[user] = end.ended_ms // 1000 + self._config.credential_life_s
            if await self._keeper.keep(tenant, revoked):
                _log.info("the bus knows the tenant", tenant=tenant, revoked=len(revoked))

    async def _renew(self, message: Msg) -> None:
        parts = message.subject.removeprefix(f"{RENEWALS_ROOT}.").split(".")
        issued = Issued(problem="no launch of this name goes on")
        if len(parts) == 3:
            key = LaunchKey(*parts)
            if self._is_live(key) and not self._ends.is_over(*parts):
                issued = Issued(credentials=self._made(key))
                _log.info("a credential was renewed", launch=key.launch)
        await self._answer(message, issued)

    async def _watch(self, message: Msg) -> None:
        tenant = message.subject.removeprefix(f"{WATCHERS_ROOT}.")
        try:
            wish = msgspec.json.decode(message.data, type=WatcherWish)
            issued = Issued(credentials=await self._watcher(tenant, wish))
        except (
            ElasticGridError,
            msgspec.MsgspecError,
            ValueError,
            RecursionError,
            nats.errors.Error,
            OSError,
        ) as error:
            issued = Issued(problem=str(error))
        await self._answer(message, issued)

    async def _watcher(self, tenant: str, wish: WatcherWish) -> Credentials:
        assert self._authority is not None
        if not is_name(tenant) or not is_name(wish.name):
            raise InvalidInput("tenant and dashboard have names", where=f"{tenant}/{wish.name}")
        if not 1 <= wish.lasts_s <= MAX_WATCHER_S:
            raise NotAllowed(f"a credential for a dashboard lasts 1 to {MAX_WATCHER_S} s", where="lasts_s")
        await self._keep(tenant)
        now_s = self._now_s()
        made = self._authority.watcher(
            tenant, wish.name, now_s, expires_s=now_s + wish.lasts_s, websocket=wish.websocket
        )
        return msgspec.structs.replace(made, ca=self._ca)

    async def _answer(self, message: Msg, issued: Issued) -> None:
        if self._client is not None and message.reply:
            with contextlib.suppress(nats.errors.Error, OSError):  # who asked asks again
                await self._client.publish(message.reply, msgspec.json.encode(issued))
