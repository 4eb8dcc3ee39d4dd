"""The embedded server: private files, a kept port, one per folder, restarted when it dies, gone with its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.credentials import Credentials, read_credentials
from elasticgrid.bus.embedded import EmbeddedServer, find_nats_server
from elasticgrid.core.errors import InvalidInput, ServerStartFailed
from elasticgrid.testing.bus import connection, launch_address, until

pytestmark = pytest.mark.server

OWNER = """
import asyncio, sys
from elasticgrid.bus.embedded import EmbeddedServer

async def main():
    async with EmbeddedServer(sys.argv[1]) as server:
        print(server.pid, server.address.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def is_gone(pid: int) -> bool:
    """Whether no such process is left (a zombie is none)."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


async def test_everything_is_below_the_data_folder_and_private(embedded_server: EmbeddedServer, tmp_path: Path) -> None:
    folder = tmp_path / "bus"
    assert os.listdir(tmp_path) == ["bus"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    _ = embedded_server.address
    for name in ("nats-server.conf", "service.json", "authority.key", "port"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    configuration = (folder / "nats-server.conf").read_text()
    assert "sync_interval: always" in configuration
    assert 'listen: "127.0.0.1:' in configuration
    assert (folder / "authority.key").read_text().strip() not in configuration


async def test_port_and_credentials_are_kept_over_restarts(tmp_path: Path) -> None:
    seen: list[tuple[BusAddress, BusAddress, Credentials]] = []
    for _ in range(2):
        async with EmbeddedServer(tmp_path) as server:
            launch = await launch_address(server, "acme", "j1") if not seen else seen[0][1]
            seen.append((server.address, launch, read_credentials(launch.credentials)))
            async with connection(server.address), connection(launch):
                pass
    assert seen[0] == seen[1]


async def test_a_second_server_on_the_same_folder_is_refused(embedded_server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(ServerStartFailed, match="another nats-server runs on this folder"):
        await EmbeddedServer(tmp_path).start()
    async with connection(embedded_server.address):
        pass


async def test_a_server_that_dies_is_started_again_on_its_port(embedded_server: EmbeddedServer) -> None:
    async with connection(embedded_server.address) as client:
        address, pid = embedded_server.address, embedded_server.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: is_gone(pid))
        await until(lambda: embedded_server.restarts > 0)
        assert embedded_server.address == address
        assert embedded_server.pid != pid
        await until(lambda: client.is_connected)
        await client.flush()


async def test_stopping_is_quick_and_leaves_no_process(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    pid = server.pid
    async with asyncio.timeout(2):
        await server.stop()
        await server.stop()
    await until(lambda: is_gone(pid))
    with pytest.raises(ServerStartFailed, match="not running"):
        _ = server.pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_the_server_ends_when_its_owner_is_killed_and_the_folder_can_be_used_at_once(
    tmp_path: Path, how: signal.Signals
) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        pid_text, url = (await asyncio.wait_for(owner.stdout.readline(), 20)).decode().split()
        owner.send_signal(how)
        await owner.wait()
        async with EmbeddedServer(tmp_path) as successor:
            await until(lambda: is_gone(int(pid_text)))
            assert successor.address.url == url
    finally:
        with contextlib.suppress(ProcessLookupError):
            owner.kill()
        await owner.wait()


async def test_a_port_that_somebody_else_took_is_named(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        port = int(server.address.url.rsplit(":", 1)[1])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServerStartFailed, match=f"port {port}"):
        await EmbeddedServer(tmp_path).start()
    async with EmbeddedServer(tmp_path):
        pass


async def test_a_binary_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no executable file"):
        await EmbeddedServer(tmp_path, nats_server=str(tmp_path / "nothing")).start()
    async with EmbeddedServer(tmp_path, nats_server=str(find_nats_server())):
        pass


async def test_of_the_log_only_what_this_start_wrote_is_told(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ServerStartFailed, match="ended with code 1") as failed:
            await EmbeddedServer(tmp_path, nats_server="/bin/false").start()
        assert failed.value.story == ()
        assert "nats-server.log" not in str(failed.value)
        async with EmbeddedServer(tmp_path):
            pass
    assert (tmp_path / "bus" / "nats-server.log").stat().st_size > 0


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("a file")
    with pytest.raises(ServerStartFailed, match="cannot use this folder"):
        await EmbeddedServer(tmp_path).start()


async def test_damaged_port_and_credential_files_do_not_keep_a_server_from_starting_or_are_named(
    tmp_path: Path,
) -> None:
    async with EmbeddedServer(tmp_path):
        pass
    (tmp_path / "bus" / "port").write_text("many")
    async with EmbeddedServer(tmp_path) as server:
        assert server.address.url.startswith("nats://127.0.0.1:")
