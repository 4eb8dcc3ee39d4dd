"""What a run without a grid is told: how many nodes, where they meet, what becomes of output and failures."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from elasticgrid.agent.config import STUCK_AFTER_S, STUCK_AT_START_S
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.names import is_name
from elasticgrid.core.run_state import RunSettings, StaticWorld
from elasticgrid.core.spec import OnStuck
from elasticgrid.elastic.events import check_destination
from elasticgrid.elastic.metrics import MetricsConfig

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: Final = ("spawn", "fork", "forkserver")
ON_STUCK: Final = get_args(OnStuck)

#: Where a run keeps what it writes, if it is not told.
RUNS_DIR: Final = Path(".elasticgrid/runs")


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as one of its nodes is told of it. Every node of a run is told the same, but for its own place.

    Attributes:
        min_nodes, max_nodes: fewer than that do not begin, more than that do not take part.
        nproc_per_node: workers on each node.
        run_id: the run's name, the same on every node; one is made up where no other node needs it.
        bus_url: where the nodes meet, `nats://HOST:PORT`; empty for a run of one node, which needs no such place.
        credentials: the file with the bus's credential; empty for a bus that asks for none.
        host_bus: whether this node serves the bus at `bus_url` itself, as long as the run goes on there.
        node_rank, master_addr, master_port: a world that is agreed on beforehand; no bus is needed for one. Given
            together or not at all.
        local_addr: address the other nodes reach this one by; found out when empty.
        role: what the workers are called in their own environment.
        max_restarts: rounds that may fail by themselves before the run has failed; changes of members are free.
        monitor_interval_s: how often this node looks whether there is something to decide.
        start_method: how functions are started.
        log_dir: the workers' output, one folder for each node; `.elasticgrid/runs/RUN_ID` when absent.
        shared_dir: the folder that every node sees; below `log_dir` when absent. Each run has one of its own in it, for
            checkpoints and for files by which workers meet.
        tee: whether the workers' output is repeated here, each line behind the rank it is of.
        tee_local_ranks: of which workers, by their place on the node; None for all.
        join_timeout_s: how long this node waits for a world.
        last_call_s: how long further nodes are waited for once there are enough.
        grace_s: how long workers have to stop when the members change.
        node_timeout_s: after how long without a sign of life a node is lost.
        bus_timeout_s: how long the bus is waited for at the beginning, and while no worker runs.
        orphan_timeout_s: after how long without the bus a node ends itself, its workers too; 0 for never.
        on_stuck: what follows when workers live but do not get on: `tell` says so, `restart` begins a new round at the
            cost of a restart, `fail` ends the run.
        stuck_after_s: without a step for less than this, and for less than ten times as long as steps take, nobody is
            stuck; 0 never calls anybody so. Only for workers with the hook.
        stuck_at_start_s: the same before the first step of a round.
        event_destination: where events of the run's life go; see `elasticgrid.elastic.events`.
        metrics: where figures of the run go.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    run_id: str = ""
    bus_url: str = ""
    credentials: str = ""
    host_bus: bool = False
    node_rank: int | None = None
    master_addr: str = ""
    master_port: int = 0
    local_addr: str = ""
    role: str = "default"
    max_restarts: int = 0
    monitor_interval_s: float = 0.1
    start_method: StartMethod = "spawn"
    log_dir: str | os.PathLike[str] | None = None
    shared_dir: str | os.PathLike[str] | None = None
    tee: bool = False
    tee_local_ranks: frozenset[int] | None = None
    join_timeout_s: float = 600.0
    last_call_s: float = 5.0
    grace_s: float = 30.0
    node_timeout_s: float = 8.0
    bus_timeout_s: float = 60.0
    orphan_timeout_s: float = 0.0
    on_stuck: OnStuck = "tell"
    stuck_after_s: float = STUCK_AFTER_S
    stuck_at_start_s: float = STUCK_AT_START_S
    event_destination: str = "null"
    metrics: MetricsConfig | None = None

    @property
    def is_static(self) -> bool:
        """Whether the world is agreed on beforehand."""
        return self.node_rank is not None

    @property
    def settings(self) -> RunSettings:
        """What the decisions of the run go by."""
        return RunSettings(
            min_nodes=1 if self.is_static else self.min_nodes,
            max_nodes=1 if self.is_static else self.max_nodes,
            nproc_per_node=self.nproc_per_node,
            max_restarts=self.max_restarts,
            join_timeout_ms=round(self.join_timeout_s * 1000),
            last_call_ms=round(self.last_call_s * 1000),
            grace_ms=round(self.grace_s * 1000),
            on_stuck=self.on_stuck,
            static=None
            if self.node_rank is None
            else StaticWorld(
                node_rank=self.node_rank,
                nodes=self.max_nodes,
                master_addr=self.master_addr,
                master_port=self.master_port,
            ),
        )

    def folders(self) -> tuple[Path, Path]:
        """Where logs are and what all nodes see, in which each run has a folder of its own; both absolute."""
        logs = Path(os.path.abspath(self.log_dir if self.log_dir is not None else RUNS_DIR / self.run_id))
        return logs, Path(os.path.abspath(self.shared_dir)) if self.shared_dir is not None else logs / "shared"


#: The least that each number may be.
_LEAST: Final[dict[str, float]] = {
    "min_nodes": 1,
    "nproc_per_node": 1,
    "max_restarts": 0,
    "monitor_interval_s": 0.01,
    "join_timeout_s": 0.1,
    "last_call_s": 0,
    "grace_s": 0,
    # A node gives a sign of life every two seconds.
    "node_timeout_s": 5,
    "bus_timeout_s": 1,
    "orphan_timeout_s": 0,
    "stuck_after_s": 0,
    "stuck_at_start_s": 0,
}


def checked(config: LaunchConfig) -> LaunchConfig:
    """The configuration with a name for the run.

    Raises:
        InvalidInput: a value is not usable, or they do not go together; `where` is the field's name.
    """
    for field, least in _LEAST.items():
        value = getattr(config, field)
        if not least <= value < 1e9:
            raise InvalidInput(f"{value!r} is not usable", where=field, hint=f"{least:g} or more")
    if config.max_nodes < config.min_nodes:
        raise InvalidInput(
            f"at most {config.max_nodes} nodes are fewer than at least {config.min_nodes}",
            where="max_nodes",
            hint="as many as min_nodes, or more",
        )
    if config.start_method not in START_METHODS:
        raise InvalidInput(
            f"{config.start_method!r} is no way to start",
            where="start_method",
            hint="one of " + ", ".join(START_METHODS),
        )
    if config.on_stuck not in ON_STUCK:
        raise InvalidInput(
            f"{config.on_stuck!r} is nothing that could follow", where="on_stuck", hint="one of " + ", ".join(ON_STUCK)
        )
    try:
        check_destination(config.event_destination)
    except InvalidInput as error:
        raise InvalidInput(error.what, where="event_destination", hint=error.hint) from None
    _check_meeting(config)
    if not config.run_id:
        made_up = "static" if config.is_static else f"run-{secrets.token_hex(4)}"
        config = msgspec.structs.replace(config, run_id=made_up)
    if not is_name(config.run_id):
        raise InvalidInput(
            f"{config.run_id!r} is not a name", where="run_id", hint="lower-case letters, digits, - and _; at most 63"
        )
    return config


def _check_meeting(config: LaunchConfig) -> None:
    if config.is_static:
        assert config.node_rank is not None
        if config.min_nodes != config.max_nodes:
            raise InvalidInput(
                "a world that is agreed on beforehand has one size", where="min_nodes", hint="give one number of nodes"
            )
        if not 0 <= config.node_rank < config.max_nodes:
            raise InvalidInput(
                f"{config.node_rank} is no rank among {config.max_nodes} nodes",
                where="node_rank",
                hint="counted from 0",
            )
        if not config.master_addr:
            raise InvalidInput("the address of rank 0 is missing", where="master_addr", hint="a name or an address")
        if not 0 < config.master_port < 65_536:
            raise InvalidInput(f"{config.master_port} is no port", where="master_port", hint="1 to 65535")
        return
    if config.host_bus and not config.bus_url:
        raise InvalidInput("where to serve the bus is missing", where="bus_url", hint="nats://HOST:PORT")
    if config.max_nodes > 1 and not config.bus_url:
        raise InvalidInput(
            f"{config.max_nodes} nodes need a place to meet at",
            where="bus_url",
            hint="name a bus, or give node_rank, master_addr and master_port for a world that is agreed on beforehand",
        )
    if config.max_nodes > 1 and not config.run_id:
        raise InvalidInput("nodes that meet need the run's name", where="run_id", hint="the same on every node")
