"""What a decider measures of itself, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticgrid.decider.stats import DeciderStats
from elasticgrid.metrics.registry import LATENCY_BUCKETS_S


def decision_latency(registry: CollectorRegistry) -> Callable[[int], None]:
    """What a decider tells of each decision, for `registry` to remember."""
    seconds = Histogram(
        "elasticgrid_decision_latency_seconds",
        "From what asked for a decision (an event, a completed step, the timer) until the decision was in the log.",
        buckets=LATENCY_BUCKETS_S,
        registry=registry,
    )
    return lambda latency_ms: seconds.observe(latency_ms / 1000)


class DeciderMetrics(Collector):
    """Metrics of a decider's `stats` when they are asked for; `now_ms` is its clock."""

    def __init__(self, stats: Callable[[], DeciderStats], now_ms: Callable[[], int]) -> None:
        self._stats = stats
        self._now_ms = now_ms

    def describe(self) -> Iterable[Metric]:
        """The metrics with no values, so that none is made twice."""
        return _metrics(DeciderStats.begin(), 0)

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return _metrics(self._stats(), self._now_ms())


def _metrics(stats: DeciderStats, now_ms: int) -> Iterable[Metric]:
    age_s = 0.0 if stats.oldest_sample_ms is None else max(now_ms - stats.oldest_sample_ms, 0) / 1000
    refused = CounterMetricFamily(
        "elasticgrid_decider_refused_samples", "Samples that were not let in, by reason.", labels=("reason",)
    )
    for reason, number in stats.refused.items():
        refused.add_metric((reason,), number)
    return (
        CounterMetricFamily("elasticgrid_decider_samples", "Samples read since the start.", value=stats.samples),
        refused,
        CounterMetricFamily(
            "elasticgrid_decider_conflicts", "Decisions that another decider was faster with.", value=stats.conflicts
        ),
        GaugeMetricFamily("elasticgrid_decider_sequence", "The last event that was read.", value=stats.sequence),
        GaugeMetricFamily(
            "elasticgrid_decider_stopped_jobs",
            "Jobs of which nothing is decided any more, because that failed or an event is of an unknown type.",
            value=stats.stopped_jobs,
        ),
        GaugeMetricFamily(
            "elasticgrid_decider_last_tick_timestamp_seconds",
            "When every job was last looked at, Unix time.",
            value=stats.ticked_ms / 1000,
        ),
        GaugeMetricFamily(
            "elasticgrid_sample_age_seconds",
            "How old the last sample is of the job that trains and has been silent the longest; 0 when none trains.",
            value=age_s,
        ),
    )
