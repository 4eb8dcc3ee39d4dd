"""A folder, an environment and a mark of a test's own, in which commands run as a stranger would type them.

Everything that is started in it carries the mark in its environment, and so does everything that those processes start,
so that nothing can be left behind unseen.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

BIN: Final = Path(sys.executable).parent
TOP: Final = Path(__file__).parents[2]
_MARK: Final = "GRID_TEST_MARK"
_END_PATIENCE_S: Final = 10.0


def eventually(look: Callable[[], T], timeout_s: float, what: str) -> T:
    """Look until there is something to see: for what other processes do without telling anybody."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


class Sandbox:
    """Use as a context manager: at the end every process with the mark is killed.

    Attributes:
        folder: the current folder of everything that is run here.
        environ: the variables that it gets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        for each in (self.folder, self.home, self.temporary):
            each.mkdir(parents=True)
        self._mark = secrets.token_hex(8)
        self.environ = {
            "PATH": os.pathsep.join((str(BIN), "/usr/bin", "/bin")),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LC_ALL": "C.UTF-8",
            _MARK: self._mark,
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline_s = time.monotonic() + _END_PATIENCE_S
        while remains := self.running():
            for pid in remains:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            assert time.monotonic() < deadline_s, f"cannot be killed: {self.commands()}"
            time.sleep(0.02)
        for process in self._started:
            process.wait()

    def command(self, *arguments: object) -> list[str]:
        """The arguments as a command line of this project's own program."""
        return [str(BIN / "elasticgrid"), *map(str, arguments)]

    def start(
        self, command: list[str], *, environ: Mapping[str, str] | None = None, output: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process; its output is appended to a file, or dropped."""
        with (output or Path(os.devnull)).open("ab") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._started.append(process)
        return process

    def run(
        self, *arguments: object, timeout_s: float = 60.0, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `elasticgrid ARGUMENTS` to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def running(self, **variables: str) -> set[int]:
        """Every process with the mark, and with these variables, that runs now, of whatever parent."""
        wanted = {f"{name}={value}".encode() for name, value in {_MARK: self._mark, **variables}.items()}
        found = set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted <= set(Path("/proc", name, "environ").read_bytes().split(b"\0")):
                        found.add(int(name))
        return found

    def commands(self) -> dict[int, str]:
        """The command lines of what runs, by process."""
        found = {}
        for pid in self.running():
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def commanded(self, pattern: str) -> set[int]:
        """Processes whose command line begins with this pattern."""
        return {pid for pid, command in self.commands().items() if re.match(pattern, command)}

    def listening(self) -> set[int]:
        """TCP ports that processes with the mark listen on."""
        held = set()
        for pid in self.running():
            with contextlib.suppress(OSError):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        held.add(os.readlink(descriptor))
        return {port for inode, port in _listeners().items() if f"socket:[{inode}]" in held}

    def outside(self, data: Path) -> list[Path]:
        """Files and folders that lie in this sandbox but not in `data`."""
        roots = (self.folder, self.home, self.temporary)
        found = [path for root in roots for path in root.rglob("*")]
        return [path for path in found if path != data and data not in path.parents and path not in data.parents]

    def gone_within(self, timeout_s: float) -> float:
        """Wait until nothing runs here any more, and return how long that took.

        A process that this test is the parent of is gone once it has ended.
        """
        began_s = time.monotonic()
        eventually(lambda: not self.running(), timeout_s, f"still run: {self.commands()}")
        return time.monotonic() - began_s


def open_to_others(data: Path) -> list[str]:
    """What below `data` other users of the machine could read, write or enter."""
    return [f"{path.stat().st_mode:o} {path}" for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077]


def is_open(port: int) -> bool:
    """Whether anybody listens on this TCP port."""
    return port in _listeners().values()


def _listeners() -> dict[str, int]:
    """Port by inode of every listening TCP socket."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    return found
