"""What a launcher is told when it is started."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid import environment
from elasticgrid.core.errors import InvalidInput
from elasticgrid.launcher.bundle import DEFAULT_LIMIT_BYTES

#: Long enough that a launcher may be away for a night without a node being locked out of the bus.
CREDENTIAL_LIFE_S: Final = 12 * 3_600


class LauncherConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one launcher.

    Attributes:
        data_dir: its folder; `launches` in it has one folder per launch. Only one launcher works in a folder at a time.
        nats_url: where the agents it starts reach the bus.
        authority: path of the secret that each launch's credential is made with; empty on a bus of somebody else's.
        node_credentials: without that, path of the credential file that all agents enter the bus with; empty when the
            bus asks for none.
        own_nats_url: where the launcher itself reaches the bus; `nats_url` when empty.
        own_credentials: path of the credential file that it enters the bus with itself; empty for none.
        nats_ca: path of the certificates that the bus's own is checked with, here and on nodes; empty for those that
            machines trust.
        credential_life_s: how long a launch's credential is valid; the launch renews it at half of that.
        shared_dir: a folder that the nodes of a job see, for jobs that name none; `shared` in `data_dir` when absent.
        orphan_timeout_s: seconds without the bus after which a node ends itself; None means never.
        poll_s: how often each launch is looked at.
        remote_poll_s: the same for launches on other machines, where a look is a connection.
        orphans_every_s: how often clouds are asked for machines of launches that are over.
        engine_timeout_s: how long an engine may take to answer for a launch until its answer counts as unknown.
        silent_after_s: a node whose engine does not answer is lost when it was not heard of for so long.
        python: the interpreter that runs agents.
        bundle_limit_bytes: the most that may be in a job's bundle, before it is compressed.
        agent_command: what runs on each node, in front of the job's own command; the agent of `python` when empty.
    """

    data_dir: Path
    nats_url: str
    authority: str = ""
    node_credentials: str = ""
    own_nats_url: str = ""
    own_credentials: str = ""
    nats_ca: str = ""
    credential_life_s: int = CREDENTIAL_LIFE_S
    shared_dir: Path | None = None
    orphan_timeout_s: float | None = None
    poll_s: float = 1.0
    remote_poll_s: float = 10.0
    orphans_every_s: float = 900.0
    engine_timeout_s: float = 30.0
    silent_after_s: float = 900.0
    python: str = sys.executable
    bundle_limit_bytes: int = DEFAULT_LIMIT_BYTES
    agent_command: tuple[str, ...] = ()

    @property
    def launches_dir(self) -> Path:
        """One folder per launch: its specification, state and logs."""
        return self.data_dir.absolute() / "launches"

    @property
    def closed(self) -> tuple[Path, ...]:
        """Files, and folders with files, that no job is given, whatever it names: with them it could be anybody."""
        files = (self.authority, self.node_credentials, self.own_credentials)
        return (self.data_dir.absolute(), *(Path(file) for file in files if file))

    @property
    def agent_prefix(self) -> tuple[str, ...]:
        """The argument list that the job's command is put behind."""
        return self.agent_prefix_of(self.python)

    def agent_prefix_of(self, python: str) -> tuple[str, ...]:
        """The same for a machine whose interpreter is another."""
        # It runs in the job's folder, whose modules are the workers' business and not the agent's: hence -P.
        return self.agent_command or (python, "-P", "-m", "elasticgrid.agent", "--")

    @property
    def bundles_dir(self) -> Path:
        """Bundles of jobs, each once."""
        return self.data_dir.absolute() / "bundles"


def orphan_timeout_s(environ: Mapping[str, str]) -> float | None:
    """What `environ` says of how long nodes go on without the bus; None means for ever.

    Raises:
        InvalidInput: it is no number of seconds above 0.
    """
    text = environ.get(environment.ORPHAN_TIMEOUT_S, "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        hint = "seconds above 0; leave it out for never"
        raise InvalidInput(f"{text!r} is not usable", where=environment.ORPHAN_TIMEOUT_S, hint=hint)
    return seconds
