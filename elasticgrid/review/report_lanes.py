"""The lanes of a timeline: what each node did when, from its launch being asked for until it was gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.gaps import cause_text
from elasticgrid.core.grid import JobKey

Doing = Literal["launching", "booting", "waiting", "training", "draining"]


class Bar(msgspec.Struct, frozen=True):
    """A node did this from one time to another, Unix milliseconds."""

    doing: Doing
    from_ms: int
    to_ms: int


class Mark(msgspec.Struct, frozen=True):
    """Something happened on a node: `lost`, `failed`, `stuck`, `gap`, `notice`, `checkpoint`, `launch failed`."""

    what: str
    time_ms: int
    text: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        charged_from_ms: since when it costs; None when it never did.
        gone_ms: when it was gone; None when it still runs.
    """

    provider: str
    node: str
    tenant: str
    job: str
    price_microdollars_per_hour: int
    charged_from_ms: int | None
    gone_ms: int | None
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


class _Node:
    def __init__(self, provider: str, price: int, at_ms: int) -> None:
        self.provider = provider
        self.price = price
        self.doing: Doing | None = "launching"
        self.since_ms = at_ms
        #: Since when it waits as a member of a world; None when it is in none, or has said that it trains.
        self.member_since_ms: int | None = None
        self.charged_from_ms: int | None = None
        self.gone_ms: int | None = None
        self.bars: list[Bar] = []
        self.marks: list[Mark] = []

    def turn(self, doing: Doing | None, at_ms: int) -> None:
        if doing == "training":
            self.member_since_ms = None
        self.bars.extend(self.open_bars(at_ms))
        self.doing, self.since_ms, self.member_since_ms = doing, at_ms, None

    def trains(self) -> bool:
        """Whether it says that it trains, or is to train and says nothing of it."""
        return self.doing == "training" or self.member_since_ms is not None

    def open_bars(self, until_ms: int) -> tuple[Bar, ...]:
        """What it does now."""
        if self.doing is None:
            return ()
        joined_ms = self.member_since_ms
        bars: tuple[Bar, ...] = (Bar(self.doing, self.since_ms, until_ms),)
        if joined_ms is not None:
            bars = (Bar(self.doing, self.since_ms, joined_ms), Bar("training", joined_ms, until_ms))
        return tuple(bar for bar in bars if bar.to_ms > bar.from_ms)

    def end(self, at_ms: int) -> None:
        if self.gone_ms is None:
            self.turn(None, at_ms)
            self.gone_ms = at_ms


class LaneTracker:
    """Follows the nodes of all jobs.

    Members of a world train from their first step on. Where no node of a job ever told of one, as without the hook,
    they are taken to train from the beginning of the world.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[JobKey, str], _Node] = {}
        self._attempts: dict[tuple[JobKey, str], tuple[str, ...]] = {}
        self._homes: dict[tuple[JobKey, str], str] = {}
        self._telling: set[JobKey] = set()

    def provider_of(self, key: JobKey, data: ev.EventData) -> str:
        """Where what the event is about is."""
        named: Any = data
        for name in (getattr(named, "node", ""), getattr(named, "attempt", "")):
            if (key, name) in self._homes:
                return self._homes[key, name]
        return "unknown"

    def take(self, key: JobKey, recorded: ev.Recorded, data: ev.EventData) -> None:
        """One more event of a job."""
        at_ms = recorded.recorded_ms
        if isinstance(data, ev.LaunchRequested):
            self._attempts[key, data.attempt] = data.node_ids
            self._homes[key, data.attempt] = data.provider
            for name in data.node_ids:
                self._homes[key, name] = data.provider
                self._nodes[key, name] = _Node(data.provider, data.price_microdollars_per_hour, at_ms)
        elif isinstance(data, ev.LaunchStarted):
            for node in self._of(key, data.attempt):
                node.turn("booting", at_ms)
                node.charged_from_ms = at_ms
        elif isinstance(data, ev.LaunchFailed):
            for node in self._of(key, data.attempt):
                node.marks.append(Mark("launch failed", at_ms, f"{data.failure}: {data.text}"))
                node.end(at_ms)
        elif isinstance(data, ev.LaunchStopped):
            for node in self._of(key, data.attempt):
                node.end(at_ms)
        elif isinstance(data, ev.WorldDecided):
            for member in data.members:
                found = self._nodes.get((key, member.node))
                if found is not None and found.doing == "waiting" and key not in self._telling:
                    found.member_since_ms = at_ms
        elif isinstance(data, ev.DrainDecided):
            for (job, _), node in self._nodes.items():
                if job == key and node.trains():
                    node.turn("draining", at_ms)
        elif isinstance(data, ev.GapDecided):
            text = f"no sample for {(data.until_ms - data.from_ms) / 1000:.0f} s: {cause_text(data)}"
            for (job, _), node in self._nodes.items():
                if job == key and node.doing == "training":
                    node.marks.append(Mark("gap", data.from_ms, text))
        else:
            self._node(key, data, at_ms)

    def _of(self, key: JobKey, attempt: str) -> Iterable[_Node]:
        return (self._nodes[key, name] for name in self._attempts.get((key, attempt), ()))

    def _node(self, key: JobKey, data: ev.EventData, at_ms: int) -> None:
        node = self._nodes.get((key, getattr(data, "node", "")))
        if node is None or node.gone_ms is not None:
            return
        if isinstance(data, ev.NodeJoined):
            node.charged_from_ms = node.charged_from_ms or at_ms
            node.turn("waiting", at_ms)
        elif isinstance(data, ev.NodeStarted):
            self._tells(key)
            node.turn("training", at_ms)
        elif isinstance(data, ev.NodeCheckpointed):
            node.marks.append(Mark("checkpoint", at_ms, f"checkpoint of step {data.checkpoint.step}"))
        elif isinstance(data, ev.NodeDrained | ev.NodeFinished):
            node.turn("waiting", at_ms)
        elif isinstance(data, ev.NodeFailed):
            code = data.exits[0].code if data.exits else 0
            node.marks.append(Mark("failed", at_ms, f"{data.failure}: a worker ended with {code}"))
            node.turn("waiting", at_ms)
        elif isinstance(data, ev.NodePreemptionNotice):
            node.marks.append(Mark("notice", at_ms, f"{data.source} says that it will be taken away: {data.text}"))
        elif isinstance(data, ev.NodeStuck):
            node.marks.append(Mark("stuck", at_ms, f"{data.what} since step {data.last_step}: {data.detail}"))
        elif isinstance(data, ev.NodeLost):
            node.marks.append(Mark("lost", at_ms, f"{data.evidence} {data.text}".strip()))
            node.end(at_ms)
        elif isinstance(data, ev.NodeLeft):
            node.end(at_ms)

    def _tells(self, key: JobKey) -> None:
        """The job tells of its steps: members that have not done so yet wait for their first one."""
        if key not in self._telling:
            self._telling.add(key)
            for (job, _), node in self._nodes.items():
                if job == key:
                    node.member_since_ms = None

    def lanes(self, until_ms: int) -> tuple[Lane, ...]:
        """All lanes, by provider, in the order of their launches; what goes on is drawn to `until_ms`."""
        made = []
        for ((tenant, job), name), node in self._nodes.items():
            made.append(
                Lane(
                    provider=node.provider,
                    node=name,
                    tenant=tenant,
                    job=job,
                    price_microdollars_per_hour=node.price,
                    charged_from_ms=node.charged_from_ms,
                    gone_ms=node.gone_ms,
                    bars=(*node.bars, *node.open_bars(until_ms)),
                    marks=tuple(node.marks),
                )
            )
        order = {provider: index for index, provider in enumerate(dict.fromkeys(lane.provider for lane in made))}
        return tuple(sorted(made, key=lambda lane: order[lane.provider]))
