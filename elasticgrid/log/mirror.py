"""The mirror: a copy of the event log in SQLite that outlives what may happen to the stream.

Every record is tied to all records before it by a chain of hashes, so a changed, missing or foreign one is found and
named. Records are written in batches, one transaction each, and a transaction is on the disk before it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiosqlite
import msgspec

from elasticgrid.core.errors import LogError
from elasticgrid.log.mirror_file import (
    MirrorDamaged,
    open_for_reading,
    open_for_writing,
    pragma,
    set_aside,
    sqlite_errors,
    take_lock,
)
from elasticgrid.log.mirror_record import CHAIN_START, LogRecord, next_chain

READ_BATCH: Final = 1_000
#: Rows of one statement. A statement takes the interpreter's lock once, and one that steps through rows takes it again
#: for every row, which beside a busy reader is what takes the time.
_STATEMENT_ROWS: Final = 500
_SELECT: Final = "SELECT sequence, recorded_ms, subject, data, is_event, chain FROM records"


class Difference(msgspec.Struct, frozen=True):
    """Where stream and mirror tell different stories.

    Attributes:
        sequence: the first such place of what was compared.
        stream, mirror: what stands there on each side; None for nothing.
        mirror_damaged: the chain proves that the stream has what was mirrored and that the mirror's copy was changed.
    """

    sequence: int
    stream: LogRecord | None
    mirror: LogRecord | None
    mirror_damaged: bool = False


class BadRecord(msgspec.Struct, frozen=True):
    """The first record of a mirror that does not follow from the one before; sequence 0 for the file as a whole."""

    sequence: int
    what: str


class Mirror:
    """An open mirror; `open` makes one. Also an async context manager that closes it.

    Attributes:
        path: the file.
        put_aside: files that could not be used and were renamed, oldest first.
    """

    def __init__(self, path: Path, connection: aiosqlite.Connection, lock: int | None) -> None:
        self.path = path
        self.put_aside: list[Path] = []
        self._connection = connection
        self._lock_fd = lock
        self._lock = asyncio.Lock()
        self._last = 0
        self._chain = CHAIN_START

    @classmethod
    async def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """The mirror at `path`.

        A file that is damaged, foreign or of another version is set aside and a new one begun, which is filled from the
        stream by whoever reads the log through it.

        Args:
            path: the file; made, with its folder, when missing.
            read_only: only look at it. Nothing is made or set aside, and another process may be writing it.

        Raises:
            LogError: another process writes it, or it cannot be made.
            NotFound, MirrorDamaged: with `read_only`, there is none that can be used.
        """
        if read_only:
            return await cls._load(path, await open_for_reading(path), None)
        lock = await take_lock(path)
        try:
            try:
                return await cls._load(path, await open_for_writing(path), lock)
            except MirrorDamaged as damaged:
                aside = set_aside(path, damaged.unusable, damaged.what)
                mirror = await cls._load(path, await open_for_writing(path), lock)
                mirror.put_aside += _kept(aside)
                return mirror
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    async def _load(cls, path: Path, connection: aiosqlite.Connection, lock: int | None) -> Self:
        mirror = cls(path, connection, lock)
        try:
            rows = await mirror._rows(f"{_SELECT} ORDER BY sequence DESC LIMIT 1", ())
        except BaseException:
            await connection.close()
            raise
        if rows:
            mirror._last, mirror._chain = int(rows[0][0]), bytes(rows[0][5])
        return mirror

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file, once what is being written is written."""
        async with self._lock:
            await self._connection.close()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    @property
    def last(self) -> int:
        """The sequence of the last record, 0 when there is none."""
        return self._last

    async def append(self, records: Sequence[LogRecord]) -> None:
        """Write records, in order, in one transaction; they are on the disk when this returns.

        Records that are here already are compared, so appending again what may have been written changes nothing.

        Raises:
            LogError: another record stands at one of these places, or the file cannot be written.
            MirrorDamaged: the file is damaged.
        """
        difference = await self.keep(records)
        if difference is not None:
            raise LogError(f"the mirror holds another record {difference.sequence} already", where=str(self.path))

    async def keep(self, records: Sequence[LogRecord], *, after: int | None = None) -> Difference | None:
        """Have these records: what is new is written, what is here already is compared.

        Args:
            records: in order.
            after: the records are all that the log holds after this sequence, so that what only the mirror has is a
                difference too; None when they are a selection.

        Returns:
            The first difference, and then nothing was written.

        Raises:
            LogError: they are not in order, or the file cannot be written.
            MirrorDamaged: the file is damaged.
        """
        # A transaction once begun is ended also when the caller is cancelled.
        return await asyncio.shield(asyncio.create_task(self._keep(records, after)))

    async def _keep(self, records: Sequence[LogRecord], after: int | None) -> Difference | None:
        async with self._lock:
            last = self._last
            fresh = [record for record in records if record.sequence > last]
            known = records[: len(records) - len(fresh)]
            if known or (after is not None and after < last):
                differences = await self._compare(known, after, last if fresh else records[-1].sequence)
                if differences:
                    return differences[-1]
            if fresh:
                await self._write(fresh)
            return None

    async def compare(self, records: Sequence[LogRecord], *, after: int, through: int) -> list[Difference]:
        """The differences between the mirror and these records, which are all the log holds in that range.

        All copies that the mirror has damaged are named, and of all others the first.
        """
        async with self._lock:
            return await self._compare(records, after, min(through, self._last))

    async def records(self, *, after: int = 0, limit: int = READ_BATCH) -> list[LogRecord]:
        """At most `limit` records after `after`, in order."""
        rows = await self._rows(f"{_SELECT} WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit))
        return [_record(row) for row in rows]

    async def first_event(self, *, after: int, through: int) -> LogRecord | None:
        """The first event with after < sequence <= through."""
        query = f"{_SELECT} WHERE sequence > ? AND sequence <= ? AND is_event ORDER BY sequence LIMIT 1"
        rows = await self._rows(query, (after, through))
        return _record(rows[0]) if rows else None

    async def tail(self, limit: int) -> list[LogRecord]:
        """The last records, at most `limit`, in order."""
        rows = await self._rows(f"{_SELECT} ORDER BY sequence DESC LIMIT ?", (limit,))
        return [_record(row) for row in reversed(rows)]

    async def read(self, *, after: int = 0) -> AsyncGenerator[LogRecord]:
        """Yield the records after `after`, each proven against the chain, until the last one there is now.

        Raises:
            MirrorDamaged: names the first record that is not what was written.
        """
        chain = CHAIN_START if after <= 0 else await self._chain_through(after)
        while rows := await self._rows(f"{_SELECT} WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, READ_BATCH)):
            for row in rows:
                record = _record(row)
                chain = next_chain(chain, record)
                if chain != row[5]:
                    raise MirrorDamaged(
                        f"record {record.sequence} of the mirror, or what was before it, is not what was written",
                        where=str(self.path),
                        sequence=record.sequence,
                    )
                yield record
                after = record.sequence

    async def check(self) -> BadRecord | None:
        """Walk through the whole file; the first record that is not what was written, or None."""
        try:
            with sqlite_errors(self.path):
                found = await pragma(self._connection, "quick_check(1)")
            if found != "ok":
                return BadRecord(0, f"SQLite finds the file damaged: {found}")
            async for _ in self.read():
                pass
        except MirrorDamaged as damaged:
            return BadRecord(damaged.sequence, damaged.what)
        return None

    async def chain_at(self, sequence: int) -> bytes | None:
        """The chain of the record at `sequence`: it stands for the log up to there. None when there is none."""
        if sequence == 0:
            return CHAIN_START
        rows = await self._rows(f"{_SELECT} WHERE sequence = ?", (sequence,))
        return bytes(rows[0][5]) if rows else None

    async def start_anew(self, why: str) -> None:
        """Set the file aside as damaged and begin an empty one."""
        async with self._lock:
            await self._connection.close()
            self.put_aside += _kept(set_aside(self.path, "damaged", why))
            self._connection = await open_for_writing(self.path)
            self._last, self._chain = 0, CHAIN_START

    async def _rows(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        with sqlite_errors(self.path):
            return list(await self._connection.execute_fetchall(query, parameters))

    async def _write(self, records: Iterable[LogRecord]) -> None:
        chain, last = self._chain, self._last
        rows = []
        for record in records:
            if record.sequence <= last:
                raise LogError(f"record {record.sequence} does not follow record {last}", where=str(self.path))
            chain, last = next_chain(chain, record), record.sequence
            rows.append((last, record.recorded_ms, record.subject, record.data, record.is_event, chain))
        if len(rows) <= _STATEMENT_ROWS:
            await self._insert(rows)
        else:
            await self._rows("BEGIN IMMEDIATE")
            try:
                for first in range(0, len(rows), _STATEMENT_ROWS):
                    await self._insert(rows[first : first + _STATEMENT_ROWS])
                await self._rows("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    await self._connection.rollback()
                raise
        self._chain, self._last = chain, last

    async def _insert(self, rows: Sequence[tuple[object, ...]]) -> None:
        places = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows))
        # Only places for parameters are put into the statement.
        await self._rows(f"INSERT INTO records VALUES {places}", [value for row in rows for value in row])  # noqa: S608

    async def _compare(self, records: Sequence[LogRecord], after: int | None, through: int) -> list[Difference]:
        if len(records) <= _STATEMENT_ROWS and await self._holds(records, after, through):
            return []
        if after is not None:
            query, parameters = f"{_SELECT} WHERE sequence > ? AND sequence <= ? ORDER BY sequence", [after, through]
        else:
            places = ", ".join("?" * len(records))
            query = f"{_SELECT} WHERE sequence IN ({places}) ORDER BY sequence"
            parameters = [record.sequence for record in records]
        rows = await self._rows(query, parameters)
        mirrored = [_record(row) for row in rows]
        in_mirror = {record.sequence: record for record in mirrored}
        in_stream = {record.sequence: record for record in records}
        differences = []
        for sequence in sorted(in_mirror.keys() | in_stream.keys()):
            mirror, stream = in_mirror.get(sequence), in_stream.get(sequence)
            if mirror is None or stream is None:
                same = stream is None and mirror is not None and not mirror.is_event
            else:
                same = _content(mirror) == _content(stream)
            if not same:
                damaged = stream is not None and await self._proves(stream)
                differences.append(Difference(sequence, stream, mirror, damaged))
                if not damaged:
                    break
        return differences

    async def _holds(self, records: Sequence[LogRecord], after: int | None, through: int) -> bool:
        """Whether the mirror has exactly these records, and in the range after `after` no other event."""
        if not records:
            return False
        places = ", ".join(["(?, ?, ?, ?)"] * len(records))
        content = [value for each in records for value in (each.sequence, each.recorded_ms, each.subject, each.data)]
        alike = (  # Only places for parameters are put into it.
            f"SELECT count(*) FROM (VALUES {places}) AS given"  # noqa: S608
            " CROSS JOIN records AS kept ON kept.sequence = given.column1"
            " AND kept.recorded_ms = given.column2 AND kept.subject = given.column3 AND kept.data = given.column4"
        )
        events = "SELECT count(*) FROM records WHERE sequence > ? AND sequence <= ? AND is_event"
        found = await self._rows(f"SELECT ({alike}), ({events})", [*content, after or 0, through])
        equal, in_range = found[0]
        return bool(equal == len(records) and (after is None or in_range <= sum(each.is_event for each in records)))

    async def _proves(self, stream: LogRecord) -> bool:
        """Whether the chain says that this record is what was once written here, whatever is read here now."""
        chain = next_chain(await self._chain_through(stream.sequence - 1), stream)
        rows = await self._rows(f"{_SELECT} WHERE sequence >= ? ORDER BY sequence LIMIT 1", (stream.sequence,))
        if not rows:
            return False
        if rows[0][0] == stream.sequence:
            return bool(rows[0][5] == chain)
        return bool(rows[0][5] == next_chain(chain, _record(rows[0])))

    async def _chain_through(self, sequence: int) -> bytes:
        rows = await self._rows(f"{_SELECT} WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1", (sequence,))
        return bytes(rows[0][5]) if rows else CHAIN_START


def _record(row: Any) -> LogRecord:
    return LogRecord(row[0], row[1], row[2], row[3], row[4] == 1)


def _content(record: LogRecord) -> tuple[int, str, bytes]:
    return record.recorded_ms, record.subject, record.data


def _kept(path: Path | None) -> list[Path]:
    return [] if path is None else [path]
