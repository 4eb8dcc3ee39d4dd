"""The timeline: one line per event, as values that any output can be made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from elasticgrid import utc
from elasticgrid.core import events as ev
from elasticgrid.core.gaps import cause_text
from elasticgrid.core.quotas import quota_text

#: From so far on the difference between a writer's clock and the log's is told.
SKEW_TOLD_MS: Final = 2_000
#: What a line says that stands where events are missing.
MISSING: Final = "missing"


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event in one line.

    Attributes:
        time_ms: when it was recorded, Unix milliseconds.
        delta_ms: since the line before it in this timeline; 0 in the first.
        skew_ms: its writer's clock minus the log's when it was recorded.
        actor: who wrote it; `what` its type, or `missing` where events are missing: `sequence` is the first one's then.
        provider, node: what it is about, where it is about one.
        before, after: what changed from which value to which, where it is a change.
        reason: why, or the event's own words.
    """

    sequence: int
    time_ms: int
    delta_ms: int = 0
    skew_ms: int = 0
    tenant: str
    job: str
    actor: str
    what: str
    provider: str = ""
    node: str = ""
    before: str = ""
    after: str = ""
    reason: str = ""

    def text(self, *, delta: bool = True) -> str:
        """The line for people: the time of the day in UTC and, unless it means nothing here, the time since."""
        if self.what == MISSING:
            return f"--- missing: {self.reason}"
        since = _delta(self.delta_ms) if delta else ""
        about = f"{self.tenant}/{self.job} {self.actor} {self.what}"
        words = [f"{utc.time_of_day(self.time_ms, fine=True)} {since:>8} #{self.sequence} {about}"]
        if self.before or self.after:
            words.append(f"{self.before} -> {self.after}" if self.before else self.after)
        if self.reason:
            words.append(f"({self.reason})")
        if abs(self.skew_ms) >= SKEW_TOLD_MS:
            words.append(f"[its clock: {self.skew_ms / 1000:+.1f} s]")
        return " ".join(words)


class Days:
    """Says when another day begins than that of the line before."""

    def __init__(self) -> None:
        self._last = ""

    def begun(self, time_ms: int) -> str:
        """The date, in UTC, where it is another than last time, else nothing."""
        day = utc.day(time_ms)
        begins, self._last = day != self._last, day
        return day if begins else ""


class TimelineFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a timeline shows; all by default.

    Attributes:
        job, tenant, provider: only about these.
        types: only these; `launch` stands for every type that begins with `launch.`.
        since_ms, until_ms: recorded from (inclusive) and until (exclusive).
    """

    tenant: str = ""
    job: str = ""
    provider: str = ""
    types: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == TimelineFilter()


class Missing(msgspec.Struct, frozen=True):
    """Sequences that are not in the log."""

    first: int
    last: int

    def text(self) -> str:
        """For people."""
        return f"event {self.first}" if self.first == self.last else f"events {self.first} to {self.last}"


class _Said(msgspec.Struct, frozen=True):
    """What an event's data says in a line."""

    before: str = ""
    after: str = ""
    reason: str = ""
    provider: str = ""
    node: str = ""


def timeline(
    records: Iterable[ev.Recorded],
    shown: TimelineFilter = TimelineFilter(),  # noqa: B008 - frozen
    *,
    complete: bool = True,
) -> Iterator[TimelineLine]:
    """One line for each event that is shown, in order.

    Args:
        complete: whether the records are meant to be a whole log. Where events are missing between those of one, and
            all are shown, a line says so.
    """
    homes: dict[tuple[str, str, str], str] = {}
    last_ms: int | None = None
    previous = 0
    tells_missing = complete and shown.everything
    for recorded in records:
        if tells_missing and recorded.sequence > previous + 1:
            yield _missing_line(Missing(previous + 1, recorded.sequence - 1), recorded.recorded_ms)
        previous = recorded.sequence
        line = line_of(recorded)
        providers = _providers(recorded, homes)
        if _is_shown(line, providers, shown):
            delta_ms = recorded.recorded_ms - last_ms if last_ms is not None else 0
            last_ms = recorded.recorded_ms
            provider = line.provider or (providers[0] if len(providers) == 1 else "")
            yield msgspec.structs.replace(line, delta_ms=delta_ms, provider=provider)


def line_of(recorded: ev.Recorded) -> TimelineLine:
    """The line of one event by itself."""
    event = recorded.event
    if isinstance(event, ev.UnknownEvent):
        actor, what, said = "?", event.type, _Said(reason="a type this version does not know")
    else:
        actor, what, said = event.actor, ev.type_of(event.data), _said(event.data)
    return TimelineLine(
        sequence=recorded.sequence,
        time_ms=recorded.recorded_ms,
        skew_ms=event.time_ms - recorded.recorded_ms,
        tenant=event.tenant,
        job=event.job,
        actor=actor,
        what=what,
        provider=said.provider,
        node=said.node,
        before=said.before,
        after=said.after,
        reason=said.reason,
    )


def text_lines(lines: Iterable[TimelineLine]) -> Iterator[str]:
    """Lines for people, with the date before the first of each day."""
    days = Days()
    for line in lines:
        if day := days.begun(line.time_ms):
            yield day
        yield line.text()


def story(records: Iterable[ev.Recorded]) -> tuple[str, ...]:
    """The lines of these events for people, of a log of which they are a part."""
    return tuple(text_lines(timeline(records, complete=False)))


def missing_events(records: Iterable[ev.Recorded]) -> Iterator[Missing]:
    """What is missing of a whole log before its last event, in order."""
    previous = 0
    for recorded in records:
        if recorded.sequence > previous + 1:
            yield Missing(previous + 1, recorded.sequence - 1)
        previous = recorded.sequence


def _missing_line(missing: Missing, time_ms: int) -> TimelineLine:
    return TimelineLine(
        sequence=missing.first, time_ms=time_ms, tenant="", job="", actor="", what=MISSING, reason=missing.text()
    )


def _providers(recorded: ev.Recorded, homes: dict[tuple[str, str, str], str]) -> tuple[str, ...]:
    """The providers an event is about; `homes` remembers where attempts and nodes are."""
    event = recorded.event
    if isinstance(event, ev.UnknownEvent):
        return ()
    data: Any = event.data
    if isinstance(data, ev.PlacementDecided):
        return tuple(dict.fromkeys(line.provider for line in data.assignments))
    if isinstance(data, ev.LaunchRequested):
        for name in (data.attempt, *data.node_ids):
            homes[event.tenant, event.job, name] = data.provider
    if isinstance(data, ev.ProviderDeclared):
        return (data.provider.name,)
    if isinstance(data, ev.JobInterruptRequested):
        return (data.provider,)
    if isinstance(data, ev.ProviderWithdrawn | ev.ProviderCordoned | ev.ProviderUncordoned):
        return (data.name,)
    if isinstance(data, ev.OutcomeDecided):
        for key in [key for key in homes if key[:2] == (event.tenant, event.job)]:
            del homes[key]
        return ()
    name = getattr(data, "node", "") or getattr(data, "attempt", "")
    home = homes.get((event.tenant, event.job, name))
    return (home,) if home is not None else ()


def _is_shown(line: TimelineLine, providers: tuple[str, ...], shown: TimelineFilter) -> bool:
    return (
        (not shown.tenant or line.tenant == shown.tenant)
        and (not shown.job or line.job == shown.job)
        and (not shown.provider or shown.provider in providers)
        and (not shown.types or any(line.what == each or line.what.startswith(f"{each}.") for each in shown.types))
        and (shown.since_ms is None or line.time_ms >= shown.since_ms)
        and (shown.until_ms is None or line.time_ms < shown.until_ms)
    )


def _delta(delta_ms: int) -> str:
    if delta_ms < 0:
        return f"-{-delta_ms} ms"
    if delta_ms < 1_000:
        return f"+{delta_ms} ms"
    if delta_ms < 600_000:
        return f"+{delta_ms / 1000:.1f} s"
    return f"+{delta_ms // 60_000} min"


# --------------------------------------------------------------------------------------------------------------------
# What each event says
# --------------------------------------------------------------------------------------------------------------------


def nodes_text(count: int) -> str:
    """So many nodes."""
    return f"{count} node{'' if count == 1 else 's'}"


def _bundle(data: ev.LaunchStarted) -> str:
    return f", bundle {data.bundle_sha256[:12]}" if data.bundle_sha256 else ""


def _drained(leaving: int) -> str:
    return f"drained, {nodes_text(leaving)} leave{'s' if leaving == 1 else ''}" if leaving else "drained, all stay"


def _bounds(data: ev.JobSubmitted | ev.JobResizeRequested) -> str:
    size = data.spec if isinstance(data, ev.JobSubmitted) else data
    return f"{size.min_nodes}..{nodes_text(size.max_nodes)}"


def _placed(data: ev.PlacementDecided) -> _Said:
    lines = [f"{each.action} {each.nodes} on {each.provider}" for each in data.assignments]
    after = f"{data.placed_nodes} of {nodes_text(data.demand_nodes)}"
    return _Said(after=after, reason="; ".join(filter(None, (", ".join(lines), data.waiting, data.policy_broken))))


def _world(data: ev.WorldDecided) -> _Said:
    resume = f"from step {data.resume.step}" if data.resume is not None else "from nothing"
    return _Said(
        before=f"round {data.round - 1}" if data.round > 1 else "",
        after=f"round {data.round}: {nodes_text(len(data.members))}, {resume}",
        reason=f"master {data.master_addr}:{data.master_port}",
    )


def _failed(data: ev.NodeFailed) -> _Said:
    first = data.exits[0] if data.exits else None
    how = f"rank {first.rank} ended with {first.code}" if first is not None else "a worker failed"
    return _Said(after=f"failed in round {data.round}", reason=f"{data.failure}: {how}", node=data.node)


_SAID: Final[dict[type[Any], Any]] = {
    ev.JobSubmitted: lambda d: _Said(after=_bounds(d), reason=f"band {d.spec.band}"),
    ev.JobCancelRequested: lambda d: _Said(reason=d.reason),
    ev.JobPauseRequested: lambda d: _Said(reason=d.reason),
    ev.JobResumeRequested: lambda d: _Said(reason=d.reason),
    ev.JobResizeRequested: lambda d: _Said(after=_bounds(d), reason=d.reason),
    ev.JobPriorityRequested: lambda d: _Said(after=f"band {d.band}", reason=d.reason),
    ev.JobInterruptRequested: lambda d: _Said(
        after=f"{nodes_text(len(d.nodes))} to be taken away", reason=d.reason, provider=d.provider
    ),
    ev.TenantCreated: lambda d: _Said(after=f"tenant {d.name}", reason=d.note),
    ev.KeyCreated: lambda d: _Said(after=f"key {d.prefix} of {d.tenant or 'the grid'} may {d.scope}", reason=d.label),
    ev.KeyRevoked: lambda d: _Said(after=f"key {d.prefix} revoked", reason=d.reason),
    ev.QuotaSet: lambda d: _Said(after=f"{d.tenant} may have {quota_text(d.quota)}", reason=d.reason),
    ev.ProviderDeclared: lambda d: _Said(after=f"up to {nodes_text(d.provider.max_nodes)}", provider=d.provider.name),
    ev.ProviderWithdrawn: lambda d: _Said(provider=d.name),
    ev.ProviderCordoned: lambda d: _Said(provider=d.name, reason=d.reason),
    ev.ProviderUncordoned: lambda d: _Said(provider=d.name),
    ev.ScaleDecided: lambda d: _Said(
        before=str(d.current_nodes), after=nodes_text(d.target_nodes), reason=f"{d.rule}: {d.reason}"
    ),
    ev.PlacementDecided: _placed,
    ev.DrainDecided: lambda d: _Said(before=f"round {d.round}", after=_drained(len(d.leaving)), reason=d.reason),
    ev.WorldDecided: _world,
    ev.OutcomeDecided: lambda d: _Said(after=f"{d.outcome} at step {d.last_step}", reason=d.reason),
    ev.GapDecided: lambda d: _Said(
        after=f"round {d.round}: no sample for {(d.until_ms - d.from_ms) / 1000:.0f} s",
        reason=f"{d.cause}: {cause_text(d)}",
    ),
    ev.LaunchRequested: lambda d: _Said(
        after=f"{nodes_text(d.nodes)} on {d.provider}", reason=f"attempt {d.attempt}", provider=d.provider
    ),
    ev.LaunchStarted: lambda d: _Said(after=d.handle, reason=f"attempt {d.attempt}{_bundle(d)}"),
    ev.LaunchFailed: lambda d: _Said(reason=f"attempt {d.attempt}: {d.failure}: {d.text}"),
    ev.LaunchStopRequested: lambda d: _Said(reason=f"attempt {d.attempt}: {d.reason}"),
    ev.LaunchStopped: lambda d: _Said(reason=f"attempt {d.attempt}: {d.reason}"),
    ev.NodeLost: lambda d: _Said(reason=f"{d.node}: {d.evidence} {d.text}".rstrip(), node=d.node),
    ev.NodeJoined: lambda d: _Said(after=f"{d.node} at {d.host}", provider=d.provider, node=d.node),
    ev.NodeStarted: lambda d: _Said(after=f"step {d.step} of round {d.round}", node=d.node),
    ev.NodeCheckpointed: lambda d: _Said(after=f"checkpoint of step {d.checkpoint.step}", node=d.node),
    ev.NodeDrained: lambda d: _Said(
        after=f"round {d.round} drained at step {d.last_step}", reason="" if d.clean else "terminated", node=d.node
    ),
    ev.NodeFinished: lambda d: _Said(after=f"finished at step {d.last_step}", node=d.node),
    ev.NodeFailed: _failed,
    ev.NodeLeft: lambda d: _Said(reason=d.reason, node=d.node),
    ev.NodePreemptionNotice: lambda d: _Said(after="to be taken away", reason=f"{d.source}: {d.text}", node=d.node),
    ev.NodeStuck: lambda d: _Said(after=f"stuck after step {d.last_step}", reason=d.detail or d.what, node=d.node),
    ev.NodeReclassified: lambda d: _Said(after=f"round {d.round}: {d.failure} after all", reason=d.text, node=d.node),
}


def _said(data: ev.EventData) -> _Said:
    said: _Said = _SAID[type(data)](data)
    return said
