"""What tenants may have and what they use: a fold over the facts that nodes run, at the prices that launches carry.

A node is charged from the fact that it runs until the fact that it is gone, by the hours of the log's clock. Hours that
are over are summed up, so a tenant's whole past is a few numbers an hour and every period is made of whole hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.job import GONE, JobState, NodeState

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: The longest period is a leap year; older days are forgotten.
KEPT_DAYS: Final = 400


class Running(msgspec.Struct, frozen=True, gc=False):
    """A node that is charged: since when, at which price, and as how many accelerators."""

    since_ms: int
    price_microdollars_per_hour: int
    accelerators: int


class Hour(msgspec.Struct, frozen=True, gc=False):
    """What was used in one hour by nodes that are gone: accelerator-milliseconds, and price times milliseconds."""

    accelerator_ms: int = 0
    price_ms: int = 0


class JobUse(msgspec.Struct, frozen=True, gc=False):
    """A job's nodes that are charged, and whether the job is over."""

    running: dict[str, Running] = {}
    over: bool = False


class Opened(msgspec.Struct, frozen=True, gc=False):
    """Nodes that are charged since some time of one hour, summed up: what they use grows by these numbers.

    Attributes:
        accelerators, price: of all of them.
        accelerator_after, price_after: each node's times how far into the hour it is charged from, in milliseconds.
    """

    accelerators: int = 0
    accelerator_after: int = 0
    price: int = 0
    price_after: int = 0

    def with_node(self, node: Running, sign: int) -> Opened:
        """With one more of these nodes, or with one less."""
        accelerators = sign * node.accelerators
        price = sign * node.price_microdollars_per_hour
        # Of the hour, not of the time since 1970: a few nodes' sums of that would not fit into 64 bits.
        after_ms = node.since_ms % HOUR_MS
        return Opened(
            self.accelerators + accelerators,
            self.accelerator_after + accelerators * after_ms,
            self.price + price,
            self.price_after + price * after_ms,
        )


class TenantUse(msgspec.Struct, frozen=True, gc=False):
    """What a tenant uses. Which nodes that is, its jobs say.

    Attributes:
        active: jobs that are not over.
        opened: nodes that are charged, by the hour since 1970 that they are charged since.
        hours: what is past, by day since 1970 and hour since 1970: a year of hours is not to be copied for each node.
    """

    active: int = 0
    opened: dict[int, Opened] = {}
    hours: dict[int, dict[int, Hour]] = {}


class QuotaState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was set, and what is used, by tenant."""

    quotas: dict[str, ev.Quota] = {}
    use: dict[str, TenantUse] = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One limit of a tenant, and how it stands.

    Attributes:
        limit, used: jobs, nodes, accelerator-milliseconds or microdollars.
        frees_ms: when the period ends; None where time alone frees nothing.
    """

    what: str
    limit: int
    used: int
    frees_ms: int | None = None

    @property
    def left(self) -> int:
        """What may still be used; 0 when there is nothing."""
        return max(self.limit - self.used, 0)


# --------------------------------------------------------------------------------------------------------------------
# The fold
# --------------------------------------------------------------------------------------------------------------------


def evolve_quotas(
    state: QuotaState, before: JobState | None, after: JobState | None, recorded: ev.Recorded
) -> QuotaState:
    """The state after one more event; the very same when it says nothing of this, as all but `QUOTA_EVENTS` do.

    Args:
        state: before it.
        before, after: the job that it concerns, None for a fact about the grid, and before the job's first event.
        recorded: the event.
    """
    event = recorded.event
    if not isinstance(event, ev.Event):
        return state
    data = event.data
    if isinstance(data, ev.QuotaSet):
        return replace(state, quotas=state.quotas | {data.tenant: data.quota})
    nodes_of = _NODES_OF.get(type(data))
    if nodes_of is None or after is None or after.spec is None:
        return state
    begun: list[Running] = []
    gone: list[Running] = []
    jobs = 0
    if before is None or before.spec is None:
        jobs = 1
    elif nodes_of is _of_nothing:
        jobs = before.terminal - after.terminal
    elif before.nodes is not after.nodes:
        before_nodes, after_nodes = before.nodes.present, after.nodes.present
        for node_id in nodes_of(after, data):
            was, now = before_nodes.get(node_id), after_nodes.get(node_id)
            if was is None or now is None or now is was:
                continue
            if _is_charged(now):
                if not _is_charged(was):
                    begun.append(_running(after, now))
            elif _is_charged(was):
                gone.append(_running(after, now))
    if not jobs and not begun and not gone:
        return state
    use = state.use.get(after.tenant, _NO_USE)
    used = TenantUse(
        use.active + jobs,
        _with_opened(use.opened, begun, gone) if begun or gone else use.opened,
        _closed(use.hours, gone, recorded.recorded_ms) if gone else use.hours,
    )
    return replace(state, use=state.use | {after.tenant: used})


def _of_nothing(_job: JobState, _data: ev.EventData) -> tuple[str, ...]:
    return ()


def _of_launch(job: JobState, data: ev.LaunchStarted | ev.LaunchFailed | ev.LaunchStopped) -> tuple[str, ...]:
    launch = job.launches.get(data.attempt)
    return launch.nodes if launch is not None else ()


def _of_node(_job: JobState, data: ev.NodeJoined | ev.NodeLeft | ev.NodeLost) -> tuple[str, ...]:
    return (data.node,)


#: Of an event that concerns a job, the nodes that may be charged from it or until it.
_NODES_OF: Final[dict[type[Any], Callable[[JobState, Any], tuple[str, ...]]]] = {
    ev.JobSubmitted: _of_nothing,
    ev.OutcomeDecided: _of_nothing,
    ev.LaunchStarted: _of_launch,
    ev.LaunchFailed: _of_launch,
    ev.LaunchStopped: _of_launch,
    ev.NodeJoined: _of_node,
    ev.NodeLeft: _of_node,
    ev.NodeLost: _of_node,
}
#: Types of the events that change what a `QuotaState` says; most are not among them.
QUOTA_EVENTS: Final = frozenset((ev.QuotaSet, *_NODES_OF))

_NOTHING: Final = Hour()
_NO_USE: Final = TenantUse()
_NONE_OPENED: Final = Opened()


def _is_charged(node: NodeState) -> bool:
    return node.charged_from_ms > 0 and node.status not in GONE


def _running(job: JobState, node: NodeState) -> Running:
    """A node of the job as it is charged, or was until now."""
    assert job.spec is not None
    price = job.launches[node.assignment].price_microdollars_per_hour
    return Running(node.charged_from_ms, price, job.spec.nproc_per_node)


def charged_jobs(jobs: Iterable[JobState]) -> dict[str, dict[str, JobUse]]:
    """By tenant and job, what is charged: of jobs that are not over and those that still have nodes."""
    found: dict[str, dict[str, JobUse]] = {}
    for job in jobs:
        if job.spec is None:
            continue
        running = {name: _running(job, node) for name, node in job.nodes.present.items() if _is_charged(node)}
        if running or not job.terminal:
            found.setdefault(job.tenant, {})[job.id] = JobUse(running, job.terminal)
    return found


def _with_opened(opened: dict[int, Opened], begun: list[Running], gone: list[Running]) -> dict[int, Opened]:
    after = opened.copy()
    for nodes, sign in ((begun, 1), (gone, -1)):
        for node in nodes:
            hour = node.since_ms // HOUR_MS
            changed = after.get(hour, _NONE_OPENED).with_node(node, sign)
            if changed == _NONE_OPENED:
                after.pop(hour, None)
            else:
                after[hour] = changed
    return after


def _closed(days: dict[int, dict[int, Hour]], gone: list[Running], until_ms: int) -> dict[int, dict[int, Hour]]:
    """The hours with what these nodes used until they were gone."""
    days = days.copy()
    changed: set[int] = set()
    last = until_ms // HOUR_MS
    for node in gone:
        for hour in range(max(node.since_ms // HOUR_MS, last - KEPT_DAYS * 24), last + 1):
            begin_ms = hour * HOUR_MS
            end_ms = until_ms if hour == last else begin_ms + HOUR_MS
            part_ms = end_ms - max(begin_ms, node.since_ms)
            if part_ms <= 0:
                continue
            day = hour // 24
            if day not in changed:
                changed.add(day)
                days[day] = days.get(day, {}).copy()
            hours = days[day]
            old = hours.get(hour, _NOTHING)
            hours[hour] = Hour(
                old.accelerator_ms + part_ms * node.accelerators,
                old.price_ms + part_ms * node.price_microdollars_per_hour,
            )
    if len(days) > KEPT_DAYS:
        return {day: hours for day, hours in days.items() if day >= last // 24 - KEPT_DAYS}
    return days


# --------------------------------------------------------------------------------------------------------------------
# Questions
# --------------------------------------------------------------------------------------------------------------------


def used_since(state: QuotaState, tenant: str, since_ms: int, as_of_ms: int) -> tuple[int, int]:
    """Accelerator-milliseconds and microdollars used from `since_ms`, a whole hour, until `as_of_ms`."""
    use = state.use.get(tenant, _NO_USE)
    accelerator_ms = price_ms = 0
    first, last = since_ms // HOUR_MS, as_of_ms // HOUR_MS
    for day in range(first // 24, last // 24 + 1) if use.hours else ():
        for hour, past in use.hours.get(day, {}).items():
            if first <= hour <= last:
                accelerator_ms += past.accelerator_ms
                price_ms += past.price_ms
    for hour, nodes in use.opened.items():
        begin_ms = hour * HOUR_MS
        if begin_ms < since_ms:
            accelerator_ms += (as_of_ms - since_ms) * nodes.accelerators
            price_ms += (as_of_ms - since_ms) * nodes.price
        else:
            accelerator_ms += (as_of_ms - begin_ms) * nodes.accelerators - nodes.accelerator_after
            price_ms += (as_of_ms - begin_ms) * nodes.price - nodes.price_after
    return max(accelerator_ms, 0), max(price_ms, 0) // HOUR_MS


def jobs_of(state: QuotaState, tenant: str) -> int:
    """How many of the tenant's jobs are not over."""
    return state.use.get(tenant, _NO_USE).active


def budgets(state: QuotaState, tenant: str, as_of_ms: int) -> tuple[Standing, ...]:
    """How the tenant's limits of a period stand; empty when there are none."""
    quota = state.quotas.get(tenant)
    if quota is None or (quota.accelerator_hours is None and quota.microdollars is None):
        return ()
    start_ms, end_ms = period_at(quota, as_of_ms)
    accelerator_ms, microdollars = used_since(state, tenant, start_ms, as_of_ms)
    found = []
    if quota.accelerator_hours is not None:
        limit = quota.accelerator_hours * HOUR_MS
        found.append(Standing(what="accelerator_ms", limit=limit, used=accelerator_ms, frees_ms=end_ms))
    if quota.microdollars is not None:
        found.append(Standing(what="microdollars", limit=quota.microdollars, used=microdollars, frees_ms=end_ms))
    return tuple(found)


def spent_budget(state: QuotaState, tenant: str, as_of_ms: int) -> Standing | None:
    """The limit of a period that the tenant has used up; None while there is something left of all."""
    return next((each for each in budgets(state, tenant, as_of_ms) if each.used >= each.limit), None)


def quota_text(quota: ev.Quota) -> str:
    """A quota for people."""
    parts = [
        f"{value} {name}"
        for name, value in (
            ("jobs", quota.jobs),
            ("nodes", quota.nodes),
            ("accelerator-hours", quota.accelerator_hours),
        )
        if value is not None
    ]
    if quota.microdollars is not None:
        parts.append(f"${quota.microdollars / 1_000_000:,.2f}")
    every = f"{quota.period_s // 3_600} hours" if quota.period_s else quota.period
    budgeted = quota.accelerator_hours is not None or quota.microdollars is not None
    return (", ".join(parts) or "anything") + (f" every {every}" if budgeted else "")


# --------------------------------------------------------------------------------------------------------------------
# Periods
# --------------------------------------------------------------------------------------------------------------------


def period_at(quota: ev.Quota, as_of_ms: int) -> tuple[int, int]:
    """The period that the time falls into: its begin and its end, Unix milliseconds."""
    if quota.period_s:
        length_ms = quota.period_s * 1_000
        start_ms = as_of_ms // length_ms * length_ms
        return start_ms, start_ms + length_ms
    day = as_of_ms // DAY_MS
    if quota.period == "day":
        return day * DAY_MS, (day + 1) * DAY_MS
    if quota.period == "week":
        # 1 January 1970 was a Thursday.
        monday = day - (day + 3) % 7
        return monday * DAY_MS, (monday + 7) * DAY_MS
    year, month = _month_of(day)
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return _first_day(year, month) * DAY_MS, _first_day(*following) * DAY_MS


def _first_day(year: int, month: int) -> int:
    """Days from 1970 to the first of a month of the Gregorian calendar, whose years here begin in March."""
    years, months = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return years * 365 + years // 4 - years // 100 + years // 400 + (months * 153 + 2) // 5 - 719_468


def _month_of(day: int) -> tuple[int, int]:
    year = 1970 + day * 400 // 146_097
    while _first_day(year + 1, 1) <= day:
        year += 1
    while _first_day(year, 1) > day:
        year -= 1
    return year, max(month for month in range(1, 13) if _first_day(year, month) <= day)
