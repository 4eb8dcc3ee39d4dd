"""The mirror's file: what is in it can be proven, and one that cannot be used is set aside and never guessed at."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from elasticgrid.core.errors import LogError, NotFound
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirror_record import LogRecord


def some_records(first: int, last: int, *, text: str = "event") -> list[LogRecord]:
    return [
        LogRecord(n, 1_000 + n, "grid.events.acme.j1.node.left", f"{text} {n}".encode()) for n in range(first, last + 1)
    ]


async def all_records(mirror: Mirror) -> list[LogRecord]:
    return [record async for record in mirror.read()]


def tamper(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def damaged(path: Path, damage: str) -> bytes:
    """Damage the file and return what it holds now."""
    data = bytearray(path.read_bytes())
    match damage:
        case "garbage":
            data[:] = bytes(range(256)) * (len(data) // 256)
        case "cut":
            del data[2_000:]
        case "header":
            data[:16] = b"x" * 16
        case "text":
            data[:] = b"not a database\n"
    path.write_bytes(data)
    return bytes(data)


def contents(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "mirror.sqlite"


@pytest.fixture
async def mirror(path: Path) -> AsyncGenerator[Mirror]:
    async with await Mirror.open(path) as mirror:
        yield mirror


async def test_what_was_appended_is_read_back_after_the_file_was_closed(path: Path) -> None:
    records = [
        *some_records(1, 5),
        LogRecord(9, 7, "grid.events.x", b"\x00\xff", is_event=False),
        *some_records(10, 12),
    ]
    async with await Mirror.open(path) as mirror:
        await mirror.append(records[:3])
        await mirror.append(records[3:])
        assert mirror.last == 12
    async with await Mirror.open(path) as mirror:
        assert mirror.last == 12
        assert await all_records(mirror) == records
        assert [record async for record in mirror.read(after=4)] == records[4:]
        assert await mirror.check() is None
        await mirror.append(some_records(13, 13))
        assert await mirror.check() is None


async def test_every_record_is_on_the_disk_when_the_append_returns(mirror: Mirror, path: Path) -> None:
    for number in range(1, 4):
        await mirror.append(some_records(number, number))
        async with await Mirror.open(path, read_only=True) as other:
            assert other.last == number


async def test_appending_again_what_is_there_changes_nothing(mirror: Mirror) -> None:
    await mirror.append(some_records(1, 10))
    chain = await mirror.chain_at(10)
    await mirror.append(some_records(4, 12))
    assert mirror.last == 12
    assert await mirror.chain_at(10) == chain
    assert await all_records(mirror) == some_records(1, 12)


async def test_another_record_at_a_place_that_is_taken_is_refused_and_nothing_written(mirror: Mirror) -> None:
    await mirror.append(some_records(1, 10))
    with pytest.raises(LogError, match="another record 8"):
        await mirror.append([*some_records(7, 7), *some_records(8, 12, text="other")])
    with pytest.raises(LogError):
        await mirror.append([*some_records(12, 12), *some_records(11, 11)])
    assert await all_records(mirror) == some_records(1, 10)


async def test_an_append_that_is_cancelled_is_there_whole_or_not_at_all(mirror: Mirror) -> None:
    for steps in range(6):
        task = asyncio.create_task(mirror.append(some_records(steps * 100 + 1, steps * 100 + 100)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await mirror.append(some_records(steps * 100 + 1, steps * 100 + 100))
    assert len(await all_records(mirror)) == 600
    assert await mirror.check() is None


async def test_the_chain_stands_for_the_log_up_to_there(tmp_path: Path) -> None:
    chains = []
    for name, size in (("one", 1), ("other", 4)):
        async with await Mirror.open(tmp_path / name) as mirror:
            for first in range(1, 9, size):
                await mirror.append(some_records(first, first + size - 1))
            chains.append([await mirror.chain_at(n) for n in range(9)])
            assert await mirror.chain_at(9) is None
    assert chains[0] == chains[1]
    assert len(set(chains[0])) == 9


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE records SET data = x'00' WHERE sequence = 700", 700),
        ("UPDATE records SET recorded_ms = 5 WHERE sequence = 700", 700),
        ("UPDATE records SET subject = 'grid.events.acme.j2.node.left' WHERE sequence = 700", 700),
        ("UPDATE records SET chain = zeroblob(32) WHERE sequence = 700", 700),
        ("DELETE FROM records WHERE sequence = 700", 701),
        ("UPDATE records SET sequence = 2000 WHERE sequence = 700", 701),
        ("DELETE FROM records WHERE sequence < 700", 700),
        ("INSERT INTO records VALUES (5000, 1, 's', x'00', 1, zeroblob(32))", 5_000),
    ],
)
async def test_the_first_record_that_is_not_what_was_written_is_named(path: Path, statement: str, named: int) -> None:
    async with await Mirror.open(path) as mirror:
        await mirror.append(some_records(1, 1_500))
    tamper(path, statement)
    async with await Mirror.open(path) as mirror:
        bad = await mirror.check()
        assert bad is not None
        assert bad.sequence == named
        with pytest.raises(MirrorDamaged, match=str(named)):
            await all_records(mirror)


async def test_a_second_writer_is_refused_and_a_reader_is_not(mirror: Mirror, path: Path) -> None:
    await mirror.append(some_records(1, 3))
    with pytest.raises(LogError, match="another process"):
        await Mirror.open(path)
    async with await Mirror.open(path, read_only=True) as reader:
        assert await all_records(reader) == some_records(1, 3)
    await mirror.append(some_records(4, 4))


@pytest.mark.parametrize(
    ("statement", "unusable"),
    [
        ("PRAGMA user_version = 99", "other-version"),
        ("PRAGMA application_id = 1", "foreign"),
        ("DROP TABLE records", "damaged"),
        ("ALTER TABLE records RENAME COLUMN data TO bytes", "damaged"),
    ],
)
async def test_a_file_of_another_version_or_another_kind_is_set_aside_whole(
    path: Path, statement: str, unusable: str
) -> None:
    async with await Mirror.open(path) as mirror:
        await mirror.append(some_records(1, 3))
    tamper(path, statement)
    before = contents(path)
    with pytest.raises(MirrorDamaged):
        await Mirror.open(path, read_only=True)
    async with await Mirror.open(path) as mirror:
        assert mirror.last == 0
        assert mirror.put_aside == [path.with_name(f"mirror.sqlite.{unusable}-1")]
        assert contents(mirror.put_aside[0]) == before
        await mirror.append(some_records(1, 2))


@pytest.mark.parametrize("damage", ["garbage", "cut", "header", "text"])
async def test_a_damaged_file_is_set_aside_and_a_new_one_begun(path: Path, damage: str) -> None:
    async with await Mirror.open(path) as mirror:
        await mirror.append(some_records(1, 300))
    for number in (1, 2):
        data = damaged(path, damage)
        async with await Mirror.open(path) as mirror:
            assert mirror.last == 0
            assert [file.name for file in mirror.put_aside] == [f"mirror.sqlite.damaged-{number}"]
            assert contents(mirror.put_aside[0]) == data


async def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LogError, match="file"):
        await Mirror.open(tmp_path / "file" / "mirror.sqlite")
    with pytest.raises(NotFound):
        await Mirror.open(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
