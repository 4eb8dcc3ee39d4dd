"""The tables of the views, how the file is opened, and when it cannot be used any more."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiosqlite

#: Another number means other tables, or other meanings: the file is made anew from the log.
VIEW_VERSION: Final = 2
BUSY_TIMEOUT_MS: Final = 5_000

# Tables with keys of text have no row numbers, so that what a file holds does not depend on the order of its writes.
_TABLES: Final = """
CREATE TABLE progress (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    sequence INTEGER NOT NULL,
    chain BLOB NOT NULL,
    events INTEGER NOT NULL,
    unknown_events INTEGER NOT NULL
);
INSERT INTO progress VALUES (1, 0, x'', 0, 0);

CREATE TABLE jobs (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    phase TEXT NOT NULL,
    band TEXT NOT NULL,
    min_nodes INTEGER NOT NULL,
    max_nodes INTEGER NOT NULL,
    target_nodes INTEGER NOT NULL,
    actual_nodes INTEGER NOT NULL,
    world_nodes INTEGER NOT NULL,
    round INTEGER NOT NULL,
    decisions INTEGER NOT NULL,
    action TEXT NOT NULL,
    rule TEXT NOT NULL,
    reason TEXT NOT NULL,
    waiting TEXT NOT NULL,
    paused TEXT NOT NULL,
    cancel_requested INTEGER NOT NULL,
    outcome_reason TEXT NOT NULL,
    checkpoint_step INTEGER NOT NULL,
    submitted_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    details TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX jobs_newest ON jobs (submitted_ms DESC, tenant, id);
CREATE INDEX jobs_idempotency ON jobs (tenant, idempotency_key) WHERE idempotency_key <> '';

CREATE TABLE nodes (
    tenant TEXT NOT NULL,
    job TEXT NOT NULL,
    id TEXT NOT NULL,
    assignment TEXT NOT NULL,
    provider TEXT NOT NULL,
    market TEXT NOT NULL,
    status TEXT NOT NULL,
    host TEXT NOT NULL,
    round INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    price_microdollars_per_hour INTEGER NOT NULL,
    charged_from_ms INTEGER NOT NULL,
    gone_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, job, id)
) WITHOUT ROWID;

CREATE TABLE launches (
    tenant TEXT NOT NULL,
    job TEXT NOT NULL,
    id TEXT NOT NULL,
    provider TEXT NOT NULL,
    market TEXT NOT NULL,
    status TEXT NOT NULL,
    nodes INTEGER NOT NULL,
    price_microdollars_per_hour INTEGER NOT NULL,
    placed_ms INTEGER NOT NULL,
    released_ms INTEGER NOT NULL,
    handle TEXT NOT NULL,
    failure TEXT NOT NULL,
    PRIMARY KEY (tenant, job, id)
) WITHOUT ROWID;

CREATE TABLE decisions (
    sequence INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    job TEXT NOT NULL,
    number INTEGER NOT NULL,
    type TEXT NOT NULL,
    rule TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    from_nodes INTEGER,
    to_nodes INTEGER
);
CREATE INDEX decisions_of_job ON decisions (tenant, job, sequence);
CREATE INDEX decisions_of_type ON decisions (type, sequence);
CREATE INDEX decisions_of_rule ON decisions (rule, sequence);

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    recorded_ms INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    job TEXT NOT NULL,
    type TEXT NOT NULL,
    actor TEXT NOT NULL,
    known INTEGER NOT NULL,
    took_effect INTEGER NOT NULL,
    text TEXT NOT NULL,
    event TEXT NOT NULL
);
CREATE INDEX events_of_job ON events (tenant, job, sequence);
CREATE INDEX events_of_type ON events (type, sequence);
"""


async def open_for_writing(path: Path) -> aiosqlite.Connection:
    """The file at `path` with the tables of this version; a file of another version is deleted and made anew.

    Raises:
        sqlite3.DatabaseError: the file is damaged; see `is_damage`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = await _connect(path)
    try:
        version = await _pragma(connection, "user_version")
        if version != VIEW_VERSION:
            await connection.close()
            discard(path)
            connection = await _connect(path)
            await connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {VIEW_VERSION}; {_TABLES} COMMIT;")
        elif (found := await _pragma(connection, "quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(f"{_MALFORMED}: {found}")
    except BaseException:
        await connection.close()
        raise
    return connection


async def open_for_reading(path: Path) -> aiosqlite.Connection:
    """The file at `path`, read only. Raises sqlite3.OperationalError when there is none."""
    connection = await aiosqlite.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
    try:
        await connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    except BaseException:
        await connection.close()
        raise
    return connection


def discard(path: Path) -> None:
    """Delete the file and what SQLite keeps beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


_MALFORMED: Final = "malformed"


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is wrong, and not only busy, full or out of reach."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return str(error).startswith(_MALFORMED)
    # The low byte is the kind, the rest says more about it. No such table or column: other hands changed the file.
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


async def _connect(path: Path) -> aiosqlite.Connection:
    connection = await aiosqlite.connect(path, isolation_level=None)
    try:
        await connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        await connection.execute("PRAGMA journal_mode = WAL")
        # A commit lost with the machine's power is made again from the log.
        await connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        await connection.close()
        raise
    return connection


async def _pragma(connection: aiosqlite.Connection, name: str) -> object:
    async with connection.execute(f"PRAGMA {name}") as cursor:
        row = await cursor.fetchone()
    return None if row is None else row[0]
