"""The fleet as the log tells it: which providers there are, what is charged to each, and what can be asked of them.

The dictionaries in a `FleetState` are never changed in place: a state once seen stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from elasticgrid.core import marks as mk
from elasticgrid.core.job_nodes import NodesByJob, nodes_of
from elasticgrid.core.marks import HOUR_MS, Mark
from elasticgrid.core.quotas import QuotaState
from elasticgrid.core.spec import PPM, Market, PlacementPolicy, ProviderSpec

RefusalReason: TypeAlias = Literal[
    "constraint", "price", "withdrawn", "cordoned", "mark", "capacity", "slice", "spot_cap"
]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of the fleet's state."""


class ProviderState(_Value, frozen=True, kw_only=True):
    """A provider as declared last, and whether it takes new nodes.

    Attributes:
        withdrawn: it left the configuration; it stays here while nodes are charged to it.
        cordon: why it takes no new nodes; None when it does.
    """

    spec: ProviderSpec
    withdrawn: bool = False
    cordon: str | None = None


class Usage(_Value, frozen=True, kw_only=True):
    """Nodes charged to a provider: placed or launching, joined, and told to leave but not seen to be gone."""

    in_flight: int = 0
    in_use: int = 0
    draining: int = 0

    @property
    def charged(self) -> int:
        """All of them."""
        return self.in_flight + self.in_use + self.draining


class Health(_Value, frozen=True, kw_only=True):
    """A provider's health as of its last failure; it recovers from nothing to full in an hour."""

    ppm: int
    as_of_ms: int


class FleetState(_Value, frozen=True, kw_only=True):
    """Everything the log says about what jobs share: providers, and what their tenants may use.

    Attributes:
        providers: by name.
        usage: nodes charged, by provider; absent when there are none.
        jobs: what each job is charged for.
        marks: by scope.
        health: by provider; absent when nothing ever failed.
        granted_ms: when each provider last gave nodes, by the launcher's clock.
        quotas: what tenants may have, and what they use.
    """

    providers: dict[str, ProviderState] = {}
    usage: dict[str, Usage] = {}
    jobs: NodesByJob = {}
    marks: dict[str, tuple[Mark, ...]] = {}
    health: dict[str, Health] = {}
    granted_ms: dict[str, int] = {}
    quotas: QuotaState = QuotaState()


class Refusal(_Value, frozen=True, kw_only=True):
    """Why a provider is given no node.

    Attributes:
        detail: the numbers or texts behind the reason.
        until_ms: when the reason ends, if time ends it.
        evidence: ids of the events it rests on.
    """

    reason: RefusalReason
    detail: str
    until_ms: int | None = None
    evidence: tuple[str, ...] = ()


UNUSED: Final = Usage()


def initial_fleet(providers: Iterable[ProviderSpec] = ()) -> FleetState:
    """A fleet of these providers of which nothing else is known."""
    return FleetState(providers={spec.name: ProviderState(spec=spec) for spec in providers})


# --------------------------------------------------------------------------------------------------------------------
# Questions
# --------------------------------------------------------------------------------------------------------------------


def free_nodes(fleet: FleetState, provider: str) -> int:
    """How many more nodes the provider may hold; 0 for one that is not known."""
    state = fleet.providers.get(provider)
    if state is None:
        return 0
    return max(0, state.spec.max_nodes - fleet.usage.get(provider, UNUSED).charged)


def health_ppm(fleet: FleetState, provider: str, as_of_ms: int) -> int:
    """The provider's health, from 0 to 1,000,000."""
    health = fleet.health.get(provider)
    if health is None:
        return PPM
    return min(PPM, health.ppm + max(0, as_of_ms - health.as_of_ms) * PPM // HOUR_MS)


def is_leaving(fleet: FleetState, key: str, node: str) -> bool:
    """Whether the job's node was told to leave."""
    return any(launch.nodes.get(node) == "leaving" for launch in nodes_of(fleet.jobs, key).launches.values())


def policy_refusal(
    spec: ProviderSpec, policy: PlacementPolicy, *, price_microdollars_per_hour: int, market: Market
) -> Refusal | None:
    """Why a job's policy forbids nodes of this provider at this price; None when it allows them."""
    for what, value, allowed in (
        ("provider", spec.name, policy.providers),
        ("region", spec.region, policy.regions),
        ("accelerator", spec.accelerator, policy.accelerators),
    ):
        if allowed and value not in allowed:
            return Refusal(reason="constraint", detail=f"{what} {value or 'none'} is not one of {', '.join(allowed)}")
    if policy.spot == "forbid" and market == "spot":
        return Refusal(reason="constraint", detail="spot is forbidden")
    if policy.spot == "require" and market != "spot":
        return Refusal(reason="constraint", detail="spot is required")
    ceiling = policy.max_price_microdollars_per_hour
    if ceiling is not None and price_microdollars_per_hour > ceiling:
        return Refusal(reason="price", detail=f"{dollars(price_microdollars_per_hour)} is above {dollars(ceiling)}")
    return None


def usable(
    provider: str, policy: PlacementPolicy, fleet: FleetState, as_of_ms: int, *, free: int | None = None
) -> Refusal | None:
    """Why no new node of a job with this policy can run at the provider now; None when one can.

    Args:
        free: nodes it may still hold, where the caller has given some away already; `free_nodes` when None.
    """
    state = fleet.providers.get(provider)
    if state is None:
        return Refusal(reason="withdrawn", detail="not part of the grid")
    spec = state.spec
    refusal = policy_refusal(
        spec, policy, price_microdollars_per_hour=spec.price_microdollars_per_hour, market=spec.market
    )
    if refusal is not None:
        return refusal
    if state.withdrawn:
        return Refusal(reason="withdrawn", detail="left the configuration")
    if state.cordon is not None:
        return Refusal(reason="cordoned", detail=state.cordon or "takes no new nodes")
    mark = mk.blocking(fleet.marks, spec, as_of_ms)
    if mark is not None:
        return _marked(mark, as_of_ms)
    left = free_nodes(fleet, provider) if free is None else free
    if left < 1:
        return Refusal(reason="capacity", detail=f"all of its {spec.max_nodes} nodes are taken")
    if left < spec.slice_nodes:
        return Refusal(reason="slice", detail=f"{left} nodes are free, a slice has {spec.slice_nodes}")
    return None


def _marked(mark: Mark, as_of_ms: int) -> Refusal:
    ended = mark.until_ms is not None and as_of_ms >= mark.until_ms
    says = f"{mark.failure}, {mark.failures} in a row"
    if ended:
        says += f", {mark.probe} tries it again"
    return Refusal(
        reason="mark",
        detail=f"{says}, evidence {', '.join(mark.evidence[-2:])}",
        until_ms=None if ended else mark.until_ms,
        evidence=mark.evidence,
    )


def dollars(microdollars_per_hour: int) -> str:
    """A price for people, exact: `$0.5/h`."""
    whole, rest = divmod(microdollars_per_hour, 1_000_000)
    return f"${whole}{f'.{rest:06d}'.rstrip('0') if rest else ''}/h"
