"""Python functions as workers: started with multiprocessing, their values and exceptions brought back through files."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any, Final

from elasticgrid import environment
from elasticgrid.agent.workers import WorkerProcess
from elasticgrid.core.errors import InvalidInput
from elasticgrid.elastic.config import StartMethod
from elasticgrid.elastic.function_worker import HELD_SIGNALS, Start, run

_CONTEXTS: Final[dict[StartMethod, type[ForkContext | SpawnContext | ForkServerContext]]] = {
    "spawn": SpawnContext,
    "fork": ForkContext,
    "forkserver": ForkServerContext,
}


class FunctionWorkers:
    """Starts one function as every worker.

    Args:
        function, arguments: what is called.
        start_method: of multiprocessing.
        results: where values are kept until they are asked for.

    Raises:
        InvalidInput: the function or an argument cannot be pickled, which any start method but `fork` needs.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, start_method: StartMethod, results: Path
    ) -> None:
        if start_method != "fork":
            try:
                ForkingPickler.dumps((function, arguments))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise InvalidInput(
                    f"the function cannot be sent to another process: {error}",
                    where=getattr(function, "__qualname__", str(function)),
                    hint="use a function at the top of a module and arguments that can be pickled, or the start "
                    "method fork",
                ) from error
        self._function = function
        self._arguments = arguments
        self._context = _CONTEXTS[start_method]()
        self._is_fork = start_method == "fork"
        self._with_parent = start_method != "forkserver"
        self._results = results

    def __call__(
        self,
        command: Sequence[str],  # noqa: ARG002 - what a worker runs is known here already
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: IO[bytes],
    ) -> WorkerProcess:
        """Start one worker; the command is of no use here."""
        result = result_file(self._results, int(env[environment.ROUND]), int(env["RANK"]))
        result.parent.mkdir(parents=True, exist_ok=True)
        start = Start(
            env=dict(env), cwd=str(cwd), output=output.name, result=str(result), parent=os.getpid() * self._with_parent
        )
        process = self._context.Process(target=run, args=(start, self._function, self._arguments))
        # A fork has our signal handlers until it has its own: a signal meant for it would be heard here.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS) if self._is_fork else None
        try:
            process.start()
        finally:
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return _Started(process)

    def values(self, round_number: int, ranks: Sequence[int]) -> dict[int, Any]:
        """What the workers of a round returned, by rank; None for one that ended with success before it returned.

        Raises:
            InvalidInput: a value cannot be read here.
        """
        found = {}
        for rank in ranks:
            try:
                # Written by our own worker into the run's own folder.
                found[rank] = pickle.loads(result_file(self._results, round_number, rank).read_bytes())  # noqa: S301
            except FileNotFoundError:  # sys.exit(0) and os._exit(0) leave nothing
                found[rank] = None
            except Exception as error:
                raise InvalidInput(f"the value of rank {rank} cannot be read: {error}", where="result") from error
        return found


def result_file(folder: Path, round_number: int, rank: int) -> Path:
    """Where a worker's value is."""
    return folder / f"round-{round_number}" / f"rank-{rank}.result"


class _Started:
    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self._process = process
        self.pid: Final = process.pid

    def wait(self) -> int:
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        self._process.close()
        return code
