"""Where nodes run: one pass that places every demand against the fleet, and the same pass as a check at submit.

What a job holds stays where it is unless its policy forbids it or it has to shrink; only what is missing is placed.
Equal arguments give equal placements to the byte, whatever order the providers stand in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from elasticgrid.core.errors import CannotPlace
from elasticgrid.core.events import Assignment, PlacementDecided
from elasticgrid.core.fill import Fill, Offer, fill, possible_totals
from elasticgrid.core.fleet_state import (
    FleetState,
    Refusal,
    free_nodes,
    initial_fleet,
    is_leaving,
    policy_refusal,
    usable,
)
from elasticgrid.core.job_nodes import job_key
from elasticgrid.core.marks import MINUTE_MS, probing_scopes
from elasticgrid.core.placement_report import Candidates, looked_at, never_because, waiting_because
from elasticgrid.core.spec import PPM, Band, JobSpec, Market, PlacementPolicy, ProviderSpec

_BANDS: Final[dict[Band, int]] = {"production": 0, "interactive": 1, "batch": 2}
#: A job that waits with nothing is treated as one band higher after each such time, so that none starves.
WAIT_PER_BAND_MS: Final = 30 * MINUTE_MS


class HeldAssignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nodes a job has, or has asked for and waits for: neither leaving nor gone.

    Attributes:
        nodes: their ids, oldest first.
        price_microdollars_per_hour, market: as they were placed.
    """

    id: str
    provider: str
    nodes: tuple[str, ...]
    price_microdollars_per_hour: int
    market: Market = "on_demand"


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that wants nodes.

    Attributes:
        min_nodes: with fewer it does not start.
        target_nodes: what it should have.
        max_nodes: where slices allow no size from min to target, the next possible one up to this is taken.
        quantum: sizes are multiples of this.
        held: what it has, oldest first.
        members: nodes of its world by group rank; of two that cost the same the higher rank leaves first.
        id_prefix: what the ids of new assignments begin with; unique to this decision of the job.
    """

    tenant: str
    job: str
    band: Band = "batch"
    submitted_ms: int
    min_nodes: int
    target_nodes: int
    max_nodes: int = 0
    quantum: int = 1
    policy: PlacementPolicy
    held: tuple[HeldAssignment, ...] = ()
    members: tuple[str, ...] = ()
    id_prefix: str


def place(demands: Sequence[Demand], fleet: FleetState, as_of_ms: int) -> tuple[PlacementDecided, ...]:
    """A placement for each demand, in the order of the demands.

    The higher band is served first, then who was submitted first. A demand gets its target or, down to its minimum,
    what there is; below that nothing new is placed and `waiting` says why.
    """
    board = _Board(fleet, as_of_ms)
    placed = {index: _place(demands[index], board) for index in _in_order(demands, as_of_ms)}
    return tuple(placed[index] for index in range(len(demands)))


def _in_order(demands: Sequence[Demand], as_of_ms: int) -> list[int]:
    def priority(index: int) -> tuple[int, int, str, str]:
        demand = demands[index]
        waited_ms = 0 if demand.held else max(0, as_of_ms - demand.submitted_ms)
        band = max(0, _BANDS[demand.band] - waited_ms // WAIT_PER_BAND_MS)
        return band, demand.submitted_ms, demand.tenant, demand.job

    return sorted(range(len(demands)), key=priority)


class _Board:
    """What is left of the fleet as one pass goes on."""

    def __init__(self, fleet: FleetState, as_of_ms: int) -> None:
        self.fleet = fleet
        self.as_of_ms = as_of_ms
        self._given: dict[str, int] = {}
        self._probed: set[str] = set()

    def specs(self) -> list[ProviderSpec]:
        """All providers, the cheapest first; of two at one price the one that is not spot."""
        return sorted(
            (state.spec for state in self.fleet.providers.values()),
            key=lambda spec: (spec.price_microdollars_per_hour, spec.market == "spot", spec.name),
        )

    def free(self, provider: str) -> int:
        return free_nodes(self.fleet, provider) - self._given.get(provider, 0)

    def refusal(self, spec: ProviderSpec, policy: PlacementPolicy, claimed: set[str]) -> Refusal | None:
        """Why the provider can give nothing; `claimed` are the probes this demand may make, and grows by its own."""
        refusal = usable(spec.name, policy, self.fleet, self.as_of_ms, free=self.free(spec.name))
        if refusal is not None:
            return refusal
        scopes = probing_scopes(self.fleet.marks, spec, self.as_of_ms)
        if any(scope in self._probed or scope in claimed for scope in scopes):
            return Refusal(reason="mark", detail="another assignment tries it again first")
        claimed.update(scopes)
        return None

    def give(self, spec: ProviderSpec, nodes: int) -> None:
        self._given[spec.name] = self._given.get(spec.name, 0) + nodes
        self._probed.update(probing_scopes(self.fleet.marks, spec, self.as_of_ms))


def _place(demand: Demand, board: _Board) -> PlacementDecided:
    held = _still_held(demand, board.fleet)
    allowed = [line for line in held if _allowed(line, demand.policy, board.fleet)]
    candidates = _candidates(demand, board, allowed)
    added = None
    if _size(allowed) < demand.target_nodes or len(allowed) < len(held):
        added = _to_add(demand, _size(allowed), candidates.offer_list())
    kept, broken = allowed, ""
    if added is None and len(allowed) < len(held):
        kept = held
        stay = sorted({line.provider for line in held} - {line.provider for line in allowed})
        broken = f"nodes stay on {', '.join(stay)} against the policy: nothing else can hold {demand.min_nodes} nodes"
        added = _to_add(demand, _size(kept), candidates.offer_list()) if _size(kept) < demand.target_nodes else 0
    unwanted = {line.id for line in held} - {line.id for line in allowed}
    leaving = _leaving(demand, kept, unwanted, board.fleet)
    if len(kept) < len(held):
        leaving |= {node for line in held if line.id in unwanted for node in line.nodes}
    return _decided(demand, board, held, leaving, candidates, added, broken)


def _size(lines: Sequence[HeldAssignment]) -> int:
    return sum(len(line.nodes) for line in lines)


def _still_held(demand: Demand, fleet: FleetState) -> list[HeldAssignment]:
    """What the demand holds, without nodes that the fleet knows to be leaving."""
    key = job_key(demand.tenant, demand.job)
    lines = []
    for line in demand.held:
        nodes = tuple(node for node in line.nodes if not is_leaving(fleet, key, node))
        if nodes:
            lines.append(line if len(nodes) == len(line.nodes) else msgspec.structs.replace(line, nodes=nodes))
    return lines


def _allowed(line: HeldAssignment, policy: PlacementPolicy, fleet: FleetState) -> bool:
    """Whether held nodes may stay. Marks, cordons and new prices are no reason to move what runs."""
    state = fleet.providers.get(line.provider)
    if state is None or state.withdrawn:
        return False
    price = line.price_microdollars_per_hour
    return policy_refusal(state.spec, policy, price_microdollars_per_hour=price, market=line.market) is None


def _candidates(demand: Demand, board: _Board, kept: Sequence[HeldAssignment]) -> Candidates:
    holds: dict[str, int] = {}
    for line in kept:
        holds[line.provider] = holds.get(line.provider, 0) + len(line.nodes)
    specs = board.specs()
    offers: dict[str, Offer] = {}
    refusals: dict[str, Refusal] = {}
    claimed: set[str] = set()
    for spec in specs:
        refusal = board.refusal(spec, demand.policy, claimed)
        if refusal is not None:
            refusals[spec.name] = refusal
            continue
        offers[spec.name] = Offer(
            provider=spec.name,
            free=board.free(spec.name),
            slice_nodes=spec.slice_nodes,
            spot=spec.market == "spot",
            holds=holds.get(spec.name, 0),
        )
    return Candidates(specs, offers, refusals)


def _to_add(demand: Demand, kept: int, offers: Sequence[Offer]) -> int | None:
    """How many nodes to add to those kept; None when even the minimum cannot be had."""
    largest = max(demand.target_nodes, demand.max_nodes)
    most = min(largest, kept + sum(offer.slices * offer.slice_nodes for offer in offers))
    possible = possible_totals(offers, max(most - kept, 0))

    def fits(total: int) -> bool:
        return total >= kept and possible >> (total - kept) & 1 == 1

    for total in range(min(most, demand.target_nodes), max(demand.min_nodes, kept) - 1, -1):
        if fits(total) and (total % demand.quantum == 0 or total == demand.target_nodes):
            return total - kept
    if kept >= demand.min_nodes:
        return 0
    for total in range(demand.target_nodes + 1, most + 1):
        if fits(total) and total % demand.quantum == 0:
            return total - kept
    return None


def _leaving(demand: Demand, kept: Sequence[HeldAssignment], unwanted: set[str], fleet: FleetState) -> set[str]:
    """The nodes that leave when the job holds more than its target.

    Spot beyond the cap goes first, then what the policy forbids, then the dearest, then what has no rank yet,
    then the highest rank. Where nodes come in slices only whole ones leave.
    """
    too_many = _size(kept) - demand.target_nodes
    if too_many <= 0:
        return set()
    spot = sum(len(line.nodes) for line in kept if line.market == "spot")
    spot_over = spot - _spot_cap(demand.policy, demand.target_nodes)
    rank = {node: place for place, node in enumerate(demand.members)}
    youngest_first = [
        (line, node, (rank.get(node, len(rank)), age, place))
        for age, line in enumerate(kept)
        for place, node in enumerate(line.nodes)
    ]
    youngest_first.sort(key=lambda each: each[2], reverse=True)
    slices: dict[str, list[str]] = {}
    whole: list[tuple[HeldAssignment, list[str]]] = []
    for line, node, _ in youngest_first:
        together = slices.setdefault(line.id, [])
        together.append(node)
        if len(together) >= _slice_of(line, fleet):
            whole.append((line, slices.pop(line.id)))
    whole.sort(key=lambda each: (each[0].id not in unwanted, -each[0].price_microdollars_per_hour))
    leaving: set[str] = set()
    for over_cap_only in (True, False):
        for line, nodes in whole:
            if over_cap_only and (line.market != "spot" or spot_over <= 0):
                continue
            if nodes[0] in leaving or len(nodes) > too_many:
                continue
            leaving.update(nodes)
            too_many -= len(nodes)
            spot_over -= len(nodes) if line.market == "spot" else 0
    return leaving


def _slice_of(line: HeldAssignment, fleet: FleetState) -> int:
    state = fleet.providers.get(line.provider)
    return state.spec.slice_nodes if state is not None else 1


def _spot_cap(policy: PlacementPolicy, nodes: int) -> int:
    return policy.max_spot_ppm * nodes // PPM


def _decided(
    demand: Demand,
    board: _Board,
    held: Sequence[HeldAssignment],
    leaving: set[str],
    candidates: Candidates,
    added: int | None,
    broken: str,
) -> PlacementDecided:
    """The placement that keeps what is held but leaves, and adds `added` nodes; None adds none either."""
    lines = _held_lines(held, leaving)
    kept = sum(line.nodes for line in lines if line.action == "keep")
    kept_spot = sum(line.nodes for line in lines if line.action == "keep" and line.market == "spot")
    total = kept + (added or 0)
    cap = _spot_cap(demand.policy, total)
    filled = None
    if added:
        spot_cap = max(0, cap - kept_spot)
        filled = fill(candidates.offer_list(), added, spot_cap=spot_cap, prefer=demand.policy.prefer)
        lines += _added_lines(demand, board, candidates, filled)
    spot = sum(line.nodes for line in lines if line.action != "drop" and line.market == "spot")
    if spot > cap:
        forced = filled is not None and filled.spot_cap > max(0, cap - kept_spot)
        why = "on-demand cannot hold the rest" if forced else "they run already and are not moved"
        over_cap = f"{spot} of {total} nodes are spot where at most {cap} may be: {why}"
        broken = f"{broken}; {over_cap}" if broken else over_cap
    wanting = total < demand.target_nodes
    looked = looked_at(candidates, filled, wanting=wanting) if wanting or added else ()
    waiting = ""
    if wanting:
        waiting = waiting_because(looked, placed=total, target=demand.target_nodes, least=demand.min_nodes)
    return PlacementDecided(
        demand_nodes=demand.target_nodes,
        placed_nodes=total,
        assignments=tuple(lines),
        candidates=looked,
        waiting=waiting,
        policy_broken=broken,
        price_microdollars_per_hour=sum(
            line.nodes * line.price_microdollars_per_hour for line in lines if line.action != "drop"
        ),
    )


def _held_lines(held: Sequence[HeldAssignment], leaving: set[str]) -> list[Assignment]:
    keeps, drops = [], []
    for line in held:
        gone = tuple(node for node in line.nodes if node in leaving)
        stays = len(line.nodes) - len(gone)
        keep = Assignment(
            id=line.id,
            provider=line.provider,
            action="keep",
            nodes=stays,
            price_microdollars_per_hour=line.price_microdollars_per_hour,
            market=line.market,
        )
        if stays:
            keeps.append(keep)
        if gone:
            drops.append(msgspec.structs.replace(keep, action="drop", nodes=len(gone), leaving=gone))
    return keeps + drops


def _added_lines(demand: Demand, board: _Board, candidates: Candidates, filled: Fill) -> list[Assignment]:
    given = dict(zip((offer.provider for offer in candidates.offer_list()), filled.nodes, strict=True))
    lines: list[Assignment] = []
    for spec in candidates.specs:
        nodes = given.get(spec.name, 0)
        if not nodes:
            continue
        board.give(spec, nodes)
        lines.append(
            Assignment(
                id=f"{demand.id_prefix}a{len(lines) + 1}",
                provider=spec.name,
                action="add",
                nodes=nodes,
                price_microdollars_per_hour=spec.price_microdollars_per_hour,
                market=spec.market,
            )
        )
    return lines


# --------------------------------------------------------------------------------------------------------------------
# At submit
# --------------------------------------------------------------------------------------------------------------------


def check_placeable(spec: JobSpec, providers: Iterable[ProviderSpec]) -> CannotPlace | None:
    """Why this job can never run on these providers, as an error to raise; None when it can.

    It is the pass itself on an empty fleet. A name in the job's allow lists that the grid does not have is refused as
    well: it is a slip of the pen, and would otherwise shrink the job's choice without a word.
    """
    specs = sorted(providers, key=lambda each: each.name)
    demand = Demand(
        tenant="",
        job=spec.name,
        submitted_ms=0,
        min_nodes=spec.min_nodes,
        target_nodes=spec.start_nodes,
        max_nodes=spec.max_nodes,
        quantum=spec.quantum,
        policy=spec.placement,
        id_prefix="",
    )
    (placement,) = place((demand,), initial_fleet(specs), 0)
    return never_because(spec, specs, placement)
