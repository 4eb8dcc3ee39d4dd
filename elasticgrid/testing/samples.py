"""A samples stream that a test writes by hand."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from elasticgrid.bus.follower import BusMessage
from elasticgrid.bus.subjects import sample_subject
from elasticgrid.clock import Clock
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, StepSample, encode_batch


class SampleStream:
    """Sample messages in memory; `open` gives a source of those after a sequence."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: list[BusMessage] = []
        self._grown = asyncio.Event()
        self._sources: list[SampleSource] = []

    def publish(self, tenant: str, job: str, round_number: int, rank: int, samples: list[StepSample]) -> int:
        """Append one message and return its sequence."""
        data = encode_batch(SampleBatch(SAMPLE_VERSION, round_number, rank, samples))
        return self.publish_raw(sample_subject(tenant, job, rank), data)

    def publish_raw(self, subject: str, data: bytes) -> int:
        """Append any bytes to any subject and return the sequence."""
        sequence = len(self._messages) + 1
        self._messages.append(BusMessage(sequence, self._clock.now_ms(), subject, None, data, 0))
        self._grown.set()
        self._grown = asyncio.Event()
        return sequence

    def open(self, *, after: int) -> SampleSource:
        """A source of the messages after `after`."""
        source = SampleSource(self, after)
        self._sources.append(source)
        return source

    def cut(self, last: int) -> None:
        """Lose the messages after sequence `last`, as a crash of the server does; their sequences are used again."""
        del self._messages[last:]
        for source in self._sources:
            source.rewind(last)

    async def wait_beyond(self, sequence: int) -> list[BusMessage]:
        """The messages after `sequence`, once there is one."""
        while len(self._messages) <= sequence:
            await self._grown.wait()
        return self._messages[sequence:]


class SampleSource:
    """Reads a `SampleStream` in order."""

    def __init__(self, stream: SampleStream, after: int) -> None:
        self._stream = stream
        self._position = after

    async def next_batch(self) -> list[BusMessage]:
        """The next messages, at least one; waits for them."""
        messages = await self._stream.wait_beyond(self._position)
        self._position += len(messages)
        return [replace(each, pending=len(messages) - number) for number, each in enumerate(messages, 1)]

    def rewind(self, last: int) -> None:
        """Go on after `last` where more was read."""
        self._position = min(self._position, last)

    async def aclose(self) -> None:
        """Stop."""
