"""Totals over the whole log: what happened how often, and what there is now. A fold, so a restart forgets nothing."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import GONE, JobState, cost_microdollars
from elasticgrid.core.names import is_record

#: Seconds from a launch's intent to its outcome, as upper bounds of the buckets they are counted in.
LAUNCH_BUCKETS_S: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)


class Price(msgspec.Struct, frozen=True):
    """What the nodes of a provider cost now, micro-dollars an hour."""

    provider: str
    market: str
    microdollars_per_hour: int


class LogCounts:
    """Counts recorded events, in order, each once.

    Attributes:
        events: by type; `unknown_events` of a type this software does not know.
        decisions: by action and rule.
        launch_failures: by provider and class.
        nodes_lost: by provider and evidence; `preemption_notices` by provider.
        launch_seconds: launches that came up, by bucket of `LAUNCH_BUCKETS_S` and one above; `launch_seconds_sum`.
        phases: jobs by phase, the terminal ones included.
        samples_published, samples_dropped: by the workers' hooks, as their agents said.
    """

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.unknown_events = 0
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.launch_failures: Counter[tuple[str, str]] = Counter()
        self.nodes_lost: Counter[tuple[str, str]] = Counter()
        self.preemption_notices: Counter[str] = Counter()
        self.launch_seconds = [0] * (len(LAUNCH_BUCKETS_S) + 1)
        self.launch_seconds_sum = 0.0
        self.phases: Counter[str] = Counter()
        self.samples_published = 0
        self.samples_dropped = 0
        self._requested_ms: dict[tuple[JobKey, str], int] = {}
        self._settled_microdollars = 0
        self._costing: dict[JobKey, JobState] = {}

    def apply(self, recorded: ev.Recorded, before: JobState | None, after: JobState | None) -> None:
        """Count one event, given its job before and after it; both are None for an event of the grid itself."""
        event = recorded.event
        if isinstance(event, ev.UnknownEvent):
            self.unknown_events += 1
        else:
            self.events[ev.type_of(event.data)] += 1
        # A record of another grid is looked at here; it is not this grid's work.
        if after is None or is_record(event.tenant):
            return
        key = (event.tenant, event.job)
        if isinstance(event, ev.Event) and (before is None or after.illegal == before.illegal):
            self._count(key, event.data, recorded.recorded_ms, before)
        self._count_job(key, before, after)

    def prices(self) -> tuple[Price, ...]:
        """What nodes that are charged cost now, by provider and market."""
        sums: Counter[tuple[str, str]] = Counter()
        for state in self._costing.values():
            for node in state.nodes.values():
                if node.charged_from_ms and node.status not in GONE:
                    launch = state.launches[node.assignment]
                    sums[node.provider, launch.market] += launch.price_microdollars_per_hour
        return tuple(Price(provider, market, price) for (provider, market), price in sorted(sums.items()))

    def cost_microdollars(self, as_of_ms: int) -> int:
        """What all jobs have cost by then."""
        return self._settled_microdollars + sum(cost_microdollars(job, as_of_ms) for job in self._costing.values())

    def _count(self, key: JobKey, data: ev.EventData, at_ms: int, before: JobState | None) -> None:
        match data:
            case ev.ScaleDecided():
                self.decisions[data.action, data.rule] += 1
            case ev.PlacementDecided():
                self.decisions["place", "waiting" if data.waiting else "placed"] += 1
            case ev.DrainDecided():
                self.decisions["drain", data.reason] += 1
            case ev.WorldDecided():
                self.decisions["world", "resume" if data.resume is not None else "begin"] += 1
            case ev.OutcomeDecided():
                self.decisions["outcome", data.outcome] += 1
            case ev.GapDecided():
                self.decisions["gap", data.cause] += 1
            case ev.LaunchRequested():
                self._requested_ms[key, data.attempt] = at_ms
            case ev.LaunchStarted():
                self._note_launch(self._requested_ms.pop((key, data.attempt), None), at_ms)
            case ev.LaunchFailed():
                self._requested_ms.pop((key, data.attempt), None)
                self.launch_failures[_provider_of_launch(before, data.attempt), data.failure] += 1
            case ev.NodeLost():
                self.nodes_lost[_provider_of_node(before, data.node), data.evidence] += 1
            case ev.NodePreemptionNotice():
                self.preemption_notices[_provider_of_node(before, data.node)] += 1
            case _:
                pass

    def _note_launch(self, requested_ms: int | None, at_ms: int) -> None:
        if requested_ms is None:
            return
        seconds = max(at_ms - requested_ms, 0) / 1000
        self.launch_seconds_sum += seconds
        above = len(LAUNCH_BUCKETS_S)
        self.launch_seconds[next((i for i, bound in enumerate(LAUNCH_BUCKETS_S) if seconds <= bound), above)] += 1

    def _count_job(self, key: JobKey, before: JobState | None, after: JobState) -> None:
        if before is not None and before.spec is not None:
            self.phases[before.phase] -= 1
        if after.spec is not None:
            self.phases[after.phase] += 1
        self.samples_published += after.samples_published - (before.samples_published if before is not None else 0)
        self.samples_dropped += after.samples_dropped - (before.samples_dropped if before is not None else 0)
        if before is not None and key not in self._costing:
            self._settled_microdollars -= before.spent_microdollars
        if any(node.charged_from_ms and node.status not in GONE for node in after.nodes.values()):
            self._costing[key] = after
        else:
            self._costing.pop(key, None)
            self._settled_microdollars += after.spent_microdollars


def _provider_of_launch(state: JobState | None, attempt: str) -> str:
    launch = state.launches.get(attempt) if state is not None else None
    return launch.provider if launch is not None else ""


def _provider_of_node(state: JobState | None, node: str) -> str:
    found = state.nodes.get(node) if state is not None else None
    return found.provider if found is not None else ""
