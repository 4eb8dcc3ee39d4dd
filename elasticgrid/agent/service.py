"""The agent's shell: it feeds what happens to the state machine and does what that says.

Everything that happens goes through one queue: decisions read from the log, words of the workers' hooks, exits,
timers, signals. Nothing here decides; `core/agent_plan.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Sequence
from functools import singledispatchmethod
from typing import Any, Final

import msgspec
import structlog

from elasticgrid.agent import inputs
from elasticgrid.agent.bus_link import BusLink
from elasticgrid.agent.checkpoint_check import checked
from elasticgrid.agent.config import AgentConfig, free_port
from elasticgrid.agent.credential_renewal import keep_renewed
from elasticgrid.agent.guard import Guard
from elasticgrid.agent.heartbeat import heartbeat
from elasticgrid.agent.hook_server import HookMessage, HookServer
from elasticgrid.agent.log_following import follow_on
from elasticgrid.agent.notices.notice import Notice
from elasticgrid.agent.notices.watch import NoticeWatch
from elasticgrid.agent.own_facts import OwnFacts
from elasticgrid.agent.own_launch import launch_over, unwanted
from elasticgrid.agent.reporter import Reporter
from elasticgrid.agent.running_round import RunningRound, WorkerEnd
from elasticgrid.agent.stop_talk import StopTalk
from elasticgrid.agent.stuck import Stall
from elasticgrid.agent.workers import TERMINATE_PATIENCE_S, StartProcess, start_command
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.bus.subjects import heartbeat_subject
from elasticgrid.clock import Clock, SystemClock
from elasticgrid.core import agent_plan
from elasticgrid.core import agent_state as plan
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import (
    DrainDecided,
    Event,
    NodeJoined,
    OutcomeDecided,
    Recorded,
    WorldDecided,
)
from elasticgrid.core.names import run_folder
from elasticgrid.log.port import Scope

_log = structlog.get_logger("elasticgrid.agent")

HEARTBEAT_EVERY_S: Final = 2.0
#: How long the bus may refuse the node's credential, while it is being renewed or the bus is set up, to be believed.
REFUSED_S: Final = 60.0
#: Of the time until the node is taken away, what ending the workers and saying so may need: at most a quarter.
DEADLINE_SLACK_S: Final = 8.0
#: Why rounds end that failed by themselves; those that end because the world changes did not.
FAILED_REASONS: Final = frozenset({"failure", "stuck"})


async def run_agent(config: AgentConfig, *, command: Sequence[str]) -> int:
    """Be the agent of one node until the job or a signal ends it; returns the exit code.

    Call it in the main thread: its workers die with the thread that started them.

    Raises:
        InvalidInput: no command, or the bus's address or credential is not usable.
        OSError: the node's folder cannot hold the socket.
    """
    if not command:
        raise InvalidInput("there is no command to run", hint="elasticgrid agent -- python train.py")
    if config.bus.credentials:
        read_credentials(config.bus.credentials)
    return await Agent(config, command).run()


class Agent:
    """One node's agent.

    Args:
        start_process: how a worker's process is started.

    Attributes:
        ignored: inputs and messages that meant nothing, by what they were.
    """

    def __init__(
        self,
        config: AgentConfig,
        command: Sequence[str],
        *,
        clock: Clock | None = None,
        start_process: StartProcess = start_command,
    ) -> None:
        self.ignored: dict[str, int] = {}
        self._config = config
        self._command = tuple(command)
        self._start_process = start_process
        self._clock = clock if clock is not None else SystemClock()
        self._node = config.node
        self._state = agent_plan.initial(self._node, free_port(config.host))
        self._inputs: asyncio.Queue[plan.AgentInput] = asyncio.Queue()
        self._talk = StopTalk(
            config,
            running=lambda: self._round,
            put=self._put,
            spawn=self._spawn,
            ignore=self._ignore,
            clock=self._clock,
        )
        self._link = BusLink(
            config.bus, name=f"agent {config.job}/{self._node}", on_connect=self._talk.subscribe, clock=self._clock
        )
        self._reporter = Reporter(self._link, self._clock)
        self._facts = OwnFacts(config, self._reporter, self._clock)
        self._hooks = HookServer(config.socket_path, self._on_hook)
        self._guard: Guard | None = None
        self._round: RunningRound | None = None
        self._watch = NoticeWatch(config.notices.sources(), self._on_notice, self._clock)
        self._to_check: asyncio.Queue[plan.CheckCheckpoint] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._patience_s = TERMINATE_PATIENCE_S
        self._first_decision_id = ""
        self._failed_rounds: set[int] = set()
        self._exit_code: int | None = None
        self._hasty = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def departure(self) -> str:
        """Why it ends or has ended, in one word; empty while nothing makes it."""
        return self._state.departure.reason if self._state.departure is not None else ""

    @property
    def idle(self) -> bool:
        """Whether no worker runs here."""
        current = self._state.current
        return current is None or not current.running

    @property
    def finished(self) -> bool:
        """Whether the workers of the last round here were done with the training."""
        current = self._state.current
        ended_well = current is not None and current.over and current.clean_end and current.drain is None
        return ended_well and self._state.upcoming is None

    @property
    def bus_away_s(self) -> float:
        """How long the bus has been away, in seconds; 0 while it is there."""
        return self._link.away_s

    def end(self, reason: str, exit_code: int) -> None:
        """Make it end for a reason outside the log: its workers are terminated and it leaves."""
        self._hasty.set()
        self._put(plan.EndRequested(reason=reason, exit_code=exit_code))

    async def run(self) -> int:
        """Run until there is nothing more to do; no worker is left then."""
        loop = asyncio.get_running_loop()
        self._guard = Guard()
        handled: list[signal.Signals] = []
        try:
            await self._hooks.start()
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: nothing to handle there
                    loop.add_signal_handler(number, self._on_signal, number)
                    handled.append(number)
            for work in (
                self._link.run(),
                self._reporter.run(),
                self._join_and_follow(),
                self._beat(),
                self._watch_bus(),
                self._check_checkpoints(),
                self._watch.run(),
                keep_renewed(self._config.bus.credentials, self._link, self._clock),
                *((self._end_when_refused(),) if self._config.launched else ()),
            ):
                self._spawn(work)
            await self._work()
            await self._facts.flush(self._hasty)
            await self._watch.node_left()
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
            if self._round is not None:
                await self._round.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._hooks.close()
            self._guard.close()
        if self._failure is not None:
            raise self._failure
        assert self._exit_code is not None
        _log.info("agent ends", node=self._node, exit_code=self._exit_code, ignored=self.ignored)
        return self._exit_code

    async def _work(self) -> None:
        while self._exit_code is None:
            item = await self._inputs.get()
            self._state, instructions = agent_plan.evolve(self._state, item)
            for instruction in instructions:
                self._do(instruction)

    # ----------------------------------------------------------------------------------------------------------------
    # What the state machine says
    # ----------------------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _do(self, instruction: plan.Instruction) -> None:
        raise TypeError(f"no such instruction: {instruction!r}")

    @_do.register
    def _(self, instruction: plan.StartWorkers) -> None:
        assert self._guard is not None
        self._talk.end()
        number = instruction.world.round

        def on_exit(end: WorkerEnd) -> None:
            self._put(inputs.of_exit(number, end, free_port(self._config.host)))

        def on_stuck(stall: Stall, stacks: str) -> None:
            self._put(inputs.of_stall(number, stall, stacks, self._clock.now_ms()))

        if self._round is not None:
            self._spawn(self._round.close())
        restarts = instruction.world.restarts
        self._round = RunningRound(
            self._round_config(),
            instruction.world,
            instruction.group_rank,
            restarts=restarts if restarts is not None else len(self._failed_rounds),
            hooks=self._hooks,
            guard=self._guard,
            on_exit=on_exit,
            on_stuck=on_stuck,
            on_stop_told=self._talk.on_told(number),
            start_process=self._start_process,
        )
        self._round.start(self._command)

    @_do.register
    def _(self, instruction: plan.TerminateWorkers) -> None:
        _log.info("workers are terminated", node=self._node, round=instruction.round)
        if self._round is not None and self._round.number == instruction.round:
            self._round.terminate(self._patience_s)

    @_do.register
    def _(self, instruction: plan.StartGrace) -> None:
        over = plan.GraceOver(round=instruction.round)
        asyncio.get_running_loop().call_later(instruction.grace_ms / 1000, self._put, over)

    @_do.register
    def _(self, instruction: plan.AgreeOnStop) -> None:
        self._talk.begin(instruction, self._link)

    @_do.register
    def _(self, instruction: plan.CheckCheckpoint) -> None:
        self._to_check.put_nowait(instruction)

    @_do.register
    def _(self, instruction: plan.AwaitDeadline) -> None:
        left_s = max(instruction.deadline_ms - self._clock.now_ms(), 0) / 1000
        slack_s = min(DEADLINE_SLACK_S, left_s / 4)
        asyncio.get_running_loop().call_later(left_s - slack_s, self._on_deadline, slack_s)

    @_do.register
    def _(self, instruction: plan.Record) -> None:
        self._facts.say(instruction.data, instruction.cause)

    @_do.register
    def _(self, instruction: plan.Leave) -> None:
        self._exit_code = instruction.exit_code

    @_do.register
    def _(self, instruction: plan.Ignored) -> None:
        self._ignore(instruction.what)

    # ----------------------------------------------------------------------------------------------------------------
    # What happens
    # ----------------------------------------------------------------------------------------------------------------

    def _put(self, item: plan.AgentInput) -> None:
        self._inputs.put_nowait(item)

    def _on_signal(self, number: signal.Signals) -> None:
        _log.info("signal", node=self._node, signal=number.name)
        if number == signal.SIGTERM and self._is_notice():
            left_ms = round(self._config.notices.signal_notice_s * 1000)
            self._on_notice(Notice(source="signal", deadline_ms=self._clock.now_ms() + left_ms, text=number.name))
            return
        self._hasty.set()
        self._put(plan.EndRequested(reason="terminated", exit_code=128 + number))

    def _is_notice(self) -> bool:
        """Whether a SIGTERM says that the node will be taken away: the first one, to a node that has work to save."""
        state = self._state
        works = state.current is not None and not state.current.over
        return self._config.notices.by_signal and works and not state.notice_ms and state.departure is None

    def _on_notice(self, notice: Notice) -> None:
        _log.warning(
            "the node will be taken away", node=self._node, source=notice.source, deadline_ms=notice.deadline_ms
        )
        self._put(inputs.of_notice(notice, self._clock.now_ms()))

    def _on_deadline(self, left_s: float) -> None:
        self._hasty.set()
        self._patience_s = min(TERMINATE_PATIENCE_S, left_s / 3)
        self._put(plan.EndRequested(reason="preempted", exit_code=0))

    def _on_hook(self, number: int, rank: int, message: HookMessage) -> None:
        current = self._round
        if current is not None and current.number == number:
            current.heard(rank, message)
        item = inputs.of_hook(number, rank, message)
        if item is not None:
            self._put(item)

    async def _join_and_follow(self) -> None:
        intent = plan.Cause()
        if self._config.launched:
            reason, intent = await unwanted(self._link, self._config, self._clock)
            if reason:
                _log.error("this node is not wanted", node=self._node, reason=reason)
                self._put(plan.Unwanted(reason=reason, exit_code=1))
                return
            self._facts.story = intent.correlation_id
        joined = NodeJoined(
            node=self._node,
            attempt=self._config.attempt,
            provider=self._config.provider,
            host=self._config.host,
            free_port=self._state.free_port,
            pid=os.getpid(),
        )
        self._put(plan.Joined(sequence=await self._facts.say(joined, intent)))
        if self._config.launched:
            self._spawn(self._end_with_launch())
        scope = Scope(tenant=self._config.tenant, job=self._config.job, writer="decision")
        async with contextlib.aclosing(follow_on(self._link, scope, self._clock)) as decisions:
            async for recorded in decisions:
                self._read(recorded)

    async def _end_with_launch(self) -> None:
        reason, cause = await launch_over(self._link, self._config, self._clock)
        _log.warning("this node is no longer wanted", node=self._node, reason=reason)
        self._put(plan.Unwanted(reason="launch_over", exit_code=0, cause=cause))

    async def _end_when_refused(self) -> None:
        """A credential that is refused before its time was revoked: the launch is over, and the log out of reach."""
        while self._link.refused_s < REFUSED_S:
            await self._clock.sleep(1.0)
        _log.error("the bus does not let this node in any more; the node ends itself", node=self._node)
        self._hasty.set()
        self._put(plan.Unwanted(reason="refused", exit_code=1))

    def _round_config(self) -> AgentConfig:
        config = self._config
        if not config.folder_of_run:
            return config
        folder = config.shared_dir / run_folder(config.job, self._first_decision_id)
        return msgspec.structs.replace(config, shared_dir=folder)

    def _read(self, recorded: Recorded) -> None:
        event = recorded.event
        self._first_decision_id = self._first_decision_id or event.id
        if isinstance(event, Event) and isinstance(event.data, DrainDecided) and event.data.reason in FAILED_REASONS:
            self._failed_rounds.add(event.data.round)
        if not isinstance(event, Event):
            self._ignore("unknown event type")
        elif isinstance(event.data, WorldDecided | DrainDecided | OutcomeDecided):
            self._put(
                plan.DecisionRead(
                    sequence=recorded.sequence,
                    event_id=event.id,
                    correlation_id=event.correlation_id,
                    data=event.data,
                )
            )

    async def _check_checkpoints(self) -> None:
        while True:
            named = await self._to_check.get()
            self._put(await checked(named, self._ignore))

    async def _beat(self) -> None:
        subject = heartbeat_subject(self._config.tenant, self._config.job, self._node)
        while True:
            beat = heartbeat(self._config, self._state, self._clock.now_ms())
            await self._link.publish(subject, msgspec.json.encode(beat))
            await self._clock.sleep(HEARTBEAT_EVERY_S)

    async def _watch_bus(self) -> None:
        limit_s = self._config.orphan_timeout_s
        if limit_s is None:
            return
        while (away_s := self._link.away_s) < limit_s:
            # While the bus is there, it cannot have been away for the limit before that time has passed.
            await self._clock.sleep(max(limit_s - away_s, 0.05))
        _log.error("the bus was away for too long; the node ends itself", node=self._node, away_s=round(away_s, 1))
        self._hasty.set()
        self._put(plan.EndRequested(reason="orphaned", exit_code=1))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        # An agent that lost a part of itself must not go on half blind: it ends, and its workers with it.
        _log.error("a part of the agent failed", node=self._node, exc_info=task.exception())
        self._failure = self._failure or task.exception()
        self._hasty.set()
        self._put(plan.EndRequested(reason="agent_error", exit_code=1))

    def _ignore(self, what: str) -> None:
        self.ignored[what] = self.ignored.get(what, 0) + 1
