"""The gateway without HTTP: one desk for each subject it is asked about, the views and the feed they answer from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from elasticgrid.clock import Clock, SystemClock
from elasticgrid.core.errors import BusUnavailable
from elasticgrid.core.rate import RateLimit
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.access import DEFAULT_TENANT as DEFAULT_TENANT
from elasticgrid.gateway.auth import ADMIN_KEY_FILE, AdminKey, admin_key, gateway_secret
from elasticgrid.gateway.ended_sessions import ENDED_FILE, EndedSessions
from elasticgrid.gateway.fact_writer import FactWriter
from elasticgrid.gateway.feed import EventFeed
from elasticgrid.gateway.job_desk import JobDesk
from elasticgrid.gateway.keys import DEFAULT_LIMIT, Keyring
from elasticgrid.gateway.metrics import GatewayMetrics
from elasticgrid.gateway.provider_desk import ProviderDesk
from elasticgrid.gateway.providers import FLEET_SCOPE
from elasticgrid.gateway.tenants import ACCESS_SCOPE, TenantDesk
from elasticgrid.log.port import EventLog, Scope
from elasticgrid.metrics.registry import new_registry
from elasticgrid.projections.projector import Projector
from elasticgrid.projections.views import Views

VIEWS_FILE: Final = "views.sqlite"
#: How long whether requests can be sent here may take to be found out.
READY_S: Final = 2.0
_CATCH_UP_S: Final = 600.0


class GatewayService:
    """The gateway of one grid. Made by `open_gateway`.

    Attributes:
        views: for reading.
        feed: events as they come.
        key: the admin's; `keyring` knows all keys.
        key_file: where its holder finds it.
        jobs, providers, tenants: each does what is asked about them.
        bus: the connection that the log and the samples are on; None for a log that is on no bus.
        metrics: what Prometheus is told.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        projector: Projector,
        views: Views,
        feed: EventFeed,
        key: AdminKey,
        key_file: Path,
        secret: bytes,
        clock: Clock,
        limit: RateLimit = DEFAULT_LIMIT,
        bus: Client | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.views = views
        self.feed = feed
        self.key = key
        self.keyring = Keyring(
            key,
            secret,
            lambda: projector.grid.access,
            clock,
            limit=limit,
            ended=EndedSessions(key_file.with_name(ENDED_FILE)),
        )
        self.key_file = key_file
        self._facts = FactWriter(log, projector, clock)
        self.tenants = TenantDesk(self._facts, self.keyring)
        self.jobs = JobDesk(self._facts, views, self.tenants)
        self.providers = ProviderDesk(self._facts, self.jobs)
        self.bus = bus
        self.metrics = GatewayMetrics(
            registry if registry is not None else new_registry(),
            log,
            projector,
            lambda: (feed.watchers, feed.sent),
            clock.now_ms,
        )
        self._log = log
        self._projector = projector
        self._looking: asyncio.Task[int] | None = None

    @property
    def event_log(self) -> EventLog:
        """The grid's log."""
        return self._log

    @property
    def data_dir(self) -> Path:
        """The folder of the gateway's files."""
        return self.key_file.parent

    def now_ms(self) -> int:
        """The gateway's clock, Unix milliseconds."""
        return self._facts.now_ms()

    async def require_ready(self) -> int:
        """The last event that answers contain.

        Raises:
            BusUnavailable: the log cannot be reached, or not within `READY_S`, or the views are behind it.
        """
        # What reads the log may be writing the mirror as well, so nobody is cut short; who asks meanwhile waits for it.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ready(), name="readiness")
            self._looking.add_done_callback(lambda task: task.cancelled() or task.exception())
        looking = self._looking
        await asyncio.wait({looking}, timeout=READY_S)
        if not looking.done():
            raise BusUnavailable(
                f"the log did not answer within {READY_S:g} s", hint="see to the bus: elasticgrid doctor"
            )
        return looking.result()

    async def _ready(self) -> int:
        if not self._projector.running:
            raise BusUnavailable("the views are not kept up", hint="the gateway's log says why")
        last = await self._log.last_sequence()
        reached = self._projector.sequence
        if reached < last:
            # What lies between may be no events at all.
            async for recorded in self._log.read(after=reached, through=last):
                if recorded.sequence > self._projector.sequence:
                    raise BusUnavailable(f"the views are at event {reached} of {last}", hint="wait a moment")
        return self._projector.sequence

    async def close(self) -> None:
        """End every stream, and what is still being found out."""
        self.feed.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def caught_up(self, scope: Scope = Scope()) -> int:
        """Wait until answers contain what is in `scope` now, and return its last sequence.

        Raises:
            BusUnavailable: the log cannot be reached, or this takes too long.
        """
        return await self._facts.caught_up(scope)

    async def wait_failed(self) -> None:
        """Wait until the gateway cannot go on, and raise why."""
        await self._projector.wait_stopped()


@asynccontextmanager
async def open_gateway(
    event_log: EventLog,
    data_dir: Path,
    *,
    providers: Iterable[ProviderSpec] | None = None,
    clock: Clock | None = None,
    heartbeat_s: float = 15.0,
    bus: Client | None = None,
    limit: RateLimit = DEFAULT_LIMIT,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[GatewayService]:
    """The gateway's service while the block runs.

    Args:
        event_log: the grid's log.
        data_dir: keeps the admin key and the views.
        providers: what the configuration has, declared before the block begins; None leaves the fleet as it is.
        clock: for the times of requests.
        heartbeat_s: of event streams.
        bus: the connection that the log is on, where it is on one.
        limit: how often a key without a limit of its own may ask.
        registry: for its metrics, with those of what else runs in this process; one of its own when None.

    Raises:
        InvalidInput: the key file is wrong.
        BusUnavailable, LogError: the log cannot be read.
    """
    key, secret = admin_key(data_dir), gateway_secret(data_dir)
    async with Views(data_dir / VIEWS_FILE) as views:
        feed = EventFeed(views, heartbeat_s=heartbeat_s)
        async with Projector(event_log, data_dir / VIEWS_FILE, on_commit=feed.publish) as projector:
            feed.begin(projector.sequence)
            service = GatewayService(
                log=event_log,
                projector=projector,
                views=views,
                feed=feed,
                key=key,
                key_file=data_dir / ADMIN_KEY_FILE,
                secret=secret,
                limit=limit,
                clock=clock if clock is not None else SystemClock(),
                bus=bus,
                registry=registry,
            )
            # Before the first request: which providers there are, and which keys were revoked.
            for scope in (FLEET_SCOPE, ACCESS_SCOPE):
                await projector.wait_for(await event_log.last_sequence(scope), timeout_s=_CATCH_UP_S)
            if providers is not None:
                await service.providers.declare(providers)
            try:
                yield service
            finally:
                await service.close()
