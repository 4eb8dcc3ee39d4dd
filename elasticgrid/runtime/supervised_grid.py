"""A grid on this machine whose services are processes of their own, each started again when it ends.

What `ControlPlane` runs in one process runs here in four, as a deployment does, so that each can be killed alone.
Everything that runs, whoever started it, carries the grid's mark in its environment and can be found by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import httpx
import structlog
from nats.aio.client import Client

from elasticgrid import environment
from elasticgrid.bus.connect import connect, disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.core.errors import ServerStartFailed
from elasticgrid.gateway.auth import ADMIN_KEY_FILE
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.parent_death import end_with
from elasticgrid.runtime.run_processes import RUN_MARK, RunProcess, find_run

_log = structlog.get_logger("supervised-grid")

Service = Literal["decider", "launcher", "gateway"]
SERVICES: Final[tuple[Service, ...]] = ("decider", "launcher", "gateway")

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
#: Pause before a service that died is started again: doubled each time it dies young.
FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 5.0
YOUNG_S: Final = 10.0
_POLL_S: Final = 0.05


class SupervisedGrid:
    """Bus, decider, launcher and gateway on this machine, running inside an `async with` block.

    Attributes:
        data_dir: all files are kept below it; `<service>.log` is what a service has said.
        mark: what everything that runs here has in its environment as the variable `RUN_MARK`.

    Args:
        data_dir: a folder of this grid's own.
        grid_file: the grid file, with the providers.
        nats_server: another nats-server binary than the installed one.
        orphan_timeout_s: after this long without the bus agents end by themselves; None is never.
        environ: variables of the services; this process's own when absent.
    """

    def __init__(
        self,
        data_dir: Path,
        grid_file: Path,
        *,
        nats_server: str | None = None,
        orphan_timeout_s: float | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.mark = str(self.data_dir)
        self._grid_file = grid_file.absolute()
        base = {name: value for name, value in (environ or os.environ).items() if not name.startswith("ELASTICGRID_")}
        self._environ = {**base, RUN_MARK: self.mark}
        if orphan_timeout_s is not None:
            self._environ[environment.ORPHAN_TIMEOUT_S] = f"{orphan_timeout_s:g}"
        self._bus = EmbeddedServer(self.data_dir, nats_server=nats_server, environ=self._environ)
        self._http_port = 0
        self._client: Client | None = None
        self._processes: dict[Service, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    @property
    def client(self) -> Client:
        """A connection to the bus as a service."""
        assert self._client is not None
        return self._client

    @property
    def log(self) -> JetStreamLog:
        """The event log."""
        return JetStreamLog(self.client)

    @property
    def bus(self) -> EmbeddedServer:
        """The bus; stopped and started again it is on the same port and has all it had."""
        return self._bus

    @property
    def url(self) -> str:
        """Where the gateway listens, over all its restarts."""
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def key_file(self) -> Path:
        """The file with the admin key."""
        return self.data_dir / ADMIN_KEY_FILE

    def http(self) -> httpx.AsyncClient:
        """A client of the gateway with the admin key."""
        headers = {"X-API-Key": self.key_file.read_text().strip()}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30.0, trust_env=False)

    def processes(self) -> list[RunProcess]:
        """Everything of this grid that runs now, without this process."""
        return find_run(self.mark)

    async def __aenter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            await self._stack.enter_async_context(self._bus)
            self._client = await connect(self._bus.address, name="supervisor")
            self._stack.push_async_callback(disconnect, self._client)
            await ensure_streams(self._client)
            self._http_port = _free_port()
            self._stack.push_async_callback(self._end_services)
            self._keepers = [asyncio.create_task(self._keep(each), name=f"keep-{each}") for each in SERVICES]
            await self._until_ready()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def wait(self) -> None:
        """Wait until a service can no longer be kept running, and raise why."""
        done, _ = await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def pid(self, service: Service) -> int | None:
        """The service's process; None while it is between two lives."""
        process = self._processes.get(service)
        return process.pid if process is not None and process.returncode is None else None

    def kill(self, service: Service) -> int | None:
        """kill -9. The service is started again by itself.

        Returns:
            The process that was killed; None if the service did not run.
        """
        pid = self.pid(service)
        if pid is not None:
            self._processes[service].kill()
        return pid

    async def _keep(self, service: Service) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            process = await self._start(service)
            self._processes[service] = process
            code = await process.wait()
            if time.monotonic() - began_s > YOUNG_S:
                pause_s = FIRST_PAUSE_S
            _log.warning("a service ended and is started again", service=service, code=code, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _start(self, service: Service) -> asyncio.subprocess.Process:
        variables = {
            **self._environ,
            environment.NATS_URL: self._bus.address.url,
            environment.CREDENTIALS: self._bus.service_address(service).credentials,
            environment.BUS_AUTHORITY: str(self._bus.authority_file) if service == "launcher" else "",
        }
        words = [sys.executable, "-P", "-m", "elasticgrid.cli.main", "serve", service, "--data", str(self.data_dir)]
        if service == "gateway":
            words += ["--config", str(self._grid_file), "--http", f"127.0.0.1:{self._http_port}"]
        descriptor = os.open(self.data_dir / f"{service}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # In a session of its own: Ctrl-C in a terminal ends us first, and we end the services.
            return await asyncio.create_subprocess_exec(
                *words,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )
        finally:
            os.close(descriptor)

    async def _until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        async with httpx.AsyncClient(base_url=self.url, timeout=5.0, trust_env=False) as http:
            while time.monotonic() < deadline_s:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get("/v1/readyz")).is_success:
                        return
                await asyncio.sleep(_POLL_S)
        raise ServerStartFailed(
            f"the gateway is not ready after {START_TIMEOUT_S:g} s",
            where=self.url,
            hint=f"see {self.data_dir / 'gateway.log'}",
        )

    async def _end_services(self) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            for process in running:
                if process.returncode is None:
                    _log.warning("a service did not end when asked; killing it", pid=process.pid)
                    process.kill()
                    await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
