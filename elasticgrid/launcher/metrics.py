"""What a launcher measures of itself, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticgrid.launcher.service import LauncherStats


class LauncherMetrics(Collector):
    """Metrics of a launcher's `stats` when they are asked for."""

    def __init__(self, stats: Callable[[], LauncherStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """The metrics with no values, so that none is made twice."""
        return _metrics(LauncherStats(0, {}, 0))

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return _metrics(self._stats())


def _metrics(stats: LauncherStats) -> Iterable[Metric]:
    facts = CounterMetricFamily("elasticgrid_launcher_facts", "Facts recorded since the start.", labels=("fact",))
    for fact, number in stats.facts.items():
        facts.add_metric((fact,), number)
    return (
        facts,
        GaugeMetricFamily("elasticgrid_launcher_events_read", "Events folded since the start.", value=stats.events),
        CounterMetricFamily(
            "elasticgrid_launcher_strange_heartbeats",
            "Heartbeats of nodes that the log does not know.",
            value=stats.strange_heartbeats,
        ),
    )
