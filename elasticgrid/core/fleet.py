"""The fold of the fleet: what each event does to what providers are charged for and to the marks on them.

A node is charged to its provider from the decision that places it until a fact says that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core import marks as mk
from elasticgrid.core.fleet_state import (
    FleetState,
    Health,
    ProviderState,
    Usage,
    health_ppm,
    initial_fleet,
)
from elasticgrid.core.job_nodes import NO_NODES, JobNodes, Launch, Phase, Planned, job_key, nodes_of, with_nodes
from elasticgrid.core.marks import HOUR_MS, MINUTE_MS
from elasticgrid.core.spec import PPM, ProviderSpec

__all__ = ["FLEET_EVENTS", "FleetState", "evolve_fleet", "initial_fleet"]

#: A node lost younger than this counts against its provider.
YOUNG_MS: Final = 30 * MINUTE_MS
#: Each failure leaves this share of a provider's health; under the second share it is blocked.
HEALTH_KEPT_PPM: Final = 700_000
HEALTH_BLOCKED_PPM: Final = 200_000


def evolve_fleet(fleet: FleetState, recorded: ev.Recorded) -> FleetState:
    """The fleet after one more event; the very same state when the event does not concern it. Never raises."""
    event = recorded.event
    if not isinstance(event, ev.Event):
        return fleet
    handler = _HANDLERS.get(type(event.data))
    return fleet if handler is None else handler(fleet, event.data, event, recorded.recorded_ms)


#: Nodes gained and lost by a provider: in flight, in use, draining.
_Deltas: TypeAlias = dict[str, list[int]]
_COLUMN: Final[dict[Phase, int]] = {"launching": 0, "up": 1, "leaving": 2}


def _count(deltas: _Deltas, provider: str, phase: Phase, nodes: int) -> None:
    counts = deltas.get(provider)
    if counts is None:
        counts = deltas[provider] = [0, 0, 0]
    counts[_COLUMN[phase]] += nodes


def _with_job(fleet: FleetState, key: str, job: JobNodes, deltas: _Deltas) -> FleetState:
    """The fleet with what the job is charged for replaced, and the providers' usage with it."""
    jobs = with_nodes(fleet.jobs, key, job)
    if not deltas:
        return replace(fleet, jobs=jobs)
    usage = fleet.usage.copy()
    providers = fleet.providers
    for name, (in_flight, in_use, draining) in deltas.items():
        old = usage.get(name)
        if old is not None:
            in_flight += old.in_flight
            in_use += old.in_use
            draining += old.draining
        if in_flight + in_use + draining:
            usage[name] = Usage(in_flight=in_flight, in_use=in_use, draining=draining)
            continue
        usage.pop(name, None)
        if name in providers and providers[name].withdrawn:
            providers = {other: each for other, each in providers.items() if other != name}
    return replace(fleet, jobs=jobs, usage=usage, providers=providers)


def _with_launch(
    fleet: FleetState, key: str, job: JobNodes, attempt: str, launch: Launch | None, deltas: _Deltas
) -> FleetState:
    """The fleet with one launch of the job replaced; one without nodes, or None, is forgotten."""
    launches = job.launches.copy()
    if launch is None or not launch.nodes:
        launches.pop(attempt, None)
    else:
        launches[attempt] = launch
    return _with_job(fleet, key, replace(job, launches=launches), deltas)


def _probe_over(fleet: FleetState, provider: str, key: str, assignment: str) -> FleetState:
    state = fleet.providers.get(provider) if fleet.marks else None
    if state is None:
        return fleet
    return replace(fleet, marks=mk.probe_over(fleet.marks, state.spec, f"{key}/{assignment}"))


# Providers ----------------------------------------------------------------------------------------------------------


def _declared(fleet: FleetState, data: ev.ProviderDeclared, _event: ev.Event, _at_ms: int) -> FleetState:
    spec = data.provider
    old = fleet.providers.get(spec.name)
    cordon = old.cordon if old is not None else None
    return replace(
        fleet,
        providers=fleet.providers | {spec.name: ProviderState(spec=spec, cordon=cordon)},
        marks=mk.reconfigured(fleet.marks, spec),
    )


def _withdrawn(fleet: FleetState, data: ev.ProviderWithdrawn, _event: ev.Event, _at_ms: int) -> FleetState:
    old = fleet.providers.get(data.name)
    if old is None:
        return fleet
    if data.name in fleet.usage:
        return replace(fleet, providers=fleet.providers | {data.name: replace(old, withdrawn=True)})
    return replace(fleet, providers={name: each for name, each in fleet.providers.items() if name != data.name})


def _cordoned(fleet: FleetState, data: ev.ProviderCordoned, _event: ev.Event, _at_ms: int) -> FleetState:
    old = fleet.providers.get(data.name)
    if old is None:
        return fleet
    return replace(fleet, providers=fleet.providers | {data.name: replace(old, cordon=data.reason)})


def _uncordoned(fleet: FleetState, data: ev.ProviderUncordoned, _event: ev.Event, _at_ms: int) -> FleetState:
    old = fleet.providers.get(data.name)
    if old is None or old.cordon is None:
        return fleet
    return replace(fleet, providers=fleet.providers | {data.name: replace(old, cordon=None)})


# Decisions ----------------------------------------------------------------------------------------------------------


def _placed(fleet: FleetState, data: ev.PlacementDecided, event: ev.Event, _at_ms: int) -> FleetState:
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    planned, launches = job.planned.copy(), job.launches.copy()
    deltas: _Deltas = {}
    marks = fleet.marks
    over: list[tuple[str, str]] = []
    for line in data.assignments:
        if line.action == "add" and line.id not in planned and line.id not in launches:
            planned[line.id] = Planned(provider=line.provider, nodes=line.nodes)
            _count(deltas, line.provider, "launching", line.nodes)
            if marks and line.provider in fleet.providers:
                marks = mk.probed(marks, fleet.providers[line.provider].spec, f"{key}/{line.id}")
        elif line.action == "drop" and line.id in planned:
            plan = planned.pop(line.id)
            left = plan.nodes - line.nodes if line.nodes else 0
            _count(deltas, plan.provider, "launching", max(left, 0) - plan.nodes)
            if left > 0:
                planned[line.id] = replace(plan, nodes=left)
            else:
                over.append((plan.provider, line.id))
        elif line.action == "drop":
            for attempt, launch in launches.items():
                if launch.assignment == line.id:
                    launches[attempt] = _told_to_leave(launch, line.leaving, deltas)
    if not deltas:
        return fleet
    after = _with_job(fleet, key, JobNodes(planned=planned, launches=launches), deltas)
    after = replace(after, marks=marks)
    for provider, assignment in over:
        after = _probe_over(after, provider, key, assignment)
    return after


def _told_to_leave(launch: Launch, leaving: Iterable[str], deltas: _Deltas) -> Launch:
    nodes = launch.nodes.copy()
    for node in leaving:
        phase = nodes.get(node)
        if phase is not None and phase != "leaving":
            nodes[node] = "leaving"
            _count(deltas, launch.provider, phase, -1)
            _count(deltas, launch.provider, "leaving", 1)
    return replace(launch, nodes=nodes)


def _drained(fleet: FleetState, data: ev.DrainDecided, event: ev.Event, _at_ms: int) -> FleetState:
    if not data.leaving:
        return fleet
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    deltas: _Deltas = {}
    launches = {name: _told_to_leave(each, data.leaving, deltas) for name, each in job.launches.items()}
    return _with_job(fleet, key, replace(job, launches=launches), deltas) if deltas else fleet


def _job_over(fleet: FleetState, _data: ev.OutcomeDecided, event: ev.Event, _at_ms: int) -> FleetState:
    """What was only planned is released; what was launched leaves, and is charged until it is gone."""
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    if job is NO_NODES:
        return fleet
    deltas: _Deltas = {}
    for plan in job.planned.values():
        _count(deltas, plan.provider, "launching", -plan.nodes)
    launches = {name: _told_to_leave(each, each.nodes, deltas) for name, each in job.launches.items()}
    after = _with_job(fleet, key, JobNodes(launches=launches), deltas)
    for assignment, plan in job.planned.items():
        after = _probe_over(after, plan.provider, key, assignment)
    return after


# Launches -----------------------------------------------------------------------------------------------------------


def _requested(fleet: FleetState, data: ev.LaunchRequested, event: ev.Event, _at_ms: int) -> FleetState:
    """The plan becomes a launch. One that was given up in between is charged all the same: it may exist."""
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    if data.attempt in job.launches:
        return fleet
    deltas: _Deltas = {}
    planned = job.planned.copy()
    plan = planned.pop(data.assignment, None)
    if plan is not None:
        _count(deltas, plan.provider, "launching", -plan.nodes)
    _count(deltas, data.provider, "launching", len(data.node_ids))
    launch = Launch(assignment=data.assignment, provider=data.provider, nodes=dict.fromkeys(data.node_ids, "launching"))
    launches = job.launches | {data.attempt: launch} if data.node_ids else job.launches
    return _with_job(fleet, key, JobNodes(planned=planned, launches=launches), deltas)


def _find(fleet: FleetState, event: ev.Event, attempt: str) -> tuple[str, JobNodes, Launch | None]:
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    return key, job, job.launches.get(attempt)


def _started(fleet: FleetState, data: ev.LaunchStarted, event: ev.Event, at_ms: int) -> FleetState:
    key, job, launch = _find(fleet, event, data.attempt)
    if launch is None or launch.started_ms is not None:
        return fleet
    after = _with_launch(fleet, key, job, data.attempt, replace(launch, started_ms=at_ms), {})
    state = fleet.providers.get(launch.provider)
    if state is None:
        return after
    granted_ms = max(event.time_ms, fleet.granted_ms.get(launch.provider, 0))
    return replace(
        after,
        granted_ms=fleet.granted_ms | {launch.provider: granted_ms},
        marks=mk.granted(fleet.marks, state.spec),
    )


def _failed(fleet: FleetState, data: ev.LaunchFailed, event: ev.Event, at_ms: int) -> FleetState:
    key, job, launch = _find(fleet, event, data.attempt)
    if launch is None:
        return fleet
    after = _with_launch(fleet, key, job, data.attempt, None, _given_back(launch))
    failure = data.failure
    if failure == "preempted" and _is_young(launch, at_ms):
        failure = "lost_young"
    after = _blame(after, launch, failure, f"{key}/{launch.assignment}", event, at_ms)
    return _probe_over(after, launch.provider, key, launch.assignment)


def _stopped(fleet: FleetState, data: ev.LaunchStopped, event: ev.Event, _at_ms: int) -> FleetState:
    key, job, launch = _find(fleet, event, data.attempt)
    if launch is None:
        return fleet
    after = _with_launch(fleet, key, job, data.attempt, None, _given_back(launch))
    return _probe_over(_released(after, launch.provider), launch.provider, key, launch.assignment)


def _given_back(launch: Launch) -> _Deltas:
    deltas: _Deltas = {}
    for phase in launch.nodes.values():
        _count(deltas, launch.provider, phase, -1)
    return deltas


def _released(fleet: FleetState, provider: str) -> FleetState:
    """A node of ours is gone: a quota that was used up has room again."""
    state = fleet.providers.get(provider)
    if state is None or not fleet.marks:
        return fleet
    return replace(fleet, marks=mk.released(fleet.marks, state.spec))


def _is_young(launch: Launch, at_ms: int) -> bool:
    return launch.started_ms is None or at_ms - launch.started_ms < YOUNG_MS


def _blame(
    fleet: FleetState, launch: Launch, failure: ev.FailureClass, probe: str, event: ev.Event, at_ms: int
) -> FleetState:
    """The fleet with what the failure says about the provider."""
    state = fleet.providers.get(launch.provider)
    if state is None:
        return fleet
    spec = state.spec
    if failure in ("boot_failed", "lost_young"):
        health = health_ppm(fleet, spec.name, at_ms) * HEALTH_KEPT_PPM // PPM
        fleet = replace(fleet, health=fleet.health | {spec.name: Health(ppm=health, as_of_ms=at_ms)})
        if health >= HEALTH_BLOCKED_PPM:
            return fleet
        until_ms = at_ms + -(-(HEALTH_BLOCKED_PPM - health) * HOUR_MS // PPM)
    else:
        until_ms = None
        if _granted_since(fleet, spec, failure, event.time_ms):
            return fleet
    marks = mk.failed(
        fleet.marks,
        spec,
        failure,
        event_id=event.id,
        recorded_ms=at_ms,
        assignment=probe,
        until_ms=until_ms,
    )
    return replace(fleet, marks=marks)


def _granted_since(fleet: FleetState, spec: ProviderSpec, failure: ev.FailureClass, happened_ms: int) -> bool:
    """Whether something the failure would close has given nodes after it happened, so that it is no news any more."""
    if failure in ("auth", "quota_zero"):
        return False
    scope = mk.scope_of(spec, failure)
    for name, granted_ms in fleet.granted_ms.items():
        other = fleet.providers.get(name)
        if other is None or granted_ms <= happened_ms or mk.scope_of(other.spec, failure) != scope:
            continue
        if failure != "stockout" or other.spec.tier >= spec.tier:
            return True
    return False


# Nodes --------------------------------------------------------------------------------------------------------------


def _joined(fleet: FleetState, data: ev.NodeJoined, event: ev.Event, _at_ms: int) -> FleetState:
    key, job, launch = _find(fleet, event, data.attempt)
    if launch is None or launch.nodes.get(data.node) != "launching":
        return fleet
    deltas: _Deltas = {}
    _count(deltas, launch.provider, "launching", -1)
    _count(deltas, launch.provider, "up", 1)
    nodes = launch.nodes.copy()
    nodes[data.node] = "up"
    after = _with_launch(fleet, key, job, data.attempt, replace(launch, nodes=nodes), deltas)
    if not fleet.marks:
        return after
    state = fleet.providers.get(launch.provider)
    return after if state is None else replace(after, marks=mk.booted(fleet.marks, state.spec))


def _left(fleet: FleetState, data: ev.NodeLeft, event: ev.Event, _at_ms: int) -> FleetState:
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    for attempt, launch in job.launches.items():
        if data.node in launch.nodes:
            return _without_node(fleet, key, job, attempt, launch, data.node)
    return fleet


def _lost(fleet: FleetState, data: ev.NodeLost, event: ev.Event, at_ms: int) -> FleetState:
    """A node that is only silent may still run, so it is charged until it, or its launch, is seen to be gone."""
    key, job, launch = _find(fleet, event, data.attempt)
    if launch is None or data.node not in launch.nodes:
        return fleet
    blamed = not launch.counted and launch.nodes[data.node] != "leaving" and _is_young(launch, at_ms)
    if blamed:
        launch = replace(launch, counted=True)
    if data.evidence == "process_gone":
        after = _without_node(fleet, key, job, data.attempt, launch, data.node)
    else:
        deltas: _Deltas = {}
        after = _with_launch(fleet, key, job, data.attempt, _told_to_leave(launch, (data.node,), deltas), deltas)
    if not blamed:
        return after
    failure: ev.FailureClass = "boot_failed" if launch.started_ms is None else "lost_young"
    return _blame(after, launch, failure, f"{key}/{launch.assignment}", event, at_ms)


def _noticed(fleet: FleetState, data: ev.NodePreemptionNotice, event: ev.Event, at_ms: int) -> FleetState:
    """A node that will be taken away counts against its provider only while it is young, and only for once."""
    key = job_key(event.tenant, event.job)
    job = nodes_of(fleet.jobs, key)
    for attempt, launch in job.launches.items():
        if launch.nodes.get(data.node) == "up":
            if not data.deadline_ms or launch.counted or not _is_young(launch, at_ms):
                return fleet
            counted = replace(launch, counted=True)
            after = _with_launch(fleet, key, job, attempt, counted, {})
            return _blame(after, counted, "lost_young", f"{key}/{launch.assignment}", event, at_ms)
    return fleet


def _without_node(fleet: FleetState, key: str, job: JobNodes, attempt: str, launch: Launch, node: str) -> FleetState:
    deltas: _Deltas = {}
    nodes = launch.nodes.copy()
    _count(deltas, launch.provider, nodes.pop(node), -1)
    after = _with_launch(fleet, key, job, attempt, replace(launch, nodes=nodes), deltas)
    if not fleet.marks:
        return after
    after = _released(after, launch.provider)
    return after if nodes else _probe_over(after, launch.provider, key, launch.assignment)


_HANDLERS: Final[dict[type[Any], Callable[[FleetState, Any, ev.Event, int], FleetState]]] = {
    ev.ProviderDeclared: _declared,
    ev.ProviderWithdrawn: _withdrawn,
    ev.ProviderCordoned: _cordoned,
    ev.ProviderUncordoned: _uncordoned,
    ev.PlacementDecided: _placed,
    ev.DrainDecided: _drained,
    ev.OutcomeDecided: _job_over,
    ev.LaunchRequested: _requested,
    ev.LaunchStarted: _started,
    ev.LaunchFailed: _failed,
    ev.LaunchStopped: _stopped,
    ev.NodeJoined: _joined,
    ev.NodeLeft: _left,
    ev.NodeLost: _lost,
    ev.NodePreemptionNotice: _noticed,
}
#: Types of the events that change the fleet; most are not among them.
FLEET_EVENTS: Final = frozenset(_HANDLERS)
