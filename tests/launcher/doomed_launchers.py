"""Launchers as processes of their own, each killed at a moment of its work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from launcher_bench import TIMEOUT_S, Bench

from elasticgrid.bus.embedded import EmbeddedServer

PROCESS = Path(__file__).with_name("launcher_process.py")


class DoomedLaunchers:
    """Launcher processes of a bench, all ended when it is closed."""

    def __init__(self, bench: Bench, server: EmbeddedServer) -> None:
        self._folder = bench.folder / "data"
        self._address = server.address
        self._processes: list[subprocess.Popen[bytes]] = []

    async def run_until_killed(self, moment: str) -> None:
        """Start one, and wait until it has come to the moment and is dead."""
        process = self._start(moment)
        async with asyncio.timeout(TIMEOUT_S):
            code = await asyncio.to_thread(process.wait, TIMEOUT_S)
        assert code == -9

    def _start(self, moment: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            str(PROCESS),
            self._address.url,
            self._address.credentials,
            str(self._folder),
            moment,
        ]
        process = subprocess.Popen(command, env=dict(os.environ))
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()
