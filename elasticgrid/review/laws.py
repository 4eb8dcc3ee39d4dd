"""Laws that hold over any log, whatever was decided: checked event by event beside the fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from elasticgrid.core import events as ev
from elasticgrid.core.fleet import FleetState
from elasticgrid.core.fleet_state import usable
from elasticgrid.core.gaps import FLOOR_MS
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState, cost_microdollars
from elasticgrid.review.costs import CostLedger
from elasticgrid.review.report import LawBreach, OpenIntent
from elasticgrid.review.unique_ids import UniqueIds

#: So many breaches are told; all are counted.
MAX_TOLD: Final = 1_000

_COSTED: Final = frozenset(
    (
        ev.LaunchRequested,
        ev.LaunchStarted,
        ev.LaunchFailed,
        ev.LaunchStopped,
        ev.NodeJoined,
        ev.NodeLeft,
        ev.NodeLost,
    )
)


class _JobLaws:
    """What the laws remember of a job that is not over."""

    __slots__ = ("checkpoint_step", "gap_until_ms", "illegal", "intents", "ledger", "live", "number", "round")

    def __init__(self) -> None:
        self.illegal = 0
        self.number = 0
        self.round = 0
        self.checkpoint_step = 0
        self.gap_until_ms = 0
        #: (attempt, launch or stop) -> where it was asked for.
        self.intents: dict[tuple[str, str], int] = {}
        #: assignment -> the attempt that lives.
        self.live: dict[str, str] = {}
        self.ledger = CostLedger()


class Laws:
    """Told every event and what the fold made of it; collects what breaks a law.

    Args:
        complete: whether the log is there from its first event. Otherwise nothing is said of jobs whose submission is
            not in it, nor of what providers could give.
    """

    def __init__(self, *, complete: bool = True) -> None:
        self._complete = complete
        self.breaches: list[LawBreach] = []
        self.count = 0
        self.ids = UniqueIds()
        self._jobs: dict[JobKey, _JobLaws] = {}
        self._over: set[JobKey] = set()

    def event(self, recorded: ev.Recorded, after: JobState | None) -> None:
        """An event, and the state of its job after it; None for facts about the grid."""
        event = recorded.event
        if not self.ids.add(event.id, recorded.sequence, recorded.recorded_ms):
            self.breach("unique_ids", event, recorded.sequence, f"the identifier {event.id} was there before")
        if after is None or not isinstance(event, ev.Event) or (after.spec is None and not self._complete):
            return
        key = (event.tenant, event.job)
        if key in self._over:
            if event.basis is not None:
                self.breach("legal_transitions", event, recorded.sequence, after.last_illegal)
            return
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _JobLaws()
        if after.illegal > job.illegal:
            job.illegal = after.illegal
            self.breach("legal_transitions", event, recorded.sequence, after.last_illegal)
        data = event.data
        data_type = type(data)
        if data_type in _COSTED:
            job.ledger.observe(data, recorded.recorded_ms)
        check = _CHECKS.get(data_type)
        if check is not None:
            check(self, job, recorded, event, data)
        if after.terminal:
            self._ended(job, recorded, event, after)
            del self._jobs[key]
            self._over.add(key)

    def decision(
        self, recorded: ev.Recorded, event: ev.Event, basis: ev.Basis, state: JobState | None, fleet: FleetState
    ) -> None:
        """An event of a decision, and what it was taken from."""
        if not self._complete and (state is None or state.spec is None):
            return
        if (event.tenant, event.job) in self._over:
            return
        job = self._jobs.setdefault((event.tenant, event.job), _JobLaws())
        if basis.number not in (job.number, job.number + 1):
            self.breach(
                "decision_numbers", event, recorded.sequence, f"decision {basis.number} comes after {job.number}"
            )
        job.number = max(job.number, basis.number)
        if state is None or state.spec is None:
            return
        data = event.data
        if isinstance(data, ev.ScaleDecided):
            self._bounds(recorded, event, data, state)
        elif isinstance(data, ev.PlacementDecided):
            self._placement(recorded, event, data, state, fleet, basis.as_of_ms)
        elif isinstance(data, ev.WorldDecided) and not (
            state.min_nodes <= len(data.members) <= max(state.max_nodes, state.target_nodes)
        ):
            says = f"a world of {len(data.members)} nodes, the bounds are {state.min_nodes}..{state.max_nodes}"
            self.breach("size_in_bounds", event, recorded.sequence, says)

    def breach(self, law: str, event: ev.Event | ev.UnknownEvent, sequence: int, says: str) -> None:
        """Note a breach."""
        self.count += 1
        if len(self.breaches) < MAX_TOLD:
            self.breaches.append(LawBreach(law=law, tenant=event.tenant, job=event.job, sequence=sequence, says=says))

    def end(self, jobs: dict[JobKey, JobState], last: ev.Recorded | None) -> list[OpenIntent]:
        """The log ends here: the costs of running jobs are compared, and their open intents returned."""
        intents: list[OpenIntent] = []
        for key, job in self._jobs.items():
            state = jobs.get(key)
            if last is not None and state is not None:
                self._costs(job, last.sequence, state, max(last.recorded_ms, state.last_event_ms))
            intents += [
                OpenIntent(tenant=key[0], job=key[1], attempt=attempt, what=what, sequence=sequence)
                for (attempt, what), sequence in job.intents.items()
            ]
        return intents

    # ----------------------------------------------------------------------------------------------------------------
    # Facts
    # ----------------------------------------------------------------------------------------------------------------

    def _launch_requested(
        self, job: _JobLaws, recorded: ev.Recorded, event: ev.Event, data: ev.LaunchRequested
    ) -> None:
        other = job.live.get(data.assignment)
        if other is not None:
            says = f"{data.attempt} is asked for while {other} lives, both for assignment {data.assignment}"
            self.breach("one_launch", event, recorded.sequence, says)
        job.live[data.assignment] = data.attempt
        job.intents[data.attempt, "launch"] = recorded.sequence

    def _stop_requested(
        self, job: _JobLaws, recorded: ev.Recorded, _event: ev.Event, data: ev.LaunchStopRequested
    ) -> None:
        job.intents.setdefault((data.attempt, "stop"), recorded.sequence)

    def _launch_started(self, job: _JobLaws, _recorded: ev.Recorded, _event: ev.Event, data: ev.LaunchStarted) -> None:
        job.intents.pop((data.attempt, "launch"), None)

    def _launch_over(
        self, job: _JobLaws, _recorded: ev.Recorded, _event: ev.Event, data: ev.LaunchFailed | ev.LaunchStopped
    ) -> None:
        job.intents.pop((data.attempt, "launch"), None)
        job.intents.pop((data.attempt, "stop"), None)
        for assignment in [name for name, attempt in job.live.items() if attempt == data.attempt]:
            del job.live[assignment]

    def _world(self, job: _JobLaws, recorded: ev.Recorded, event: ev.Event, data: ev.WorldDecided) -> None:
        if data.round <= job.round:
            says = f"round {data.round} follows round {job.round}"
            self.breach("rounds_increase", event, recorded.sequence, says)
        job.round = max(job.round, data.round)
        job.checkpoint_step = data.resume.step if data.resume is not None else 0

    def _checkpoint(self, job: _JobLaws, recorded: ev.Recorded, event: ev.Event, data: ev.NodeCheckpointed) -> None:
        if data.round != job.round:
            return
        if data.checkpoint.step < job.checkpoint_step:
            says = f"a checkpoint of step {data.checkpoint.step} follows one of step {job.checkpoint_step}"
            self.breach("checkpoints_increase", event, recorded.sequence, says)
        job.checkpoint_step = max(job.checkpoint_step, data.checkpoint.step)

    def _gap(self, job: _JobLaws, recorded: ev.Recorded, event: ev.Event, data: ev.GapDecided) -> None:
        lasted_ms = data.until_ms - data.from_ms
        if lasted_ms <= max(data.threshold_ms, FLOOR_MS):
            says = f"a gap of {lasted_ms} ms is none, it has to be longer than {max(data.threshold_ms, FLOOR_MS)} ms"
            self.breach("gaps_are_long", event, recorded.sequence, says)
        if data.from_ms < job.gap_until_ms:
            says = f"a gap begins at {data.from_ms}, before the last one ended at {job.gap_until_ms}"
            self.breach("gaps_follow", event, recorded.sequence, says)
        job.gap_until_ms = max(job.gap_until_ms, data.until_ms)

    def _ended(self, job: _JobLaws, recorded: ev.Recorded, event: ev.Event, state: JobState) -> None:
        for (attempt, what), sequence in job.intents.items():
            says = f"the job is over and the {what} of {attempt}, asked for at {sequence}, has no outcome"
            self.breach("intents_resolved", event, recorded.sequence, says)
        for attempt in job.live.values():
            if (attempt, "launch") not in job.intents and (attempt, "stop") not in job.intents:
                says = f"the job is over and {attempt} was neither stopped nor failed"
                self.breach("intents_resolved", event, recorded.sequence, says)
        self._costs(job, recorded.sequence, state, recorded.recorded_ms)

    def _costs(self, job: _JobLaws, sequence: int, state: JobState, as_of_ms: int) -> None:
        folded = cost_microdollars(state, as_of_ms)
        counted = job.ledger.total_microdollars(as_of_ms)
        if folded != counted:
            says = f"the job is said to have cost {folded} micro-dollars, its facts add up to {counted}"
            self.count += 1
            if len(self.breaches) < MAX_TOLD:
                self.breaches.append(
                    LawBreach(law="cost_adds_up", tenant=state.tenant, job=state.id, sequence=sequence, says=says)
                )

    # ----------------------------------------------------------------------------------------------------------------
    # Decisions
    # ----------------------------------------------------------------------------------------------------------------

    def _bounds(self, recorded: ev.Recorded, event: ev.Event, data: ev.ScaleDecided, state: JobState) -> None:
        # A budget that is used up takes all nodes, however few the job needs.
        if data.rule == "budget":
            return
        if data.action != "hold" and not state.min_nodes <= data.target_nodes <= state.max_nodes:
            says = f"{data.target_nodes} nodes are wanted, the bounds are {state.min_nodes}..{state.max_nodes}"
            self.breach("size_in_bounds", event, recorded.sequence, says)

    def _placement(
        self,
        recorded: ev.Recorded,
        event: ev.Event,
        data: ev.PlacementDecided,
        state: JobState,
        fleet: FleetState,
        as_of_ms: int,
    ) -> None:
        assert state.spec is not None
        added = {line.provider for line in data.assignments if line.action == "add"}
        if added and data.placed_nodes > max(state.max_nodes, state.target_nodes):
            says = f"{data.placed_nodes} nodes are placed, at most {state.max_nodes} are allowed"
            self.breach("size_in_bounds", event, recorded.sequence, says)
        for provider in sorted(added) if self._complete else ():
            refusal = usable(provider, state.spec.placement, fleet, as_of_ms)
            if refusal is not None:
                says = f"nodes are placed on {provider}, which is closed: {refusal.reason} ({refusal.detail})"
                self.breach("usable_providers", event, recorded.sequence, says)


_Check = Callable[[Laws, _JobLaws, ev.Recorded, ev.Event, Any], None]
#: What is looked at in an event of a job, by the type of its data.
_CHECKS: Final[dict[type[Any], _Check]] = {
    ev.LaunchRequested: Laws._launch_requested,
    ev.LaunchStopRequested: Laws._stop_requested,
    ev.LaunchStarted: Laws._launch_started,
    ev.LaunchFailed: Laws._launch_over,
    ev.LaunchStopped: Laws._launch_over,
    ev.WorldDecided: Laws._world,
    ev.NodeCheckpointed: Laws._checkpoint,
    ev.GapDecided: Laws._gap,
}
