"""How long appends to the log take, by who writes and what came of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from elasticgrid.log.mirrored import AppendOutcome, OnAppend
from elasticgrid.metrics.registry import LATENCY_BUCKETS_S


def append_metrics(registry: CollectorRegistry) -> OnAppend:
    """What a log tells of each append, for `registry` to remember."""
    seconds = Histogram(
        "elasticgrid_append_duration_seconds",
        "Appends to the event log, from the request until the answer.",
        ("writer", "outcome"),
        buckets=LATENCY_BUCKETS_S,
        registry=registry,
    )

    def note(writer: str, outcome: AppendOutcome, duration_s: float) -> None:
        seconds.labels(writer, outcome).observe(duration_s)

    return note
