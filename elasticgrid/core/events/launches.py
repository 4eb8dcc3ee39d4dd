"""Facts the launcher records: intents, their outcomes, and nodes that are gone."""

from __future__ import annotations

from typing import Literal

from elasticgrid.core.events.base import Value
from elasticgrid.core.spec import Market

FailureClass = Literal[
    "stockout",
    "quota_used",
    "quota_zero",
    "rate_limited",
    "transient",
    "auth",
    "invalid",
    "boot_failed",
    "lost_young",
    "preempted",
    "app_failed",
    "infra_failed",
]


class LaunchRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.requested"):
    """Intent: this attempt will be launched. In the log before anything is created.

    Attributes:
        attempt: unique within the job; `node_ids` are the nodes it will bring.
        price_microdollars_per_hour: of one node, as placed; what the cost is computed from.
    """

    attempt: str
    assignment: str
    provider: str
    engine: str
    nodes: int
    node_ids: tuple[str, ...]
    price_microdollars_per_hour: int
    market: Market = "on_demand"


class LaunchStarted(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.started"):
    """Outcome: the attempt's machines run and its agents were started.

    Attributes:
        handle: names it to the engine.
        bundle_sha256: of the copy of the job's work directory that its nodes were given; empty when they work in it.
    """

    attempt: str
    handle: str
    bundle_sha256: str = ""


class LaunchFailed(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.failed"):
    """Outcome: nothing of the attempt runs.

    Attributes:
        failure: its class.
        text: what the provider said, raw, so that a better classifier can read it again.
    """

    attempt: str
    failure: FailureClass
    text: str


class LaunchStopRequested(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.stop_requested"):
    """Intent: what is left of the attempt will be stopped."""

    attempt: str
    reason: str


class LaunchStopped(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.stopped"):
    """Outcome: nothing of the attempt runs any more."""

    attempt: str
    reason: str


class NodeLost(Value, frozen=True, kw_only=True, tag_field="type", tag="launch.node_lost"):
    """A node was seen to be gone without having said so.

    Attributes:
        evidence: `process_gone` (the engine confirms it), `silent` (no heartbeat for the time given in `text`).
    """

    node: str
    attempt: str
    evidence: Literal["process_gone", "silent"]
    text: str = ""
