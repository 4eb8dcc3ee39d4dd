"""What the gateway does about providers: what is declared and asked becomes facts, and what there is is shown."""

from __future__ import annotations

from collections.abc import Iterable

from elasticgrid.core import events as ev
from elasticgrid.core.errors import Conflict, NotFound
from elasticgrid.core.fleet_state import ProviderState
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.bodies import InterruptRequest, check_reason
from elasticgrid.gateway.fact_writer import TRIES, FactWriter
from elasticgrid.gateway.job_desk import JobDesk
from elasticgrid.gateway.providers import (
    FLEET_SCOPE,
    Interrupted,
    InterruptedJob,
    ProviderView,
    declare_providers,
    nodes_to_interrupt,
    provider_views,
)


class ProviderDesk:
    """Providers of one gateway."""

    def __init__(self, facts: FactWriter, jobs: JobDesk) -> None:
        self._facts = facts
        self._jobs = jobs

    def views(self, tenant: str = "") -> tuple[ProviderView, ...]:
        """Every provider as the log tells it now; with a tenant, as far as it is that tenant's to know."""
        return provider_views(self._facts.grid.fleet, self._facts.now_ms(), tenant)

    def view(self, name: str) -> ProviderView:
        """One of them.

        Raises:
            NotFound: there is no such provider.
        """
        _require_provider(self._facts.grid, name)
        return next(view for view in self.views() if view.spec.name == name)

    async def interrupt(self, name: str, asked: InterruptRequest, *, actor: str) -> Interrupted:
        """Say of every node at a provider that it will be taken away, as the provider's own notice would.

        Raises:
            NotFound: there is no such provider.
        """
        check_reason(asked.reason)
        await self._facts.caught_up()
        _require_provider(self._facts.grid, name)
        deadline_ms = self._facts.now_ms() + asked.notice_s * 1_000 if asked.notice_s else 0
        told: list[InterruptedJob] = []

        def request(job: JobState) -> ev.EventData | None:
            nodes = nodes_to_interrupt(job, name)
            if not nodes:
                return None
            told.append(InterruptedJob(tenant=job.tenant, job=job.id, nodes=nodes))
            return ev.JobInterruptRequested(provider=name, nodes=nodes, deadline_ms=deadline_ms, reason=asked.reason)

        for state in tuple(self._facts.grid.jobs()):
            if nodes_to_interrupt(state, name):
                await self._jobs.request(state.tenant, state.id, request, actor)
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

        def make(grid: GridFold) -> ev.EventData | None:
            cordoned = _require_provider(grid, name).cordon is not None
            return None if cordoned else ev.ProviderCordoned(name=name, reason=reason)

        await self._facts.write_for_grid(FLEET_SCOPE, make, actor, if_match)
        return self.view(name)

    async def uncordon(self, name: str, *, actor: str, if_match: int | None = None) -> ProviderView:
        """Let a cordoned provider take nodes again. Raises as `cordon`."""

        def make(grid: GridFold) -> ev.EventData | None:
            cordoned = _require_provider(grid, name).cordon is not None
            return ev.ProviderUncordoned(name=name) if cordoned else None

        await self._facts.write_for_grid(FLEET_SCOPE, make, actor, if_match)
        return self.view(name)

    async def declare(self, providers: Iterable[ProviderSpec]) -> None:
        """Bring the log up to the configuration. Raises Conflict when another gateway keeps being faster."""
        wanted = tuple(providers)
        for _ in range(TRIES):
            await self._facts.caught_up(FLEET_SCOPE)
            try:
                last = await declare_providers(self._facts.log, self._facts.grid, wanted, now_ms=self._facts.now_ms())
            except Conflict:
                continue
            await self._facts.contain(last)
            return
        raise Conflict("others change the fleet all the time", hint="start one gateway at a time")


def _require_provider(grid: GridFold, name: str) -> ProviderState:
    found = grid.fleet.providers.get(name)
    if found is None:
        raise NotFound("there is no such provider", where="provider", hint="list providers for their names")
    return found
