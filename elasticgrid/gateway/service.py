"""What the gateway does, without HTTP: it checks requests and appends them as facts, and reads the views.

Every request is one event that expects no other request about the job to have come first. After the append the caller
is answered from the views, once they contain it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import stamina
import structlog
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from elasticgrid.clock import Clock, SystemClock
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, Conflict, NotFound
from elasticgrid.core.job import JobState
from elasticgrid.core.names import content_digest, derived_id, is_name
from elasticgrid.core.rate import RateLimit
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.gateway.access import DEFAULT_TENANT as DEFAULT_TENANT
from elasticgrid.gateway.auth import ADMIN_KEY_FILE, AdminKey, admin_key, gateway_secret
from elasticgrid.gateway.bodies import InterruptRequest, PriorityRequest, ResizeRequest, check_reason
from elasticgrid.gateway.conditions import require_unchanged
from elasticgrid.gateway.feed import EventFeed
from elasticgrid.gateway.job_check import require_acceptable, require_going_on, require_placeable, resized
from elasticgrid.gateway.job_names import job_id, require_key, require_tenant
from elasticgrid.gateway.keys import DEFAULT_LIMIT, Keyring
from elasticgrid.gateway.metrics import GatewayMetrics
from elasticgrid.gateway.providers import (
    FLEET_SCOPE,
    Interrupted,
    InterruptedJob,
    ProviderView,
    declare_providers,
    fleet_event,
    nodes_to_interrupt,
    provider_views,
)
from elasticgrid.gateway.tenants import ACCESS_SCOPE, TenantDesk
from elasticgrid.log.port import EventLog, Expectation, Scope
from elasticgrid.metrics.registry import new_registry
from elasticgrid.projections.projector import Projector
from elasticgrid.projections.results import JobSummary
from elasticgrid.projections.views import Views

log = structlog.get_logger("gateway")

VIEWS_FILE: Final = "views.sqlite"

#: How often a request is made again when others were faster.
_TRIES: Final = 8
_CATCH_UP_S: Final = 600.0

MakeRequest = Callable[[JobState], ev.EventData | None]


class Submitted(msgspec.Struct, frozen=True):
    """A job, and whether this call made it."""

    job: JobSummary
    created: bool


class GatewayService:
    """The gateway of one grid. Made by `open_gateway`.

    Attributes:
        views: for reading.
        feed: events as they come.
        key: the admin's; `keyring` knows all keys, `tenants` does what is asked about them.
        key_file: where its holder finds it.
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
        self.keyring = Keyring(key, secret, lambda: projector.grid.access, clock, limit=limit)
        self.tenants = TenantDesk(self, lambda: projector.grid, self.keyring)
        self.key_file = key_file
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
        self._clock = clock
        self._submitting = asyncio.Lock()

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
        return self._clock.now_ms()

    # ----------------------------------------------------------------------------------------------------------------
    # Jobs
    # ----------------------------------------------------------------------------------------------------------------

    def check(self, spec: JobSpec) -> None:
        """Everything that a submission is checked for.

        Raises:
            InvalidJob: the job cannot be meant.
            CannotPlace: no state of this grid could ever run it.
        """
        require_acceptable(spec)
        require_placeable(spec, self._providers())

    async def submit(
        self,
        spec: JobSpec,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        idempotency_key: str = "",
        metadata: str = "",
    ) -> Submitted:
        """Accept a job. The same key with the same job gives the job of the first time.

        Raises:
            InvalidJob, CannotPlace: see `check`.
            InvalidInput: the tenant or the key is none.
            Conflict: the key was used for another job.
            QuotaExceeded: the tenant has or used all that it may.
        """
        require_tenant(tenant)
        require_key(idempotency_key)
        require_acceptable(spec)
        data = ev.JobSubmitted(spec=spec, idempotency_key=idempotency_key, metadata=metadata)
        if not idempotency_key and not self.tenants.is_limited(tenant):
            require_placeable(spec, self._providers())
            return Submitted(await self._submit_new(data, tenant, actor), True)
        # One at a time, so that two of them neither are the same job twice nor take the same room.
        async with self._submitting:
            await self.caught_up(Scope(tenant))
            earlier = await self.views.job_of_key(tenant, idempotency_key) if idempotency_key else None
            if earlier is not None:
                return Submitted(await self._submitted_before(tenant, earlier, data), False)
            require_placeable(spec, self._providers())
            self.tenants.require_room(tenant, spec)
            return Submitted(await self._submit_new(data, tenant, actor), True)

    async def cancel(
        self, tenant: str, job: str, *, actor: str, reason: str = "", if_match: int | None = None
    ) -> JobSummary:
        """End a job. A second time changes nothing.

        Raises:
            NotFound: there is no such job.
            Conflict: it is over.
            Outdated: its last event is another than `if_match`.
        """
        check_reason(reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return None if state.cancel_requested is not None else ev.JobCancelRequested(reason=reason)

        return await self._request(tenant, job, request, actor, if_match)

    async def pause(
        self, tenant: str, job: str, *, actor: str, reason: str = "", if_match: int | None = None
    ) -> JobSummary:
        """Hold a job at the size it has. A second time changes nothing. Raises as `cancel`."""
        check_reason(reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return None if state.paused else ev.JobPauseRequested(reason=reason)

        return await self._request(tenant, job, request, actor, if_match)

    async def resume(
        self, tenant: str, job: str, *, actor: str, reason: str = "", if_match: int | None = None
    ) -> JobSummary:
        """Decide about a job again. A second time changes nothing. Raises as `cancel`."""
        check_reason(reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return ev.JobResumeRequested(reason=reason) if state.paused else None

        return await self._request(tenant, job, request, actor, if_match)

    async def resize(
        self, tenant: str, job: str, bounds: ResizeRequest, *, actor: str, if_match: int | None = None
    ) -> JobSummary:
        """Give a job new bounds. Raises as `cancel`, and InvalidInput or CannotPlace for bounds that cannot be."""
        check_reason(bounds.reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            spec = resized(state, bounds.min_nodes, bounds.max_nodes)
            require_placeable(spec, self._providers())
            if (spec.min_nodes, spec.max_nodes) == (state.min_nodes, state.max_nodes):
                return None
            return ev.JobResizeRequested(min_nodes=spec.min_nodes, max_nodes=spec.max_nodes, reason=bounds.reason)

        return await self._request(tenant, job, request, actor, if_match)

    async def set_priority(
        self, tenant: str, job: str, asked: PriorityRequest, *, actor: str, if_match: int | None = None
    ) -> JobSummary:
        """Put a job into another band. Raises as `cancel`."""
        check_reason(asked.reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return ev.JobPriorityRequested(band=asked.band, reason=asked.reason) if state.band != asked.band else None

        return await self._request(tenant, job, request, actor, if_match)

    def job_state(self, tenant: str, job: str) -> JobState:
        """The job as the log tells it now.

        Raises:
            NotFound: there is no such job.
        """
        state = self._projector.grid.job((tenant, job))
        if state is None or state.spec is None:
            raise _no_job(tenant, job)
        return state

    # ----------------------------------------------------------------------------------------------------------------
    # Providers
    # ----------------------------------------------------------------------------------------------------------------

    def providers(self, tenant: str = "") -> tuple[ProviderView, ...]:
        """Every provider as the log tells it now; with a tenant, as far as it is that tenant's to know."""
        return provider_views(self._projector.grid.fleet, self.now_ms(), tenant)

    async def interrupt(self, name: str, asked: InterruptRequest, *, actor: str) -> Interrupted:
        """Say of every node at a provider that it will be taken away, as the provider's own notice would.

        Raises:
            NotFound: there is no such provider.
        """
        check_reason(asked.reason)
        await self.caught_up()
        if name not in self._projector.grid.fleet.providers:
            raise NotFound("there is no such provider", where="provider", hint="list providers for their names")
        deadline_ms = self.now_ms() + asked.notice_s * 1_000 if asked.notice_s else 0
        told: list[InterruptedJob] = []

        def request(job: JobState) -> ev.EventData | None:
            nodes = nodes_to_interrupt(job, name)
            if not nodes:
                return None
            told.append(InterruptedJob(tenant=job.tenant, job=job.id, nodes=nodes))
            return ev.JobInterruptRequested(provider=name, nodes=nodes, deadline_ms=deadline_ms, reason=asked.reason)

        for state in tuple(self._projector.grid.jobs()):
            if nodes_to_interrupt(state, name):
                await self._request(state.tenant, state.id, request, actor)
        # What was asked for once more, because others were faster, counts once.
        latest = {(each.tenant, each.job): each for each in told}
        return Interrupted(provider=name, deadline_ms=deadline_ms, jobs=tuple(latest.values()))

    async def cordon(self, name: str, *, actor: str, reason: str = "", if_match: int | None = None) -> ProviderView:
        """Let a provider take no new nodes. A second time changes nothing.

        Raises:
            NotFound: there is no such provider.
            Outdated: the last fact about providers is another than `if_match`.
        """
        check_reason(reason)
        return await self._about_provider(
            name,
            lambda cordon: ev.ProviderCordoned(name=name, reason=reason) if cordon is None else None,
            actor,
            if_match,
        )

    async def uncordon(self, name: str, *, actor: str, if_match: int | None = None) -> ProviderView:
        """Let a cordoned provider take nodes again. Raises as `cordon`."""
        return await self._about_provider(
            name, lambda cordon: ev.ProviderUncordoned(name=name) if cordon is not None else None, actor, if_match
        )

    async def declare(self, providers: Iterable[ProviderSpec]) -> None:
        """Bring the log up to the configuration. Raises Conflict when another gateway keeps being faster."""
        wanted = tuple(providers)
        for _ in range(_TRIES):
            await self.caught_up(FLEET_SCOPE)
            try:
                last = await declare_providers(self._log, self._projector.grid, wanted, now_ms=self.now_ms())
            except Conflict:
                continue
            await self._projector.wait_for(last)
            return
        raise Conflict("others change the fleet all the time", hint="start one gateway at a time")

    # ----------------------------------------------------------------------------------------------------------------
    # Health
    # ----------------------------------------------------------------------------------------------------------------

    async def require_ready(self) -> int:
        """The last event that answers contain.

        Raises:
            BusUnavailable: the log cannot be reached, or the views are behind it.
        """
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

    async def caught_up(self, scope: Scope = Scope()) -> int:
        """Wait until answers contain what is in `scope` now, and return its last sequence.

        Raises:
            BusUnavailable: the log cannot be reached, or this takes too long.
        """
        last = await self._log.last_sequence(scope)
        await self._projector.wait_for(last)
        return last

    async def wait_failed(self) -> None:
        """Wait until the gateway cannot go on, and raise why."""
        await self._projector.wait_stopped()

    # ----------------------------------------------------------------------------------------------------------------
    # How requests become events
    # ----------------------------------------------------------------------------------------------------------------

    def _providers(self) -> tuple[ProviderSpec, ...]:
        states = self._projector.grid.fleet.providers.values()
        return tuple(state.spec for state in states if not state.withdrawn)

    async def _submit_new(self, data: ev.JobSubmitted, tenant: str, actor: str) -> JobSummary:
        idempotency_key = data.idempotency_key
        seed = idempotency_key or secrets.token_hex(16)
        for attempt in range(_TRIES):
            job = job_id(data.spec.name, tenant, seed, attempt)
            try:
                last = await self._append(tenant, job, data, actor, Expectation(Scope(tenant, job), 0))
            except Conflict:
                # Another job has this id, or another gateway took the same key just now.
                await self.caught_up(Scope(tenant, job, "job"))
                other = self._projector.grid.job((tenant, job))
                if idempotency_key and other is not None and other.idempotency_key == idempotency_key:
                    return await self._submitted_before(tenant, job, data)
                continue
            await self._projector.wait_for(last)
            log.info("job_submitted", tenant=tenant, job=job, actor=actor)
            return await self.views.job_summary(tenant, job, as_of_ms=self.now_ms())
        raise Conflict("no free id was found for the job", where="name", hint="give it another name")

    async def _submitted_before(self, tenant: str, job: str, data: ev.JobSubmitted) -> JobSummary:
        state = self._projector.grid.job((tenant, job))
        if state is None or (state.spec, state.metadata) != (data.spec, data.metadata):
            raise Conflict(
                f"the key was used for {job}, which is another job",
                where="Idempotency-Key",
                hint="use a new key for a new job",
            )
        return await self.views.job_summary(tenant, job, as_of_ms=self.now_ms())

    async def _request(
        self, tenant: str, job: str, make: MakeRequest, actor: str, if_match: int | None = None
    ) -> JobSummary:
        # What is asked for a job as it was seen expects that nothing at all came since, not even a fact of a node.
        scope = Scope(tenant, job, "job" if if_match is None else None)
        for _ in range(_TRIES):
            state, sequence = await self._job(tenant, job, scope)
            require_unchanged(if_match, sequence, "If-Match")
            data = make(state)
            if data is not None:
                try:
                    last = await self._append(
                        tenant, job, data, actor, Expectation(scope, sequence), correlation_id=state.submitted_id
                    )
                except Conflict:
                    continue
                await self._projector.wait_for(last)
                log.info("job_request", tenant=tenant, job=job, type=ev.type_of(data), actor=actor)
            return await self.views.job_summary(tenant, job, as_of_ms=self.now_ms())
        raise Conflict("others ask for changes of this job all the time", where=job, hint="try again")

    async def _job(self, tenant: str, job: str, scope: Scope) -> tuple[JobState, int]:
        """The job as of its last request at least, and that request's sequence."""
        require_tenant(tenant)
        state = None
        if is_name(job):
            sequence = await self.caught_up(scope)
            state = self._projector.grid.job((tenant, job))
        if state is None or state.spec is None:
            raise _no_job(tenant, job)
        return state, sequence

    async def _about_provider(
        self, name: str, make: Callable[[str | None], ev.EventData | None], actor: str, if_match: int | None
    ) -> ProviderView:
        for _ in range(_TRIES):
            sequence = await self.caught_up(FLEET_SCOPE)
            require_unchanged(if_match, sequence, "If-Match")
            found = self._projector.grid.fleet.providers.get(name)
            if found is None:
                raise NotFound("there is no such provider", where="provider", hint="list providers for their names")
            data = make(found.cordon)
            if data is not None:
                event = fleet_event(data, now_ms=self.now_ms(), actor=actor)
                try:
                    await self.append(event, Expectation(FLEET_SCOPE, sequence))
                except Conflict:
                    continue
            views = {view.spec.name: view for view in self.providers()}
            if name in views:
                return views[name]
        raise Conflict("others change the fleet all the time", where=name, hint="try again")

    async def _append(
        self,
        tenant: str,
        job: str,
        data: ev.EventData,
        actor: str,
        expect: Expectation,
        *,
        correlation_id: str = "",
    ) -> int:
        now_ms = self.now_ms()
        event = ev.Event(
            id=derived_id(now_ms, tenant, job, ev.type_of(data), content_digest(data), actor, expect.sequence),
            time_ms=now_ms,
            tenant=tenant,
            job=job,
            correlation_id=correlation_id,
            actor=actor,
            data=data,
        )
        return await self._append_event(event, expect)

    async def append(self, event: ev.Event, expect: Expectation) -> None:
        """Append a fact, and wait until answers contain it.

        Raises:
            Conflict: what it expects does not hold.
            BusUnavailable: the log cannot be reached.
        """
        await self._projector.wait_for(await self._append_event(event, expect))

    @stamina.retry(on=BusUnavailable, attempts=4, timeout=8.0, wait_initial=0.2, wait_jitter=0.1)
    async def _append_event(self, event: ev.Event, expect: Expectation) -> int:
        """Append it; where it is not known whether it landed, again, which is the same event."""
        _, last = await self._log.append([event], expect=expect)
        return last


def _no_job(tenant: str, job: str) -> NotFound:
    return NotFound(f"tenant {tenant} has no job of this id", where=job[:64], hint="list jobs for their ids")


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
                await service.declare(providers)
            try:
                yield service
            finally:
                feed.close()
