"""The setup command of a job: run once on each machine of a launch before its first worker, with its output kept.

This module is sent to nodes as it stands and runs there with Python 3.10 and nothing installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

#: A cache is kept when this file is in it.
READY_FILE: Final = ".ready"
_SCRIPT_NAME: Final = "elasticgrid-setup"


def run_setup(
    command: str,
    folder: Path,
    variables: Mapping[str, str],
    log: Path,
    allowed: AbstractContextManager[None] | None = None,
) -> int:
    """Run a command in a shell and a session of its own, and return its exit code.

    Args:
        command: a shell script.
        folder: where it runs.
        variables: its whole environment.
        log: what it says is put behind what is in this file.
        allowed: entered while the command is started; what it raises keeps it from being started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with allowed or contextlib.nullcontext(), log.open("ab") as output:
        process = subprocess.Popen(
            [*shell(), "-c", command, _SCRIPT_NAME],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.wait()


def shell() -> list[str]:
    """A shell as somebody has it who logs in: what a person installed there is found."""
    bash = shutil.which("bash")
    return [bash, "-l"] if bash else ["sh"]


@contextlib.contextmanager
def caches_held(folder: Path, keys: Sequence[str]) -> Iterator[None]:
    """Make the caches ready that the block fills.

    Inside the block each key has a folder below `folder` that nobody else fills: one that was ready is as it was left,
    one that was not is empty. They are ready when the block ends without an error, and only then.
    """
    with contextlib.ExitStack() as locks:
        # In one order for everybody, so that no two wait for each other.
        for key in sorted(set(keys)):
            folder.mkdir(parents=True, exist_ok=True)
            lock = locks.enter_context((folder / f".{key}.lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            cache = folder / key
            if not (cache / READY_FILE).exists():
                shutil.rmtree(cache, ignore_errors=True)
                cache.mkdir()
        yield
        for key in keys:
            (folder / key / READY_FILE).touch()
