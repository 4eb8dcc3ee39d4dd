"""A grid in virtual time: the core is real, machines, trainers and the clock are simulated.

`SimulatedGrid` appends what gateway, launcher and agents would append and lets the real core decide. The same calls
give the same log to the byte. It begins empty, or goes on from where a recorded log stands (`adopt`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from elasticgrid.bus.subjects import sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.decider import Reading, decide, decision_events, places_nodes
from elasticgrid.core.errors import NotFound
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.job_gaps import gap_to_record
from elasticgrid.core.names import ACCESS, FLEET, GRID_TENANT, derived_id
from elasticgrid.core.samples import SampleBatch, encode_batch
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.log.archive_format import SampleMessage
from elasticgrid.log.codec import encode
from elasticgrid.sim.agents import SimulatedAgents
from elasticgrid.sim.launcher import SimulatedLauncher
from elasticgrid.sim.machines import Machines, SteadyMachines, Timings
from elasticgrid.sim.training import Training, Workload

HERE: Final = ProviderSpec(name="here", max_nodes=8, price_microdollars_per_hour=1_200_000)


class SimulatedGrid:
    """A grid in virtual time.

    Args:
        providers: declared at the start.
        start_ms: the time at the start, Unix milliseconds.
        report_ms: how often workers publish the samples of the steps in between; as `timings` says when left out.
        timings: how long things take.
        machines: what launches come to.
        on_event, on_samples: called with what is recorded; without it, it is kept in `recorded` and `samples`.
    """

    def __init__(
        self,
        providers: Sequence[ProviderSpec] = (HERE,),
        *,
        start_ms: int = 1_750_000_000_000,
        report_ms: int | None = None,
        timings: Timings = Timings(),  # noqa: B008 - frozen
        machines: Machines | None = None,
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
        self._timings = timings if report_ms is None else msgspec.structs.replace(timings, report_ms=report_ms)
        self._steady = SteadyMachines()
        self.agents = SimulatedAgents(self, self._timings)
        self._launcher = SimulatedLauncher(self, self.agents, self._timings, machines or self._steady)
        self._agenda: list[tuple[int, int, Callable[[], object]]] = []
        self._order = 0
        self._woken: set[JobKey] = set()
        self._landing: set[JobKey] = set()
        self._placing: JobKey | None = None
        self._back_ms = 0
        #: Samples that are on their way, by job.
        self._held: dict[JobKey, list[tuple[int, SampleBatch]]] = {}
        for provider in providers:
            self.declare(provider)

    def adopt(self, fold: GridFold, evidence: EvidenceFold, training: dict[JobKey, Training]) -> None:
        """Go on from a recorded log: what is under way in it ends as it would here.

        Args:
            fold: the log as of now; it belongs to this grid from here on, and so does `evidence`.
            training: of every job that is not over.
        """
        self.fold, self.evidence = fold, evidence
        for key, trained in training.items():
            state = self.job(key)
            self.agents.workloads[key] = trained
            self._launcher.adopt(key, state)
            window = evidence.window(key)
            seen = window.last_step if window is not None and window.round == state.round else -1
            kept = state.checkpoint.step if state.checkpoint is not None else 0
            self.agents.adopt(key, state, max(seen, kept), kept)
            self._wake(key)
            self._launcher.look(key)
            self._tick(key)

    # ----------------------------------------------------------------------------------------------------------------
    # What people and the world do
    # ----------------------------------------------------------------------------------------------------------------

    def declare(self, provider: ProviderSpec) -> None:
        """Add a provider to the grid, or give it new properties."""
        self.append((GRID_TENANT, FLEET), ev.ProviderDeclared(provider=provider), actor="key:simulated")

    def submit(self, spec: JobSpec, workload: Training | None = None, *, tenant: str = "demo") -> JobKey:
        """Submit a job that trains as `workload` says."""
        key = (tenant, spec.name)
        self.expect(key, workload if workload is not None else Workload())
        self.submitted(key, ev.JobSubmitted(spec=spec))
        return key

    def expect(self, key: JobKey, training: Training) -> None:
        """Say what a job trains that is going to be submitted; the grid is not idle before it is over."""
        self.agents.workloads[key] = training

    def submitted(self, key: JobKey, data: ev.JobSubmitted) -> None:
        """Submit a job whose training was told."""
        self.append(key, data, actor="key:simulated")
        self._tick(key)

    def request(
        self,
        key: JobKey,
        data: ev.JobCancelRequested
        | ev.JobPauseRequested
        | ev.JobResumeRequested
        | ev.JobResizeRequested
        | ev.JobPriorityRequested
        | ev.JobInterruptRequested,
    ) -> None:
        """Ask for a change of a job."""
        self.append(key, data, actor="key:simulated")

    def set_quota(self, tenant: str, quota: ev.Quota) -> None:
        """Say what a tenant may have and use."""
        self.append((GRID_TENANT, ACCESS), ev.QuotaSet(tenant=tenant, quota=quota), actor="key:simulated")

    def fail_launches(self, provider: str, failure: ev.FailureClass, text: str, *, times: int = 1) -> None:
        """Let the next launches at a provider fail."""
        self._steady.fail(provider, failure, text, times)

    def lose_control_plane(self, for_ms: int) -> None:
        """Let decider and launcher be away for so long; nodes, trainers and the bus go on."""
        self._back_ms = max(self._back_ms, self.now_ms + for_ms)

    def when_back(self, action: Callable[[], object]) -> None:
        """Do what decider or launcher do: now, or as soon as they are back."""
        if self.now_ms < self._back_ms:
            self.at(self._back_ms - self.now_ms, lambda: self.when_back(action))
        else:
            action()

    def lose_node(
        self, key: JobKey, *, provider: str = "", evidence: Literal["process_gone", "silent"] = "process_gone"
    ) -> str:
        """Take the last member of the job's round (at a provider) away without a word; returns which node that was.

        Raises:
            NotFound: no such node runs.
        """
        here = [each for each in self.agents.running(key).members if self._is_at(key, each, provider)]
        if not here:
            raise NotFound(f"no node of {key[0]}/{key[1]} runs at {provider}")
        member = here[-1]
        node = self.agents.node(key, member)
        node.alive = False
        self.agents.interrupt(key)
        lost = ev.NodeLost(node=member, attempt=node.attempt, evidence=evidence)
        self.at(self._timings.detect_ms, lambda: self.when_back(lambda: self.append(key, lost, actor="launcher")))
        return member

    def _is_at(self, key: JobKey, node_id: str, provider: str) -> bool:
        return not provider or self.job(key).nodes[node_id].provider == provider

    def fail_worker(
        self,
        key: JobKey,
        *,
        code: int = 1,
        failure: ev.FailureClass = "app_failed",
        last_lines: str = "simulated failure",
    ) -> None:
        """Let the first worker of the job's round end with failure, and with these last words.

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
            exits=(ev.WorkerExit(rank=0, code=code, last_lines=last_lines),),
            failure=failure,
            free_port=node.next_port(),
        )
        self.append(key, failed, actor=f"agent:{node.id}")

    def hold_samples(self, key: JobKey, for_ms: int) -> None:
        """Let what the job's workers publish from now on arrive so much later, all at once: a bus that is cut.

        It arrives before that where the job ends first.
        """
        self._held.setdefault(key, [])
        self.at(for_ms, lambda: self._let_go(key))

    def _let_go(self, key: JobKey) -> None:
        for rank, batch in self._held.pop(key, ()):
            self.publish(key, rank, batch)

    def stall(self, key: JobKey, for_ms: int) -> None:
        """Let the job's workers live and take no step for so long; the step under way is taken anew after that.

        Raises:
            NotFound: no round of the job runs.
        """
        self.agents.running(key)
        self.agents.stall(key, for_ms)

    def lengthen_step(self, key: JobKey, duration_ms: int) -> None:
        """Let the step under way take so long, from now.

        Raises:
            NotFound: no round of the job runs.
        """
        self.agents.running(key)
        self.agents.lengthen(key, duration_ms)

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
        over = sum(1 for job in self.fold.jobs() if job.terminal and (job.tenant, job.id) in self.agents.workloads)
        return over == len(self.agents.workloads)

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
        held = self._held.get(key)
        if held is not None:
            held.append((rank, batch))
            return
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
            self._let_go(key)
            self.evidence.close(key)
        if isinstance(data, ev.PlacementDecided | ev.DrainDecided | ev.NodeLeft | ev.NodeLost | ev.NodeJoined):
            self._launcher.look(key)

    def _tick(self, key: JobKey) -> None:
        """Timers of the job: what waits for time alone is looked at again."""
        state = self.job(key)
        if state.terminal:
            return
        if state.phase != "running" or not state.round_active_ms:
            self._wake(key)
            self._launcher.look(key)
        elif gap_to_record(state, self.evidence.signals(key), self.now_ms) is not None:
            self._wake(key)
        self.at(self._timings.tick_ms, lambda: self._tick(key))

    # ----------------------------------------------------------------------------------------------------------------
    # The decider
    # ----------------------------------------------------------------------------------------------------------------

    def _wake(self, key: JobKey) -> None:
        if key not in self._woken:
            self._woken.add(key)
            self.at(self._timings.decide_ms, lambda: self.when_back(lambda: self._decide(key)))

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
            self.at(self._timings.append_ms, lambda: self._land(key, made))

    def _land(self, key: JobKey, made: list[ev.Event]) -> None:
        """What was decided reaches the log; facts may have come in between."""
        self._landing.discard(key)
        if self._placing == key:
            self._placing = None
        for event in made:
            self._record(event)
