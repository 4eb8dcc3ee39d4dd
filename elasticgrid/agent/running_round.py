"""One round on one node: its workers, how far they are, and the agent's part in agreeing on their stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from elasticgrid.agent.agreement import Abandon, AskStopAt, Condition, LeadMessage, Position
from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.guard import Guard
from elasticgrid.agent.hook_server import HookServer
from elasticgrid.agent.progress import Progress
from elasticgrid.agent.worker_environment import checkpoint_dir, rendezvous_dir, worker_environment
from elasticgrid.agent.workers import ExitedWorker, WorkerGroup
from elasticgrid.core.events import WorldDecided
from elasticgrid.core.failures import EXIT_TEMPORARY_FAILURE
from elasticgrid.publish.channel import StopAt, Where

_log = structlog.get_logger("elasticgrid.agent")

#: How long workers may take to say where they are; less than a member may take to answer its lead.
WORKER_ANSWER_S: Final = 1.0
#: How long to wait for the last words of a worker that has exited.
LAST_WORDS_S: Final = 1.0


class RunningRound:
    """The workers of one round on this node.

    Args:
        on_exit: called with each worker that is gone, after all it had said was heard.
        on_stop_told: called with the step when the workers were told to stop.
    """

    def __init__(
        self,
        config: AgentConfig,
        world: WorldDecided,
        group_rank: int,
        *,
        hooks: HookServer,
        guard: Guard,
        on_exit: Callable[[ExitedWorker], None],
        on_stop_told: Callable[[int], None],
    ) -> None:
        self.number = world.round
        self._config = config
        self._world = world
        self._group_rank = group_rank
        self._hooks = hooks
        self._on_exit = on_exit
        self._on_stop_told = on_stop_told
        self._workers = WorkerGroup(on_exit=self._exited, guard=guard)
        first = group_rank * world.nproc_per_node
        self._ranks = range(first, first + world.nproc_per_node)
        self.progress = Progress(self._ranks, world.resume.step if world.resume is not None else 0)
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
            _log.error("the job's shared folder cannot be used", error=str(error))
            for rank in self._ranks:
                self._exited(ExitedWorker(rank, EXIT_TEMPORARY_FAILURE, f"the shared folder cannot be used: {error}"))
            return
        logs = self._config.node_dir / f"round-{self.number}"
        for local_rank, rank in enumerate(self._ranks):
            self._workers.start(
                rank,
                command,
                env=worker_environment(
                    self._config, self._world, group_rank=self._group_rank, local_rank=local_rank, base=os.environ
                ),
                cwd=self._config.workdir,
                log_path=logs / f"rank-{rank}.log",
            )
        _log.info("round began", round=self.number, ranks=list(self._ranks), world_size=self._world.world_size)

    def terminate(self) -> None:
        """Begin to end all workers that run."""
        if self._terminating is None:
            self._terminating = asyncio.get_running_loop().create_task(self._workers.terminate())

    async def close(self) -> None:
        """End all workers, whatever happened before."""
        self.terminate()
        if self._terminating is not None:
            await self._terminating
        for task in self._last_words:
            task.cancel()
        await asyncio.gather(*self._last_words, return_exceptions=True)

    async def answer(self, message: LeadMessage) -> Position:
        """What this node says to the round's lead."""
        if message.round != self.number:
            return Position(round=message.round, condition="elsewhere")
        if isinstance(message, Abandon) or self._condition != "running":
            return self._position()
        told = message.step if isinstance(message, AskStopAt) else None
        if told is not None:
            self._hooks.tell(StopAt(step=told), keep=True)
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

    def _exited(self, worker: ExitedWorker) -> None:
        self._codes[worker.rank] = worker.code
        task = asyncio.get_running_loop().create_task(self._hear_out(worker))
        self._last_words.add(task)
        task.add_done_callback(self._last_words.discard)

    async def _hear_out(self, worker: ExitedWorker) -> None:
        await self._hooks.wait_silent(worker.rank, LAST_WORDS_S)
        _log.info("worker exited", round=self.number, rank=worker.rank, code=worker.code)
        self._on_exit(worker)
