"""A grid as the guides describe it: `elasticgrid up` as a process of its own, asked by a person's commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from elasticgrid.runtime.control_plane import GATEWAY_FILE, GatewayFile

BIN = Path(sys.executable).parent
DATA = ".elasticgrid"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


class Shell:
    """A person's shell in the folder of a grid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICGRID_")}
        self.env = {**kept, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}", "COLUMNS": "160", "NO_COLOR": "1"}

    def run(self, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def ok(self, *words: str, timeout_s: float = 120) -> str:
        """Run a command that succeeds, and return its output."""
        done = self.run(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def until(self, enough: Callable[[str], bool], *words: str, timeout_s: float = 60) -> list[str]:
        """Run a command that goes on for ever, until a line of it is enough; return the lines up to there."""
        with self.started(*words) as process, deadline(process, timeout_s):
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if enough(line):
                    return lines
        raise AssertionError(f"{' '.join(words)} said only:\n" + "\n".join(lines))

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs until the block ends; SIGINT, as Ctrl-C sends, ends it and all it started."""
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise


@contextlib.contextmanager
def deadline(process: subprocess.Popen[str], timeout_s: float) -> Iterator[None]:
    """The process is killed when the block takes longer."""

    def late(number: int, frame: object) -> None:
        os.killpg(process.pid, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def grid_in(folder: Path) -> Iterator[Shell]:
    """A grid that runs in `folder` until the block ends."""
    shell = Shell(folder)
    words = ["elasticgrid", "up", "--config", "examples/elastic_numpy/grid.yaml", "--http", "127.0.0.1:0"]
    with shell.started(*words) as process, deadline(process, 600):
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("gateway "):
                break
        assert (folder / DATA / GATEWAY_FILE).is_file(), "".join(said)
        yield shell
        for job in running_jobs(shell):
            shell.ok("elasticgrid", "jobs", "cancel", job)
            shell.ok("elasticgrid", "jobs", "watch", job)


def running_jobs(shell: Shell) -> list[str]:
    """The jobs that are not over."""
    jobs = msgspec.json.decode(shell.ok("elasticgrid", "jobs", "list", "--json"))
    return [job["id"] for job in jobs if job["phase"] not in ("completed", "failed", "cancelled")]


def gateway_of(folder: Path) -> GatewayFile:
    """Where the grid's gateway is."""
    return msgspec.json.decode((folder / DATA / GATEWAY_FILE).read_bytes(), type=GatewayFile)
