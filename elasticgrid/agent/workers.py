"""The worker processes of one round: started in sessions of their own, watched, ended, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec
import structlog

from elasticgrid.agent.guard import Guard
from elasticgrid.output_files import tail_of
from elasticgrid.parent_death import end_with

_log = structlog.get_logger("elasticgrid.agent")

#: How long a worker that was asked to end may take before it is killed.
TERMINATE_PATIENCE_S: Final = 5.0
#: How long after a kill a worker may still be seen; one that is then is in the hands of the kernel alone.
KILL_PATIENCE_S: Final = 10.0
#: How much of the end of a worker's output is kept for the log.
TAIL_BYTES: Final = 4_096
TAIL_LINES: Final = 20
#: What a shell answers for a command that cannot be started.
CANNOT_START_CODE: Final = 127


class ExitedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker ended.

    Attributes:
        code: its exit code or minus the signal's number.
        time_ms: when that was seen, Unix milliseconds.
        fenced: even a kill did not end it. It holds what it held, but nothing waits for it.
    """

    rank: int
    code: int
    last_lines: str
    time_ms: int
    fenced: bool = False


class WorkerProcess(Protocol):
    """A process that was started, or is just being started, as the leader of a session of its own."""

    @property
    def pid(self) -> int:
        """Its number, which is its group's too."""
        ...

    def wait(self) -> int:
        """Its exit code or minus the signal's number; called when it is known to have ended."""
        ...


class StartProcess(Protocol):
    """How a worker's process is started: what it runs, and how, is for this to know."""

    def __call__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes]
    ) -> WorkerProcess:
        """Start it with its output going to `output`.

        Raises:
            OSError, ValueError, subprocess.SubprocessError: it cannot be started.
        """
        ...


def start_command(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes]) -> WorkerProcess:
    """Start a command that dies with this process."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        # The agent forks from the thread of its event loop, which lives as long as the agent.
        preexec_fn=end_with(os.getpid(), signal.SIGKILL),
    )


class WorkerGroup:
    """The workers that this node runs for one round.

    Args:
        on_exit: called once for each worker, in the event loop, when it is gone with all of its process group.
        guard: kills the workers should this process be killed.
        signal_group: sends a signal to a process group.
        kill_patience_s: how long after a kill a worker is still waited for.
        start_process: how a worker's process is started.
    """

    def __init__(
        self,
        *,
        on_exit: Callable[[ExitedWorker], None],
        guard: Guard,
        signal_group: Callable[[int, int], None] = os.killpg,
        kill_patience_s: float = KILL_PATIENCE_S,
        start_process: StartProcess = start_command,
    ) -> None:
        self._on_exit = on_exit
        self._guard = guard
        self._signal_group = signal_group
        self._kill_patience_s = kill_patience_s
        self._start_process = start_process
        self._fenced: set[int] = set()
        self._running: dict[int, tuple[WorkerProcess, int, Path]] = {}
        self._gone = asyncio.Event()
        self._gone.set()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the workers that run and are not fenced."""
        return tuple(rank for rank in self._running if rank not in self._fenced)

    def start(self, rank: int, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_path: Path) -> None:
        """Start a worker whose output goes to `log_path`; one that cannot be started ends at once with code 127."""
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as output:
                process = self._start_process(command, env=env, cwd=cwd, output=output)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _log.error("a worker cannot be started", rank=rank, command=list(command), error=str(error))
            said = f"{command[0] if command else ''}: {error}"
            self._on_exit(ExitedWorker(rank=rank, code=CANNOT_START_CODE, last_lines=said, time_ms=_now_ms()))
            return
        self._guard.add(process.pid)
        descriptor = os.pidfd_open(process.pid)
        self._running[rank] = (process, descriptor, log_path)
        self._gone.clear()
        asyncio.get_running_loop().add_reader(descriptor, self._reap, rank)

    async def terminate(self, patience_s: float = TERMINATE_PATIENCE_S) -> None:
        """Ask all that run to end, kill those that have not after `patience_s`, and return when none is left.

        A worker that a kill does not end either is fenced: it counts as gone and is not waited for.
        """
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience_s):
                await self._gone.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(self._kill_patience_s):
                    await self._gone.wait()
            except TimeoutError:
                self._fence()

    def pid(self, rank: int) -> int | None:
        """The process that was started as this worker; None when it does not run."""
        running = self._running.get(rank)
        return running[0].pid if running is not None else None

    def close(self) -> None:
        """Forget the workers that were fenced."""
        for rank in self._fenced:
            _, descriptor, _ = self._running.pop(rank)
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._fenced.clear()

    def _fence(self) -> None:
        """Treat what still runs as gone. Should it end after all, it is reaped, and nobody is told again."""
        for rank, (process, _, log_path) in self._running.items():
            _log.error("a worker does not end although it was killed; it is fenced", rank=rank, pid=process.pid)
            self._fenced.add(rank)
            fence = f"pid {process.pid} did not end {self._kill_patience_s:g} s after it was killed"
            said = f"{_last_lines(log_path)}\n{fence}"
            fenced = ExitedWorker(
                rank=rank, code=-signal.SIGKILL, last_lines=said.strip(), time_ms=_now_ms(), fenced=True
            )
            self._on_exit(fenced)
        self._gone.set()

    def _signal(self, number: signal.Signals) -> None:
        for process, _, _ in self._running.values():
            try:
                self._signal_group(process.pid, number)
            except ProcessLookupError:
                # It is so young that it has no session of its own yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)
            except PermissionError:
                continue

    def _reap(self, rank: int) -> None:
        process, descriptor, log_path = self._running.pop(rank)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        # The leader is dead but not yet reaped, so its group's number cannot have been given to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        self._guard.remove(process.pid)
        if not self._running:
            self._gone.set()
        if rank in self._fenced:
            self._fenced.discard(rank)
            return
        self._on_exit(ExitedWorker(rank=rank, code=code, last_lines=_last_lines(log_path), time_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _last_lines(log_path: Path) -> str:
    return tail_of(log_path, TAIL_LINES, TAIL_BYTES)
