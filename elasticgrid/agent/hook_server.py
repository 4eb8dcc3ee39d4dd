"""The agent's end of the Unix socket: what the workers' hooks say, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import structlog

from elasticgrid.core.samples import MAX_STEP_S
from elasticgrid.publish.channel import (
    AgentMessage,
    At,
    Checkpointed,
    Closed,
    Ended,
    Expires,
    Hello,
    Stopping,
    encode_line,
    worker_decoder,
)
from elasticgrid.publish.unix_socket import start_unix_server

_log = structlog.get_logger("elasticgrid.agent")

HookMessage: TypeAlias = At | Checkpointed | Stopping | Closed | Expires | Ended
#: Called with the round, the rank and what was said.
OnMessage: TypeAlias = Callable[[int, int, HookMessage], None]

#: Bad lines on one connection after which it is closed.
BAD_LINES_ALLOWED: Final = 10
SETTLE_S: Final = 0.02
#: How long a connection may take to say whose it is.
GREETING_TIMEOUT_S: Final = 5.0


class HookServer:
    """Hears the hooks of the current round's workers and passes on what the agent tells them.

    Lines that are no message, and workers of other rounds, are counted and ignored.

    Attributes:
        bad_messages: how many were ignored.
    """

    def __init__(self, path: Path, on_message: OnMessage) -> None:
        self.bad_messages = 0
        self._path = path
        self._on_message = on_message
        self._server: asyncio.Server | None = None
        self._round = 0
        self._ranks: frozenset[int] = frozenset()
        self._writers: dict[int, set[asyncio.StreamWriter]] = {}
        self._greetings: dict[int, Hello] = {}
        self._unnamed: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_word: AgentMessage | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the socket cannot be made.
        """
        self._server = await start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        """Stop listening, end all connections and remove the socket's file."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def begin_round(self, number: int, ranks: frozenset[int]) -> None:
        """From now on listen to these workers only."""
        self._round, self._ranks, self._last_word = number, ranks, None
        for writers in self._writers.values():
            for writer in writers:
                writer.close()
        self._writers = {rank: set() for rank in ranks}
        self._greetings.clear()

    @property
    def connected(self) -> tuple[int, ...]:
        """Ranks of the round whose hooks are connected."""
        return tuple(rank for rank, writers in self._writers.items() if writers)

    def greeting(self, rank: int) -> Hello | None:
        """The last greeting of a worker of the round; None when it never said one."""
        return self._greetings.get(rank)

    def tell(self, message: AgentMessage, *, keep: bool = False) -> None:
        """Tell all workers of the round; with `keep` also those that connect later."""
        if keep:
            self._last_word = message
        line = encode_line(message)
        for writers in self._writers.values():
            for writer in writers:
                _write(writer, line)

    async def wait_silent(self, rank: int, timeout_s: float) -> None:
        """Return when everything a worker that exited had said was heard, at the latest after `timeout_s`."""
        # A connection made just before the exit may still be on its way to `_serve`.
        await asyncio.sleep(SETTLE_S)
        try:
            async with asyncio.timeout(timeout_s):
                while self._writers.get(rank) or self._unnamed:
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("a worker exited but something of it still holds its connection", rank=rank)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._unnamed.add(writer)
        rank = -1
        try:
            hello = await self._hello(reader)
            self._unnamed.discard(writer)
            if hello is None:
                return
            rank = hello.rank
            self._writers[rank].add(writer)
            self._greetings[rank] = hello
            if self._last_word is not None:
                _write(writer, encode_line(self._last_word))
            await self._listen(reader, hello.round, rank)
        except (ConnectionError, asyncio.CancelledError):
            return  # a worker that died, or the agent's end
        finally:
            self._tasks.discard(task)
            self._unnamed.discard(writer)
            self._writers.get(rank, set()).discard(writer)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _hello(self, reader: asyncio.StreamReader) -> Hello | None:
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                line = await _read_line(reader)
        except TimeoutError:
            line = None
        message = _decode(line) if line else None
        if not isinstance(message, Hello) or message.round != self._round or message.rank not in self._ranks:
            self._bad("no greeting of a worker of this round", line or b"")
            return None
        return message

    async def _listen(self, reader: asyncio.StreamReader, number: int, rank: int) -> None:
        bad = 0
        while (line := await _read_line(reader)) != b"":
            message = _decode(line) if line is not None else None
            if message is None or isinstance(message, Hello) or not _is_usable(message):
                self._bad("not a message of a worker", line or b"")
                bad += 1
                if line is None or bad > BAD_LINES_ALLOWED:
                    return
                continue
            self._on_message(number, rank, message)

    def _bad(self, what: str, line: bytes) -> None:
        self.bad_messages += 1
        if self.bad_messages == 1:
            _log.warning("a message on the workers' socket was ignored", why=what, line=line[:200])


def _is_usable(message: HookMessage) -> bool:
    if isinstance(message, Expires):
        return 0.0 <= message.after_s <= MAX_STEP_S
    return isinstance(message, Ended) or message.step >= 0


def _decode(line: bytes) -> HookMessage | Hello | None:
    try:
        return worker_decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def _read_line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line, empty at the end of the connection, None for one that is too long."""
    try:
        return await reader.readline()
    except ValueError:
        return None


def _write(writer: asyncio.StreamWriter, line: bytes) -> None:
    if not writer.is_closing():
        writer.write(line)
