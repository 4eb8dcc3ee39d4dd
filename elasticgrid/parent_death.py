"""Children that do not outlive whoever started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with(parent_pid: int, number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """What a child runs before it becomes another program: it gets the signal when the thread that forked it ends."""
    signal_number = int(number)

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the signal was arranged
            os._exit(1)

    return prepare
