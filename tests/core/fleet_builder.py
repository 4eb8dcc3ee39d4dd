"""A fleet built the only way there is: by folding events, recorded one after the other at given times."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState, evolve_fleet, initial_fleet
from elasticgrid.core.names import FLEET, GRID_TENANT
from elasticgrid.core.placement import Demand, HeldAssignment
from elasticgrid.core.spec import Band, Market, PlacementPolicy, ProviderSpec

MINUTE_MS = 60_000
DOLLAR = 1_000_000
ANY = PlacementPolicy()
#: How laws are tried: the same examples every time, on however slow a machine.
LAW = settings(derandomize=True, deadline=None)


def provider(name: str, nodes: int, dollars: float = 1.0, **fields: Any) -> ProviderSpec:
    return ProviderSpec(name=name, max_nodes=nodes, price_microdollars_per_hour=round(dollars * DOLLAR), **fields)


def held(id_: str, where: str, nodes: int, dollars: float = 1.0, market: Market = "on_demand") -> HeldAssignment:
    return HeldAssignment(
        id=id_,
        provider=where,
        nodes=tuple(f"{id_}-{index}" for index in range(nodes)),
        price_microdollars_per_hour=round(dollars * DOLLAR),
        market=market,
    )


def demand(
    target: int,
    *,
    least: int = 1,
    job: str = "j",
    band: Band = "batch",
    policy: PlacementPolicy = ANY,
    submitted_ms: int = 0,
    **fields: Any,
) -> Demand:
    return Demand(
        tenant="t",
        job=job,
        band=band,
        submitted_ms=submitted_ms,
        min_nodes=least,
        target_nodes=target,
        policy=policy,
        id_prefix="p1",
        **fields,
    )


def taken(placement: ev.PlacementDecided) -> dict[str, int]:
    """Added nodes by provider."""
    return {line.provider: line.nodes for line in placement.assignments if line.action == "add"}


def kept(placement: ev.PlacementDecided) -> dict[str, int]:
    """Kept nodes by assignment."""
    return {line.id: line.nodes for line in placement.assignments if line.action == "keep"}


def leaving(placement: ev.PlacementDecided) -> list[str]:
    """Nodes that leave."""
    return [node for line in placement.assignments for node in line.leaving]


def candidate(placement: ev.PlacementDecided, name: str) -> ev.Candidate:
    return next(each for each in placement.candidates if each.provider == name)


class FleetLog:
    """Records events and keeps the fleet that they fold to."""

    def __init__(self, *providers: ProviderSpec) -> None:
        self.fleet: FleetState = initial_fleet()
        self.recorded: list[ev.Recorded] = []
        for spec in providers:
            self.add(ev.ProviderDeclared(provider=spec), at_ms=0, tenant=GRID_TENANT, job=FLEET)

    def add(
        self,
        data: ev.EventData,
        *,
        at_ms: int,
        happened_ms: int | None = None,
        job: str = "j",
        tenant: str = "t",
    ) -> str:
        """Record one event and return its id."""
        sequence = len(self.recorded) + 1
        event = ev.Event(
            id=f"e{sequence}",
            time_ms=at_ms if happened_ms is None else happened_ms,
            tenant=tenant,
            job=job,
            actor="test",
            data=data,
        )
        recorded = ev.Recorded(sequence=sequence, recorded_ms=at_ms, event=event)
        self.recorded.append(recorded)
        self.fleet = evolve_fleet(self.fleet, recorded)
        return event.id

    def plan(self, id_: str, where: str, nodes: int, *, at_ms: int, job: str = "j") -> None:
        """A decision adds an assignment."""
        line = ev.Assignment(id=id_, provider=where, action="add", nodes=nodes, price_microdollars_per_hour=DOLLAR)
        self.add(ev.PlacementDecided(demand_nodes=nodes, placed_nodes=nodes, assignments=(line,)), at_ms=at_ms, job=job)

    def drop(self, id_: str, where: str, nodes: tuple[str, ...], *, at_ms: int, job: str = "j") -> None:
        """A decision drops nodes of an assignment."""
        line = ev.Assignment(
            id=id_,
            provider=where,
            action="drop",
            nodes=len(nodes),
            price_microdollars_per_hour=DOLLAR,
            leaving=nodes,
        )
        self.add(ev.PlacementDecided(demand_nodes=0, placed_nodes=0, assignments=(line,)), at_ms=at_ms, job=job)

    def request(self, id_: str, where: str, nodes: int, *, at_ms: int, job: str = "j") -> None:
        """The launcher says that it will launch a planned assignment."""
        self.add(
            ev.LaunchRequested(
                attempt=id_,
                assignment=id_,
                provider=where,
                engine="local",
                nodes=nodes,
                node_ids=tuple(f"{id_}-{index}" for index in range(nodes)),
                price_microdollars_per_hour=DOLLAR,
            ),
            at_ms=at_ms,
            job=job,
        )

    def launch(self, id_: str, where: str, nodes: int, *, at_ms: int, job: str = "j") -> None:
        """A decision adds an assignment and its launch is requested."""
        self.plan(id_, where, nodes, at_ms=at_ms, job=job)
        self.request(id_, where, nodes, at_ms=at_ms, job=job)

    def start(self, id_: str, where: str, nodes: int, *, at_ms: int, job: str = "j") -> None:
        """An assignment is launched and granted."""
        self.launch(id_, where, nodes, at_ms=at_ms, job=job)
        self.add(ev.LaunchStarted(attempt=id_, handle="h"), at_ms=at_ms, job=job)

    def run(self, id_: str, where: str, nodes: int, *, at_ms: int, job: str = "j") -> None:
        """An assignment is launched, granted, and all its nodes join."""
        self.start(id_, where, nodes, at_ms=at_ms, job=job)
        for index in range(nodes):
            self.join(f"{id_}-{index}", where, at_ms=at_ms, job=job)

    def join(self, node: str, where: str, *, at_ms: int, job: str = "j") -> None:
        attempt = node.rsplit("-", 1)[0]
        joined = ev.NodeJoined(node=node, attempt=attempt, provider=where, host="h", free_port=1, pid=1)
        self.add(joined, at_ms=at_ms, job=job)

    def fail(
        self,
        id_: str,
        where: str,
        failure: ev.FailureClass,
        *,
        at_ms: int,
        happened_ms: int | None = None,
        job: str = "j",
    ) -> str:
        """An assignment of one node is launched and fails at once; returns the failure's event id."""
        self.launch(id_, where, 1, at_ms=at_ms, job=job)
        return self.add(
            ev.LaunchFailed(attempt=id_, failure=failure, text=failure), at_ms=at_ms, happened_ms=happened_ms, job=job
        )

    def lose(self, node: str, *, at_ms: int, silent: bool = False, job: str = "j") -> str:
        attempt = node.rsplit("-", 1)[0]
        lost = ev.NodeLost(node=node, attempt=attempt, evidence="silent" if silent else "process_gone")
        return self.add(lost, at_ms=at_ms, job=job)

    def on_grid(self, data: ev.EventData, *, at_ms: int) -> str:
        """A fact about the grid itself."""
        return self.add(data, at_ms=at_ms, tenant=GRID_TENANT, job=FLEET)


def through_json(fleet: FleetState) -> FleetState:
    """The fleet after it was written to and read from JSON."""
    return msgspec.json.decode(msgspec.json.encode(fleet), type=FleetState)
