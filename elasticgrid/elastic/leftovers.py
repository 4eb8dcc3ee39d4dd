"""What the workers of a node started and left behind, also in sessions of its own: found by a mark, and ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import structlog

from elasticgrid import environment
from elasticgrid.agent.workers import StartProcess, WorkerProcess
from elasticgrid.marked_processes import end_processes, mark

#: How long what is asked to end gets, with the two seconds that are waited beyond it as long as a worker.
GRACE_S: Final = 3.0

_log = structlog.get_logger("elasticgrid.elastic")


class Leftovers:
    """Marks everything that the workers start. A run inside of a run has a mark of its own beside the outer one.

    Args:
        start_process: how a worker's process is started.
    """

    def __init__(self, start_process: StartProcess) -> None:
        self._start_process = start_process
        self._token = secrets.token_hex(8)
        self._variable = f"{environment.RUN_MARK}{self._token}"

    def start(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes]) -> WorkerProcess:
        """Start a worker's process with the mark in its environment, as `StartProcess`."""
        marked = {**env, self._variable: mark(self._token, 0)}
        return self._start_process(command, env=marked, cwd=cwd, output=output)

    async def end(self) -> None:
        """End what is left: SIGTERM, five seconds, SIGKILL."""
        ended = await asyncio.to_thread(end_processes, self._token, {}, GRACE_S, lambda: None, variable=self._variable)
        if not ended:
            _log.error("something that the workers started does not end although it was killed")
