"""What the hook reads from its environment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elasticgrid import environment as env


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose worker this is and whom it can talk to.

    Attributes:
        tenant, job: empty outside the grid.
        nodes: nodes in the world, for the samples.
        resume_step: steps done before this process began; `resume_uri` is their checkpoint, empty at the beginning.
        nats_url: where samples go; empty means nowhere.
        credentials: the file with the bus credential; empty for none.
        agent_socket: where the node's agent listens; empty without one.
        stacks_file: where the places of the threads are written to when the agent asks; empty for nowhere.
        node_dir: a folder of the node's own, for samples that the bus cannot take now; empty for none.
        problem: why the environment could not be used as it stands; the hook is then silent.
    """

    tenant: str = ""
    job: str = ""
    node: str = ""
    rank: int = 0
    world_size: int = 1
    nodes: int = 1
    round: int = 0
    resume_step: int = 0
    resume_uri: str = ""
    checkpoint_dir: str = ""
    nats_url: str = ""
    credentials: str = ""
    agent_socket: str = ""
    stacks_file: str = ""
    node_dir: str = ""
    problem: str = ""

    @property
    def has_bus(self) -> bool:
        """Whether samples have somewhere to go."""
        return bool(self.nats_url and self.job and self.tenant) and not self.problem

    @property
    def has_agent(self) -> bool:
        """Whether a node agent started this process."""
        return bool(self.agent_socket) and not self.problem


def read_settings(environ: Mapping[str, str]) -> HookSettings:
    """The settings in `environ`. Never raises: what cannot be read is said in `problem`."""
    problems: list[str] = []

    def number(name: str, default: int, least: int) -> int:
        text = environ.get(name, "").strip()
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            problems.append(f"{name} is not a whole number: {text[:40]!r}")
            return default
        if value < least:
            problems.append(f"{name} is below {least}: {value}")
            return default
        return value

    rank = number("RANK", 0, 0)
    world_size = number("WORLD_SIZE", 1, 1)
    nodes = number("GROUP_WORLD_SIZE", 1, 1)
    round_ = number(env.ROUND, 0, 0)
    resume_step = number(env.RESUME_STEP, 0, 0)
    return HookSettings(
        tenant=environ.get(env.TENANT, ""),
        job=environ.get(env.JOB, ""),
        node=environ.get(env.NODE, ""),
        rank=rank,
        world_size=world_size,
        nodes=nodes,
        round=round_,
        resume_step=resume_step,
        resume_uri=environ.get(env.RESUME_URI, ""),
        checkpoint_dir=environ.get(env.CHECKPOINT_DIR, ""),
        nats_url=environ.get(env.NATS_URL, ""),
        credentials=environ.get(env.CREDENTIALS, ""),
        agent_socket=environ.get(env.AGENT_SOCKET, ""),
        stacks_file=environ.get(env.STACKS_FILE, ""),
        node_dir=environ.get(env.NODE_DIR, ""),
        problem="; ".join(problems),
    )
