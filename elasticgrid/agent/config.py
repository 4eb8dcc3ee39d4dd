"""What an agent is told by its launch, read from the environment."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elasticgrid import environment
from elasticgrid.agent.notices.watch import NoticeSettings
from elasticgrid.agent.worker_output import OutputSettings
from elasticgrid.bus.connect import BusAddress
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.names import is_name
from elasticgrid.core.spec import DEFAULT_STUCK_AFTER_MS

#: Address other nodes reach this one by; found from the default route when absent.
NODE_HOST = "ELASTICGRID_NODE_HOST"
#: The node's index in its launch.
LAUNCH_RANK = "RANK"

STUCK_AFTER_S = DEFAULT_STUCK_AFTER_MS / 1000
#: Loading a model and its data and compiling it come before the first step.
STUCK_AT_START_S = 1_800.0

#: Of a whole number: as many as those have that every reader of JSON keeps exact.
_MOST_DIGITS = 16
_NAME_HINT = "lower-case letters, digits, - and _; at most 63"


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent needs to know.

    Attributes:
        bus: where the bus is and with what credential.
        launched: whether the launcher started it, so that the log must know its launch; not so one that a person did.
        attempt, index: the launch this node belongs to and its place in it; together they name the node.
        nproc_per_node: workers a node is launched for; a world may say another number.
        node_dir: this node's own folder: socket and logs.
        shared_dir: the folder that every node of the job sees: checkpoints and rendezvous files.
        folder_of_run: whether the job's files go into a folder below `shared_dir` that is named after the first
            decision about it, so that no other run of its name has the same; a grid's launcher says such a folder.
        host: address other nodes reach this one by.
        orphan_timeout_s: seconds without the bus after which the node ends itself; None means never.
        workdir: where workers run.
        notices: where notices that the node will be taken away come from.
        stuck_after_s: without a step for less than this no worker is stuck; 0 never calls one so.
        stuck_at_start_s: the same before the first step of a round.
        max_restarts: failures that are answered with a new round, for the workers to know; None where nobody said.
        output: how the workers' output is kept.
        secrets_dir: the folder with a file for each secret of the job; None when it has none.
        role: what the workers are called in their own environment.
    """

    bus: BusAddress
    tenant: str
    job: str
    provider: str
    attempt: str
    index: int
    nproc_per_node: int
    node_dir: Path
    shared_dir: Path
    folder_of_run: bool = False
    host: str
    workdir: Path
    orphan_timeout_s: float | None = None
    notices: NoticeSettings = NoticeSettings()
    stuck_after_s: float = STUCK_AFTER_S
    stuck_at_start_s: float = STUCK_AT_START_S
    max_restarts: int | None = None
    output: OutputSettings = OutputSettings()
    secrets_dir: Path | None = None
    role: str = "default"
    launched: bool = False

    @property
    def node(self) -> str:
        """The node's id, unique within the job."""
        return f"{self.attempt}-{self.index}"

    @property
    def socket_path(self) -> Path:
        """Where the workers' hooks reach the agent."""
        return self.node_dir / "agent.sock"

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> AgentConfig:
        """The configuration in `environ`.

        Raises:
            InvalidInput: a variable is missing or has no usable value; `where` is its name.
        """
        bus = BusAddress.from_environment(environ)
        if bus is None:
            raise InvalidInput(
                "the bus's address is missing",
                where=environment.NATS_URL,
                hint="set it to nats://host:port; launches of the grid set it themselves",
            )
        return AgentConfig(
            bus=bus,
            tenant=_name(environ, environment.TENANT),
            job=_name(environ, environment.JOB),
            provider=_name(environ, environment.PROVIDER),
            attempt=_name(environ, environment.ATTEMPT),
            index=_whole(environ, LAUNCH_RANK, default=0, least=0),
            nproc_per_node=_whole(environ, environment.NPROC_PER_NODE, default=1, least=1),
            node_dir=_folder(environ, environment.NODE_DIR),
            shared_dir=_folder(environ, environment.SHARED_DIR),
            host=environ.get(NODE_HOST, "").strip() or default_host(bus.url),
            workdir=Path.cwd(),
            orphan_timeout_s=_optional_seconds(environ, environment.ORPHAN_TIMEOUT_S),
            notices=NoticeSettings.from_environment(environ),
            stuck_after_s=_seconds_or_never(environ, environment.STUCK_AFTER_S, STUCK_AFTER_S),
            stuck_at_start_s=_seconds_or_never(environ, environment.STUCK_AT_START_S, STUCK_AT_START_S),
            launched=environ.get(environment.LAUNCHED, "") == "1",
            secrets_dir=Path(folder) if (folder := environ.get(environment.SECRETS_DIR, "").strip()) else None,
            max_restarts=_whole(environ, environment.MAX_RESTARTS, default=0, least=0)
            if environ.get(environment.MAX_RESTARTS, "").strip()
            else None,
            output=OutputSettings(
                max_bytes=_whole(environ, environment.LOG_BYTES, default=OutputSettings().max_bytes, least=0),
                files=_whole(environ, environment.LOG_FILES, default=OutputSettings().files, least=0),
                tee=_whole(environ, environment.TEE, default=0, least=0) > 0,
            ),
        )


def default_host(bus_url: str) -> str:
    """The address of the interface that traffic to the bus leaves by; 127.0.0.1 when the bus is on this machine."""
    host = bus_url.split(",", 1)[0].split("://", 1)[-1].rsplit("@", 1)[-1].rsplit(":", 1)[0].strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # a datagram socket only looks the route up; nothing is sent
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return "127.0.0.1"


def free_port(host: str) -> int:
    """A port on `host` that nothing listens on just now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            # The address others use may be translated on the way and be none of this machine's own.
            probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _name(environ: Mapping[str, str], variable: str) -> str:
    text = environ.get(variable, "").strip()
    if not is_name(text):
        what = f"{text!r} is not a name" if text else "the variable is missing"
        raise InvalidInput(what, where=variable, hint=_NAME_HINT)
    return text


def _whole(environ: Mapping[str, str], variable: str, *, default: int, least: int) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) < least:
        raise InvalidInput(f"{text!r} is not usable", where=variable, hint=f"a whole number, {least} or more")
    return int(text)


def _folder(environ: Mapping[str, str], variable: str) -> Path:
    text = environ.get(variable, "").strip()
    if not text:
        raise InvalidInput("the variable is missing", where=variable, hint="set it to the path of a folder")
    path = Path(os.path.abspath(text))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the folder {path} cannot be used: {error.strerror}", where=variable, hint="choose one that can be written"
        ) from error
    return path


def _seconds_or_never(environ: Mapping[str, str], variable: str, default: float) -> float:
    """Seconds, 0 for never."""
    text = environ.get(variable, "").strip()
    return 0.0 if text == "0" else _optional_seconds(environ, variable) or default


def _optional_seconds(environ: Mapping[str, str], variable: str) -> float | None:
    text = environ.get(variable, "").strip()
    if not text:
        return None
    try:
        duration_s = float(text)
    except ValueError:
        duration_s = math.nan
    if not math.isfinite(duration_s) or duration_s <= 0:
        raise InvalidInput(f"{text!r} is not usable", where=variable, hint="seconds above 0; leave it out for never")
    return duration_s
