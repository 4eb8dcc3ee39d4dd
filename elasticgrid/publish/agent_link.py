"""The hook's end of the socket to the node's agent: answers where training stands, hears at which step to stop."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import msgspec

from elasticgrid.core.errors import ElasticGridError
from elasticgrid.publish import channel
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.settings import HookSettings
from elasticgrid.publish.stacks import write_stacks_when_asked
from elasticgrid.publish.state import TrainerState
from elasticgrid.publish.unix_socket import open_unix_connection

#: Steps are told at most this often when nobody asks.
TELL_EVERY_S = 0.1
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
CONNECT_TIMEOUT_S = 2.0
#: When the agent has not read this many bytes, steps are no longer told until it does.
UNREAD_LIMIT_BYTES = 16 * 1024
#: A hook that is closed as soon as it was opened waits this long for its first connection, to say what it has to say.
FIRST_CONNECTION_S = 0.5


class AgentLink:
    """Connects, and again when the socket is lost; each connection is told the last checkpoint and stop."""

    def __init__(self, settings: HookSettings, state: TrainerState, samples: SampleBuffer, *, pid: int) -> None:
        self._path = settings.agent_socket
        stacks = settings.stacks_file if write_stacks_when_asked(settings.stacks_file) else ""
        self._hello = channel.Hello(rank=settings.rank, round=settings.round, pid=pid, stacks=stacks)
        self._state = state
        self._samples = samples
        self._news = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._told_step: int | None = None
        self._told_checkpoint: tuple[int, str] | None = None
        self._told_stop = False
        self._told_expiring: set[int] = set()
        self._closing = False

    def wake(self) -> None:
        """Tell what is new now and not at the next turn. Call on the loop's thread."""
        self._news.set()

    @property
    def up_to_date(self) -> bool:
        """Whether checkpoint and stop were written to a connection."""
        state = self._state
        return self._writer is not None and (
            self._told_checkpoint == state.checkpointed and self._told_stop == (state.stopped_at is not None)
        )

    async def run(self) -> None:
        """Serve the socket until cancelled."""
        retry_s = RETRY_FIRST_S
        connected_before = False
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await open_unix_connection(self._path)
            except (OSError, ElasticGridError) as error:
                self._state.problem = f"agent: {error}"
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MOST_S)
                continue
            if connected_before:
                self._state.reconnects += 1
            connected_before = True
            retry_s = RETRY_FIRST_S
            await self._serve(reader, writer)
            await asyncio.sleep(RETRY_FIRST_S)

    async def close(self, *, timeout_s: float) -> None:
        """Say what was not said yet and that the hook is closed; give up after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, FIRST_CONNECTION_S)):
                await self._connected.wait()
        timeout_s = max(deadline_s - time.monotonic(), 0.0)
        writer = self._writer
        if writer is None:
            return
        self._closing = True
        state = self._state
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                self._tell(writer)
                closed = channel.Closed(
                    step=state.steps_completed,
                    samples_published=state.published,
                    samples_dropped=self._samples.dropped + self._samples.unsent,
                )
                writer.write(channel.encode_line(closed))
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is lost."""
        self._told_step, self._told_checkpoint, self._told_stop = None, None, False
        self._told_expiring = set()
        self._writer = writer
        writer.write(channel.encode_line(self._hello))
        self._connected.set()
        listening = asyncio.create_task(self._listen(reader, writer))
        telling = asyncio.create_task(self._keep_telling(writer))
        try:
            await asyncio.wait({listening, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writer = None
            for task in (listening, telling):
                task.cancel()
            await asyncio.gather(listening, telling, return_exceptions=True)
            if not self._closing:  # then what is still unread is given its time there
                writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # a ValueError is a line longer than any message: start again
            while line := await reader.readline():
                try:
                    message = channel.agent_decoder.decode(line)
                except (msgspec.MsgspecError, RecursionError) as error:
                    self._state.problem = f"agent: not a message: {error}"
                    continue
                if isinstance(message, channel.StopAt):
                    self._state.stop_at = message.step
                else:
                    self._told_step = self._state.steps_completed
                    writer.write(channel.encode_line(channel.At(step=self._told_step)))

    async def _keep_telling(self, writer: asyncio.StreamWriter) -> None:
        while not writer.transport.is_closing():
            self._tell(writer)
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_EVERY_S):
                    await self._news.wait()
            self._news.clear()

    def _tell(self, writer: asyncio.StreamWriter) -> None:
        state = self._state
        if writer.transport.is_closing() or writer.transport.get_write_buffer_size() > UNREAD_LIMIT_BYTES:
            return
        step = state.steps_completed
        if step != self._told_step:
            self._told_step = step
            writer.write(channel.encode_line(channel.At(step=step)))
        checkpointed = state.checkpointed
        if checkpointed is not None and checkpointed != self._told_checkpoint:
            self._told_checkpoint = checkpointed
            writer.write(channel.encode_line(channel.Checkpointed(step=checkpointed[0], uri=checkpointed[1])))
        if state.stopped_at is not None and not self._told_stop:
            self._told_stop = True
            writer.write(channel.encode_line(channel.Stopping(step=state.stopped_at)))
        expiring = state.expiring
        if expiring or self._told_expiring:
            self._tell_expiring(writer, expiring)

    def _tell_expiring(self, writer: asyncio.StreamWriter, expiring: dict[int, tuple[float, float, str]]) -> None:
        for number in self._told_expiring - expiring.keys():
            writer.write(channel.encode_line(channel.Ended(id=number)))
        for number in expiring.keys() - self._told_expiring:
            until_s, limit_s, name = expiring[number]
            after_s = max(until_s - time.monotonic(), 0.0)
            told = channel.Expires(id=number, after_s=after_s, name=name, limit_s=limit_s)
            writer.write(channel.encode_line(told))
        self._told_expiring = set(expiring)
