"""What a gateway measures: its requests, its watchers, and how far its views are behind the log."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticgrid.core.errors import ElasticGridError
from elasticgrid.log.mirrored import MirroredLog
from elasticgrid.log.port import EventLog
from elasticgrid.metrics.log_metrics import LogMetrics, LogView
from elasticgrid.metrics.registry import LATENCY_BUCKETS_S, Exposition, expose
from elasticgrid.projections.projector import Projector

#: A scrape must be answered even when the bus is not.
_LOG_PATIENCE_S: Final = 2.0
_UNMATCHED: Final = "unmatched"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Watched(msgspec.Struct, frozen=True):
    """What is looked at when metrics are asked for. `log_last` is None where the log could not be asked."""

    log_last: int | None
    views_last: int
    mirror_last: int | None
    diverged: bool
    watchers: int
    events_sent: int


class GatewayMetrics:
    """The metrics of a gateway, in `registry`.

    Args:
        registry: holds them, with those of what else runs in this process. It can have one gateway.
        log: the grid's log.
        projector: keeps the views.
        feed: how many clients watch events, and how many they were sent.
        now_ms: the gateway's clock.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        log: EventLog,
        projector: Projector,
        feed: Callable[[], tuple[int, int]],
        now_ms: Callable[[], int],
    ) -> None:
        self.registry = registry
        self._log = log
        self._projector = projector
        self._feed = feed
        self._log_last: int | None = None
        self._requests = Counter(
            "elasticgrid_http_requests",
            "Requests that were answered; of event streams, those that ended.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "elasticgrid_http_request_duration_seconds",
            "From a request until its answer began.",
            ("route",),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        registry.register(LogMetrics(lambda: LogView(projector.counts, projector.grid.fleet, now_ms())))
        registry.register(_StateMetrics(self._look))

    async def exposition(self, accept: str) -> Exposition:
        """All metrics as of now. The log is asked how far it is."""
        self.seen(None)
        with contextlib.suppress(ElasticGridError, TimeoutError):
            async with asyncio.timeout(_LOG_PATIENCE_S):
                self.seen(await self._log.last_sequence())
        return expose(self.registry, accept)

    def seen(self, log_last: int | None) -> None:
        """The log's last event is this one; None where it could not be asked."""
        self._log_last = log_last

    def _look(self) -> _Watched:
        mirrored = self._log if isinstance(self._log, MirroredLog) else None
        watchers, sent = self._feed()
        return _Watched(
            log_last=self._log_last,
            views_last=self._projector.sequence,
            mirror_last=mirrored.mirror.last if mirrored is not None else None,
            diverged=mirrored is not None and mirrored.diverged,
            watchers=watchers,
            events_sent=sent,
        )

    def note(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count an answered request; `route` is a template such as `/v1/jobs/{job}`, empty where there is none."""
        route = route or _UNMATCHED
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(duration_s)


class _StateMetrics(Collector):
    def __init__(self, look: Callable[[], _Watched]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        return state_metrics()

    def collect(self) -> Iterable[Metric]:
        return _state(self._look())


def state_metrics() -> list[Metric]:
    """All that a gateway tells of its own state, also what only one with a mirror has, with no values."""
    return _state(_Watched(0, 0, 0, False, 0, 0))


def _state(seen: _Watched) -> list[Metric]:
    metrics: list[Metric] = [
        GaugeMetricFamily(
            "elasticgrid_log_reachable", "Whether the log answered just now.", value=seen.log_last is not None
        ),
        GaugeMetricFamily(
            "elasticgrid_log_refused",
            "1 where log and mirror were found to differ: nothing is appended any more.",
            value=seen.diverged,
        ),
        GaugeMetricFamily("elasticgrid_views_sequence", "The last event that answers contain.", value=seen.views_last),
        GaugeMetricFamily("elasticgrid_sse_subscribers", "Clients that watch events.", value=seen.watchers),
        CounterMetricFamily("elasticgrid_sse_events", "Events sent, to each client.", value=seen.events_sent),
    ]
    if seen.log_last is not None:
        behind = max(seen.log_last - seen.views_last, 0)
        metrics += [
            GaugeMetricFamily("elasticgrid_log_sequence", "The last event in the log.", value=seen.log_last),
            GaugeMetricFamily("elasticgrid_projection_lag_events", "How far the views are behind.", value=behind),
        ]
        if seen.mirror_last is not None:
            behind = max(seen.log_last - seen.mirror_last, 0)
            metrics.append(
                GaugeMetricFamily("elasticgrid_mirror_lag_events", "How far the mirror is behind.", value=behind)
            )
    return metrics


def measured(app: ASGIApp, metrics: GatewayMetrics) -> ASGIApp:
    """The application with each of its answers counted."""

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500
        answered_s: float | None = None

        async def watch(message: Message) -> None:
            nonlocal status, answered_s
            if message["type"] == "http.response.start":
                status, answered_s = message["status"], time.perf_counter() - began
            await send(message)

        try:
            await app(scope, receive, watch)
        finally:
            asked: Any = scope  # Litestar names what servers put in, and not what it adds itself
            duration_s = answered_s if answered_s is not None else time.perf_counter() - began
            metrics.note(asked["method"], asked.get("path_template", ""), status, duration_s)

    return counting
