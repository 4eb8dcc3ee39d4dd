"""Where the threads of stuck workers are: by py-spy where it is installed, else by what the hook arranged.

What neither can tell is said by the kernel: the state of the process and what it waits in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Final

import msgspec

PY_SPY_TIMEOUT_S: Final = 10.0
#: How long the hook's handler may take to write, and how often to look whether it has.
WRITE_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 0.05
#: Of all workers together; an event is not to grow without end.
MAX_LENGTH: Final = 32_768


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A worker to look at.

    Attributes:
        pid: of its process.
        stacks_file: where it writes the places of its threads on SIGUSR2; None when the signal would end it.
    """

    rank: int
    pid: int
    stacks_file: Path | None


async def worker_stacks(targets: list[Target]) -> str:
    """The places of all threads of these workers, at most `MAX_LENGTH` characters; never raises for a worker."""
    if not targets:
        return ""
    found = await asyncio.gather(*(_stacks_of(target) for target in targets))
    share = MAX_LENGTH // len(targets)
    return "\n".join(text[:share].rstrip() for text in found)


async def _stacks_of(target: Target) -> str:
    head = f"rank {target.rank}, pid {target.pid}, {_kernel_says(target.pid)}"
    text = await _by_py_spy(target.pid) or await _by_signal(target)
    return f"{head}\n{text or 'no stacks: py-spy is not there and the worker has no hook that would write them'}"


def _kernel_says(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        wchan = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip()
    except OSError:
        return "gone"
    state = next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("State:")), "?")
    return f"state {state}" + (f", waits in {wchan}" if wchan not in ("", "0") else "")


async def _by_py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--pid",
            str(pid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(PY_SPY_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output.decode(errors="replace") if process.returncode == 0 else ""


async def _by_signal(target: Target) -> str:
    path = target.stacks_file
    if path is None:
        return ""
    try:
        before = path.stat().st_size
        os.kill(target.pid, signal.SIGUSR2)
    except OSError:
        return ""
    size = before
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            while True:
                await asyncio.sleep(LOOK_S)
                grown = _size(path)
                if grown > before and grown == size:
                    break
                size = grown
    try:
        with path.open("rb") as file:
            file.seek(before)
            return file.read(MAX_LENGTH).decode(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
