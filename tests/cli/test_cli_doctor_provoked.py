"""The ten usual troubles, each brought about for real: `doctor` finds it and says what helps."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_grid import GridThread, Run

import elasticgrid
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MIRROR_FILE
from elasticgrid.log.mirrored import mirrored_log
from elasticgrid.testing.bus import bus_client, embedded_server, free_ports
from elasticgrid.testing.log_contract import an_event

KEY = "k" * 40


class Trouble:
    """What `doctor` says of one check."""

    def __init__(self, code: int, out: str, err: str, check: str) -> None:
        found = {each["check"]: each for each in json.loads(out)}
        self.status: str = found[check]["status"]
        self.says: str = found[check]["says"]
        self.remedy: str = found[check]["remedy"]
        self.code = code
        self.told = f"{check}: {self.remedy}" in err


def doctor(run: Run, check: str, *arguments: str | Path) -> Trouble:
    ended = run("doctor", *arguments, "--json")
    return Trouble(ended.code, ended.out, ended.err, check)


def is_found(trouble: Trouble, says: str, remedy: str) -> None:
    assert (trouble.status, trouble.code) == ("problem", 1)
    assert says in trouble.says
    assert remedy in trouble.remedy
    assert trouble.told


@contextmanager
def gateway_that_says(version: str, ahead_s: float) -> Iterator[str]:
    """A gateway of another version whose clock goes otherwise; gives its URL."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"version": version, "status": "ok", "items": [], "next_cursor": ""}).encode()
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() + ahead_s, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that the library asks for

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def key_file(folder: Path) -> Path:
    path = folder / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_port_that_somebody_else_has(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        is_found(doctor(run, "port", "--http", address), f"something else listens on {address}", "up --http")


@pytest.mark.process
def test_no_engine_to_launch_with(folder: Path) -> None:
    """Another `iroh_tinker` is found first, and it has no engines."""
    (folder / "shadow" / "iroh_tinker").mkdir(parents=True)
    (folder / "shadow" / "iroh_tinker" / "__init__.py").touch()
    ended = subprocess.run(
        [sys.executable, "-m", "elasticgrid.cli.main", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(folder / "shadow")},
        capture_output=True,
        text=True,
        check=False,
    )
    trouble = Trouble(ended.returncode, ended.stdout, ended.stderr, "engine")
    is_found(trouble, "iroh-tinker is not installed", "pip install 'elasticgrid[server]'")


@pytest.mark.parametrize(("ahead_s", "says"), [(3_600.0, "ahead of this one"), (-3_600.0, "behind this one")])
def test_clocks_that_differ(run: Run, key_file: Path, ahead_s: float, says: str) -> None:
    with gateway_that_says(elasticgrid.__version__, ahead_s) as url:
        is_found(doctor(run, "clock", "--url", url, "--key-file", key_file), says, "NTP")


def test_a_server_that_is_too_old(run: Run, folder: Path) -> None:
    old = folder / "nats-server"
    old.write_text("#!/bin/sh\necho 'nats-server: v2.10.4'\n")
    old.chmod(0o700)
    is_found(doctor(run, "nats-server", "--nats-server", old), "v2.10.4", "use version 2.12 or later")


def test_a_disk_that_is_full(run: Run, folder: Path) -> None:
    with small_disk(folder / "disk", "size=1m") as disk:
        (disk / "data").mkdir()
        is_found(doctor(run, "disk", "--data", disk / "data"), "0.0 GiB free", "free some space")


def test_a_wrong_key(run: Run, grid: GridThread, key_file: Path) -> None:
    trouble = doctor(run, "key", "--url", grid.url, "--key-file", key_file)
    is_found(trouble, "does not know the key", "use the key of this gateway")


def test_a_key_that_others_can_read(run: Run, grid: GridThread, folder: Path) -> None:
    copy = folder / "copy"
    copy.write_text(grid.service.key_file.read_text())
    copy.chmod(0o644)
    trouble = doctor(run, "key", "--url", grid.url, "--key-file", copy)
    is_found(trouble, "others can read", f"chmod 600 {copy}")


def test_no_permission_to_write(run: Run, folder: Path) -> None:
    with small_disk(folder / "disk", "ro,size=1m") as disk:
        is_found(doctor(run, "permission", "--data", disk / "data"), "cannot be written to", "--data")


def test_a_file_where_the_folder_should_be(run: Run, folder: Path) -> None:
    (folder / "file").touch()
    is_found(doctor(run, "permission", "--data", folder / "file"), "is no folder", "--data")


def test_versions_that_do_not_fit(run: Run, key_file: Path) -> None:
    with gateway_that_says("7.3.0", 0.0) as url:
        trouble = doctor(run, "version", "--url", url, "--key-file", key_file)
    is_found(trouble, "the gateway is 7.3.0", "pip install 'elasticgrid==7.3.0'")


def test_a_bus_that_nobody_answers_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("ELASTICGRID_NATS_URL", f"nats://127.0.0.1:{port}")
    is_found(doctor(run, "bus"), f"127.0.0.1:{port}", "ELASTICGRID_NATS_URL")


@pytest.mark.server
def test_a_credential_of_last_week(run: Run, data_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GridThread(data_dir, on_bus=True) as running:
        assert running.service.bus is not None
        where = running.service.bus.connected_url
        assert where is not None
        monkeypatch.setenv("ELASTICGRID_NATS_URL", f"nats://{where.netloc}")
        (folder / "old.json").write_text('{"user": "service", "password": "of last week"}')
        (folder / "old.json").chmod(0o600)
        monkeypatch.setenv("ELASTICGRID_CREDENTIALS", str(folder / "old.json"))
        is_found(doctor(run, "credential"), "the bus refuses it", "replaced or has expired")


@pytest.mark.server
@pytest.mark.parametrize("named", [True, False], ids=["by the environment", "by the folder alone"])
def test_a_bus_that_stands_still(run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    with GridThread(data_dir, on_bus=True) as running:
        assert running.service.bus is not None
        where = running.service.bus.connected_url
        assert where is not None
        if named:
            monkeypatch.setenv("ELASTICGRID_NATS_URL", f"nats://{where.netloc}")
            monkeypatch.setenv("ELASTICGRID_CREDENTIALS", str(data_dir / "bus" / "service.json"))
        well = json.loads(run("doctor", "--json").out)
        assert [each["status"] for each in well if each["check"] in ("gateway", "bus", "credential")] == ["ok"] * 3
        server = int((data_dir / "bus" / "nats-server.pid").read_text())
        os.kill(server, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            ended = run("doctor", "--json")
            took_s = time.monotonic() - begun
        finally:
            os.kill(server, signal.SIGCONT)
        gateway = Trouble(ended.code, ended.out, ended.err, "gateway")
        is_found(gateway, "is not ready: the log did not answer within 2 s", "is its bus up?")
        is_found(Trouble(ended.code, ended.out, ended.err, "bus"), where.netloc, "NATS_URL" if named else "bus; stop")
        assert "start it with: elasticgrid up" not in ended.err
        log = Trouble(ended.code, ended.out, ended.err, "log")
        assert (log.status, log.says) == ("skipped", "the gateway does not reach the log")
        assert took_s < 60


@pytest.mark.server
def test_a_log_that_was_damaged_while_the_grid_stood_still(run: Run, data_dir: Path) -> None:
    async def some_events() -> None:
        async with (
            embedded_server(data_dir) as server,
            bus_client(server) as client,
            await Mirror.open(data_dir / MIRROR_FILE) as mirror,
        ):
            log = mirrored_log(client, mirror)
            for number in range(50):
                await log.append([an_event(number)])
            await log.fill()

    asyncio.run(some_events())
    well = doctor(run, "log")
    assert (well.status, well.says) == ("ok", "50 events are as their mirror says")
    (block,) = data_dir.glob("bus/storage/jetstream/*/streams/GRID_EVENTS/msgs/1.blk")
    data = bytearray(block.read_bytes())
    data[data.index(an_event(20).id.encode())] ^= 1
    block.write_bytes(data)
    is_found(doctor(run, "log"), "GRID_EVENTS 21", "elasticgrid events restore --from mirror")


@pytest.mark.server
def test_a_second_grid_on_the_folder_is_told_where_the_first_one_is(run: Run, data_dir: Path) -> None:
    with GridThread(data_dir, on_bus=True) as running:
        refused = run("up", "--http", "127.0.0.1:0")
    assert refused.code == 1
    assert f"a grid runs on this folder already, at {running.url}" in refused.err
    assert "elasticgrid jobs list" in refused.err
