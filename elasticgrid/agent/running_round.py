"""One round on one node: its workers, how far they are, and the agent's part in agreeing on their stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from elasticgrid.agent.agreement import Abandon, AskStopAt, Condition, LeadMessage, Position
from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.guard import Guard
from elasticgrid.agent.hook_server import HookMessage, HookServer
from elasticgrid.agent.macros import expanded
from elasticgrid.agent.memory_kills import memory_kills
from elasticgrid.agent.progress import Progress
from elasticgrid.agent.stacks import Target, worker_stacks
from elasticgrid.agent.stuck import Stall, StuckWatch
from elasticgrid.agent.worker_environment import checkpoint_dir, macro_values, rendezvous_dir, worker_environment
from elasticgrid.agent.worker_files import WorkerError, WorkerFiles, read_error
from elasticgrid.agent.worker_output import WorkerOutput
from elasticgrid.agent.worker_secrets import worker_secrets
from elasticgrid.agent.workers import TERMINATE_PATIENCE_S, ExitedWorker, StartProcess, WorkerGroup, start_command
from elasticgrid.core.events import WorldDecided
from elasticgrid.core.failures import EXIT_TEMPORARY_FAILURE
from elasticgrid.publish.channel import Checkpointed, Ended, Expires, StopAt, Where

_log = structlog.get_logger("elasticgrid.agent")

#: How long workers may take to say where they are; less than a member may take to answer its lead.
WORKER_ANSWER_S: Final = 1.0
#: How long to wait for the last words of a worker that has exited.
LAST_WORDS_S: Final = 1.0
#: How often the workers' output is looked after, and how often whether they are stuck.
OUTPUT_TURN_S: Final = 0.25
STUCK_LOOK_S: Final = 0.25
#: How a worker that was killed ends, by itself or behind a shell.
KILLED: Final = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})


class WorkerEnd(msgspec.Struct, frozen=True):
    """How a worker ended, what it said of that itself, and whether the kernel ended it for its use of memory."""

    worker: ExitedWorker
    error: WorkerError | None
    out_of_memory: bool


class RunningRound:
    """The workers of one round on this node.

    Args:
        restarts: earlier rounds that failed.
        on_exit: called with the end of each worker that is gone, after all it had said was heard.
        on_stuck: called when workers live but do not get on.
        on_stop_told: called with the step when the workers were told to stop.
        start_process: how a worker's process is started.
    """

    def __init__(
        self,
        config: AgentConfig,
        world: WorldDecided,
        group_rank: int,
        *,
        hooks: HookServer,
        guard: Guard,
        on_exit: Callable[[WorkerEnd], None],
        on_stuck: Callable[[Stall, str], None],
        on_stop_told: Callable[[int], None],
        restarts: int = 0,
        start_process: StartProcess = start_command,
    ) -> None:
        self.number = world.round
        self._config = config
        self._world = world
        self._group_rank = group_rank
        self._restarts = restarts
        self._hooks = hooks
        self._on_exit = on_exit
        self._on_stuck = on_stuck
        self._on_stop_told = on_stop_told
        self._workers = WorkerGroup(on_exit=self._exited, guard=guard, start_process=start_process)
        first = group_rank * world.nproc_per_node
        self._ranks = range(first, first + world.nproc_per_node)
        resume_step = world.resume.step if world.resume is not None else 0
        self.progress = Progress(self._ranks, resume_step)
        self._stuck = StuckWatch(resume_step, after_s=config.stuck_after_s, at_start_s=config.stuck_at_start_s)
        self._folder = config.node_dir / f"round-{self.number}"
        self._output = WorkerOutput(config.output, own_output())
        self._memory_kills = memory_kills()
        self._stop_told = False
        self._watching: list[asyncio.Task[None]] = []
        self._codes: dict[int, int] = {}
        self._terminating: asyncio.Task[None] | None = None
        self._last_words: set[asyncio.Task[None]] = set()

    def start(self, command: Sequence[str]) -> None:
        """Start all workers; those that cannot be started end at once."""
        self._hooks.begin_round(self.number, frozenset(self._ranks))
        try:
            rendezvous_dir(self._config.shared_dir, self.number).mkdir(parents=True, exist_ok=True)
            checkpoint_dir(self._config.shared_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._cannot_start(f"the shared folder cannot be used: {error}")
            return
        try:
            secrets = worker_secrets(self._config.secrets_dir)
        except (OSError, UnicodeDecodeError) as error:
            # The other error would show what it could not decode.
            why = str(error) if isinstance(error, OSError) else "one is no text"
            self._cannot_start(f"the job's secrets cannot be read: {why}")
            return
        for local_rank, rank in enumerate(self._ranks):
            files = WorkerFiles(self._folder, rank)
            self._workers.start(
                rank,
                expanded(command, macro_values(self._config, self._world, rank=rank, local_rank=local_rank)),
                env=worker_environment(
                    self._config,
                    self._world,
                    group_rank=self._group_rank,
                    local_rank=local_rank,
                    restarts=self._restarts,
                    files=files,
                    base=os.environ,
                    secrets=secrets,
                ),
                cwd=self._config.workdir,
                log_path=files.log,
            )
            shown = self._config.output.tee_local_ranks
            self._output.add(rank, files.log, repeat=shown is None or local_rank in shown)
        loop = asyncio.get_running_loop()
        self._watching = [loop.create_task(self._keep_output()), loop.create_task(self._watch_for_stuck())]
        _log.info("round began", round=self.number, ranks=list(self._ranks), world_size=self._world.world_size)

    def _cannot_start(self, why: str) -> None:
        _log.error("no worker can be started", round=self.number, error=why)
        for rank in self._ranks:
            self._exited(ExitedWorker(rank=rank, code=EXIT_TEMPORARY_FAILURE, last_lines=why, time_ms=0))

    def terminate(self, patience_s: float = TERMINATE_PATIENCE_S) -> None:
        """Begin to end all workers that run; those that have not ended after `patience_s` are killed."""
        if self._terminating is None:
            self._terminating = asyncio.get_running_loop().create_task(self._workers.terminate(patience_s))

    async def close(self) -> None:
        """End all workers, whatever happened before."""
        self.terminate()
        if self._terminating is not None:
            await self._terminating
        tasks = [*self._watching, *self._last_words]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._output.finish)
        self._workers.close()

    def heard(self, rank: int, message: HookMessage) -> None:
        """A worker's hook said something."""
        match message:
            case Expires():
                limit_s = message.limit_s or message.after_s
                self._stuck.expires(rank, message.id, message.after_s, message.name, limit_s=limit_s)
            case Ended():
                self._stuck.ended(rank, message.id)
            case Checkpointed():
                self._stuck.moved(rank)
            case _:
                self.progress.at(rank, message.step)
                self._stuck.at(rank, message.step)

    async def answer(self, message: LeadMessage) -> Position:
        """What this node says to the round's lead."""
        if message.round != self.number:
            return Position(round=message.round, condition="elsewhere")
        if isinstance(message, Abandon) or self._condition != "running":
            return self._position()
        told = message.step if isinstance(message, AskStopAt) else None
        if told is not None:
            self._hooks.tell(StopAt(step=told), keep=True)
            self._stop_told = True
            self._on_stop_told(told)
        # Answers come after the stop was heard: the socket keeps the order.
        self._hooks.tell(Where())
        await self.progress.wait_for_answers(self._hooks.connected, WORKER_ANSWER_S)
        return self._position(past=told is not None and self.progress.step > told)

    def _position(self, *, past: bool = False) -> Position:
        return Position(
            round=self.number,
            condition=self._condition,
            step=self.progress.step,
            step_us=self.progress.step_us,
            past=past,
        )

    @property
    def _condition(self) -> Condition:
        if self._terminating is not None or any(self._codes.values()):
            return "failed"
        return "finished" if len(self._codes) == len(self._ranks) else "running"

    async def _keep_output(self) -> None:
        while True:
            await asyncio.sleep(OUTPUT_TURN_S)
            await asyncio.to_thread(self._output.turn)

    async def _watch_for_stuck(self) -> None:
        """Look now and then; workers that are being stopped have a time of their own for that."""
        while True:
            await asyncio.sleep(STUCK_LOOK_S)
            if self._terminating is not None or self._stop_told:
                continue
            stall = self._stuck.look()
            if stall is not None:
                _log.warning("workers are stuck", round=self.number, ranks=list(stall.ranks), why=stall.detail)
                self._on_stuck(stall, await worker_stacks(self._targets()))

    def _targets(self) -> list[Target]:
        """All workers that run: what one waits for is often seen in another."""
        targets = []
        for rank in self._workers.ranks:
            greeting, started = self._hooks.greeting(rank), self._workers.pid(rank)
            stacks = WorkerFiles(self._folder, rank).stacks
            # Without the hook's word that it handles the signal, the signal would end the worker.
            arranged = greeting is not None and greeting.stacks == str(stacks)
            pid = greeting.pid if greeting is not None and arranged else started
            if pid is not None:
                targets.append(Target(rank=rank, pid=pid, stacks_file=stacks if arranged else None))
        return targets

    def _exited(self, worker: ExitedWorker) -> None:
        self._codes[worker.rank] = worker.code
        self._stuck.gone(worker.rank)
        task = asyncio.get_running_loop().create_task(self._hear_out(worker))
        self._last_words.add(task)
        task.add_done_callback(self._last_words.discard)

    async def _hear_out(self, worker: ExitedWorker) -> None:
        out_of_memory = worker.code in KILLED and not worker.fenced and memory_kills() > self._memory_kills
        await self._hooks.wait_silent(worker.rank, LAST_WORDS_S)
        _log.info("worker exited", round=self.number, rank=worker.rank, code=worker.code)
        error = read_error(WorkerFiles(self._folder, worker.rank).error) if worker.code != 0 else None
        self._on_exit(WorkerEnd(worker, error, out_of_memory))


def own_output() -> Callable[[bytes], object] | None:
    """What takes lines for this process's standard output; None where there is none."""
    return _to_own_output if sys.stdout is not None else None


def _to_own_output(lines: bytes) -> None:
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # a notebook's is text only
        sys.stdout.write(lines.decode(errors="replace"))
        return
    try:
        buffer.write(lines)
        buffer.flush()
    except OSError:
        # What is still in the buffer is tried again when this process ends, and would make its success a failure.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise
