"""`elastic_launch`: a function or a command as the workers of a run, from Python."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from elasticgrid.agent.workers import StartProcess, start_command
from elasticgrid.core.errors import InvalidInput, RunInterrupted
from elasticgrid.elastic import metrics
from elasticgrid.elastic.config import LaunchConfig, checked
from elasticgrid.elastic.functions import FunctionWorkers
from elasticgrid.elastic.retries import tell_no_retries
from elasticgrid.elastic.run_node import RunNode
from elasticgrid.elastic.run_outcome import RunResult
from elasticgrid.logs import configure_logging

T = TypeVar("T")


class elastic_launch:  # noqa: N801 - called as torch's of this name is
    """Run something as the workers of this node, and wait for the end.

    ::

        values = elastic_launch(LaunchConfig(nproc_per_node=2), train)(learning_rate)
        elastic_launch(LaunchConfig(nproc_per_node=2), "python")("train.py", "--epochs", "3")

    Args:
        config: the run.
        entrypoint: a function, or a command as a word or a list of words.
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str | Sequence[str]) -> None:
        self._config = checked(config)
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """By rank, for the workers of this node in the last world: what the function returned, or the exit code 0.

        A function that ends its process with success before it returns, by `sys.exit(0)` say, has returned None.

        Args:
            args: of the function, or further words of the command.

        Raises:
            WorkersFailed: workers failed and no restart was left; `failures` has them, root cause first.
            RendezvousError: this node did not come to train with the others; its kind says why.
            InvalidInput: the function cannot be sent to another process, or the command is none.
            RunInterrupted: a signal other than Ctrl-C ended it.
            KeyboardInterrupt: Ctrl-C did.
        """
        if self._config.metrics is not None:
            metrics.configure(self._config.metrics)
        if not callable(self._entrypoint):
            command = [self._entrypoint] if isinstance(self._entrypoint, str) else list(self._entrypoint)
            _, node = launch(self._config, [*command, *map(str, args)])
            return dict.fromkeys(node.ranks, 0)
        folder = Path(tempfile.mkdtemp(prefix="elasticgrid-results-"))
        try:
            workers = FunctionWorkers(self._entrypoint, args, start_method=self._config.start_method, results=folder)
            result, node = launch(self._config, ["function"], start_process=workers)
            return workers.values(node.round, node.ranks) if result.outcome != "left" else {}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def launch(
    config: LaunchConfig, command: Sequence[str], *, start_process: StartProcess = start_command
) -> tuple[RunResult, RunNode]:
    """Be one node of a run until its end.

    Raises:
        InvalidInput: there is no command, or the configuration is not usable.
        KeyboardInterrupt: Ctrl-C ended it; and what `RunNode.run` raises.
    """
    if not command or not command[0]:
        raise InvalidInput("there is no command to run", hint="elasticgrid run train.py")

    if not structlog.is_configured():
        configure_logging(level="warning")
    tell_no_retries()

    async def run() -> tuple[RunResult, RunNode]:
        node = RunNode(checked(config), command, start_process=start_process)
        return await node.run(), node

    try:
        return _wait_for(run())
    except RunInterrupted as error:
        if error.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from error
        raise


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, also where this thread runs an event loop already, as a notebook does."""
    if not _in_event_loop():
        return asyncio.run(work)
    ended: list[T | BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="elastic_launch")
    thread.start()
    thread.join()
    (outcome,) = ended
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
