"""The projector: folds the log into the views' file, and makes the file anew whenever it cannot be trusted.

How far the file has come is written in the transaction of the rows themselves, with a hash over every event folded so
far. On start the log is folded from its beginning; if the hash at that place is another one, the file tells of another
log and is made anew. While the log is being caught up with, many events share a transaction; an event that comes alone
has its own at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiosqlite
import msgspec
import structlog

from elasticgrid.core.errors import BusUnavailable, LogError
from elasticgrid.core.grid import GridFold
from elasticgrid.log.event_batches import in_batches
from elasticgrid.log.port import EventLog
from elasticgrid.projections import schema
from elasticgrid.projections.log_counts import LogCounts
from elasticgrid.projections.results import EventView
from elasticgrid.projections.rows import Row, ViewFold

log = structlog.get_logger("projections")

BATCH_EVENTS: Final = 500
_TABLES: Final = ("jobs", "nodes", "launches", "decisions", "events")

OnCommit = Callable[[Sequence[EventView]], None]


class ProjectorStats(msgspec.Struct, frozen=True):
    """What the projector has done since it started.

    Attributes:
        sequence: the last event that can be read from the file.
        events, unknown_events: all events folded, and those of a type this version does not know.
        commits: transactions.
        rebuilt: why the file was made anew, each time.
    """

    sequence: int
    events: int
    unknown_events: int
    commits: int
    rebuilt: tuple[str, ...]


class _Unusable(Exception):  # noqa: N818 - it never leaves this module
    """The file does not tell of this log; the text says how."""


class Projector:
    """Keeps the views at `path` up with `log`, from entering the context until leaving it.

    Args:
        log: what is folded.
        path: the file; made, with its folder, when missing.
        batch_events: the most events of one transaction.
        on_commit: told of the events of each transaction, once they can be read.
    """

    def __init__(
        self, log: EventLog, path: Path, *, batch_events: int = BATCH_EVENTS, on_commit: OnCommit | None = None
    ) -> None:
        self.path = path
        self._log = log
        self._batch_events = batch_events
        self._on_commit = on_commit
        self._fold = ViewFold()
        self._sequence = 0
        self._readable = False
        self._commits = 0
        self._commits_of_file = 0
        self._rebuilt: list[str] = []
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sequence(self) -> int:
        """The last event that can be read from the file."""
        return self._sequence

    @property
    def grid(self) -> GridFold:
        """The fold the rows are made of, for reading. It may be ahead of the file by the transaction under way."""
        return self._fold.grid

    @property
    def counts(self) -> LogCounts:
        """Totals over everything folded, for reading; as far as `grid` is."""
        return self._fold.counts

    @property
    def stats(self) -> ProjectorStats:
        """What was done so far."""
        grid = self._fold.grid
        return ProjectorStats(self._sequence, grid.events, grid.unknown_events, self._commits, tuple(self._rebuilt))

    async def __aenter__(self) -> Self:
        """Start, and return once the file can be read. It may be behind the log still: see `wait_for`.

        Raises:
            LogError, BusUnavailable: the log cannot be read.
        """
        self._task = asyncio.create_task(self._run(), name="projector")
        self._task.add_done_callback(lambda _: self._wake())
        try:
            await self._until(lambda: self._readable)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def wait_for(self, sequence: int, *, timeout_s: float = 10.0) -> None:
        """Wait until event `sequence` can be read from the file, so that a writer reads what it wrote.

        Raises:
            BusUnavailable: it did not come in that time; it may still.
            LogError: the projector has stopped because the log cannot be trusted.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(lambda: self._sequence >= sequence)
        except TimeoutError:
            raise BusUnavailable(
                f"the views are at event {self._sequence} and {sequence} did not come in {timeout_s:g} s",
                hint="read again in a moment",
            ) from None

    async def wait_stopped(self) -> None:
        """Wait until the projector cannot go on, and raise why. It never returns while the context is open."""
        assert self._task is not None
        await asyncio.shield(self._task)

    @property
    def running(self) -> bool:
        """Whether the views are kept up."""
        return self._task is not None and not self._task.done()

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _until(self, reached: Callable[[], bool]) -> None:
        assert self._task is not None
        while not reached():
            if self._task.done():
                self._task.result()
                raise LogError("the projector was stopped", hint="start the gateway again")
            await self._moved.wait()

    async def _run(self) -> None:
        while True:
            self._commits_of_file = 0
            try:
                await self._project()
            except _Unusable as unusable:
                self._begin_anew(str(unusable))
            except sqlite3.DatabaseError as error:
                # A new file that fails before its first transaction would fail for ever.
                if not schema.is_damage(error) or (self._rebuilt and not self._commits_of_file):
                    raise
                self._begin_anew(f"damaged: {error}")

    def _begin_anew(self, why: str) -> None:
        log.warning("views_made_anew", path=str(self.path), why=why)
        self._rebuilt.append(why)
        schema.discard(self.path)

    async def _project(self) -> None:
        """Fold and write until the log cannot be followed any more, or the file not be used."""
        async with _closing(await schema.open_for_writing(self.path)) as connection:
            stored_sequence, stored_chain = await _progress(connection)
            self._fold = ViewFold()
            if stored_sequence > await self._log.last_sequence():
                raise _Unusable(f"the file is at event {stored_sequence}, which the log does not have")
            if not stored_sequence:
                self._can_be_read(0)
            async with aclosing(in_batches(self._log.follow(), self._batch_events)) as batches:
                async for batch in batches:
                    for recorded in batch:
                        if self._fold.sequence < stored_sequence < recorded.sequence:
                            raise _Unusable(f"the log has no event {stored_sequence}, which the file is at")
                        self._fold.apply(recorded)
                        if self._fold.sequence == stored_sequence:
                            if self._fold.chain != stored_chain:
                                raise _Unusable(f"the file tells of another log, up to event {stored_sequence}")
                            self._fold.take()
                            self._can_be_read(stored_sequence)
                    if self._fold.sequence > stored_sequence:
                        stored_sequence = await self._commit(connection, stored_sequence)
                    elif self._fold.sequence < stored_sequence:
                        self._fold.take()

    def _can_be_read(self, sequence: int) -> None:
        self._readable = True
        self._sequence = sequence
        self._wake()

    async def _commit(self, connection: aiosqlite.Connection, before: int) -> int:
        """Write the rows that changed and where they bring the file; return that."""
        rows = self._fold.take()
        grid = self._fold.grid
        await connection.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            await _write(connection, table, getattr(rows, table))
        moved = await connection.execute(
            "UPDATE progress SET sequence = ?, chain = ?, events = ?, unknown_events = ? WHERE sequence = ?",
            (self._fold.sequence, self._fold.chain, grid.events, grid.unknown_events, before),
        )
        if moved.rowcount != 1:
            raise LogError(
                "another process writes these views", where=str(self.path), hint="give each gateway its own data folder"
            )
        await connection.execute("COMMIT")
        self._commits += 1
        self._commits_of_file += 1
        if self._on_commit is not None:
            self._on_commit(rows.views)
        self._can_be_read(self._fold.sequence)
        return self._fold.sequence


@asynccontextmanager
async def _closing(connection: aiosqlite.Connection) -> AsyncIterator[aiosqlite.Connection]:
    """Close the connection at the end; what was not committed is undone."""
    try:
        yield connection
    finally:
        await connection.close()


async def _progress(connection: aiosqlite.Connection) -> tuple[int, bytes]:
    async with connection.execute("SELECT sequence, chain FROM progress") as cursor:
        row = await cursor.fetchone()
    if row is None:
        raise _Unusable("the file does not say how far it is")
    return int(row[0]), bytes(row[1])


async def _write(connection: aiosqlite.Connection, table: str, rows: Sequence[Row]) -> None:
    if rows:
        places = ", ".join("?" * len(rows[0]))
        # The table's name is one of ours.
        await connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)  # noqa: S608
