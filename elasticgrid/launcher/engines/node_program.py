"""What is done on a node for a launch: each operation reads one request and gives one answer, and may be done again.

A launch has a folder on each of its nodes:

    ROOT/bundles/<sha256>.tar.gz    what is kept for the next launch of the same
    ROOT/caches/<key>/              filled by setup commands
    ROOT/launches/<launch>/workspace/   the bundle, unpacked
                          /nodes/<rank>/    the folder of each agent
                          /logs/            output of setup and agents
                          /node.json        the credential for the bus
                          /secrets/<variable>   the job's secrets
                          /stopped          the launch was stopped: nothing is started any more

This module is sent to nodes as it stands and runs there with Python 3.10 and nothing installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from elasticgrid.launcher.setup_run import caches_held, run_setup, shell
from elasticgrid.launcher.unpack import BUNDLES_KEPT, digest_of, latest_used, unpack
from elasticgrid.marked_processes import LAUNCH_MARK, end_processes, mark, running_ranks
from elasticgrid.output_files import tail_of

_OWN_VARIABLES: Final = "ELASTICGRID_"
_NODE_DIR: Final = "ELASTICGRID_NODE_DIR"
_SHARED_DIR: Final = "ELASTICGRID_SHARED_DIR"
_CACHE_DIR: Final = "ELASTICGRID_CACHE_DIR"
_CREDENTIALS: Final = "ELASTICGRID_CREDENTIALS"
_SECRETS_DIR: Final = "ELASTICGRID_SECRETS_DIR"
_PIECE: Final = 1 << 20

Request = Mapping[str, Any]


class Call(NamedTuple):
    """What one operation is asked for, and what was sent for it."""

    request: Request
    payload: BinaryIO


class RefusedError(Exception):
    """An operation that must not be done any more, or cannot be."""


class Launch:
    """A launch as this machine has it."""

    def __init__(self, request: Request) -> None:
        self.name = str(request["launch"])
        self.root = Path(os.path.expanduser(str(request["root"]))).absolute()
        self.folder = self.root / "launches" / self.name
        self.workspace = self.folder / "workspace"
        self.logs = self.folder / "logs"
        self.credentials = self.folder / "node.json"
        self.secrets = self.folder / "secrets"
        self.stopped = self.folder / "stopped"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else begins or stops anything of the launch here while the block runs."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """The same, for what must not be done after the launch was stopped.

        Raises:
            RefusedError: it was.
        """
        with self.held():
            if self.stopped.exists():
                raise RefusedError("the launch was stopped already")
            yield

    def variables(self, request: Request, rank: int) -> dict[str, str]:
        """The environment of a rank's processes: this machine's, with the launch's over it."""
        given = {str(name): str(value) for name, value in request["env"].items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        if given.get(_SHARED_DIR):
            given[_SHARED_DIR] = os.path.expanduser(given[_SHARED_DIR])
        if self.credentials.exists():
            given[_CREDENTIALS] = str(self.credentials)
        if given.get(_SECRETS_DIR):
            given[_SECRETS_DIR] = str(self.secrets)
        return {
            **inherited,
            **given,
            _NODE_DIR: str(self.folder / "nodes" / str(rank)),
            _CACHE_DIR: str(self.root / "caches"),
            LAUNCH_MARK: mark(self.name, rank),
        }

    def sessions(self) -> dict[int, int]:
        """The process that leads each rank's session, as far as it was noted."""
        try:
            noted = json.loads((self.folder / "sessions.json").read_text())
        except (OSError, ValueError):
            return {}
        return {int(rank): int(pid) for rank, pid in noted.items()}

    def note_session(self, rank: int, pid: int) -> None:
        """Note it; what is noted is whole or as it was."""
        path = self.folder / "sessions.json"
        temporary = path.with_name("sessions.new")
        temporary.write_text(json.dumps({**self.sessions(), rank: pid}))
        temporary.replace(path)


def look(call: Call) -> Any:
    """The folder for everything; it is made where it is not there."""
    root = Launch(call.request).root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(root)


def has_bundle(call: Call) -> Any:
    """Whether the bundle is here already; it is then the latest used."""
    archive = _archive(call.request)
    with contextlib.suppress(FileNotFoundError):
        os.utime(archive)
        return True
    return False


def put_bundle(call: Call) -> Any:
    """Keep a bundle, and of the older ones only the latest used."""
    archive = _archive(call.request)
    archive.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive.parent.mkdir(exist_ok=True)
    temporary = archive.with_name(f".{archive.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            shutil.copyfileobj(call.payload, file, _PIECE)
        if digest_of(temporary) != call.request["digest"]:
            raise RefusedError("the bundle was damaged on its way")
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)
    for old in latest_used(archive.parent.glob("*.tar.gz"))[BUNDLES_KEPT:]:
        old.unlink(missing_ok=True)
    return None


def prepare(call: Call) -> Any:
    """Make the launch's clean workspace, and keep what comes as the payload: the credential, then each secret."""
    launch = Launch(call.request)
    with launch.going_on():
        unpack(_archive(call.request), launch.workspace, str(call.request["digest"]))
        credential = call.payload.read(int(call.request["credential"]))
        if credential:
            _keep_private(launch.credentials, credential)
        shutil.rmtree(launch.secrets, ignore_errors=True)
        for name, size in call.request["secrets"]:
            launch.secrets.mkdir(mode=0o700, exist_ok=True)
            _keep_private(launch.secrets / os.path.basename(str(name)), call.payload.read(int(size)))
    return None


def _keep_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def setup(call: Call) -> Any:
    """Run the setup command to its end; returns its exit code and the end of what it said."""
    launch = Launch(call.request)
    log = launch.logs / "setup.log"
    variables = launch.variables(call.request, int(call.request["rank"]))
    code = 0
    with contextlib.suppress(_SetupFailedError), caches_held(launch.root / "caches", call.request["caches"]):
        code = run_setup(str(call.request["command"]), launch.workspace, variables, log, launch.going_on())
        if code:
            raise _SetupFailedError
    return {"code": code, "said": tail_of(log, int(call.request["lines"]))}


class _SetupFailedError(Exception):
    """Ends the block that holds the caches, so that none is ready."""


def start(call: Call) -> Any:
    """Start the ranks that do not run, each in a session of its own; returns the process that leads each."""
    launch = Launch(call.request)
    with launch.going_on():
        launch.logs.mkdir(exist_ok=True)
        commands = {int(rank): [str(word) for word in words] for rank, words in call.request["commands"].items()}
        running = running_ranks(launch.name, commands, launch.sessions())
        for rank in sorted(commands.keys() - running):
            with (launch.logs / f"rank_{rank}.log").open("ab") as output:
                process = subprocess.Popen(
                    [*shell(), "-c", 'exec "$@"', "elasticgrid", *commands[rank]],
                    cwd=launch.workspace,
                    env=launch.variables(call.request, rank),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            launch.note_session(rank, process.pid)
        return launch.sessions()


def status(call: Call) -> Any:
    """`running` or `stopped` for each of the ranks."""
    launch = Launch(call.request)
    ranks = [int(rank) for rank in call.request["ranks"]]
    running = running_ranks(launch.name, ranks, launch.sessions())
    return {rank: "running" if rank in running else "stopped" for rank in ranks}


def stop(call: Call) -> Any:
    """End everything of the launch here, for good; returns whether nothing runs any more."""
    launch = Launch(call.request)
    with launch.held():
        launch.stopped.touch()
    ended = end_processes(launch.name, launch.sessions(), float(call.request["grace_s"]), reap=lambda: None)
    if ended:
        launch.credentials.unlink(missing_ok=True)
        shutil.rmtree(launch.secrets, ignore_errors=True)
        shutil.rmtree(launch.workspace, ignore_errors=True)
    return ended


def logs(call: Call) -> Any:
    """The last lines of a rank's output."""
    return tail_of(Launch(call.request).logs / f"rank_{int(call.request['rank'])}.log", int(call.request["lines"]))


def _archive(request: Request) -> Path:
    root = Path(os.path.expanduser(str(request["root"]))).absolute()
    return root / "bundles" / f"{request['digest']}.tar.gz"


OPERATIONS: Final[dict[str, Callable[[Call], Any]]] = {
    operation.__name__: operation
    for operation in (look, has_bundle, put_bundle, prepare, setup, start, status, stop, logs)
}


def main(request: Request, payload: BinaryIO) -> None:
    """Do what the request says, and write the answer, or why there is none, as the last line of the output."""
    answer: dict[str, Any]
    try:
        answer = {"answer": OPERATIONS[request["operation"]](Call(request, payload))}
    except (RefusedError, ValueError) as error:
        answer = {"problem": str(error)}
    except OSError as error:
        answer = {"problem": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
