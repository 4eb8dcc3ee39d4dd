"""One node of a run: the agent, and beside it what decides for the run when it is this node's turn.

The nodes of a run share a log. Each follows it, folds it and asks the same pure functions; whose append comes first has
decided. So there is nobody who must not die, and a run can be read afterwards as any job can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, Literal, NoReturn

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.agent.config import AgentConfig, default_host
from elasticgrid.agent.notices.watch import NoticeSettings
from elasticgrid.agent.service import Agent
from elasticgrid.agent.worker_output import OutputSettings
from elasticgrid.agent.workers import StartProcess, start_command
from elasticgrid.bus.connect import connect, disconnect
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import heartbeat_subject
from elasticgrid.core import errors
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError, BusUnavailable, Conflict, ElasticGridError, NotAllowed
from elasticgrid.core.names import derived_id
from elasticgrid.core.run_plan import (
    Verdict,
    WorkerFailure,
    decide,
    decision_events,
    failures_of,
    static_node,
    turn_of,
    verdict,
)
from elasticgrid.core.run_state import RUN_TENANT, RunState, evolve, initial
from elasticgrid.elastic.config import LaunchConfig
from elasticgrid.elastic.events import BUS, BusHandler, RdzvEvent, record_rdzv_event, register_handler
from elasticgrid.elastic.metrics import put_metric
from elasticgrid.elastic.presence import Presence
from elasticgrid.elastic.run_bus import ANY_ADDRESS, RunBus, host_and_port, run_bus
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Expectation, Scope

_log = structlog.get_logger("elasticgrid.elastic")

#: How much later the next node tries what is due, so that not all of them do at once; and the most that is waited.
TURN_S: Final = 0.3
TURNS_MOST: Final = 20
#: How long the end of the run may take to be read after the agent has ended because of it.
LAST_WORDS_S: Final = 5.0
#: How long a node that serves the bus goes on serving those who have not left yet, beyond the time to call one lost.
SERVE_ON_S: Final = 10.0
RETRY_S: Final = 0.5

_ERRORS: Final[dict[str, type[errors.RendezvousError]]] = {
    "closed": errors.RendezvousClosed,
    "timed_out": errors.RendezvousTimedOut,
    "connection": errors.RendezvousConnectionFailed,
    "state": errors.RendezvousStateInvalid,
    "graceful_exit": errors.RendezvousGracefulExit,
    "exhausted": errors.RendezvousExhausted,
}
_HINTS: Final[dict[str, str]] = {
    "closed": "start again under another name",
    "timed_out": "start the other nodes, ask for fewer, or wait longer",
    "connection": "start the node again; it joins as a new one",
    "state": "give every node the same settings, or start under another name",
    "exhausted": "raise the most nodes, or wait longer",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run, as one of its nodes saw it.

    Attributes:
        outcome: `completed`, or `left` when this node was made to leave before the end.
        rounds: how many worlds there were; `nodes` in the last one, `ranks` of this node in it.
        restarts: rounds that failed by themselves.
        last_step: steps that are known to be done.
        log_dir: where this node's output is.
    """

    run_id: str
    node: str
    outcome: Literal["completed", "left"]
    rounds: int
    nodes: int
    ranks: tuple[int, ...]
    restarts: int
    last_step: int
    log_dir: str


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
        self._settings = config.settings
        self._command = tuple(command)
        self._start_process = start_process
        static = config.node_rank
        self._attempt = "static" if static is not None else f"{_host_name()}-{secrets.token_hex(3)}"
        self._index = static or 0
        self.node: Final = static_node(static) if static is not None else f"{self._attempt}-{self._index}"
        logs, self._shared_dir = config.folders()
        # What an earlier run of this name left in a folder would be read as this one's.
        self.folder: Final = logs / (self.node if static is None else f"{self.node}-{secrets.token_hex(3)}")
        self._state: RunState = initial(config.run_id)
        self._read_at = monotonic()
        self._as_of_ms = 0
        self._changed = asyncio.Event()
        self._presence = Presence(config.node_timeout_s)
        self._due_since: dict[str, float] = {}
        self._appended = 0
        self._verdict: Verdict | None = None

    @property
    def round(self) -> int:
        """The last round."""
        return self._state.round

    @property
    def ranks(self) -> tuple[int, ...]:
        """The workers of the last round on this node."""
        for member in self._state.members:
            if member.node == self.node:
                first = member.group_rank * self._config.nproc_per_node
                return tuple(range(first, first + self._config.nproc_per_node))
        return ()

    async def run(self) -> RunResult:
        """Take part until the run is over or this node has to leave; no worker is left then.

        Raises:
            RendezvousError: it did not come to train with the others; its kind says why.
            WorkersFailed: workers failed, and no restart was left.
            RunInterrupted: a signal ended it.
        """
        try:
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
        async for recorded in log.read(scope=self._scope):
            self._fold(recorded)
        if (found := verdict(self._state, self._settings, self.node, 0)) is not None:
            _refuse(found, self._config.run_id)
        heartbeats = heartbeat_subject(RUN_TENANT, self._config.run_id, "*")
        await client.subscribe(heartbeats, cb=self._on_heartbeat)
        agent = Agent(self._agent_config(bus), self._command, start_process=self._start_process)
        parts = [
            asyncio.create_task(self._follow(log), name="follow"),
            asyncio.create_task(self._decide(log, client, agent), name="decide"),
        ]
        for part in parts:
            part.add_done_callback(lambda done: _on_broken(done, agent))
        try:
            exit_code = await agent.run()
            for part in parts:
                if part.done() and not part.cancelled():
                    part.result()
            await self._hear_the_end(agent.departure)
            if bus.served and agent.departure != "terminated":
                await self._serve_on()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        return self._result(agent.departure, exit_code)

    @property
    def _scope(self) -> Scope:
        return Scope(tenant=RUN_TENANT, job=self._config.run_id)

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
            shared_dir=self._shared_dir,
            host=config.local_addr or _own_address(bus),
            workdir=Path.cwd(),
            orphan_timeout_s=config.bus_timeout_s,
            notices=NoticeSettings.from_environment(os.environ),
            output=OutputSettings(tee=config.tee, tee_local_ranks=config.tee_local_ranks),
            role=config.role,
        )

    # ----------------------------------------------------------------------------------------------------------------
    # What is read
    # ----------------------------------------------------------------------------------------------------------------

    async def _follow(self, log: JetStreamLog) -> None:
        while True:
            try:
                async with contextlib.aclosing(log.follow(after=self._state.sequence, scope=self._scope)) as followed:
                    async for recorded in followed:
                        self._fold(recorded)
            except (BusError, nats.errors.Error, OSError) as error:
                _log.warning("the run's log cannot be followed; trying again", error=str(error))
            await asyncio.sleep(RETRY_S)

    def _fold(self, recorded: ev.Recorded) -> None:
        before = self._state
        self._state = evolve(before, recorded)
        self._read_at = monotonic()
        self._changed.set()
        if isinstance(recorded.event, ev.Event):
            self._announce(before, recorded.event.data)

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
            case ev.NodeLeft():
                self._tell("left", f"{data.node}: {data.reason}")
            case ev.NodeFailed() if data.round not in before.failed_rounds:
                put_metric("run.failed_rounds", len(self._state.failed_rounds))
            case ev.OutcomeDecided():
                self._tell("ended", f"{data.outcome}: {data.reason}")

    def _tell(self, name: str, message: str) -> None:
        event = RdzvEvent(
            name=name, run_id=self._config.run_id, node=self.node, round=self._state.round, message=message
        )
        record_rdzv_event(event, self._config.event_destination)

    async def _on_heartbeat(self, message: Msg) -> None:
        self._presence.heard(message.subject.rsplit(".", 1)[-1], monotonic())

    # ----------------------------------------------------------------------------------------------------------------
    # What is decided
    # ----------------------------------------------------------------------------------------------------------------

    async def _decide(self, log: JetStreamLog, client: Client, agent: Agent) -> None:
        while True:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.monitor_interval_s):
                    await self._changed.wait()
            as_of_ms = self._now_ms()
            if self._verdict is None:
                self._verdict = verdict(self._state, self._settings, self.node, as_of_ms)
                if self._verdict is not None and self._state.outcome is None:
                    agent.end(self._verdict.kind, 1)
            try:
                await self._report_lost(log, bus_is_there=client.is_connected and not agent.bus_away_s)
                await self._append_due(log, as_of_ms)
            except (BusError, nats.errors.Error, OSError) as error:
                _log.warning("the run's log cannot be written; trying again", error=str(error))
                await asyncio.sleep(RETRY_S)

    def _now_ms(self) -> int:
        """The time by the log's clock: when its last event was recorded, and what has passed since it was read.

        The nodes' own clocks may differ by more than any wait here.
        """
        estimate_ms = self._state.recorded_ms + round((monotonic() - self._read_at) * 1000)
        self._as_of_ms = max(self._as_of_ms, estimate_ms)
        return self._as_of_ms

    async def _append_due(self, log: JetStreamLog, as_of_ms: int) -> None:
        state = self._state
        if self.node not in state.nodes or state.sequence < self._appended:
            return
        decision = decide(state, self._settings, as_of_ms)
        if not decision or not self._is_turn(f"decision {state.decisions + 1}"):
            if not decision:
                self._due_since.pop(f"decision {state.decisions + 1}", None)
            return
        events = decision_events(state, self._settings, decision, as_of_ms)
        expect = Expectation(
            Scope(tenant=RUN_TENANT, job=self._config.run_id, writer="decision"), state.decision_sequence
        )
        try:
            _, self._appended = await log.append(events, expect=expect)
        except Conflict:
            _log.debug("another node decided first", run=self._config.run_id, decision=state.decisions + 1)
            self._appended = max(self._appended, await log.last_sequence(expect.scope))
        else:
            _log.info("decided", run=self._config.run_id, what=[ev.type_of(data) for data in decision])

    async def _report_lost(self, log: JetStreamLog, *, bus_is_there: bool) -> None:
        nodes = [node.id for node in self._state.nodes.values() if node.status == "joined" and node.id != self.node]
        silent = self._presence.silent(nodes, monotonic(), bus_is_there=bus_is_there)
        for name, silent_s in silent.items():
            if not self._is_turn(f"loss of {name}", tuple(silent)):
                continue
            node = self._state.nodes[name]
            # The same node's loss has the same id, whoever says it.
            event = ev.Event(
                id=derived_id(node.joined_ms, RUN_TENANT, self._config.run_id, name, "lost"),
                time_ms=self._now_ms(),
                tenant=RUN_TENANT,
                job=self._config.run_id,
                causation_id=self._state.last_event_id,
                actor=f"run:{self.node}",
                data=ev.NodeLost(
                    node=name, attempt=node.attempt, evidence="silent", text=f"no sign of life for {silent_s:.1f} s"
                ),
            )
            _, last = await log.append([event])
            self._appended = max(self._appended, last)
            del self._due_since[f"loss of {name}"]

    def _is_turn(self, what: str, without: tuple[str, ...] = ()) -> bool:
        """Whether what is due is this node's to do: at once for the first node, a little later for each further one."""
        since_s = self._due_since.setdefault(what, monotonic())
        nodes = {name: node for name, node in self._state.nodes.items() if name not in without}
        turn = turn_of(msgspec.structs.replace(self._state, nodes=nodes), self.node)
        return monotonic() - since_s >= min(turn, TURNS_MOST) * TURN_S

    # ----------------------------------------------------------------------------------------------------------------
    # How it ends
    # ----------------------------------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    async def _hear_the_end(self, departure: str) -> None:
        if departure in ("completed", "failed"):
            await self._until(lambda: self._state.outcome is not None, LAST_WORDS_S)

    async def _serve_on(self) -> None:
        """Serve the bus until the other nodes have left; those that are lost are found to be meanwhile."""

        def alone() -> bool:
            return all(node.status != "joined" or node.id == self.node for node in self._state.nodes.values())

        await self._until(alone, self._config.node_timeout_s + SERVE_ON_S)

    def _result(self, departure: str, exit_code: int) -> RunResult:
        run_id, state = self._config.run_id, self._state
        found = self._verdict
        if found is None and state.outcome is not None:
            found = verdict(state, self._settings, self.node, self._now_ms())
        if found is not None and departure != "terminated":
            _refuse(found, run_id)
        if departure == "terminated":
            name = signal.Signals(exit_code - 128).name if exit_code > 128 else str(exit_code)
            raise errors.RunInterrupted(f"this node's part ended with {name}", where=run_id, exit_code=exit_code)
        if departure == "orphaned":
            raise errors.RendezvousConnectionFailed(
                f"the bus was away for {self._config.bus_timeout_s:g} s, so this node ended itself",
                where=self._config.bus_url,
                hint="what was committed is kept; start the bus and the nodes again",
            )
        if departure == "fenced":
            raise errors.RunFailed("a worker did not end although it was killed", where=run_id)
        if state.outcome == "failed":
            raise _workers_failed(run_id, state, self.folder)
        return RunResult(
            run_id=run_id,
            node=self.node,
            outcome="completed" if state.outcome == "completed" else "left",
            rounds=state.round,
            nodes=len(state.members),
            ranks=self.ranks,
            restarts=state.restarts_used,
            last_step=state.last_step,
            log_dir=str(self.folder),
        )


def _workers_failed(run_id: str, state: RunState, folder: Path) -> errors.WorkersFailed:
    failures = failures_of(state)
    return errors.WorkersFailed(
        state.outcome_reason,
        where=run_id,
        hint=f"the output of this node's workers is in {folder}",
        story=_story(failures),
        failures=failures,
    )


def _story(failures: Sequence[WorkerFailure]) -> list[str]:
    """The root cause with all that was said of it, and one line for each other failure."""
    if not failures:
        return []
    root, *others = failures
    lines = ["root cause:", f"  {root.summary}", *(f"    {line}" for line in root.traceback.splitlines())]
    if others:
        lines += ["then:", *(f"  {other.summary}" for other in others)]
    return lines


def _refuse(found: Verdict, run_id: str) -> NoReturn:
    raise _ERRORS[found.kind](found.why, where=run_id, hint=_HINTS.get(found.kind, ""))


def _on_broken(part: asyncio.Task[None], agent: Agent) -> None:
    """A node that lost a part of itself must not go on half blind."""
    if part.cancelled() or part.exception() is None:
        return
    error = part.exception()
    _log.error("a part of this node failed", part=part.get_name(), exc_info=None if _is_ours(error) else error)
    agent.end("run_error", 1)


def _is_ours(error: BaseException | None) -> bool:
    return isinstance(error, ElasticGridError)


#: A documentation address that leaves by the default route; asking for the way to it sends nothing.
_ELSEWHERE: Final = "nats://203.0.113.1:9"


def _own_address(bus: RunBus) -> str:
    """What the other nodes reach this one by: the address that traffic to the bus leaves by.

    Where the bus is served on every address of this machine, that of the default route.
    """
    if bus.served and host_and_port(bus.reached_by)[0] in ANY_ADDRESS:
        return default_host(_ELSEWHERE)
    return default_host(bus.reached_by or bus.address.url)


def _host_name() -> str:
    """The machine's name, as far as it may be part of a node's."""
    name = re.sub(r"[^a-z0-9_-]+", "-", socket.gethostname().split(".", 1)[0].lower()).strip("-")
    return name[:40].strip("-") or "node"
