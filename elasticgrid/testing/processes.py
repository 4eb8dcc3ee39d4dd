"""For tests with processes: what is still there, and what only shows itself when looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: On a busy machine everything takes longer; a test waits for what is to happen and not for a time.
PATIENCE_S: Final = 180.0
_LOOK_AGAIN_S: Final = 0.01


def running(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait for what only shows itself when looked at, such as a file of another process, or that it is gone.

    Raises:
        TimeoutError: it did not come true in time.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_LOOK_AGAIN_S)
