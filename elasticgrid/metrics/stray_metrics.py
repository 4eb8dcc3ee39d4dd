"""How much lies among the events that is none."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter


def stray_metrics(registry: CollectorRegistry) -> Callable[[], None]:
    """What a log calls for each message on an event subject that is no event, for `registry` to remember."""
    strays = Counter(
        "elasticgrid_log_strays",
        "Messages on event subjects that are no events, of those read since the start; they are passed over.",
        registry=registry,
    )
    return strays.inc
