"""One node of a run: the agent, and beside it what decides for the run when it is this node's turn.

The nodes of a run share a log. Each follows it, folds it and asks the same pure functions; whose append comes first has
decided. So there is nobody who must not die, and a run can be read afterwards as any job can.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.notices.watch import NoticeSettings
from elasticgrid.agent.service import Agent
from elasticgrid.agent.worker_output import OutputSettings
from elasticgrid.agent.workers import StartProcess, start_command
from elasticgrid.bus.connect import connect, disconnect
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import heartbeat_subject
from elasticgrid.core import errors
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError, BusUnavailable, ElasticGridError, NotAllowed
from elasticgrid.core.names import run_folder
from elasticgrid.core.run_plan import static_node, verdict
from elasticgrid.core.run_state import RUN_TENANT, RunState
from elasticgrid.elastic.config import LaunchConfig
from elasticgrid.elastic.events import BUS, BusHandler, RdzvEvent, record_rdzv_event, register_handler
from elasticgrid.elastic.leftovers import Leftovers
from elasticgrid.elastic.metrics import put_metric
from elasticgrid.elastic.presence import Presence
from elasticgrid.elastic.run_bus import RunBus, own_address, run_bus
from elasticgrid.elastic.run_decider import RunDecider
from elasticgrid.elastic.run_outcome import BUS_LOST, RunResult, ranks_of, refuse, result_of
from elasticgrid.elastic.run_view import RunView
from elasticgrid.elastic.static_folder import StaticFolder
from elasticgrid.log.jetstream import JetStreamLog

_log = structlog.get_logger("elasticgrid.elastic")

#: How long the end of the run may take to be read after the agent has ended because of it.
LAST_WORDS_S: Final = 5.0
#: How long a node that serves the bus goes on serving those who have not left yet, beyond the time to call one lost.
SERVE_ON_S: Final = 10.0
#: How often a node looks whether it has neither workers nor a bus.
LOOK_AT_BUS_S: Final = 0.2


class RunNode:
    """One node's part in a run.

    Args:
        config: checked, with a name for the run.
        command: what each worker runs.
        start_process: how a worker's process is started.
    """

    def __init__(
        self, config: LaunchConfig, command: Sequence[str], *, start_process: StartProcess = start_command
    ) -> None:
        self._config = config
        self._command = tuple(command)
        self._leftovers = Leftovers(start_process)
        static = config.node_rank
        self._attempt = "static" if static is not None else f"{_host_name()}-{secrets.token_hex(3)}"
        self._index = static or 0
        self.node: Final = static_node(static) if static is not None else f"{self._attempt}-{self._index}"
        logs, self._shared_base = config.folders()
        self._static = StaticFolder(config, self._shared_base) if static is not None else None
        self._static_dir: Path | None = None
        # What an earlier run of this name left in a folder would be read as this one's.
        self.folder: Final = logs / (self.node if static is None else f"{self.node}-{secrets.token_hex(3)}")
        self._view = RunView(config.run_id, self._announce)
        self._presence = Presence(config.node_timeout_s)
        self._decider = RunDecider(config, self.node, self._view, self._presence)

    @property
    def round(self) -> int:
        """The last round."""
        return self._view.state.round

    @property
    def ranks(self) -> tuple[int, ...]:
        """The workers of the last round on this node."""
        return ranks_of(self._view.state, self.node, self._config.nproc_per_node)

    @property
    def shared_dir(self) -> Path | None:
        """The run's own folder that all its nodes see; None while it is not known."""
        first = self._view.state.first_decision_id
        if self._static is not None or not first:
            return self._static_dir
        return self._shared_base / run_folder(self._config.run_id, first)

    async def run(self) -> RunResult:
        """Take part until the run is over or this node has to leave; no worker is left then.

        Raises:
            RendezvousError: it did not come to train with the others; its kind says why.
            WorkersFailed: workers failed, and no restart was left.
            RunInterrupted: a signal ended it.
        """
        try:
            if self._static is not None:
                self._static_dir = await self._static.found()
            async with run_bus(self._config) as bus:
                client = await self._connected(bus)
                to_bus = BusHandler(bus.address, self._config.run_id)
                try:
                    if self._config.event_destination == BUS:
                        register_handler(BUS, to_bus)
                    return await self._take_part(bus, client)
                finally:
                    await asyncio.to_thread(to_bus.close)
                    await disconnect(client)
        except errors.RendezvousError as error:
            self._tell("error", error.what)
            raise

    async def _connected(self, bus: RunBus) -> Client:
        try:
            client = await connect(
                bus.address, name=f"run {self._config.run_id}/{self.node}", connect_timeout_s=self._config.bus_timeout_s
            )
        except BusUnavailable as error:
            raise errors.RendezvousConnectionFailed(error.what, where=error.where, hint=error.hint) from error
        try:
            await ensure_streams(client)
        except (BusError, NotAllowed) as error:
            await disconnect(client)
            raise errors.RendezvousConnectionFailed(
                f"the bus cannot be used for a run: {error.what}",
                where=bus.address.url,
                hint=error.hint or "the credential has to be one that may decide",
            ) from error
        except BaseException:
            await disconnect(client)
            raise
        return client

    async def _take_part(self, bus: RunBus, client: Client) -> RunResult:
        log = JetStreamLog(client)
        await self._view.catch_up(log)
        if (found := verdict(self._view.state, self._config.settings, self.node, 0)) is not None:
            refuse(found, self._config.run_id)
        heartbeats = heartbeat_subject(RUN_TENANT, self._config.run_id, "*")
        await client.subscribe(heartbeats, cb=self._on_heartbeat)
        agent = Agent(self._agent_config(bus), self._command, start_process=self._leftovers.start)

        def bus_is_there() -> bool:
            return client.is_connected and not agent.bus_away_s

        parts = [
            asyncio.create_task(self._view.follow(log), name="follow"),
            asyncio.create_task(self._decider.run(log, end=agent.end, bus_is_there=bus_is_there), name="decide"),
            asyncio.create_task(self._end_without_bus(agent), name="bus"),
        ]
        if self._static is not None:
            parts.append(asyncio.create_task(self._static.answer(), name="answer"))
        for part in parts:
            part.add_done_callback(lambda done: _on_broken(done, agent))
        try:
            try:
                exit_code = await agent.run()
            finally:
                # What goes on after a success was meant to: an upload, say.
                if agent.departure != "completed" and not (agent.departure == BUS_LOST and agent.finished):
                    await self._leftovers.end()
            for part in parts:
                if part.done() and not part.cancelled():
                    part.result()
            await self._hear_the_end(agent.departure)
            if self._static is not None and agent.departure == "completed":
                await self._static.answered()
            if bus.served and agent.departure != "terminated":
                await self._serve_on()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        found = self._decider.verdict
        state = self._view.state
        if found is None and state.outcome is not None:
            found = verdict(state, self._config.settings, self.node, self._view.now_ms())
        return result_of(
            self._config,
            state,
            self.node,
            found,
            departure=agent.departure,
            exit_code=exit_code,
            folder=self.folder,
            shared_dir=self.shared_dir,
        )

    async def _end_without_bus(self, agent: Agent) -> None:
        """Workers never notice that the bus is away. A node without workers waits no longer than at the beginning."""
        while True:
            if agent.idle and agent.bus_away_s >= self._config.bus_timeout_s:
                agent.end(BUS_LOST, 0 if agent.finished else 1)
                return
            await asyncio.sleep(LOOK_AT_BUS_S)

    def _agent_config(self, bus: RunBus) -> AgentConfig:
        config = self._config
        self.folder.mkdir(parents=True, exist_ok=True)
        return AgentConfig(
            bus=bus.address,
            tenant=RUN_TENANT,
            job=config.run_id,
            provider="run",
            attempt=self._attempt,
            index=self._index,
            nproc_per_node=config.nproc_per_node,
            node_dir=self.folder,
            shared_dir=self._static_dir if self._static_dir is not None else self._shared_base,
            folder_of_run=self._static_dir is None,
            host=config.local_addr or own_address(bus),
            workdir=Path.cwd(),
            orphan_timeout_s=config.orphan_timeout_s or None,
            notices=NoticeSettings.from_environment(os.environ),
            output=OutputSettings(tee=config.tee, tee_local_ranks=config.tee_local_ranks),
            role=config.role,
            stuck_after_s=config.stuck_after_s,
            stuck_at_start_s=config.stuck_at_start_s,
            max_restarts=config.max_restarts,
        )

    def _announce(self, before: RunState, data: ev.EventData) -> None:
        """Tell those who want to know what this node read; nothing is decided by it."""
        match data:
            case ev.NodeJoined():
                self._tell("joined", data.node)
            case ev.WorldDecided():
                self._tell("world", f"{len(data.members)} nodes: {', '.join(each.node for each in data.members)}")
                put_metric("run.nodes", len(data.members))
            case ev.DrainDecided():
                self._tell("drain", data.reason)
            case ev.NodeLost():
                self._tell("lost", f"{data.node}: {data.text}")
            case ev.NodeStuck():
                self._tell("stuck", f"{data.node}: {data.detail}")
            case ev.NodeLeft():
                self._tell("left", f"{data.node}: {data.reason}")
            case ev.NodeFailed() if data.round not in before.failed_rounds:
                put_metric("run.failed_rounds", len(self._view.state.failed_rounds))
            case ev.OutcomeDecided():
                self._tell("ended", f"{data.outcome}: {data.reason}")

    def _tell(self, name: str, message: str) -> None:
        event = RdzvEvent(
            name=name, run_id=self._config.run_id, node=self.node, round=self._view.state.round, message=message
        )
        record_rdzv_event(event, self._config.event_destination)

    async def _on_heartbeat(self, message: Msg) -> None:
        self._presence.heard(message.subject.rsplit(".", 1)[-1], monotonic())

    async def _hear_the_end(self, departure: str) -> None:
        if departure in ("completed", "failed"):
            await self._view.until(lambda state: state.outcome is not None, LAST_WORDS_S)

    async def _serve_on(self) -> None:
        """Serve the bus until the other nodes have left; those that are lost are found to be meanwhile."""

        def alone(state: RunState) -> bool:
            return all(node.status != "joined" or node.id == self.node for node in state.nodes.values())

        await self._view.until(alone, self._config.node_timeout_s + SERVE_ON_S)


def _on_broken(part: asyncio.Task[None], agent: Agent) -> None:
    """A node that lost a part of itself must not go on half blind."""
    if part.cancelled() or part.exception() is None:
        return
    error = part.exception()
    is_ours = isinstance(error, ElasticGridError)
    _log.error("a part of this node failed", part=part.get_name(), exc_info=None if is_ours else error)
    agent.end("run_error", 1)


def _host_name() -> str:
    """The machine's name, as far as it may be part of a node's."""
    name = re.sub(r"[^a-z0-9_-]+", "-", socket.gethostname().split(".", 1)[0].lower()).strip("-")
    return name[:40].strip("-") or "node"
