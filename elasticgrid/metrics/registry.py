"""A registry of metrics and the text that Prometheus reads. Each process has one, and nothing is global."""

from __future__ import annotations

import platform
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Info, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder

import elasticgrid

#: Bounds of everything that is waited for: from a loopback append to a bus that elects its leader.
LATENCY_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Exposition(msgspec.Struct, frozen=True):
    """All metrics as of now, and the media type that they are written in."""

    body: bytes
    media_type: str


def new_registry() -> CollectorRegistry:
    """A registry that tells of this process and its software."""
    # When a counter began is of no use to rates, and doubles what is stored.
    disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no type for it
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    build = Info("elasticgrid_build", "The software that runs, as labels; the value is 1.", registry=registry)
    build.info({"version": elasticgrid.__version__, "python_version": platform.python_version()})
    return registry


def expose(registry: CollectorRegistry, accept: str = "") -> Exposition:
    """The metrics as `accept`, the request's header, asks for: OpenMetrics or Prometheus' own text."""
    encode, media_type = choose_encoder(accept)
    return Exposition(encode(registry), media_type)
