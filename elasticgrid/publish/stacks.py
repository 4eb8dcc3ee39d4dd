"""On SIGUSR2 the places of all threads are written to a file, so that the agent can say where a stuck worker hangs.

It works while the interpreter is blocked in foreign code. A process that handles the signal itself is left alone.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import TextIO

#: Kept open for as long as the process lives: the signal's handler writes to its descriptor.
_file: TextIO | None = None


def write_stacks_when_asked(path: str) -> bool:
    """Arrange it; False when it cannot be done here."""
    global _file
    if not path:
        return False
    if _file is not None:
        return _file.name == path
    try:
        if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return False
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - see `_file`
        os.set_inheritable(file.fileno(), False)
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        return False
    _file = file
    return True
