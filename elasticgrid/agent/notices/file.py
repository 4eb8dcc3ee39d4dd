"""A file whose appearance is the notice: for everything that has a hook of its own to run a script in.

It may be empty, hold a text, or a JSON object with `deadline_ms` (Unix milliseconds) or `in_s` (seconds from when the
file was last written), and `text`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.agent.notices.notice import TEXT_LENGTH, Notice, SourceTrouble

#: More of the file than this is not read.
MAX_BYTES: Final = 16 * 1024


class _Content(msgspec.Struct, frozen=True):
    deadline_ms: int = 0
    in_s: float = 0.0
    text: str = ""


class FileSource:
    """Looks for the file at `path`; `pause_s` between two looks."""

    def __init__(self, path: Path, *, pause_s: float = 0.5) -> None:
        self.pause_s = pause_s
        self._path = path

    async def look(self) -> Notice | None:
        """The notice in the file, None while there is no file."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES)
                written_ms = self._path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceTrouble(f"{self._path} cannot be read: {error}") from error
        try:
            content = msgspec.json.decode(data, type=_Content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            content = _Content(text=data.decode(errors="replace").strip())
        deadline_ms = max(content.deadline_ms, 0)
        if not deadline_ms and 0 < content.in_s < 1e9:
            deadline_ms = written_ms + round(content.in_s * 1000)
        return Notice(source="file", deadline_ms=deadline_ms, text=(content.text or str(self._path))[:TEXT_LENGTH])

    async def node_left(self) -> None:
        """Nothing: nobody waits for an answer."""
