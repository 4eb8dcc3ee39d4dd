"""What tenants may have and what they use: a fold over the facts that nodes run, at the prices that launches carry.

A node is charged from the fact that it runs until the fact that it is gone, by the hours of the log's clock. Hours that
are over are summed up, so a tenant's whole past is a few numbers an hour and every period is made of whole hours.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.job import GONE, JobState

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: The longest period is a leap year; older hours are forgotten.
KEPT_HOURS: Final = 400 * 24
#: A thousand jobs make shards of sixteen.
SHARDS: Final = 64


class Running(msgspec.Struct, frozen=True):
    """A node that is charged: since when, at which price, and as how many accelerators."""

    since_ms: int
    price_microdollars_per_hour: int
    accelerators: int


class Hour(msgspec.Struct, frozen=True):
    """What was used in one hour by nodes that are gone: accelerator-milliseconds, and price times milliseconds."""

    accelerator_ms: int = 0
    price_ms: int = 0


class JobUse(msgspec.Struct, frozen=True):
    """A job's nodes that are charged, and whether the job is over."""

    running: dict[str, Running] = {}
    over: bool = False


class Opened(msgspec.Struct, frozen=True):
    """Nodes that are charged since some time of one hour, summed up: what they use grows by these numbers.

    Attributes:
        accelerators, price: of all of them.
        accelerator_since, price_since: each node's times the time it is charged since.
    """

    accelerators: int = 0
    accelerator_since: int = 0
    price: int = 0
    price_since: int = 0

    def with_node(self, node: Running, sign: int) -> Opened:
        """With one more of these nodes, or with one less."""
        return Opened(
            self.accelerators + sign * node.accelerators,
            self.accelerator_since + sign * node.accelerators * node.since_ms,
            self.price + sign * node.price_microdollars_per_hour,
            self.price_since + sign * node.price_microdollars_per_hour * node.since_ms,
        )


class TenantUse(msgspec.Struct, frozen=True):
    """What a tenant uses.

    Attributes:
        active: jobs that are not over.
        jobs: those and the ones that still have nodes, in shards, so that replacing one costs little.
        opened: nodes that are charged, by the hour since 1970 that they are charged since.
        hours: what is past, by hour.
    """

    active: int = 0
    jobs: tuple[dict[str, JobUse], ...] = ()
    opened: dict[int, Opened] = {}
    hours: dict[int, Hour] = {}


class QuotaState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was set, and what is used, by tenant."""

    quotas: dict[str, ev.Quota] = {}
    use: dict[str, TenantUse] = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
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


def evolve_quotas(state: QuotaState, job: JobState | None, recorded: ev.Recorded) -> QuotaState:
    """The state after one more event; the very same when it says nothing of this.

    Args:
        state: before it.
        job: the job that it concerns, after it; None for a fact about the grid.
        recorded: the event.
    """
    event = recorded.event
    if isinstance(event, ev.UnknownEvent):
        return state
    data = event.data
    if isinstance(data, ev.QuotaSet):
        return replace(state, quotas=state.quotas | {data.tenant: data.quota})
    if job is None or job.spec is None or type(data) not in _CHARGING:
        return state
    match data:
        case ev.JobSubmitted() | ev.OutcomeDecided():
            nodes: tuple[str, ...] = ()
        case ev.LaunchStarted() | ev.LaunchFailed() | ev.LaunchStopped():
            launch = job.launches.get(data.attempt)
            nodes = launch.nodes if launch is not None else ()
        case ev.NodeJoined() | ev.NodeLeft() | ev.NodeLost():
            nodes = (data.node,)
        case _:
            return state
    use = state.use.get(job.tenant, _NO_USE)
    changed = _charged(use, job, nodes, recorded.recorded_ms)
    return state if changed is use else replace(state, use=state.use | {job.tenant: changed})


#: What most events are not, asked first.
_CHARGING: Final = frozenset(
    {
        ev.JobSubmitted,
        ev.OutcomeDecided,
        ev.LaunchStarted,
        ev.LaunchFailed,
        ev.LaunchStopped,
        ev.NodeJoined,
        ev.NodeLeft,
        ev.NodeLost,
    }
)
_NOTHING: Final = Hour()
_NO_USE: Final = TenantUse()
_NEW_JOB: Final = JobUse()
_NONE_OPENED: Final = Opened()


def _charged(use: TenantUse, job: JobState, nodes: tuple[str, ...], now_ms: int) -> TenantUse:
    """What the tenant uses now that these nodes of the job are as the job says."""
    assert job.spec is not None
    shard = crc32(job.id.encode()) % SHARDS
    known = use.jobs[shard].get(job.id) if use.jobs else None
    old = known if known is not None else _NEW_JOB
    running, opened, hours = old.running, use.opened, use.hours
    for node_id in nodes:
        node = job.nodes.get(node_id)
        if node is None:
            continue
        span = running.get(node_id)
        if span is None and node.charged_from_ms and node.status not in GONE:
            price = job.launches[node.assignment].price_microdollars_per_hour
            span = Running(node.charged_from_ms, price, job.spec.nproc_per_node)
            running = running | {node_id: span}
            opened = _with_opened(opened, span, 1)
        elif span is not None and node.status in GONE:
            running = {other: each for other, each in running.items() if other != node_id}
            opened = _with_opened(opened, span, -1)
            hours = _closed(hours, span, now_ms)
    if running is old.running and old.over == job.terminal and (known is not None or job.terminal):
        return use
    jobs = list(use.jobs or ({},) * SHARDS)
    jobs[shard] = {other: each for other, each in jobs[shard].items() if other != job.id}
    if running or not job.terminal:
        jobs[shard][job.id] = JobUse(running, job.terminal)
    was_active = known is not None and not known.over
    return TenantUse(use.active + (not job.terminal) - was_active, tuple(jobs), opened, hours)


def _with_opened(opened: dict[int, Opened], node: Running, sign: int) -> dict[int, Opened]:
    hour = node.since_ms // HOUR_MS
    changed = opened.get(hour, _NONE_OPENED).with_node(node, sign)
    after = {other: each for other, each in opened.items() if other != hour}
    if changed != _NONE_OPENED:
        after[hour] = changed
    return after


def _closed(hours: dict[int, Hour], span: Running, until_ms: int) -> dict[int, Hour]:
    """The hours with what a node used until it was gone."""
    after = dict(hours)
    last = until_ms // HOUR_MS
    for hour in range(max(span.since_ms // HOUR_MS, last - KEPT_HOURS), last + 1):
        part_ms = min(until_ms, (hour + 1) * HOUR_MS) - max(span.since_ms, hour * HOUR_MS)
        if part_ms > 0:
            old = after.get(hour, Hour())
            after[hour] = Hour(
                old.accelerator_ms + part_ms * span.accelerators,
                old.price_ms + part_ms * span.price_microdollars_per_hour,
            )
    return (
        {hour: each for hour, each in after.items() if hour >= last - KEPT_HOURS} if len(after) > KEPT_HOURS else after
    )


# --------------------------------------------------------------------------------------------------------------------
# Questions
# --------------------------------------------------------------------------------------------------------------------


def used_since(state: QuotaState, tenant: str, since_ms: int, as_of_ms: int) -> tuple[int, int]:
    """Accelerator-milliseconds and microdollars used from `since_ms`, a whole hour, until `as_of_ms`."""
    use = state.use.get(tenant, _NO_USE)
    accelerator_ms = price_ms = 0
    for hour in range(since_ms // HOUR_MS, as_of_ms // HOUR_MS + 1) if use.hours else ():
        past = use.hours.get(hour, _NOTHING)
        accelerator_ms += past.accelerator_ms
        price_ms += past.price_ms
    for hour, nodes in use.opened.items():
        before = hour * HOUR_MS < since_ms
        accelerator_ms += as_of_ms * nodes.accelerators
        accelerator_ms -= since_ms * nodes.accelerators if before else nodes.accelerator_since
        price_ms += as_of_ms * nodes.price - (since_ms * nodes.price if before else nodes.price_since)
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
