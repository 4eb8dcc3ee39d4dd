"""Unix sockets at long paths."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish.unix_socket import open_unix_connection, start_unix_server


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    writer.close()


@pytest.mark.parametrize("depth", [0, 1, 6])
async def test_a_socket_works_at_a_path_of_any_length(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-folder-with-quite-a-long-name-indeed"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "agent.sock"
    async with await start_unix_server(echo, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reader, writer = await open_unix_connection(path)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


async def test_a_socket_that_was_left_behind_is_replaced_but_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    first = await start_unix_server(echo, path)
    first.close()
    async with await start_unix_server(echo, path):
        _, writer = await open_unix_connection(path)
        writer.close()
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        await start_unix_server(echo, other)
    assert other.read_text() == "mine"


async def test_where_nothing_listens_the_error_is_the_system_s(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await open_unix_connection(tmp_path / "nobody.sock")


async def test_a_name_that_no_address_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        await open_unix_connection(tmp_path / ("x" * 200))
