"""The agent's end of the hook's socket, spoken by the test itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from elasticgrid.publish import channel
from elasticgrid.publish.unix_socket import start_unix_server


class AgentEnd:
    """Listens where an agent would, keeps what workers said, and says what the test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[channel.WorkerMessage] = []
        self._news = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()
        await asyncio.gather(*self._serving)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def say(self, message: channel.AgentMessage) -> None:
        self.say_raw(channel.encode_line(message))

    def say_raw(self, line: bytes) -> None:
        self._writers[-1].write(line)

    async def hears(self, wanted: Callable[[channel.WorkerMessage], bool], *, timeout_s: float = 10.0) -> None:
        """Wait until one of the messages heard so far, or the next ones, is the wanted one."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: any(map(wanted, self.heard)))

    async def is_heard(self, message: channel.AgentMessage) -> None:
        """Say it, then ask where the worker is: the answer comes after what was said before was taken in."""
        self.say(message)
        self.say(channel.Where())
        while not isinstance(await self.next_message(), channel.At):
            pass

    async def next_message(self, *, timeout_s: float = 10.0) -> channel.WorkerMessage:
        """Wait for a message that was not heard yet."""
        heard_before = len(self.heard)
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: len(self.heard) > heard_before)
        return self.heard[heard_before]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.append(writer)
        try:
            while line := await reader.readline():
                async with self._news:
                    self.heard.append(channel.worker_decoder.decode(line))
                    self._news.notify_all()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def late_agent(tmp_path: Path) -> AsyncGenerator[AgentEnd]:
    """An agent's end that does not listen before it is started."""
    end = AgentEnd(tmp_path / "agent.sock")
    yield end
    await end.stop()


@pytest.fixture
async def agent(late_agent: AgentEnd) -> AgentEnd:
    """An agent's end that listens already."""
    await late_agent.start()
    return late_agent
