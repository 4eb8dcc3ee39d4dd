"""A provider's own command line: what it answers, and in its own words why it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final

from elasticgrid.core.errors import EngineError

#: Creating machines and deleting groups of them takes minutes.
TIMEOUT_S: Final = 1_200.0


def run_cli(
    command: str, args: Sequence[str], *, absent: Sequence[str] = (), timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a provider's command to its end.

    Args:
        command: its name.
        args: its arguments; nothing secret is among them.
        absent: words by which it says that what is asked for does not exist. That is an answer.
        timeout_s: how long it may take.

    Raises:
        EngineError: it failed; the text is what it said.
    """
    try:
        done = subprocess.run(
            [command, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise EngineError(f"{command}: command not found", hint=f"install {command} beside the launcher") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{command} timed out after {timeout_s:g} s") from error
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode != 0 and not any(words in said for words in absent):
        raise EngineError(said or f"{command} ended with {done.returncode} and said nothing")
    return done
