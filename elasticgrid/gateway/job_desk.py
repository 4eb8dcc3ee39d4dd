"""What the gateway does about jobs: it checks what is asked, and what it accepts becomes a fact.

Every request is one event that expects no other request about the job to have come first. The caller is answered from
the views.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import msgspec
import structlog

from elasticgrid.core import events as ev
from elasticgrid.core.errors import Conflict, NotFound
from elasticgrid.core.job import JobState
from elasticgrid.core.names import is_name
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.gateway.access import DEFAULT_TENANT
from elasticgrid.gateway.bodies import PriorityRequest, ResizeRequest, check_reason
from elasticgrid.gateway.conditions import require_unchanged
from elasticgrid.gateway.fact_writer import TRIES, FactWriter
from elasticgrid.gateway.job_check import require_acceptable, require_going_on, require_placeable, resized
from elasticgrid.gateway.job_names import job_id, require_key, require_tenant
from elasticgrid.gateway.tenants import TenantDesk
from elasticgrid.log.port import Expectation, Scope
from elasticgrid.projections.results import JobSummary
from elasticgrid.projections.views import Views

MakeRequest = Callable[[JobState], ev.EventData | None]

_log = structlog.get_logger("gateway")


class Submitted(msgspec.Struct, frozen=True):
    """A job, and whether this call made it."""

    job: JobSummary
    created: bool


class JobDesk:
    """Jobs of one gateway."""

    def __init__(self, facts: FactWriter, views: Views, tenants: TenantDesk) -> None:
        self._facts = facts
        self._views = views
        self._tenants = tenants
        self._submitting = asyncio.Lock()

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
            NotFound: nobody created the tenant.
            Conflict: the key was used for another job.
            QuotaExceeded: the tenant has or used all that it may.
        """
        require_tenant(tenant)
        await self._tenants.require_created(tenant)
        require_key(idempotency_key)
        require_acceptable(spec)
        data = ev.JobSubmitted(spec=spec, idempotency_key=idempotency_key, metadata=metadata)
        if not idempotency_key and not self._tenants.is_limited(tenant):
            require_placeable(spec, self._providers())
            return Submitted(await self._submit_new(data, tenant, actor), True)
        # One at a time, so that two of them neither are the same job twice nor take the same room.
        async with self._submitting:
            await self._facts.caught_up(Scope(tenant))
            earlier = await self._views.job_of_key(tenant, idempotency_key) if idempotency_key else None
            if earlier is not None:
                return Submitted(await self._submitted_before(tenant, earlier, data), False)
            require_placeable(spec, self._providers())
            self._tenants.require_room(tenant, spec)
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

        return await self.request(tenant, job, request, actor, if_match)

    async def pause(
        self, tenant: str, job: str, *, actor: str, reason: str = "", if_match: int | None = None
    ) -> JobSummary:
        """Hold a job at the size it has. A second time changes nothing. Raises as `cancel`."""
        check_reason(reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return None if state.paused else ev.JobPauseRequested(reason=reason)

        return await self.request(tenant, job, request, actor, if_match)

    async def resume(
        self, tenant: str, job: str, *, actor: str, reason: str = "", if_match: int | None = None
    ) -> JobSummary:
        """Decide about a job again. A second time changes nothing. Raises as `cancel`."""
        check_reason(reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return ev.JobResumeRequested(reason=reason) if state.paused else None

        return await self.request(tenant, job, request, actor, if_match)

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

        return await self.request(tenant, job, request, actor, if_match)

    async def set_priority(
        self, tenant: str, job: str, asked: PriorityRequest, *, actor: str, if_match: int | None = None
    ) -> JobSummary:
        """Put a job into another band. Raises as `cancel`."""
        check_reason(asked.reason)

        def request(state: JobState) -> ev.EventData | None:
            require_going_on(state)
            return ev.JobPriorityRequested(band=asked.band, reason=asked.reason) if state.band != asked.band else None

        return await self.request(tenant, job, request, actor, if_match)

    async def request(
        self, tenant: str, job: str, make: MakeRequest, actor: str, if_match: int | None = None
    ) -> JobSummary:
        """Append what `make` has to say of a job as it is, if anything. Raises as `cancel`, and what `make` raises."""
        # What is asked for a job as it was seen expects that nothing at all came since, not even a fact of a node.
        scope = Scope(tenant, job, "job" if if_match is None else None)
        for _ in range(TRIES):
            state, sequence = await self._read(tenant, job, scope)
            require_unchanged(if_match, sequence, "If-Match")
            data = make(state)
            if data is not None:
                try:
                    await self._facts.write(
                        data, actor, Expectation(scope, sequence), correlation_id=state.submitted_id
                    )
                except Conflict:
                    continue
                _log.info("job_request", tenant=tenant, job=job, type=ev.type_of(data), actor=actor)
            return await self._views.job_summary(tenant, job, as_of_ms=self._facts.now_ms())
        raise Conflict("others ask for changes of this job all the time", where=job, hint="try again")

    def state(self, tenant: str, job: str) -> JobState:
        """The job as the log tells it now.

        Raises:
            NotFound: there is no such job.
        """
        state = self._facts.grid.job((tenant, job))
        if state is None or state.spec is None:
            raise _no_job(tenant, job)
        return state

    def _providers(self) -> tuple[ProviderSpec, ...]:
        states = self._facts.grid.fleet.providers.values()
        return tuple(state.spec for state in states if not state.withdrawn)

    async def _submit_new(self, data: ev.JobSubmitted, tenant: str, actor: str) -> JobSummary:
        idempotency_key = data.idempotency_key
        seed = idempotency_key or secrets.token_hex(16)
        for attempt in range(TRIES):
            job = job_id(data.spec.name, tenant, seed, attempt)
            try:
                await self._facts.write(data, actor, Expectation(Scope(tenant, job), 0))
            except Conflict:
                # Another job has this id, or another gateway took the same key just now.
                await self._facts.caught_up(Scope(tenant, job, "job"))
                other = self._facts.grid.job((tenant, job))
                if idempotency_key and other is not None and other.idempotency_key == idempotency_key:
                    return await self._submitted_before(tenant, job, data)
                continue
            _log.info("job_submitted", tenant=tenant, job=job, actor=actor)
            return await self._views.job_summary(tenant, job, as_of_ms=self._facts.now_ms())
        raise Conflict("no free id was found for the job", where="name", hint="give it another name")

    async def _submitted_before(self, tenant: str, job: str, data: ev.JobSubmitted) -> JobSummary:
        state = self._facts.grid.job((tenant, job))
        if state is None or (state.spec, state.metadata) != (data.spec, data.metadata):
            raise Conflict(
                f"the key was used for {job}, which is another job",
                where="Idempotency-Key",
                hint="use a new key for a new job",
            )
        return await self._views.job_summary(tenant, job, as_of_ms=self._facts.now_ms())

    async def _read(self, tenant: str, job: str, scope: Scope) -> tuple[JobState, int]:
        """The job as of its last request at least, and that request's sequence."""
        require_tenant(tenant)
        state = None
        if is_name(job):
            sequence = await self._facts.caught_up(scope)
            state = self._facts.grid.job((tenant, job))
        if state is None or state.spec is None:
            raise _no_job(tenant, job)
        return state, sequence


def _no_job(tenant: str, job: str) -> NotFound:
    return NotFound(f"tenant {tenant} has no job of this id", where=job[:64], hint="list jobs for their ids")
