"""How the nodes of a static world find the folder of their run: they share no log, so they ask in the shared folder.

What an earlier run left in the folder must not be taken for this one's. So each node puts a question of its own there,
under a name that nobody used before, and node 0 answers with the name of the run's folder. Node 0 is there until every
other node has taken its answer; what nobody takes answers a question of an earlier run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from elasticgrid.core.errors import InvalidInput, RendezvousTimedOut
from elasticgrid.core.names import content_digest
from elasticgrid.elastic.config import LaunchConfig

#: How often a node that asked looks for the answer, and how often node 0 for questions.
LOOK_S: Final = 0.1
ANSWER_EVERY_S: Final = 0.5
_QUESTION: Final = ".question"
_ANSWER: Final = ".answer"

_log = structlog.get_logger("elasticgrid.elastic")


class StaticFolder:
    """The folder of one run of a static world.

    Args:
        config: of a static world.
        shared: what all nodes see.
    """

    def __init__(self, config: LaunchConfig, shared: Path) -> None:
        self._config = config
        self._shared = shared
        settings = (config.run_id, config.max_nodes, config.master_port)
        self._meeting = shared / f".meeting-{content_digest(settings)}"
        self._made_up = f"{config.run_id}-{secrets.token_hex(6)}"
        #: Answers that were not taken yet, and whose they are.
        self._answers: dict[Path, str] = {}
        self._missing = {str(rank) for rank in range(1, config.max_nodes)}
        self._all_met = asyncio.Event()

    @property
    def _is_agreed(self) -> bool:
        """Whether there is somebody to agree with, in a folder that was said to be seen by all."""
        return self._config.max_nodes > 1 and self._config.shared_dir is not None

    async def found(self) -> Path:
        """The run's folder: node 0 and a node with a folder of its own make it up, the others are told.

        Raises:
            RendezvousTimedOut: node 0 did not answer in time.
            InvalidInput: the shared folder cannot be used.
        """
        if not self._is_agreed or self._config.node_rank == 0:
            return self._shared / self._made_up
        try:
            return self._shared / await self._asked()
        except OSError as error:
            raise InvalidInput(
                f"the shared folder cannot be used: {error.strerror}",
                where=str(self._shared),
                hint="name one that can be written with --shared-dir",
            ) from error

    async def answer(self) -> None:
        """Answer the other nodes, for ever; returns at once where there is nobody to answer."""
        if not self._is_agreed or self._config.node_rank != 0:
            return
        told = False
        while True:
            try:
                await asyncio.to_thread(self._answer_all)
            except OSError as error:
                if not told:
                    _log.warning("the other nodes cannot be answered; trying on", error=str(error))
                told = True
            if not self._missing:
                self._all_met.set()
            await asyncio.sleep(ANSWER_EVERY_S)

    async def answered(self) -> None:
        """Wait until all other nodes were answered, by `answer`; no longer than nodes wait for a world."""
        if not self._is_agreed or self._config.node_rank != 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.join_timeout_s):
                await self._all_met.wait()

    async def _asked(self) -> str:
        name = f"{self._config.node_rank}-{secrets.token_hex(8)}"
        question, answer = self._meeting / f"{name}{_QUESTION}", self._meeting / f"{name}{_ANSWER}"
        until_s = monotonic() + self._config.join_timeout_s
        try:
            await asyncio.to_thread(_touch, question)
            while monotonic() < until_s:
                with contextlib.suppress(FileNotFoundError):
                    return await asyncio.to_thread(answer.read_text)
                await asyncio.sleep(LOOK_S)
        finally:
            # The question first: without it the answer is not given again.
            for file in (question, answer):
                file.unlink(missing_ok=True)
        raise RendezvousTimedOut(
            f"waited {self._config.join_timeout_s:g} s: node 0 of the run {self._config.run_id} did not answer in the "
            "shared folder",
            where=str(self._shared),
            hint="start node 0, and give every node the same --shared-dir, which all of them see",
        )

    def _answer_all(self) -> None:
        self._meeting.mkdir(parents=True, exist_ok=True)
        for answer in [path for path in self._answers if not path.exists()]:
            self._missing.discard(self._answers.pop(answer))
        for question in self._meeting.glob(f"*{_QUESTION}"):
            answer = question.with_suffix(_ANSWER)
            if answer not in self._answers and not answer.exists():
                draft = question.with_suffix(f".{os.getpid()}.draft")
                draft.write_text(self._made_up)
                draft.rename(answer)
                self._answers[answer] = question.name.partition("-")[0]


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
