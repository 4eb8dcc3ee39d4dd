"""What the log says, as metrics: decisions, launches, nodes, jobs, prices. They are views and survive any restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticgrid.core import marks as mk
from elasticgrid.core.events import EVENT_TYPES, FailureClass
from elasticgrid.core.fleet_state import UNUSED, FleetState
from elasticgrid.core.job import Phase
from elasticgrid.core.quotas import Standing, budgets
from elasticgrid.projections.log_counts import LAUNCH_BUCKETS_S, LogCounts

#: A value by the values of its labels; mappings do not vary in their keys, so their length stays open.
_Values: TypeAlias = Mapping[Any, float]
_DOLLAR: Final = 1_000_000
_BUDGETS: Final = {"accelerator_ms": "accelerator_time", "microdollars": "money"}
PHASES: Final[tuple[str, ...]] = get_args(Phase)
FAILURES: Final[tuple[str, ...]] = get_args(FailureClass)


class LogView(msgspec.Struct, frozen=True):
    """What the metrics are made of, as of one moment.

    Attributes:
        counts: totals over the log.
        fleet: the providers.
        now_ms: until when nodes are charged and marks are looked at.
    """

    counts: LogCounts
    fleet: FleetState
    now_ms: int


class LogMetrics(Collector):
    """Metrics of what `look` gives when they are asked for."""

    def __init__(self, look: Callable[[], LogView]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        """The metrics with no values, so that none is made twice."""
        return self._of(LogView(LogCounts(), FleetState(), 0))

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return self._of(self._look())

    def _of(self, view: LogView) -> Iterator[Metric]:
        yield from _happened(view.counts, sorted(view.fleet.providers))
        yield from _there_is(view)


def _happened(counts: LogCounts, providers: Iterable[str]) -> Iterator[Metric]:
    types = dict.fromkeys(EVENT_TYPES, 0) | counts.events
    yield _counter("elasticgrid_log_events", "Events in the log.", ("type",), {(name,): n for name, n in types.items()})
    yield _counter(
        "elasticgrid_log_unknown_events",
        "Events of a type that this software does not know.",
        (),
        {(): counts.unknown_events},
    )
    yield _counter(
        "elasticgrid_decisions",
        "Decisions: sizes by action (up, down, hold), and place, drain, world, gap, outcome; with their rule or cause.",
        ("action", "rule"),
        counts.decisions,
    )
    # Series that are there from the beginning, so that a first failure is an increase.
    failures = dict.fromkeys(itertools.product(providers, FAILURES), 0) | counts.launch_failures
    yield _counter(
        "elasticgrid_launch_failures", "Launches of which nothing runs, by class.", ("provider", "failure"), failures
    )
    yield _counter(
        "elasticgrid_nodes_lost",
        "Nodes that were gone without having said so.",
        ("provider", "evidence"),
        counts.nodes_lost,
    )
    yield _counter(
        "elasticgrid_preemption_notices",
        "Notices that a node will be taken away.",
        ("provider",),
        {(name,): n for name, n in counts.preemption_notices.items()},
    )
    yield _counter(
        "elasticgrid_hook_samples",
        "Samples that workers' hooks published, as of the ends of rounds.",
        (),
        {(): counts.samples_published},
    )
    yield _counter(
        "elasticgrid_hook_dropped_samples",
        "Samples that workers' hooks dropped, as of the ends of rounds.",
        (),
        {(): counts.samples_dropped},
    )
    durations = HistogramMetricFamily(
        "elasticgrid_launch_duration_seconds", "From the intent of a launch until its agents were started."
    )
    bounds = [*(str(bound) for bound in LAUNCH_BUCKETS_S), "+Inf"]
    durations.add_metric(
        (), list(zip(bounds, itertools.accumulate(counts.launch_seconds), strict=True)), counts.launch_seconds_sum
    )
    yield durations


def _there_is(view: LogView) -> Iterator[Metric]:
    counts, fleet = view.counts, view.fleet
    yield _gauge("elasticgrid_jobs", "Jobs by phase.", ("phase",), {(phase,): counts.phases[phase] for phase in PHASES})
    usage = {name: fleet.usage.get(name, UNUSED) for name in sorted({*fleet.providers, *fleet.usage})}
    nodes = {
        (name, state): value
        for name, used in usage.items()
        for state, value in (("starting", used.in_flight), ("up", used.in_use), ("draining", used.draining))
    }
    yield _gauge("elasticgrid_nodes", "Nodes charged to providers, by state.", ("provider", "state"), nodes)
    providers = fleet.providers
    yield _gauge(
        "elasticgrid_provider_capacity_nodes",
        "Nodes that a provider may hold.",
        ("provider",),
        {(name,): 0 if state.withdrawn else state.spec.max_nodes for name, state in providers.items()},
    )
    yield _gauge(
        "elasticgrid_provider_cordoned",
        "1 where a provider was told to take no new nodes.",
        ("provider",),
        {(name,): int(state.cordon is not None) for name, state in providers.items()},
    )
    blocked: dict[tuple[str, ...], float] = {}
    for name, state in providers.items():
        mark = mk.blocking(fleet.marks, state.spec, view.now_ms)
        blocked |= {(name, failure): int(mark is not None and mark.failure == failure) for failure in FAILURES}
    yield _gauge(
        "elasticgrid_provider_blocked",
        "1 where a provider gets no new nodes because of failures of this class.",
        ("provider", "failure"),
        blocked,
    )
    yield _gauge(
        "elasticgrid_price_dollars_per_hour",
        "What the nodes that are charged now cost.",
        ("provider", "market"),
        {(price.provider, price.market): price.microdollars_per_hour / _DOLLAR for price in counts.prices()},
    )
    standings = {
        (tenant, _BUDGETS[budget.what]): _used(budget)
        for tenant in fleet.quotas.quotas
        for budget in budgets(fleet.quotas, tenant, view.now_ms)
    }
    yield _gauge(
        "elasticgrid_budget_used_ratio",
        "What a tenant has used of a budget of this period; at 1 its jobs are drained.",
        ("tenant", "budget"),
        standings,
    )
    yield _counter(
        "elasticgrid_cost_dollars",
        "What nodes have cost, each until now or until it was gone.",
        (),
        {(): counts.cost_microdollars(view.now_ms) / _DOLLAR},
    )


def _used(budget: Standing) -> float:
    return budget.used / budget.limit if budget.limit else 1.0


def _counter(name: str, told: str, labels: tuple[str, ...], values: _Values) -> Metric:
    family = CounterMetricFamily(name, told, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, told: str, labels: tuple[str, ...], values: _Values) -> Metric:
    family = GaugeMetricFamily(name, told, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
