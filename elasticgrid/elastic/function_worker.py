"""What a process runs that was started to call a function as a worker. Imports little: every worker pays for it."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from elasticgrid.agent.guard import close_in_fork
from elasticgrid.parent_death import end_with

P = ParamSpec("P")
R = TypeVar("R")

#: What an agent handles and a worker does not.
HELD_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Start(msgspec.Struct, frozen=True):
    """What a worker's process needs to become one; `parent` is whom it must not outlive, 0 for nobody it knows."""

    env: dict[str, str]
    cwd: str
    output: str
    result: str
    parent: int


def run(start: Start, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Become a worker, call the function, keep its value."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in HELD_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
    if start.parent:
        end_with(start.parent, signal.SIGKILL)()
    close_in_fork()
    _write_to(start.output)
    os.environ.clear()
    os.environ.update(start.env)
    os.chdir(start.cwd)
    value = record(function)(*arguments)
    path = Path(start.result)
    with _failure_recorded():
        draft = path.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(value))
        draft.replace(path)


def _write_to(output: str) -> None:
    """Send what this process and its children print to a file, as it comes."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(nothing)
    os.close(descriptor)
    # What is there may be somebody's who caught the parent's output.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def record(function: Callable[P, R]) -> Callable[P, R]:
    """A worker's main function: its exception is written, with traceback and time, to the file the agent reads.

    The file is the one in `TORCHELASTIC_ERROR_FILE`, in the form that torch's `record` writes. Elsewhere it changes
    nothing.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        with _failure_recorded():
            return function(*args, **kwargs)

    return recorded


class _failure_recorded(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a statement
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, SystemExit):
            return
        path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        if not path or os.path.exists(path):  # the first failure of a worker is the one to tell
            return
        said = {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(error)),
                "timestamp": str(int(time.time())),
            },
        }
        with contextlib.suppress(OSError):
            Path(path).write_bytes(msgspec.json.encode({"message": said}))
