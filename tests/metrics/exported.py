"""Every metric that any service tells, with a log behind them in which much went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from elasticgrid.core import events as ev
from elasticgrid.decider.metrics import DeciderMetrics, decision_latency
from elasticgrid.decider.service import Decider
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.launcher.metrics import LauncherMetrics
from elasticgrid.launcher.service import LauncherStats
from elasticgrid.log.archive import ArchivedEvents
from elasticgrid.log.memory import MemoryLog
from elasticgrid.metrics.append_metrics import append_metrics
from elasticgrid.metrics.registry import expose, new_registry
from elasticgrid.metrics.stray_metrics import stray_metrics
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.samples import SampleStream

FAILURES = Path(__file__).parents[1] / "goldens" / "failures.egz"


async def log_of(archive: Path, clock: VirtualClock, *, first: int | None = None) -> MemoryLog:
    """The first events of an archive, all of them when None, as a log in memory; the clock goes along."""
    log = MemoryLog(clock)
    for recorded in list(ArchivedEvents(archive))[:first]:
        clock.advance(max((recorded.recorded_ms - clock.now_ms()) / 1000, 0))
        assert isinstance(recorded.event, ev.Event)
        await log.append([recorded.event])
    return log


@asynccontextmanager
async def everything(folder: Path, *, first: int | None = None) -> AsyncIterator[tuple[GatewayService, VirtualClock]]:
    """A gateway whose registry has the metrics of all services, as in `elasticgrid up`."""
    clock = VirtualClock()
    log = await log_of(FAILURES, clock, first=first)
    registry = new_registry()
    append_metrics(registry)("decision", "appended", 0.003)
    stray_metrics(registry)()
    decision_latency(registry)(12)
    decider = Decider(log, SampleStream(clock).open, clock)
    registry.register(DeciderMetrics(lambda: decider.stats, clock.now_ms))
    registry.register(LauncherMetrics(lambda: LauncherStats(3, {"started": 2}, 1)))
    async with open_gateway(log, folder, clock=clock, registry=registry) as gateway:
        await gateway.caught_up()
        yield gateway, clock


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of their labels in the order of the labels' names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def labels_of(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Labels by sample name, of everything that is told."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(expose(registry).body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
