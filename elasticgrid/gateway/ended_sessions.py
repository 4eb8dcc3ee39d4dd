"""Logins that were ended before their time: remembered in a file until they would have ended by themselves.

A session is a signed statement that its holder keeps, so ending one means to know that it does not count any more,
also after the gateway was started again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

_log = structlog.get_logger("gateway")

ENDED_FILE: Final = "sessions.ended"
#: So many are remembered; past that the oldest are forgotten.
MAX_ENDED: Final = 100_000
_FIRST_CLEANING: Final = 128


class EndedSessions:
    """The ids of logins that were ended, in the file at `path`.

    Args:
        path: one line for each, with its id and until when it would have lasted, Unix milliseconds; None keeps them in
            memory alone.
        most: how many are remembered.
    """

    def __init__(self, path: Path | None = None, *, most: int = MAX_ENDED) -> None:
        self._path = path
        self._most = most
        self._until_ms: dict[str, int] = {}
        self._clean_at = min(_FIRST_CLEANING, most)
        if path is not None:
            with suppress(OSError):
                self._read(path.read_text(encoding="ascii", errors="replace"))

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until_ms

    def __len__(self) -> int:
        return len(self._until_ms)

    def add(self, session_id: str, until_ms: int, now_ms: int) -> None:
        """Remember one until `until_ms`; where the file cannot be written, for the life of this process."""
        self._until_ms[session_id] = until_ms
        try:
            if len(self._until_ms) >= self._clean_at:
                self._clean(now_ms)
            elif self._path is not None:
                _write(self._path, os.O_APPEND, f"{session_id} {until_ms}\n")
        except OSError as error:
            _log.error("ended_session_not_kept", file=str(self._path), error=error.strerror)

    def _clean(self, now_ms: int) -> None:
        """Forget what is over. Done each time their number has doubled, so that one costs the same however many."""
        kept = [(each, until) for each, until in self._until_ms.items() if until > now_ms]
        self._until_ms = dict(kept[-(self._most * 9 // 10) :])
        self._clean_at = min(max(2 * len(self._until_ms), _FIRST_CLEANING), self._most)
        if self._path is not None:
            draft = self._path.with_name(f".{self._path.name}.new")
            _write(draft, os.O_TRUNC, "".join(f"{each} {until}\n" for each, until in self._until_ms.items()))
            draft.replace(self._path)

    def _read(self, text: str) -> None:
        for line in text.splitlines():
            session_id, _, until = line.partition(" ")
            if until.isdecimal():
                self._until_ms[session_id] = int(until)


def _write(path: Path, how: int, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text)
