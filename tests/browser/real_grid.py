"""`elasticgrid up` in a folder of a test's own, asked by commands as a person types them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

TOP: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
EXAMPLE: Final = TOP / "examples" / "elastic_numpy"
_MARK: Final = "DASHBOARD_TEST_MARK"
START_S: Final = 90.0


class RealGrid:
    """Use as a context manager: at the end every process that was started in it, by whomever, is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICGRID_")}
        self._environ = {**kept, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}", _MARK: self._mark, "NO_COLOR": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._up: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        deadline_s = time.monotonic() + 20
        while running := self._running():
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline_s, f"cannot be killed: {running}"
            time.sleep(0.05)

    @property
    def key(self) -> str:
        """The admin key."""
        return (self.folder / ".elasticgrid" / "admin.key").read_text().strip()

    def start(self) -> None:
        """Start it, and return once it answers."""
        command = ["elasticgrid", "up", "--config", str(EXAMPLE / "grid.yaml"), "--http", f"127.0.0.1:{self.port}"]
        self._up = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "up.log").open("ab"),
        )
        eventually(self._listens, START_S, "the gateway listens")

    def stop(self) -> None:
        """End it as Ctrl-C does; the jobs go on."""
        assert self._up is not None
        self._up.send_signal(signal.SIGINT)
        self._up.wait(60)

    def run(self, *arguments: str) -> str:
        """Run `elasticgrid ARGUMENTS`, which succeeds, and return what it says."""
        done = subprocess.run(
            [str(BIN / "elasticgrid"), *arguments],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def _listens(self) -> bool:
        assert self._up is not None
        assert self._up.poll() is None, (self.folder / "up.log").read_text()
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def _running(self) -> set[int]:
        wanted = f"{_MARK}={self._mark}".encode()
        found = set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                        found.add(int(name))
        return found


def eventually(look: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Look until it is so: for what other processes do without telling anybody."""
    deadline_s = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
