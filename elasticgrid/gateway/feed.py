"""Live events for everyone who watches: one bounded buffer of the last events, and the views for all before them.

A watcher has no buffer of its own. It asks for what comes after the last event it has sent, so a slow one costs
nothing, and one that comes back with the last sequence it saw misses nothing. Each event is encoded once. Watchers go
on in turns (see `Turns`), so that however many they are, the rest of the process has most of the loop; where events
come faster than turns, a turn brings several of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import msgspec

from elasticgrid.core.errors import InvalidInput
from elasticgrid.gateway.turns import Turns
from elasticgrid.projections.results import EventView
from elasticgrid.projections.views import Views

#: What the buffer holds at most.
BUFFER_EVENTS: Final = 2_048
BUFFER_BYTES: Final = 16 * 1024 * 1024
#: Events read from the views, or sent, at once, and bytes: what a client that takes nothing can keep.
_CHUNK: Final = 200
_CHUNK_BYTES: Final = 128 * 1024
#: How soon a client that lost its connection comes back.
_RETRY_MS: Final = 1_000

_encoder = msgspec.json.Encoder()


class _Live(msgspec.Struct, frozen=True):
    sequence: int
    tenant: str
    job: str
    frame: bytes


class EventFeed:
    """Events as server-sent events; the id of each is its sequence in the log.

    Args:
        views: where events before the buffer are read.
        heartbeat_s: a comment is sent after so long without an event, so that dead connections are noticed.
    """

    def __init__(self, views: Views, *, heartbeat_s: float = 15.0) -> None:
        self._views = views
        self._heartbeat_s = heartbeat_s
        self._last = 0
        self._buffer: deque[_Live] = deque()
        self._buffered_bytes = 0
        self._turns = Turns()
        self._closed = False
        self._watchers = 0
        self._sent = 0

    @property
    def last(self) -> int:
        """The last event that can be watched."""
        return self._last

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return self._watchers

    @property
    def sent(self) -> int:
        """Events given to streams, to each of them."""
        return self._sent

    def begin(self, sequence: int) -> None:
        """Events up to `sequence` are in the views already."""
        self._last = max(self._last, sequence)
        self._wake()

    def publish(self, events: Sequence[EventView]) -> None:
        """Events that can be read from the views from now on; those that were published before are ignored."""
        for event in events:
            if event.sequence <= self._last:
                continue
            live = _Live(event.sequence, event.tenant, event.job, _frame(event))
            self._buffer.append(live)
            self._buffered_bytes += len(live.frame)
            self._last = event.sequence
            while len(self._buffer) > BUFFER_EVENTS or self._buffered_bytes > BUFFER_BYTES:
                self._buffered_bytes -= len(self._buffer.popleft().frame)
        self._wake()

    def look_again(self) -> None:
        """Have every watcher look whether it may go on: somebody may not any more."""
        self._wake()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._wake()

    def start_of(self, after: int | None, last_event_id: str | None) -> int:
        """Where a stream begins: after the last event its client has, else after `after`, else with what is new.

        Raises:
            InvalidInput: it is no sequence, or one that the log does not have yet.
        """
        if last_event_id:
            if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
                raise InvalidInput("this is no id of an event", where="Last-Event-ID", hint="it is a sequence")
            after = int(last_event_id)
        if after is None:
            return self._last
        if after > self._last:
            raise InvalidInput(f"the log ends at {self._last}", where="after", hint="leave it out for new events")
        return max(after, 0)

    async def frames(
        self, after: int, *, tenant: str = "", job: str = "", left_s: Callable[[], float] = lambda: math.inf
    ) -> AsyncGenerator[bytes]:
        """The stream of events after `after`, of a tenant or a job when given, until the feed is closed.

        `left_s` says for how long its watcher may go on; it is asked before anything is given, and at 0 the stream
        ends.
        """
        self._watchers += 1
        try:
            # The id lets a client that loses its connection before the first event come back to this place.
            yield f"retry: {_RETRY_MS}\nid: {after}\n\n".encode()
            while not self._closed:
                frames, reached = await self._after(after, tenant, job)
                if left_s() <= 0:
                    return
                if frames:
                    self._sent += len(frames)
                    yield frames[0] if len(frames) == 1 else b"".join(frames)
                after = max(after, reached)
                if after < self._last:
                    await self._turns.soon()
                elif not self._closed:
                    changed = await self._turns.changed_or(min(self._heartbeat_s, left_s()))
                    if not changed and not self._closed and left_s() > 0:
                        yield b": heartbeat\n\n"
        finally:
            self._watchers -= 1

    async def _after(self, after: int, tenant: str, job: str) -> tuple[list[bytes], int]:
        """Some frames after `after`, and the sequence up to which these are all."""
        last = self._last
        if self._buffer and self._buffer[0].sequence <= after + 1:
            return self._buffered_after(after, tenant, job)
        page = await self._views.events(after=after, through=last, tenant=tenant, job=job, limit=_CHUNK)
        return [_frame(event) for event in page.items], page.next_after

    def _buffered_after(self, after: int, tenant: str, job: str) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        size = 0
        start = max(len(self._buffer) - (self._last - after), 0)
        for index in range(start, len(self._buffer)):
            live = self._buffer[index]
            if live.sequence <= after:
                continue
            if tenant in ("", live.tenant) and job in ("", live.job):
                frames.append(live.frame)
                size += len(live.frame)
            if len(frames) >= _CHUNK or size >= _CHUNK_BYTES:
                return frames, live.sequence
        return frames, max(after, self._last)

    def _wake(self) -> None:
        self._turns.change()


def _frame(event: EventView) -> bytes:
    """One event of the stream. JSON has no line breaks outside of its texts, and ours is on one line."""
    return b"id: %d\ndata: %b\n\n" % (event.sequence, _encoder.encode(event))
