"""The files of one worker in the folder of its round: its output, why it failed, and where its threads were."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

#: How much of an error file is read, and how much of what it says is kept.
MAX_FILE_BYTES: Final = 256 * 1024
MAX_MESSAGE: Final = 4_096


class WorkerFiles(msgspec.Struct, frozen=True):
    """Where the files of the worker `rank` are in `folder`."""

    folder: Path
    rank: int

    @property
    def log(self) -> Path:
        """Its output."""
        return self.folder / f"rank-{self.rank}.log"

    @property
    def error(self) -> Path:
        """Why it failed, if it said so."""
        return self.folder / f"rank-{self.rank}.error"

    @property
    def stacks(self) -> Path:
        """Where its threads were when it was asked."""
        return self.folder / f"rank-{self.rank}.stacks"


class WorkerError(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker wrote of its own failure, and when, Unix milliseconds."""

    message: str
    time_ms: int
    file: str


def read_error(path: Path) -> WorkerError | None:
    """What the error file at `path` says; None when there is none, or nothing in it.

    A file may be JSON as torch's `record` writes it (`message`, which may be an object with a `message` and an
    `extraInfo` of its own), other JSON with a `message` or `error`, or any text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
            time_ms = path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None
    try:
        message = _message(msgspec.json.decode(data))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = ""
    message = message or data.decode(errors="replace").strip()
    return WorkerError(message=message[-MAX_MESSAGE:], time_ms=time_ms, file=str(path)) if message else None


def _message(said: Any) -> str:
    if isinstance(said, str):
        return said
    if not isinstance(said, dict):
        return ""
    inner = said.get("message", said.get("error", ""))
    if not isinstance(inner, dict):
        return inner if isinstance(inner, str) else ""
    extra = inner.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    text = inner.get("message", "")
    if isinstance(trace, str) and isinstance(text, str) and trace.rstrip().endswith(text.strip()):
        text = ""
    # The last line of a trace says what went wrong, so it comes last, as in a worker's output.
    return "\n".join(part.strip() for part in (trace, text) if isinstance(part, str) and part.strip())
