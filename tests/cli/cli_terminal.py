"""A command on a terminal of a certain width."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Mapping, Sequence
from subprocess import Popen

COMMAND_LINE = (sys.executable, "-m", "elasticgrid.cli.main")


def on_terminal(
    *arguments: str,
    code: int = 0,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = COMMAND_LINE,
) -> list[str]:
    """What a command that ends with `code` prints on a terminal, which has 80 columns unless `environ` says others."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", **(environ or {})}
    with Popen([*program, *arguments], stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        text = b""
        try:
            while piece := os.read(master, 65_536):
                text += piece
        except OSError:
            pass  # the other end is closed
        os.close(master)
        assert process.wait(timeout=30) == code
    return text.decode().splitlines()
