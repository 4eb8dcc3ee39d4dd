"""The environment of one worker: what torchrun sets, and what the grid adds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from elasticgrid import environment
from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.worker_files import WorkerFiles
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import WorldDecided

#: iroh-tinker's own variable.
RENDEZVOUS_SECRET: Final = "IROH_TINKER_RENDEZVOUS_SECRET"  # noqa: S105 - the variable's name


def checkpoint_dir(shared_dir: Path) -> Path:
    """Where workers write checkpoints; every node of the job sees it."""
    return shared_dir / "checkpoints"


def rendezvous_dir(shared_dir: Path, round_number: int) -> Path:
    """A folder for the files by which the workers of one round find each other; no two rounds share one."""
    return shared_dir / "rendezvous" / f"round-{round_number}"


def macro_values(config: AgentConfig, world: WorldDecided, *, rank: int, local_rank: int) -> dict[str, str]:
    """What the macros in one worker's command stand for."""
    return {
        "rank": str(rank),
        "local_rank": str(local_rank),
        "world_size": str(world.world_size),
        "round": str(world.round),
        "node": config.node,
        "checkpoint_dir": str(checkpoint_dir(config.shared_dir)),
    }


def worker_environment(
    config: AgentConfig,
    world: WorldDecided,
    *,
    group_rank: int,
    local_rank: int,
    restarts: int,
    files: WorkerFiles,
    base: Mapping[str, str],
    secrets: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """`base` with the variables of one worker of `world`, and where its files are, put over it.

    Args:
        restarts: earlier rounds that failed.
        secrets: variables that this process itself does not have.
    """
    rank = group_rank * world.nproc_per_node + local_rank
    resume = world.resume
    return {
        "PYTHONUNBUFFERED": "1",  # a terminated worker's last lines are wanted in its log
        **base,
        **(secrets or {}),
        "PATH": _path(base.get("PATH", os.defpath)),
        "RANK": str(rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(world.nproc_per_node),
        "GROUP_RANK": str(group_rank),
        "GROUP_WORLD_SIZE": str(len(world.members)),
        "ROLE_NAME": config.role,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world.world_size),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "TORCHELASTIC_RUN_ID": config.job,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts if config.max_restarts is not None else restarts),
        # Rank 0 serves the store at MASTER_PORT, not the agent.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(files.error),
        environment.ERROR_FILE: str(files.error),
        environment.STACKS_FILE: str(files.stacks),
        environment.TENANT: config.tenant,
        environment.JOB: config.job,
        environment.PROVIDER: config.provider,
        environment.NODE: config.node,
        environment.ROUND: str(world.round),
        environment.RESUME_STEP: str(resume.step if resume is not None else 0),
        environment.RESUME_URI: resume.uri if resume is not None else "",
        environment.CHECKPOINT_DIR: str(checkpoint_dir(config.shared_dir)),
        environment.RENDEZVOUS_DIR: str(rendezvous_dir(config.shared_dir, world.round)),
        environment.AGENT_SOCKET: str(config.socket_path),
        environment.NATS_URL: config.bus.url,
        environment.CREDENTIALS: config.bus.credentials,
        environment.NATS_CA: config.bus.ca,
        **_rendezvous_secret(config),
    }


def _rendezvous_secret(config: AgentConfig) -> dict[str, str]:
    """What workers sign their tickets with: they must be of the tenant's to be taken for each other."""
    if not config.bus.credentials:
        return {}
    try:
        secret = read_credentials(config.bus.credentials).rendezvous_secret
    except InvalidInput:
        return {}
    return {RENDEZVOUS_SECRET: secret} if secret else {}


def _path(path: str) -> str:
    """`path` with the agent's own interpreter first, so that `python` in a command is the one the grid runs on."""
    return os.pathsep.join([str(Path(sys.executable).parent), path])
