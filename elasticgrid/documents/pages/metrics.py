"""The page of metrics: what `/metrics` of each service tells."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from elasticgrid.clock import SystemClock
from elasticgrid.decider.metrics import DeciderMetrics, decision_latency
from elasticgrid.decider.stats import DeciderStats
from elasticgrid.documents.pages.markdown import code, page, table
from elasticgrid.gateway.metrics import GatewayMetrics, state_metrics
from elasticgrid.launcher.metrics import LauncherMetrics
from elasticgrid.launcher.service import LauncherStats
from elasticgrid.log.memory import MemoryLog
from elasticgrid.metrics.append_metrics import append_metrics
from elasticgrid.metrics.stray_metrics import stray_metrics
from elasticgrid.projections.projector import Projector


def metrics_page() -> str:
    """Every metric of ours, by the service that tells it."""
    services = {
        "Of the gateway: the log, and itself": (*_gateway().collect(), *state_metrics()),
        "Of the decider": _decider().collect(),
        "Of the launcher": _launcher().collect(),
        "Of each of them": _each().collect(),
    }
    return page(
        "Metrics",
        "A counter's name ends in `_total`, a histogram's parts in `_bucket`, `_sum` and `_count`. `elasticgrid up` is "
        "one process and tells all of them at the gateway's `/metrics`. How they are collected is in "
        "[Collect metrics](../how-to/metrics.md).",
        *(part for title, told in services.items() for part in (f"## {title}", _table(told))),
    )


def _table(told: Iterable[Metric]) -> str:
    families = {family.name: family for family in told}.values()
    rows = [
        (code(family.name + ("_total" if family.type == "counter" else "")), family.type, family.documentation)
        for family in families
    ]
    return table(("metric", "kind", "is"), rows)


def _gateway() -> CollectorRegistry:
    registry = CollectorRegistry()
    log = MemoryLog(SystemClock())
    GatewayMetrics(registry, log, Projector(log, Path("views.sqlite")), lambda: (0, 0), lambda: 0).seen(0)
    return registry


def _decider() -> CollectorRegistry:
    registry = CollectorRegistry()
    decision_latency(registry)
    registry.register(DeciderMetrics(DeciderStats.begin, lambda: 0))
    return registry


def _launcher() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LauncherMetrics(lambda: LauncherStats(0, {}, 0)))
    return registry


def _each() -> CollectorRegistry:
    registry = CollectorRegistry()
    append_metrics(registry)
    stray_metrics(registry)
    return registry
