"""The mirror's SQLite file: how it is made and opened, who holds it, and how one that cannot be used is set aside."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import aiosqlite
import structlog

from elasticgrid.core.errors import LogError, NotFound

_log = structlog.get_logger("elasticgrid.log.mirror")

#: Marks the file as a mirror: "egmr".
APPLICATION_ID: Final = 0x65676D72
#: Another number means other tables, or another chain.
MIRROR_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 5_000
#: How long a process that is just ending may hold the file before that is an error.
LOCK_PATIENCE_S: Final = 3.0

Unusable = Literal["damaged", "foreign", "other-version"]

_TABLES: Final = """
CREATE TABLE records (
    sequence INTEGER PRIMARY KEY,
    recorded_ms INTEGER NOT NULL,
    subject TEXT NOT NULL,
    data BLOB NOT NULL,
    is_event INTEGER NOT NULL,
    chain BLOB NOT NULL
) STRICT;
"""
#: The mirror's name in a control plane's folder.
MIRROR_FILE: Final = "mirror.sqlite"
_COLUMNS: Final = "sequence,recorded_ms,subject,data,is_event,chain"
_SIDE_FILES: Final = ("-wal", "-shm")


class MirrorDamaged(LogError):  # noqa: N818 - named as all of the log's errors are
    """The mirror's file cannot be used.

    Attributes:
        unusable: which way; part of the name it is set aside under.
        sequence: the first record that is not what was written; 0 when it is the file as a whole.
    """

    code = "mirror_damaged"

    def __init__(self, what: str, *, where: str, unusable: Unusable = "damaged", sequence: int = 0) -> None:
        super().__init__(what, where=where, hint="set the file aside; it is made anew from the stream")
        self.unusable: Unusable = unusable
        self.sequence = sequence


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours: damage of the file apart from a disk that is full or a file out of reach."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # The low byte is the kind, the rest says more about it. No such table: other hands changed the file.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise MirrorDamaged(f"the mirror is damaged: {error}", where=str(path)) from error
        raise LogError(
            f"the mirror cannot be used now: {error}", where=str(path), hint="is the disk full or read-only?"
        ) from error


async def open_for_writing(path: Path) -> aiosqlite.Connection:
    """The file at `path`, made if there is none.

    Raises:
        MirrorDamaged: what lies there is no mirror of this version, or does not open.
        LogError: it cannot be made or reached.
    """
    with sqlite_errors(path):
        connection = await aiosqlite.connect(path, isolation_level=None)
        try:
            await pragma(connection, f"busy_timeout = {BUSY_TIMEOUT_MS}")
            if await _is_empty(connection):
                await pragma(connection, "journal_mode = WAL")
                await connection.executescript(
                    f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID};"
                    f"PRAGMA user_version = {MIRROR_VERSION}; {_TABLES} COMMIT;"
                )
            await _refuse_unusable(connection, path)
            # Nothing acts on an event before it is here, so what is here has to outlive the machine's power.
            await pragma(connection, "synchronous = FULL")
        except BaseException:
            await connection.close()
            raise
    return connection


async def open_for_reading(path: Path) -> aiosqlite.Connection:
    """The file at `path`, which nobody else is kept from.

    Raises:
        NotFound: there is none.
        MirrorDamaged: it is no mirror of this version, or does not open.
    """
    if not path.exists():  # noqa: ASYNC240 # one look at a local file
        raise NotFound("there is no mirror of the log here", where=str(path), hint="give the data folder of the grid")
    with sqlite_errors(path):
        connection = await aiosqlite.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
        try:
            await pragma(connection, f"busy_timeout = {BUSY_TIMEOUT_MS}")
            await _refuse_unusable(connection, path)
        except BaseException:
            await connection.close()
            raise
    return connection


async def pragma(connection: aiosqlite.Connection, name: str) -> object:
    """Ask a pragma, or set one, and return its answer."""
    async with connection.execute(f"PRAGMA {name}") as cursor:
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def _is_empty(connection: aiosqlite.Connection) -> bool:
    async with connection.execute("SELECT count(*) FROM sqlite_schema") as cursor:
        row = await cursor.fetchone()
    return row is not None and row[0] == 0 and await pragma(connection, "application_id") == 0


async def _refuse_unusable(connection: aiosqlite.Connection, path: Path) -> None:
    if await pragma(connection, "application_id") != APPLICATION_ID:
        raise MirrorDamaged("this file is not a mirror of the log", where=str(path), unusable="foreign")
    version = await pragma(connection, "user_version")
    if version != MIRROR_VERSION:
        raise MirrorDamaged(
            f"the mirror is of version {version}, this software keeps version {MIRROR_VERSION}",
            where=str(path),
            unusable="other-version",
        )
    async with connection.execute("SELECT group_concat(name) FROM pragma_table_info('records')") as cursor:
        row = await cursor.fetchone()
    if row is None or row[0] != _COLUMNS:
        raise MirrorDamaged("the mirror's table is not as it was made", where=str(path))


def set_aside(path: Path, unusable: Unusable | Literal["replaced"], why: str) -> Path | None:
    """Rename the file, with what SQLite keeps beside it, and return its new name; None when there is none."""
    if not path.exists():
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.{unusable}-{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in _SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _log.error("the mirror was set aside", path=str(path), kept_as=str(aside), why=why)
    return aside


async def take_lock(path: Path) -> int:
    """Be the one writer of the file at `path`: an open descriptor, which gives it back when it is closed.

    Raises:
        LogError: another process writes it, or its folder cannot be used.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LogError(f"the mirror's folder cannot be used: {error.strerror}", where=str(path)) from error
    deadline = asyncio.get_running_loop().time() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if asyncio.get_running_loop().time() > deadline:
                os.close(descriptor)
                raise LogError(
                    "another process writes this mirror", where=str(path), hint="give each process its own data folder"
                ) from error
            await asyncio.sleep(0.02)
        except BaseException:
            os.close(descriptor)
            raise
        else:
            return descriptor
