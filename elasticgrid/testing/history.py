"""Realistic logs without a server: a grid whose core is real and whose machines, trainers and clock are simulated.

`SimulatedGrid` appends what gateway, launcher and agents would append and lets the real decider decide, in virtual
time. The same calls give the same log to the byte.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Literal

from elasticgrid.bus.subjects import sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.decider import Reading, decide, decision_events, places_nodes
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.launching import Start, Stop, launch_actions
from elasticgrid.core.names import FLEET, GRID_TENANT, derived_id
from elasticgrid.core.samples import SampleBatch, encode_batch
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.log.codec import encode
from elasticgrid.testing.history_agents import SimulatedAgents
from elasticgrid.testing.history_training import SimulatedNode, Workload

HERE: Final = ProviderSpec(name="here", max_nodes=8, price_microdollars_per_hour=1_200_000)

# How long things take, milliseconds. What several nodes do at once is spread a little, as it is in life.
_DECIDE_MS = 4
_APPEND_MS = 3
_LAUNCH_MS = 250
_BOOT_MS = 20_000
_JOIN_MS = 2_000
_STOP_MS = 1_500
_DETECT_MS = 6_000
_TICK_MS = 10_000
_SPREAD_MS = 700


class SimulatedGrid:
    """A grid in virtual time.

    Args:
        providers: declared at the start.
        start_ms: the time at the start, Unix milliseconds.
        report_ms: how often workers publish the samples of the steps in between.
        on_event, on_samples: called with what is recorded; without it, it is kept in `recorded` and `samples`.
    """

    def __init__(
        self,
        providers: Sequence[ProviderSpec] = (HERE,),
        *,
        start_ms: int = 1_750_000_000_000,
        report_ms: int = 5_000,
        on_event: Callable[[ev.Recorded], None] | None = None,
        on_samples: Callable[[SampleMessage], None] | None = None,
    ) -> None:
        self.now_ms = start_ms
        self.recorded: list[ev.Recorded] = []
        self.samples: list[SampleMessage] = []
        self.fold = GridFold()
        self.evidence = EvidenceFold()
        self._on_event = on_event if on_event is not None else self.recorded.append
        self._on_samples = on_samples if on_samples is not None else self.samples.append
        self.agents = SimulatedAgents(self, report_ms)
        self._agenda: list[tuple[int, int, Callable[[], object]]] = []
        self._order = 0
        self._woken: set[JobKey] = set()
        self._landing: set[JobKey] = set()
        self._placing: JobKey | None = None
        self._acted: set[tuple[JobKey, str, str]] = set()
        self._launch_failures: dict[str, list[tuple[ev.FailureClass, str]]] = {}
        for provider in providers:
            self.declare(provider)

    # ----------------------------------------------------------------------------------------------------------------
    # What people and the world do
    # ----------------------------------------------------------------------------------------------------------------

    def declare(self, provider: ProviderSpec) -> None:
        """Add a provider to the grid, or give it new properties."""
        self.append((GRID_TENANT, FLEET), ev.ProviderDeclared(provider=provider), actor="key:simulated")

    def submit(self, spec: JobSpec, workload: Workload | None = None, *, tenant: str = "demo") -> JobKey:
        """Submit a job that trains as `workload` says."""
        key = (tenant, spec.name)
        self.agents.workloads[key] = workload if workload is not None else Workload()
        self.append(key, ev.JobSubmitted(spec=spec), actor="key:simulated")
        self._tick(key)
        return key

    def request(
        self,
        key: JobKey,
        data: ev.JobCancelRequested | ev.JobPauseRequested | ev.JobResumeRequested | ev.JobResizeRequested,
    ) -> None:
        """Ask for a change of a job."""
        self.append(key, data, actor="key:simulated")

    def fail_launches(self, provider: str, failure: ev.FailureClass, text: str, *, times: int = 1) -> None:
        """Let the next launches at a provider fail."""
        self._launch_failures.setdefault(provider, []).extend([(failure, text)] * times)

    def lose_node(self, key: JobKey, *, evidence: Literal["process_gone", "silent"] = "process_gone") -> str:
        """Take the last member of the job's round away without a word, and return which node that was.

        Raises:
            NotFound: no such node runs.
        """
        member = self.agents.running(key).members[-1]
        node = self.agents.node(key, member)
        node.alive = False
        self.agents.interrupt(key)
        lost = ev.NodeLost(node=member, attempt=node.attempt, evidence=evidence)
        self.at(_DETECT_MS, lambda: self.append(key, lost, actor="launcher"))
        return member

    def fail_worker(self, key: JobKey, *, code: int = 1, failure: ev.FailureClass = "app_failed") -> None:
        """Let the first worker of the job's round end with failure.

        Raises:
            NotFound: no round of the job runs.
        """
        running = self.agents.running(key)
        node = self.agents.node(key, running.members[0])
        self.agents.interrupt(key)
        node.failed_round = running.round
        failed = ev.NodeFailed(
            node=node.id,
            round=running.round,
            last_step=running.step,
            exits=(ev.WorkerExit(rank=0, code=code, last_lines="simulated failure"),),
            failure=failure,
            free_port=node.next_port(),
        )
        self.append(key, failed, actor=f"agent:{node.id}")

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self._next()
        self.now_ms = end_ms

    def run(self, *, limit_ms: int = 7 * 86_400_000) -> None:
        """Let time pass until every job is over, or for `limit_ms`."""
        end_ms = self.now_ms + limit_ms
        while self._agenda and self._agenda[0][0] <= end_ms and not self.idle:
            self._next()

    @property
    def idle(self) -> bool:
        """Whether every submitted job is over."""
        return len(self.agents.workloads) == sum(1 for job in self.fold.jobs() if job.terminal)

    def job(self, key: JobKey) -> JobState:
        """The job as the log tells it now."""
        state = self.fold.job(key)
        assert state is not None
        return state

    def _next(self) -> None:
        self.now_ms, _, action = heapq.heappop(self._agenda)
        action()

    def at(self, after_ms: int, action: Callable[[], object]) -> None:
        """Do something `after_ms` from now."""
        self._order += 1
        heapq.heappush(self._agenda, (self.now_ms + after_ms, self._order, action))

    # ----------------------------------------------------------------------------------------------------------------
    # The log, and who wakes up when something is in it
    # ----------------------------------------------------------------------------------------------------------------

    def append(self, key: JobKey, data: ev.EventData, *, actor: str, cause: str | None = None) -> ev.Event:
        """Record a fact now; unless told otherwise, the job's last event caused it."""
        state = self.fold.job(key)
        event = ev.Event(
            id=derived_id(self.now_ms, *key, actor, ev.type_of(data), self.fold.sequence),
            time_ms=self.now_ms,
            tenant=key[0],
            job=key[1],
            causation_id=cause if cause is not None else (state.last_event_id if state is not None else ""),
            correlation_id=state.submitted_id if state is not None else "",
            actor=actor,
            data=data,
        )
        self._record(event)
        return event

    def _record(self, event: ev.Event) -> None:
        recorded = ev.Recorded(self.fold.sequence + 1, self.now_ms, event, encode(event))
        key = self.fold.apply(recorded)
        self._on_event(recorded)
        if key is not None:
            self._wake(key)
            self._react(key, event.data)

    def publish(self, key: JobKey, rank: int, batch: SampleBatch) -> None:
        """Store a message of samples."""
        sequence, data = self.evidence.sequence + 1, encode_batch(batch)
        completed = self.evidence.apply(key, sequence, self.now_ms, data)
        self._on_samples(SampleMessage(sequence, self.now_ms, sample_subject(*key, rank), data))
        if completed:
            self._wake(key)

    def _react(self, key: JobKey, data: ev.EventData) -> None:
        if isinstance(data, ev.WorldDecided):
            self.agents.begin(key, data)
        elif isinstance(data, ev.DrainDecided):
            self.agents.drain(key, data)
        elif isinstance(data, ev.OutcomeDecided):
            self.agents.rounds.pop(key, None)
            self.evidence.close(key)
        if isinstance(data, ev.PlacementDecided | ev.DrainDecided | ev.NodeLeft | ev.NodeLost | ev.NodeJoined):
            self._launcher(key)

    def _tick(self, key: JobKey) -> None:
        """Timers of the job: what waits for time alone is looked at again."""
        state = self.job(key)
        if state.terminal:
            return
        if state.phase != "running" or not state.round_active_ms:
            self._wake(key)
            self._launcher(key)
        self.at(_TICK_MS, lambda: self._tick(key))

    # ----------------------------------------------------------------------------------------------------------------
    # The decider
    # ----------------------------------------------------------------------------------------------------------------

    def _wake(self, key: JobKey) -> None:
        if key not in self._woken:
            self._woken.add(key)
            self.at(_DECIDE_MS, lambda: self._decide(key))

    def _decide(self, key: JobKey) -> None:
        self._woken.discard(key)
        state = self.job(key)
        if key in self._landing or state.terminal:
            return
        self.evidence.open(state)
        signals = self.evidence.signals(key)
        decision = decide(state, self.fold.fleet, signals, self.now_ms)
        if places_nodes(decision):
            if self._placing is not None:
                self._wake(key)  # as the decider does: one placement at a time, since two could take the same nodes
                return
            self._placing = key
        if decision:
            reading = Reading(self.fold.sequence, self.evidence.sequence)
            made = decision_events(state, decision, self.now_ms, reading)
            self._landing.add(key)
            self.at(_APPEND_MS, lambda: self._land(key, made))

    def _land(self, key: JobKey, made: list[ev.Event]) -> None:
        """What was decided reaches the log; facts may have come in between."""
        self._landing.discard(key)
        if self._placing == key:
            self._placing = None
        for event in made:
            self._record(event)

    # ----------------------------------------------------------------------------------------------------------------
    # The launcher
    # ----------------------------------------------------------------------------------------------------------------

    def _launcher(self, key: JobKey) -> None:
        for action in launch_actions(self.job(key), self.now_ms):
            what = "start" if isinstance(action, Start) else "stop"
            mark = (key, action.launch.id, what)
            if mark not in self._acted:
                self._acted.add(mark)
                self.at(_LAUNCH_MS, self._launch_step(mark))

    def _launch_step(self, mark: tuple[JobKey, str, str]) -> Callable[[], None]:
        key, attempt, what = mark

        def step() -> None:
            action = next(
                (each for each in launch_actions(self.job(key), self.now_ms) if each.launch.id == attempt), None
            )
            if isinstance(action, Start) and what == "start":
                self._start(key, action)
            elif isinstance(action, Stop) and what == "stop":
                self._stop(key, action)
            else:
                self._acted.discard(mark)

        return step

    def _start(self, key: JobKey, action: Start) -> None:
        state, launch = self.job(key), action.launch
        nodes = tuple(node for node in launch.nodes if state.nodes[node].status == "planned")
        requested = self.append(
            key,
            ev.LaunchRequested(
                attempt=launch.id,
                assignment=launch.id,
                provider=launch.provider,
                engine=self.fold.fleet.providers[launch.provider].spec.engine,
                nodes=len(nodes),
                node_ids=nodes,
                price_microdollars_per_hour=launch.price_microdollars_per_hour,
                market=launch.market,
            ),
            actor="launcher",
        )
        failures = self._launch_failures.get(launch.provider)
        if failures:
            failure, text = failures.pop(0)
            failed = ev.LaunchFailed(attempt=launch.id, failure=failure, text=text)
            self.at(_BOOT_MS // 4, lambda: self._launch_ended(key, failed, requested.id))
            return
        for index, node in enumerate(nodes):
            self.agents.nodes[key, node] = SimulatedNode(node, launch.id, launch.provider, 20_000 + 100 * index)
        self.at(_BOOT_MS, lambda: self._started(key, launch.id, nodes, requested.id))

    def _started(self, key: JobKey, attempt: str, nodes: tuple[str, ...], cause: str) -> None:
        if self.job(key).launches[attempt].resolved:
            return
        started = self.append(
            key, ev.LaunchStarted(attempt=attempt, handle=f"simulated/{attempt}"), actor="launcher", cause=cause
        )
        for node in nodes:
            self.at(_JOIN_MS + _spread(key, node), self._joining(key, node, started.id))

    def _joining(self, key: JobKey, node_id: str, cause: str) -> Callable[[], None]:
        def join() -> None:
            node = self.agents.nodes.get((key, node_id))
            if node is not None and node.alive and not self.job(key).terminal:
                joined = ev.NodeJoined(
                    node=node_id,
                    attempt=node.attempt,
                    provider=node.provider,
                    host=f"10.0.{_spread(key, node.attempt) % 250}.{_spread(key, node_id) % 250}",
                    free_port=node.next_port(),
                    pid=1_000 + _spread(key, node_id),
                )
                self.append(key, joined, actor=f"agent:{node_id}", cause=cause)

        return join

    def _stop(self, key: JobKey, action: Stop) -> None:
        attempt = action.launch.id
        requested = self.append(key, ev.LaunchStopRequested(attempt=attempt, reason=action.reason), actor="launcher")
        for node in action.launch.nodes:
            if (key, node) in self.agents.nodes:
                self.agents.nodes[key, node].alive = False
        stopped = ev.LaunchStopped(attempt=attempt, reason=action.reason)
        self.at(_STOP_MS, lambda: self._launch_ended(key, stopped, requested.id))

    def _launch_ended(self, key: JobKey, data: ev.LaunchStopped | ev.LaunchFailed, cause: str) -> None:
        self.append(key, data, actor="launcher", cause=cause)
        for node in self.job(key).launches[data.attempt].nodes:
            self.agents.nodes.pop((key, node), None)


def _spread(key: JobKey, name: str) -> int:
    """A number below `_SPREAD_MS` that is the same for the same names."""
    return zlib.crc32("/".join((*key, name)).encode()) % _SPREAD_MS
