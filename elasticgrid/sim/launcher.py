"""What a simulated launcher does: it asks for what is placed, and stops what is left of what was given up."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import GONE, JobState, LaunchState
from elasticgrid.core.launching import Start, Stop, launch_actions, never_booted, not_joined_text
from elasticgrid.sim.agents import SimulatedAgents
from elasticgrid.sim.machines import Machines, Timings
from elasticgrid.sim.training import SimulatedNode

#: What several nodes do at once is spread a little, as it is in life: by less than `_SPREAD_MS` in `_SPREAD_OF_MS`.
_SPREAD_MS: Final = 700
_SPREAD_OF_MS: Final = 2_000


class Host(Protocol):
    """The grid that the launcher works for."""

    now_ms: int
    fold: GridFold

    def append(self, key: JobKey, data: ev.EventData, *, actor: str, cause: str | None = None) -> ev.Event:
        """Record a fact about a job."""
        ...

    def at(self, after_ms: int, action: Callable[[], object]) -> None:
        """Do something after a while."""
        ...

    def when_back(self, action: Callable[[], object]) -> None:
        """Do something that the launcher does: now, or as soon as it is back."""
        ...

    def job(self, key: JobKey) -> JobState:
        """The job as of now."""
        ...


class SimulatedLauncher:
    """The launcher of a grid.

    Args:
        host: the grid.
        agents: where nodes come to life.
        timings: how long things take.
        machines: what launches come to.
    """

    def __init__(self, host: Host, agents: SimulatedAgents, timings: Timings, machines: Machines) -> None:
        self._host = host
        self._agents = agents
        self._timings = timings
        self._machines = machines
        self._acted: set[tuple[JobKey, str, str]] = set()

    def adopt(self, key: JobKey, state: JobState) -> None:
        """Go on with a job's launches: what was asked for comes about, what runs is there."""
        for launch in state.launches.values():
            if launch.resolved or launch.status == "planned":
                continue
            self._acted.add((key, launch.id, "start"))
            here = tuple(node for node in launch.nodes if state.nodes[node].status not in GONE)
            self._boot(key, launch, here)
            for node in here:
                self._agents.nodes[key, node].failed_round = state.nodes[node].failed_round
            awaited = tuple(node for node in here if not state.nodes[node].joined_sequence)
            if launch.status == "stop_requested":
                self._acted.add((key, launch.id, "stop"))
                stopped = ev.LaunchStopped(attempt=launch.id, reason="asked for before")
                self._host.at(self._timings.stop_ms, self._ending(key, stopped))
            elif launch.status == "requested":
                end = self._machines.launch(launch.provider, launch.placed_ms)
                wait_ms = max(launch.placed_ms + end.after_ms - self._host.now_ms, 0)
                if end.failure is None:
                    self._host.at(wait_ms, self._starting(key, launch.id, awaited))
                else:
                    failed = ev.LaunchFailed(attempt=launch.id, failure=end.failure, text=end.text)
                    self._host.at(wait_ms, self._ending(key, failed))
            else:
                self._join(key, launch.provider, awaited, None)

    def _starting(self, key: JobKey, attempt: str, nodes: tuple[str, ...]) -> Callable[[], None]:
        return lambda: self._started(key, attempt, nodes, None)

    def _ending(self, key: JobKey, data: ev.LaunchStopped | ev.LaunchFailed) -> Callable[[], None]:
        return lambda: self._launch_ended(key, data, None)

    def look(self, key: JobKey) -> None:
        """Do what the job's state asks for."""
        for action in launch_actions(self._host.job(key), self._host.now_ms):
            what = "start" if isinstance(action, Start) else "stop"
            mark = (key, action.launch.id, what)
            if mark not in self._acted:
                self._acted.add(mark)
                self._later(self._timings.launch_ms, self._launch_step(mark))

    def _later(self, after_ms: int, action: Callable[[], object]) -> None:
        self._host.at(after_ms, lambda: self._host.when_back(action))

    def _launch_step(self, mark: tuple[JobKey, str, str]) -> Callable[[], None]:
        key, attempt, what = mark

        def step() -> None:
            action = next(
                (each for each in launch_actions(self._host.job(key), self._host.now_ms) if each.launch.id == attempt),
                None,
            )
            if isinstance(action, Start) and what == "start":
                self._start(key, action)
            elif isinstance(action, Stop) and what == "stop":
                self._stop(key, action)
            else:
                self._acted.discard(mark)

        return step

    def _start(self, key: JobKey, action: Start) -> None:
        state, launch = self._host.job(key), action.launch
        nodes = tuple(node for node in launch.nodes if state.nodes[node].status == "planned")
        requested = self._host.append(
            key,
            ev.LaunchRequested(
                attempt=launch.id,
                assignment=launch.id,
                provider=launch.provider,
                engine=self._host.fold.fleet.providers[launch.provider].spec.engine,
                nodes=len(nodes),
                node_ids=nodes,
                price_microdollars_per_hour=launch.price_microdollars_per_hour,
                market=launch.market,
            ),
            actor="launcher",
        )
        end = self._machines.launch(launch.provider, self._host.now_ms)
        if end.failure is not None:
            failed = ev.LaunchFailed(attempt=launch.id, failure=end.failure, text=end.text)
            self._later(end.after_ms, lambda: self._launch_ended(key, failed, requested.id))
            return
        self._boot(key, launch, nodes)
        self._later(end.after_ms, lambda: self._started(key, launch.id, nodes, requested.id))

    def _boot(self, key: JobKey, launch: LaunchState, nodes: Sequence[str]) -> None:
        for index, node in enumerate(nodes):
            self._agents.nodes[key, node] = SimulatedNode(node, launch.id, launch.provider, 20_000 + 100 * index)

    def _started(self, key: JobKey, attempt: str, nodes: tuple[str, ...], cause: str | None) -> None:
        if self._host.job(key).launches[attempt].resolved:
            return
        started = self._host.append(
            key, ev.LaunchStarted(attempt=attempt, handle=f"simulated/{attempt}"), actor="launcher", cause=cause
        )
        self._join(key, self._host.job(key).launches[attempt].provider, nodes, started.id)

    def _join(self, key: JobKey, provider: str, nodes: Sequence[str], cause: str | None) -> None:
        join_ms = self._machines.join_ms(provider)
        for node in nodes:
            self._host.at(join_ms + _spread(key, node) * join_ms // _SPREAD_OF_MS, self._joining(key, node, cause))

    def _joining(self, key: JobKey, node_id: str, cause: str | None) -> Callable[[], None]:
        def join() -> None:
            node = self._agents.nodes.get((key, node_id))
            if node is not None and node.alive and not self._host.job(key).terminal:
                joined = ev.NodeJoined(
                    node=node_id,
                    attempt=node.attempt,
                    provider=node.provider,
                    host=f"10.0.{_spread(key, node.attempt) % 250}.{_spread(key, node_id) % 250}",
                    free_port=node.next_port(),
                    pid=1_000 + _spread(key, node_id),
                )
                self._host.append(key, joined, actor=f"agent:{node_id}", cause=cause)

        return join

    def _stop(self, key: JobKey, action: Stop) -> None:
        attempt = action.launch.id
        requested = self._host.append(
            key, ev.LaunchStopRequested(attempt=attempt, reason=action.reason), actor="launcher"
        )
        for node in action.launch.nodes:
            if (key, node) in self._agents.nodes:
                self._agents.nodes[key, node].alive = False
        state = self._host.job(key)
        ended: ev.LaunchStopped | ev.LaunchFailed = ev.LaunchStopped(attempt=attempt, reason=action.reason)
        if never_booted(state, state.launches[attempt]):
            ended = ev.LaunchFailed(attempt=attempt, failure="boot_failed", text=not_joined_text(state))
        self._later(self._timings.stop_ms, lambda: self._launch_ended(key, ended, requested.id))

    def _launch_ended(self, key: JobKey, data: ev.LaunchStopped | ev.LaunchFailed, cause: str | None) -> None:
        self._host.append(key, data, actor="launcher", cause=cause)
        for node in self._host.job(key).launches[data.attempt].nodes:
            self._agents.nodes.pop((key, node), None)


def _spread(key: JobKey, name: str) -> int:
    """A number below `_SPREAD_MS` that is the same for the same names."""
    return zlib.crc32("/".join((*key, name)).encode()) % _SPREAD_MS
