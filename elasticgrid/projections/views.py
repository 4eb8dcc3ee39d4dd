"""Reading the views: typed answers, in pages, from a connection that can write nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

import aiosqlite
import msgspec

from elasticgrid.core.errors import NotFound
from elasticgrid.projections import schema
from elasticgrid.projections.results import (
    CostLine,
    CostReport,
    DecisionPage,
    DecisionView,
    EventPage,
    EventView,
    GridTotals,
    JobDetail,
    JobFacts,
    JobPage,
    JobSummary,
    LaunchView,
    NodeView,
    decode_cursor,
    encode_cursor,
)

CostBy: TypeAlias = Literal["job", "tenant", "provider"]

MAX_PAGE: Final = 1_000

_END: Final = "CASE gone_ms WHEN 0 THEN :as_of_ms ELSE gone_ms END"
_SPAN: Final = f"(CASE charged_from_ms WHEN 0 THEN 0 ELSE MAX({_END} - MAX(charged_from_ms, :since_ms), 0) END)"
# Each node's cost is rounded down by itself, as the core does. TOTAL cannot overflow where SUM would fail.
_COST: Final = f"CAST(TOTAL({_SPAN} * price_microdollars_per_hour / 3600000) AS INTEGER)"
_PRICE: Final = (
    "CAST(TOTAL(CASE WHEN charged_from_ms > 0 AND gone_ms = 0 THEN price_microdollars_per_hour ELSE 0 END) AS INTEGER)"
)
_OF_JOB: Final = "FROM nodes WHERE nodes.tenant = jobs.tenant AND nodes.job = jobs.id"
_SUMMARY_FIELDS: Final = tuple(
    name for name in JobSummary.__struct_fields__ if name not in ("cost_microdollars", "price_microdollars_per_hour")
)
_SUMMARY: Final = (
    ", ".join(f"jobs.{name}" for name in _SUMMARY_FIELDS)
    + f", (SELECT {_COST} {_OF_JOB}) AS cost_microdollars"
    + f", (SELECT {_PRICE} {_OF_JOB}) AS price_microdollars_per_hour"
)
_GROUPS: Final[dict[CostBy, str]] = {
    "job": "tenant AS tenant, job AS name",
    "tenant": "tenant AS tenant, '' AS name",
    "provider": "'' AS tenant, provider AS name",
}


class Views:
    """Answers from the file at `path`, also while it is written. A file that was made anew is opened again.

    Methods take the time that running nodes are charged until, Unix milliseconds. All of them raise `NotFound` when
    there is no file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: aiosqlite.Connection | None = None
        self._inode = 0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file."""
        async with self._turn:
            await self._close()

    async def sequence(self) -> int:
        """The last event that the answers contain."""
        async with self._reading() as connection:
            return await _sequence(connection)

    async def jobs(
        self, *, as_of_ms: int, tenant: str = "", phase: str = "", cursor: str = "", limit: int = 100
    ) -> JobPage:
        """A page of jobs, the newest first.

        Args:
            tenant, phase: only those; all when empty.
            cursor: `next_cursor` of the page before.
            limit: jobs in a page, at most `MAX_PAGE`.

        Raises:
            InvalidInput: the cursor is none of ours.
        """
        limit = min(max(limit, 1), MAX_PAGE)
        conditions = ["TRUE"]
        values: dict[str, Any] = {"as_of_ms": as_of_ms, "since_ms": 0, "limit": limit + 1}
        if tenant:
            conditions.append("jobs.tenant = :tenant")
            values["tenant"] = tenant
        if phase:
            conditions.append("jobs.phase = :phase")
            values["phase"] = phase
        if cursor:
            at_ms, of_tenant, job = decode_cursor(cursor, tuple[int, str, str])
            conditions.append(
                "(jobs.submitted_ms < :at_ms OR (jobs.submitted_ms = :at_ms AND (jobs.tenant, jobs.id) > (:of, :job)))"
            )
            values |= {"at_ms": _integer(at_ms), "of": of_tenant, "job": job}
        query = (
            f"SELECT {_SUMMARY} FROM jobs WHERE {' AND '.join(conditions)} "  # noqa: S608 - conditions of ours
            "ORDER BY jobs.submitted_ms DESC, jobs.tenant, jobs.id LIMIT :limit"
        )
        async with self._reading() as connection:
            items = [_summary(row) for row in await _all(connection, query, values)]
        last = items[limit - 1] if len(items) > limit else None
        return JobPage(
            items=tuple(items[:limit]),
            next_cursor=encode_cursor((last.submitted_ms, last.tenant, last.id)) if last is not None else "",
        )

    async def job(self, tenant: str, job: str, *, as_of_ms: int) -> JobDetail:
        """A job with its nodes and launches, all as of one event.

        Raises:
            NotFound: there is no such job.
        """
        key = {"tenant": tenant, "job": job}
        where = "WHERE tenant = :tenant AND job = :job ORDER BY id"
        async with self._reading() as connection:
            row = await self._job_row(connection, key, as_of_ms)
            nodes = await _all(connection, f"SELECT * FROM nodes {where}", key)  # noqa: S608 - no value in it
            launches = await _all(connection, f"SELECT * FROM launches {where}", key)  # noqa: S608 - likewise
        return JobDetail(
            job=_summary(row),
            facts=msgspec.json.decode(row["details"], type=JobFacts),
            nodes=tuple(NodeView(**_fields(NodeView, node)) for node in nodes),
            launches=tuple(LaunchView(**_fields(LaunchView, launch)) for launch in launches),
        )

    async def job_summary(self, tenant: str, job: str, *, as_of_ms: int) -> JobSummary:
        """A job in a line.

        Raises:
            NotFound: there is no such job.
        """
        async with self._reading() as connection:
            return _summary(await self._job_row(connection, {"tenant": tenant, "job": job}, as_of_ms))

    async def job_of_key(self, tenant: str, idempotency_key: str) -> str | None:
        """The id of the job that was submitted with this key; None when there is none."""
        query = "SELECT id FROM jobs WHERE tenant = :tenant AND idempotency_key = :key AND idempotency_key <> ''"
        async with self._reading() as connection:
            rows = await _all(connection, query, {"tenant": tenant, "key": idempotency_key})
        return str(rows[0]["id"]) if rows else None

    async def decisions_of(self, tenant: str, job: str, *, cursor: str = "", limit: int = 100) -> DecisionPage:
        """A page of a job's decisions, the newest first.

        Raises:
            NotFound: there is no such job.
            InvalidInput: the cursor is none of ours.
        """
        async with self._reading() as connection:
            await self._job_row(connection, {"tenant": tenant, "job": job}, 0)
        return await self.decisions(tenant=tenant, job=job, cursor=cursor, limit=limit)

    async def decisions(
        self,
        *,
        tenant: str = "",
        job: str = "",
        event_type: str = "",
        rule: str = "",
        action: str = "",
        cursor: str = "",
        limit: int = 100,
    ) -> DecisionPage:
        """A page of decisions, the newest first.

        Args:
            tenant, job, event_type, rule, action: only those; all when empty.
            cursor: `next_cursor` of the page before.
            limit: decisions in a page, at most `MAX_PAGE`.

        Raises:
            InvalidInput: the cursor is none of ours.
        """
        limit = min(max(limit, 1), MAX_PAGE)
        (before,) = decode_cursor(cursor, tuple[int]) if cursor else (2**62,)
        wanted = {"tenant": tenant, "job": job, "type": event_type, "rule": rule, "action": action}
        conditions = ["sequence < :before", *(f"decisions.{name} = :{name}" for name, value in wanted.items() if value)]
        where = " AND ".join(conditions)
        query = (
            "SELECT decisions.*, events.recorded_ms, events.took_effect, events.event "  # noqa: S608 - conditions of ours
            f"FROM decisions JOIN events USING (sequence) WHERE {where} ORDER BY sequence DESC LIMIT :limit"
        )
        async with self._reading() as connection:
            rows = await _all(connection, query, {**wanted, "before": _integer(before), "limit": limit + 1})
        items = tuple(
            DecisionView(
                **_fields(DecisionView, row)
                | {"took_effect": bool(row["took_effect"]), "event": msgspec.Raw(row["event"].encode())}
            )
            for row in rows[:limit]
        )
        return DecisionPage(items=items, next_cursor=encode_cursor((items[-1].sequence,)) if len(rows) > limit else "")

    async def events(
        self,
        *,
        after: int = 0,
        through: int | None = None,
        tenant: str = "",
        job: str = "",
        event_type: str = "",
        since_ms: int = 0,
        until_ms: int | None = None,
        limit: int = 100,
    ) -> EventPage:
        """A page of events with after < sequence <= through, in order.

        Args:
            tenant, job: only those; all when empty.
            event_type: only this type; `launch` stands for every type that begins with `launch.`.
            since_ms, until_ms: recorded from (inclusive) and until (exclusive).
            limit: events in a page, at most `MAX_PAGE`.
        """
        limit = min(max(limit, 1), MAX_PAGE)
        conditions, values = _event_filter(tenant, job, event_type, since_ms, until_ms)
        conditions += ["sequence > :after", "sequence <= :through"]
        values |= {"after": _integer(after), "limit": limit + 1}
        query = f"SELECT * FROM events WHERE {' AND '.join(conditions)} ORDER BY sequence LIMIT :limit"  # noqa: S608 - ours
        async with self._reading() as connection:
            end = await _sequence(connection)
            values["through"] = end = min(end, _integer(through)) if through is not None else end
            rows = await _all(connection, query, values)
        items = tuple(_event(row) for row in rows[:limit])
        more = len(rows) > limit
        return EventPage(items=items, next_after=items[-1].sequence if more else max(after, end), more=more)

    async def events_before(
        self,
        before: int | None = None,
        *,
        tenant: str = "",
        job: str = "",
        event_type: str = "",
        since_ms: int = 0,
        until_ms: int | None = None,
        limit: int = 100,
    ) -> EventPage:
        """A page of the last events before a sequence, the newest first; `next_before` continues with older ones.

        Args as of `events`; without `before` it begins at the end of the log.
        """
        limit = min(max(limit, 1), MAX_PAGE)
        conditions, values = _event_filter(tenant, job, event_type, since_ms, until_ms)
        conditions.append("sequence < :before")
        values |= {"before": _integer(before) if before is not None else 2**62, "limit": limit + 1}
        query = f"SELECT * FROM events WHERE {' AND '.join(conditions)} ORDER BY sequence DESC LIMIT :limit"  # noqa: S608 - ours
        async with self._reading() as connection:
            end = await _sequence(connection)
            rows = await _all(connection, query, values)
        items = tuple(_event(row) for row in rows[:limit])
        more = len(rows) > limit
        return EventPage(items=items, next_after=end, more=more, next_before=items[-1].sequence if more else 0)

    async def totals(self, *, as_of_ms: int, tenant: str = "") -> GridTotals:
        """The grid, or a tenant's part of it, in numbers."""
        where = "WHERE tenant = :tenant" if tenant else ""
        values = {"as_of_ms": _integer(as_of_ms), "since_ms": 0, "tenant": tenant}
        phases = f"SELECT phase, COUNT(*) AS jobs FROM jobs {where} GROUP BY phase ORDER BY phase"  # noqa: S608 - ours
        money = f"SELECT {_COST} AS cost_microdollars, {_PRICE} AS price_microdollars_per_hour FROM nodes {where}"  # noqa: S608 - ours
        async with self._reading() as connection:
            sequence = await _sequence(connection)
            jobs = {str(row["phase"]): int(row["jobs"]) for row in await _all(connection, phases, values)}
            (spent,) = await _all(connection, money, values)
        return GridTotals(
            as_of_ms=as_of_ms,
            sequence=sequence,
            jobs=jobs,
            cost_microdollars=int(spent["cost_microdollars"]),
            price_microdollars_per_hour=int(spent["price_microdollars_per_hour"]),
        )

    async def cost(self, *, by: CostBy, as_of_ms: int, since_ms: int = 0, tenant: str = "") -> CostReport:
        """What nodes cost from `since_ms` until `as_of_ms`, by job, tenant or provider."""
        condition = "tenant = :tenant" if tenant else "TRUE"
        query = (
            f"SELECT {_GROUPS[by]}, COUNT(*) AS nodes, CAST(TOTAL({_SPAN}) AS INTEGER) AS node_ms, "  # noqa: S608 - ours
            f"{_COST} AS cost_microdollars, {_PRICE} AS price_microdollars_per_hour "
            f"FROM nodes WHERE {condition} AND {_SPAN} > 0 GROUP BY 1, 2 ORDER BY cost_microdollars DESC, 1, 2"
        )
        values = {"as_of_ms": _integer(as_of_ms), "since_ms": _integer(since_ms), "tenant": tenant}
        async with self._reading() as connection:
            rows = await _all(connection, query, values)
        lines = tuple(CostLine(**_fields(CostLine, row)) for row in rows)
        total = sum(line.cost_microdollars for line in lines)
        return CostReport(by=by, since_ms=since_ms, as_of_ms=as_of_ms, lines=lines, cost_microdollars=total)

    async def _job_row(self, connection: aiosqlite.Connection, key: Mapping[str, Any], as_of_ms: int) -> sqlite3.Row:
        query = f"SELECT {_SUMMARY}, details FROM jobs WHERE tenant = :tenant AND id = :job"  # noqa: S608 - no value in it
        rows = await _all(connection, query, {**key, "as_of_ms": as_of_ms, "since_ms": 0})
        if not rows:
            raise NotFound(
                f"there is no job {key['job']} of tenant {key['tenant']}", where="job", hint="list jobs for their ids"
            )
        return rows[0]

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection in a transaction, so that everything read in it is as of one event."""
        async with self._turn:
            connection = await self._open()
            try:
                await connection.execute("BEGIN")
                yield connection
            except sqlite3.DatabaseError:
                await self._close()
                raise
            finally:
                if self._connection is not None:
                    await connection.execute("ROLLBACK")

    async def _open(self) -> aiosqlite.Connection:
        try:
            inode = self._path.stat().st_ino
            if self._connection is not None and inode == self._inode:
                return self._connection
            await self._close()
            self._connection = await schema.open_for_reading(self._path)
        except (FileNotFoundError, sqlite3.OperationalError) as error:
            raise NotFound("there are no views yet", where=str(self._path), hint="start the gateway") from error
        self._connection.row_factory = sqlite3.Row
        self._inode = inode
        return self._connection

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _event_filter(
    tenant: str, job: str, event_type: str, since_ms: int, until_ms: int | None
) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {}
    for column, value in (("tenant", tenant), ("job", job)):
        if value:
            conditions.append(f"{column} = :{column}")
            values[column] = value
    if event_type and "." not in event_type:
        conditions.append("type >= :type AND type < :type_end")
        values |= {"type": f"{event_type}.", "type_end": f"{event_type}/"}  # what follows the dot in ASCII
    elif event_type:
        conditions.append("type = :type")
        values["type"] = event_type
    if since_ms > 0:
        conditions.append("recorded_ms >= :since_ms")
        values["since_ms"] = _integer(since_ms)
    if until_ms is not None:
        conditions.append("recorded_ms < :until_ms")
        values["until_ms"] = _integer(until_ms)
    return conditions, values


async def _all(connection: aiosqlite.Connection, query: str, values: Mapping[str, Any]) -> list[sqlite3.Row]:
    async with connection.execute(query, values) as cursor:
        return list(await cursor.fetchall())


async def _sequence(connection: aiosqlite.Connection) -> int:
    rows = await _all(connection, "SELECT sequence FROM progress", {})
    return int(rows[0]["sequence"])


def _integer(value: int) -> int:
    """A number of a caller as SQLite can take it."""
    return max(-(2**62), min(value, 2**62))


def _fields(kind: type[msgspec.Struct], row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in kind.__struct_fields__}


def _summary(row: sqlite3.Row) -> JobSummary:
    return JobSummary(**_fields(JobSummary, row) | {"cancel_requested": bool(row["cancel_requested"])})


def _event(row: sqlite3.Row) -> EventView:
    return EventView(
        **_fields(EventView, row)
        | {
            "known": bool(row["known"]),
            "took_effect": bool(row["took_effect"]),
            "event": msgspec.Raw(row["event"].encode()),
        }
    )
