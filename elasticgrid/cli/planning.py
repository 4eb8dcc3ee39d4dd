"""Placements of so many nodes with no server: providers from a file, the core's own pass, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from elasticgrid.config.files import read_source
from elasticgrid.config.grid_file import parse_grid, told_apart
from elasticgrid.core.errors import CannotPlace, InvalidGrid, InvalidInput
from elasticgrid.core.events import PlacementDecided
from elasticgrid.core.fleet_state import initial_fleet
from elasticgrid.core.placement import Demand, place
from elasticgrid.core.spec import PPM, PlacementPolicy, ProviderSpec

#: Micro-dollars in a dollar.
_DOLLAR: Final = 1_000_000
#: Fields by which a list of providers in the plain form is told from a grid file.
_PLAIN_FIELDS: Final = frozenset(("cost_per_node_hour", "spot"))


def _example(name: str, region: str, nodes: int, price: float, accelerator: str) -> ProviderSpec:
    return ProviderSpec(
        name=name,
        engine=f"{name}/{region}",
        region=region,
        market="spot",
        accelerator=accelerator,
        max_nodes=nodes,
        price_microdollars_per_hour=round(price * _DOLLAR),
    )


#: A grid to try things with when none is named: this machine for nothing, and spot nodes of three clouds.
EXAMPLE_GRID: Final = (
    ProviderSpec(name="local", max_nodes=8),
    _example("gcp", "us-central1", 64, 3.5, "A100"),
    _example("aws", "us-east-1", 64, 3.2, "p5.48xlarge"),
    _example("azure", "westeurope", 32, 3.9, "ND96asr"),
)


class PlainProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider in the plain form: `{"name": ..., "max_nodes": ..., "cost_per_node_hour": ..., "spot": ...}`."""

    name: str
    region: str = ""
    max_nodes: int = 0
    cost_per_node_hour: float = 0.0
    accelerator: str | None = None
    spot: bool = True


class PlannedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes at one provider."""

    provider: str
    nodes: int
    region: str
    spot: bool
    infra_ref: str
    cost_per_node_hour: float


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that was looked at, and why it was given no more."""

    provider: str
    nodes: int
    free: int
    refused: str
    detail: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes would run.

    Attributes:
        assignments: by provider, the cheapest first.
        cost_per_hour: of all nodes, US dollars.
        spot_fraction: share of the nodes that are spot.
        infra_refs: what a launch would try, in this order.
        candidates: every provider that was looked at.
        policy_broken: which wish had to give and why; empty when none had to.
    """

    assignments: tuple[PlannedNodes, ...]
    total_nodes: int
    cost_per_hour: float
    spot_fraction: float
    infra_refs: tuple[str, ...]
    candidates: tuple[LookedAt, ...] = ()
    policy_broken: str = ""


def read_providers(path: Path | None) -> tuple[ProviderSpec, ...]:
    """The providers in a grid file or in a JSON file of the plain form; the example grid when none is named.

    Raises:
        NotFound: there is no such file.
        InvalidGrid: it is wrong.
    """
    if path is None:
        return EXAMPLE_GRID
    source = read_source(path, InvalidGrid)
    plain = _plain(source)
    if plain is None:
        return parse_grid(source, file=str(path))
    if not plain:
        raise InvalidGrid("there is no provider in it", where=str(path), hint='[{"name": "here", "max_nodes": 4}]')
    providers = told_apart([_provider(entry, f"{path}: providers[{index}]") for index, entry in enumerate(plain)])
    names = [provider.name for provider in providers]
    if len(set(names)) != len(names):
        what = "two providers have one name, and the same region, market and accelerator"
        raise InvalidGrid(what, where=str(path), hint="give each its own name")
    return tuple(providers)


def _plain(source: bytes) -> list[Any] | None:
    """The entries of a file in the plain form; None for any other."""
    try:
        raw = json.loads(source)
    except (ValueError, RecursionError):
        return None
    entries = raw.get("providers") if isinstance(raw, dict) else raw
    if not isinstance(entries, list):
        return None
    told = any(isinstance(entry, dict) and not _PLAIN_FIELDS.isdisjoint(entry) for entry in entries)
    return entries if told or isinstance(raw, list) else None


def _provider(entry: Any, where: str) -> ProviderSpec:
    try:
        plain = msgspec.convert(entry, PlainProvider)
    except msgspec.ValidationError as error:
        raise InvalidGrid(str(error), where=where, hint="name, max_nodes, cost_per_node_hour, region, spot") from error
    price = plain.cost_per_node_hour * _DOLLAR
    if not plain.name or plain.max_nodes < 0 or not 0 <= price < 2**53:
        raise InvalidGrid("a provider has a name, and no negative numbers", where=where)
    return ProviderSpec(
        name=plain.name,
        engine=f"{plain.name}/{plain.region}" if plain.region else plain.name,
        region=plain.region,
        market="spot" if plain.spot else "on_demand",
        accelerator=plain.accelerator or "",
        max_nodes=plain.max_nodes,
        price_microdollars_per_hour=round(price),
    )


def make_plan(
    nodes: int,
    providers: tuple[ProviderSpec, ...],
    *,
    max_spot_fraction: float = 1.0,
    prefer: Literal["cost", "balance"] = "cost",
) -> Plan:
    """Place `nodes` nodes on an empty grid.

    Raises:
        InvalidInput: a number cannot be meant.
        CannotPlace: the grid cannot hold so many; the error's story is why, provider by provider.
    """
    if nodes < 0:
        raise InvalidInput(f"{nodes} nodes cannot be placed", where="--nodes", hint="0 or more")
    if not 0 <= max_spot_fraction <= 1:
        raise InvalidInput(f"{max_spot_fraction:g} is no share", where="--max-spot-fraction", hint="from 0 to 1")
    if nodes == 0:
        return Plan(assignments=(), total_nodes=0, cost_per_hour=0.0, spot_fraction=0.0, infra_refs=())
    demand = Demand(
        tenant="plan",
        job="plan",
        submitted_ms=0,
        min_nodes=nodes,
        target_nodes=nodes,
        policy=PlacementPolicy(prefer=prefer, max_spot_ppm=round(max_spot_fraction * PPM)),
        id_prefix="",
    )
    (placement,) = place((demand,), initial_fleet(providers), 0)
    if placement.placed_nodes < nodes:
        capacity = sum(provider.max_nodes for provider in providers)
        raise CannotPlace(
            f"the grid can hold {capacity} nodes, {nodes} requested"
            if nodes > capacity
            else f"{nodes} nodes cannot be placed: {placement.waiting}",
            hint="ask for fewer, or add a provider",
            story=[f"{each.provider}: {each.refused or 'taken'} {each.detail}" for each in placement.candidates],
        )
    return _plan_of(placement, {provider.name: provider for provider in providers})


def _plan_of(placement: PlacementDecided, by_name: Mapping[str, ProviderSpec]) -> Plan:
    lines = [line for line in placement.assignments if line.action == "add"]
    spot = sum(line.nodes for line in lines if line.market == "spot")
    return Plan(
        assignments=tuple(
            PlannedNodes(
                provider=line.provider,
                nodes=line.nodes,
                region=by_name[line.provider].region,
                spot=line.market == "spot",
                infra_ref=by_name[line.provider].engine,
                cost_per_node_hour=line.price_microdollars_per_hour / _DOLLAR,
            )
            for line in lines
        ),
        total_nodes=placement.placed_nodes,
        cost_per_hour=placement.price_microdollars_per_hour / _DOLLAR,
        spot_fraction=spot / placement.placed_nodes,
        infra_refs=tuple(by_name[line.provider].engine for line in lines),
        candidates=tuple(
            LookedAt(provider=each.provider, nodes=each.taken, free=each.free, refused=each.refused, detail=each.detail)
            for each in placement.candidates
        ),
        policy_broken=placement.policy_broken,
    )


def launch_spec(plan: Plan, *, name: str, run: str) -> dict[str, Any]:
    """What iroh-tinker would be asked for to run a command on these nodes, and the plan it comes from.

    Raises:
        InvalidInput: iroh-tinker does not take it.
    """
    from iroh_tinker.cloud.spec import LaunchSpec, ResourcesSpec

    spec = LaunchSpec(
        name=name,
        run=run,
        num_nodes=plan.total_nodes,
        resources=ResourcesSpec(infra=list(plan.infra_refs), use_spot=plan.spot_fraction > 0),
        extra={"placement": msgspec.to_builtins(plan)},
    )
    try:
        spec.validate()
    except ValueError as error:
        raise InvalidInput(str(error), where="spec", hint="name, run and nodes are needed") from error
    document: dict[str, Any] = spec.to_dict()
    return document
