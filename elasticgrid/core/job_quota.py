"""What a job's tenant may still have and use, as far as it concerns the job; asked of the fleet that jobs share."""

from __future__ import annotations

import msgspec

from elasticgrid.core.events import RuleCheck
from elasticgrid.core.fleet_state import FleetState
from elasticgrid.core.job import JobState, live_nodes
from elasticgrid.core.job_nodes import all_nodes, job_key
from elasticgrid.core.quotas import HOUR_MS, Standing, budgets, jobs_of, spent_budget
from elasticgrid.core.spec import JobSpec


class NodeCap(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The most nodes a job may have because of what its tenant may have.

    Attributes:
        nodes: for this job.
        limit: for all of the tenant's jobs; `others` what the others hold.
    """

    nodes: int
    limit: int
    others: int

    @property
    def says(self) -> str:
        """The cap for people."""
        return f"the tenant may have {self.limit} nodes and its other jobs have {self.others}"

    @property
    def check(self) -> RuleCheck:
        """The cap as a rule that did not speak, but that others had to keep to."""
        numbers = {"limit_nodes": self.limit, "other_nodes": self.others, "most_nodes": self.nodes}
        return RuleCheck(rule="quota", spoke=False, numbers=numbers, says=self.says)


def tenant_nodes(fleet: FleetState, tenant: str, *, without: str = "") -> int:
    """How many nodes are charged to the tenant's jobs, but for the job `without`."""
    own, left_out = job_key(tenant, ""), job_key(tenant, without)
    return sum(
        sum(plan.nodes for plan in job.planned.values()) + sum(len(launch.nodes) for launch in job.launches.values())
        for key, job in all_nodes(fleet.jobs)
        if key.startswith(own) and key != left_out
    )


def node_cap(state: JobState, fleet: FleetState) -> NodeCap | None:
    """The most nodes the job may have; None when nothing caps it. What it has is never taken away for this."""
    assert state.spec is not None
    quota = fleet.quotas.quotas.get(state.tenant)
    if quota is None or quota.nodes is None:
        return None
    others = tenant_nodes(fleet, state.tenant, without=state.id)
    room = max(quota.nodes - others, 0)
    room -= room % state.spec.quantum
    nodes = max(room, len(live_nodes(state)))
    return NodeCap(nodes=nodes, limit=quota.nodes, others=others) if nodes < state.max_nodes else None


def job_budget(state: JobState, fleet: FleetState, as_of_ms: int) -> Standing | None:
    """The budget of the job's tenant that is used up; None while there is something left of each."""
    return spent_budget(fleet.quotas, state.tenant, as_of_ms)


def standings(fleet: FleetState, tenant: str, as_of_ms: int) -> tuple[Standing, ...]:
    """How every limit of the tenant stands."""
    quota = fleet.quotas.quotas.get(tenant)
    if quota is None:
        return ()
    found = []
    if quota.jobs is not None:
        found.append(Standing(what="jobs", limit=quota.jobs, used=jobs_of(fleet.quotas, tenant)))
    if quota.nodes is not None:
        found.append(Standing(what="nodes", limit=quota.nodes, used=tenant_nodes(fleet, tenant)))
    return (*found, *budgets(fleet.quotas, tenant, as_of_ms))


def submit_refusal(fleet: FleetState, tenant: str, spec: JobSpec, as_of_ms: int) -> tuple[Standing, int] | None:
    """The first limit that one more job of the tenant would go over, and how much was asked; None when none."""
    asked = {"jobs": 1, "nodes": spec.min_nodes}
    for standing in standings(fleet, tenant, as_of_ms):
        more = asked.get(standing.what, 1)
        if standing.used + more > standing.limit:
            return standing, more
    return None


def amount(what: str, value: int) -> str:
    """A number of a limit for people."""
    if what == "microdollars":
        return f"${value / 1_000_000:,.{2 if value >= 10_000_000 else 4}f}"
    if what == "accelerator_ms":
        return f"{value / HOUR_MS:,.2f} accelerator-hours"
    return f"{value} {what if value != 1 else what.removesuffix('s')}"


def budget_says(standing: Standing) -> str:
    """A used-up budget for people."""
    used, limit = amount(standing.what, standing.used), amount(standing.what, standing.limit)
    return f"the tenant used {used} of {limit} for this period"
