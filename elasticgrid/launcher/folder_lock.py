"""One launcher at a time in a folder: a second one would take the first one's unfinished launches for abandoned."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FolderLock:
    """A lock that ends with the process that holds it, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "launcher.lock"
        self._descriptor: int | None = None

    def try_take(self) -> bool:
        """Take it, making the folder if need be; False when another launcher has it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back; without it nothing happens."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
