"""Providers: what the configuration says of them goes into the log, and what the log says of them is shown."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elasticgrid.core.errors import Conflict
from elasticgrid.core.events import Event, EventData, ProviderDeclared, ProviderWithdrawn, type_of
from elasticgrid.core.fleet_state import UNUSED, FleetState, Usage, free_nodes, health_ppm, usable
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState, live_nodes
from elasticgrid.core.job_nodes import all_nodes, job_key
from elasticgrid.core.names import FLEET, GRID_TENANT, content_digest, derived_id, is_record
from elasticgrid.core.spec import PlacementPolicy, ProviderSpec
from elasticgrid.log.archive_secrets import shown, shown_text
from elasticgrid.log.port import MAX_BATCH, EventLog, Expectation, Scope

#: The facts about the fleet: what an append of one of them expects to be the last.
FLEET_SCOPE = Scope(GRID_TENANT, FLEET, "job")


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as the log tells it.

    Attributes:
        spec: as declared last, without credentials.
        withdrawn: it left the configuration and drains.
        cordon: why it takes no new nodes; None when it does.
        in_flight, in_use, draining, free_nodes: nodes.
        health_ppm: from 0 to 1,000,000.
        refused: why a job without wishes of its own gets no node there now; empty when it does. `detail` is the
            evidence, `until_ms` when time ends it.
    """

    spec: ProviderSpec
    withdrawn: bool
    cordon: str | None
    in_flight: int
    in_use: int
    draining: int
    free_nodes: int
    health_ppm: int
    refused: str = ""
    detail: str = ""
    until_ms: int | None = None


class InterruptedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of which nodes were given notice."""

    tenant: str
    job: str
    nodes: tuple[str, ...]


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a notice for a provider's nodes; `deadline_ms` is by when they go, 0 when no time was said."""

    provider: str
    deadline_ms: int
    jobs: tuple[InterruptedJob, ...]


def nodes_to_interrupt(job: JobState, provider: str) -> tuple[str, ...]:
    """The job's nodes at the provider that are wanted and have no notice yet; none of a job that is over."""
    if job.terminal or is_record(job.tenant):
        return ()
    return tuple(node.id for node in live_nodes(job) if node.provider == provider and not node.notice_ms)


async def declare_providers(
    log: EventLog, fold: GridFold, providers: Iterable[ProviderSpec], *, now_ms: int, actor: str = "gateway"
) -> int:
    """Bring the log up to the configuration: declare what is new or changed, withdraw what is missing.

    Args:
        log: where the facts are appended.
        fold: the grid as of the last fact about the fleet, at least.
        providers: all that the configuration has.
        now_ms: the time of the facts.
        actor: who says so.

    Returns:
        The sequence of the last fact appended; 0 when there was nothing to say.

    Raises:
        Conflict: somebody else appended a fact about the fleet that `fold` does not have. Fold it and call again.
    """
    wanted = {spec.name: spec for spec in providers}
    known = fold.fleet.providers
    facts: list[EventData] = [
        ProviderDeclared(provider=spec)
        for name, spec in wanted.items()
        if name not in known or known[name].withdrawn or known[name].spec != spec
    ]
    facts += [
        ProviderWithdrawn(name=name) for name, state in known.items() if name not in wanted and not state.withdrawn
    ]
    expected = await log.last_sequence(FLEET_SCOPE)
    if expected > fold.sequence:
        raise Conflict(f"the fleet's last fact is {expected}, the fold is at {fold.sequence}", hint="fold it first")
    last = 0
    for start in range(0, len(facts), MAX_BATCH):
        batch = [fleet_event(data, now_ms=now_ms, actor=actor) for data in facts[start : start + MAX_BATCH]]
        _, last = await log.append(batch, expect=Expectation(FLEET_SCOPE, last or expected))
    return last


def fleet_event(data: EventData, *, now_ms: int, actor: str) -> Event:
    """A fact about the fleet."""
    return Event(
        id=derived_id(now_ms, GRID_TENANT, FLEET, type_of(data), content_digest(data), actor),
        time_ms=now_ms,
        tenant=GRID_TENANT,
        job=FLEET,
        actor=actor,
        data=data,
    )


def provider_views(fleet: FleetState, as_of_ms: int, tenant: str = "") -> tuple[ProviderView, ...]:
    """Every provider, in the order of their names; with a tenant, with that tenant's nodes alone."""
    views = []
    own = _usage_of(fleet, tenant) if tenant else None
    for name, state in sorted(fleet.providers.items()):
        usage = (fleet.usage if own is None else own).get(name, UNUSED)
        refusal = usable(name, PlacementPolicy(), fleet, as_of_ms)
        views.append(
            ProviderView(
                spec=shown(state.spec),
                withdrawn=state.withdrawn,
                cordon=state.cordon,
                in_flight=usage.in_flight,
                in_use=usage.in_use,
                draining=usage.draining,
                free_nodes=free_nodes(fleet, name),
                health_ppm=health_ppm(fleet, name, as_of_ms),
                refused=refusal.reason if refusal is not None else "",
                # The evidence may be of anybody's launches.
                detail=shown_text(refusal.detail) if refusal is not None and own is None else "",
                until_ms=refusal.until_ms if refusal is not None else None,
            )
        )
    return tuple(views)


_KINDS = {"launching": "in_flight", "up": "in_use", "leaving": "draining"}


def _usage_of(fleet: FleetState, tenant: str) -> dict[str, Usage]:
    """What of each provider is charged to one tenant."""
    counts: dict[str, dict[str, int]] = {}
    for key, job in all_nodes(fleet.jobs):
        if not key.startswith(job_key(tenant, "")):
            continue
        for plan in job.planned.values():
            held = counts.setdefault(plan.provider, dict.fromkeys(_KINDS.values(), 0))
            held["in_flight"] += plan.nodes
        for launch in job.launches.values():
            held = counts.setdefault(launch.provider, dict.fromkeys(_KINDS.values(), 0))
            for phase in launch.nodes.values():
                held[_KINDS[phase]] += 1
    return {provider: Usage(**held) for provider, held in counts.items()}
