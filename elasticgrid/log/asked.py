"""The event log as a launch, or a tenant's dashboard, sees it: what its credential allows, by asking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus import api
from elasticgrid.bus.subjects import ALL, live_filter, read_subject
from elasticgrid.core.errors import BusUnavailable, LogDiverged, NotAllowed, UndecodableEvent
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.codec import decode
from elasticgrid.log.envelope import refuse_foreign
from elasticgrid.log.event_reader import ReadAnswer, ReadQuestion, StoredEvent, answer_decoder, question_encoder
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Expectation, Scope

_log = structlog.get_logger("elasticgrid.log")

#: New events are heard of as they are stored; so often it is asked whether that was missed.
ASK_EVERY_S: Final = 5.0
_ANSWER_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
#: How often `read` asks again while nobody answers.
_TRIES: Final = 8


class AskedLog:
    """An `EventLog` for a connection that may not read the stream.

    Facts are appended one by one. What may be read is what the credential says; another scope is refused.

    Attributes:
        undecodable: how many messages were met that are no events; they are never yielded.
    """

    def __init__(self, client: Client, *, ask_every_s: float = ASK_EVERY_S) -> None:
        self.undecodable = 0
        self._client = client
        self._ask_every_s = ask_every_s
        self._appending = JetStreamLog(client)

    async def append(self, events: Sequence[Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        """See `EventLog.append`.

        Raises:
            NotAllowed: this credential may not write these events, or they are more than one, or something is expected.
        """
        if len(events) > 1 or expect is not None:
            raise NotAllowed(
                "a launch appends its facts one by one", where=events[0].id, hint="use the credential of a service"
            )
        return await self._appending.append(events)

    async def read(
        self, *, after: int = 0, through: int | None = None, scope: Scope = Scope()
    ) -> AsyncGenerator[Recorded]:
        """See `EventLog.read`."""
        previous = max(after, 0)
        end = through
        tries = 0
        pause_s = _FIRST_PAUSE_S
        while end is None or previous < end:
            try:
                answer = await self._ask(scope, previous)
            except BusUnavailable:
                tries += 1
                if tries == _TRIES:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LAST_PAUSE_S)
                continue
            end = answer.end if end is None else min(end, answer.end)
            for stored in answer.events:
                if stored.sequence > end:
                    return
                previous = stored.sequence
                if (record := self._record(stored)) is not None:
                    yield record
            if not answer.events and previous < end:
                await asyncio.sleep(_FIRST_PAUSE_S)  # a replica that is behind

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[Recorded]:
        """See `EventLog.follow`.

        Raises:
            LogDiverged: the log ends before what was read from it.
            BusUnavailable: the connection was closed for good.
        """
        previous = max(after, 0)
        news = asyncio.Event()

        async def on_news(_message: Msg) -> None:
            news.set()

        heard = await self._client.subscribe(live_filter(scope.tenant, scope.job, scope.writer), cb=on_news)
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                news.clear()
                try:
                    answer = await self._ask(scope, previous)
                except BusUnavailable:
                    if self._client.is_closed:
                        raise
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LAST_PAUSE_S)
                    continue
                pause_s = _FIRST_PAUSE_S
                if answer.end < previous:
                    raise LogDiverged(
                        f"the log ends at {answer.end}, but {previous} was read from it before",
                        where=f"{scope.tenant}/{scope.job}",
                        hint="messages were lost; restore the stream from the mirror or an archive",
                    )
                for stored in answer.events:
                    previous = stored.sequence
                    if (record := self._record(stored)) is not None:
                        yield record
                if previous >= answer.end:
                    await self._wait(news)
                elif not answer.events:
                    await asyncio.sleep(_FIRST_PAUSE_S)  # a replica that is behind
        finally:
            with contextlib.suppress(*api.UNREACHABLE):
                await heard.unsubscribe()

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        """See `EventLog.last_sequence`.

        Raises:
            BusUnavailable: nobody answered.
        """
        return (await self._ask(scope, 0)).end

    async def _wait(self, news: asyncio.Event) -> None:
        """Until something was heard, it is time to ask, or the connection is another and may have missed something."""
        connection = self._client.stats["reconnects"]
        deadline = asyncio.get_running_loop().time() + self._ask_every_s
        while not news.is_set() and asyncio.get_running_loop().time() < deadline:
            if self._client.is_closed or self._client.stats["reconnects"] != connection:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._ask_every_s, 0.5)):
                    await news.wait()

    async def _ask(self, scope: Scope, after: int) -> ReadAnswer:
        job = ALL if scope.job == "*" else scope.job
        subject = read_subject(scope.tenant, job, scope.writer)
        question = question_encoder.encode(ReadQuestion(after))
        message = await api.request(self._client, subject, question, timeout_s=_ANSWER_S)
        try:
            answer = answer_decoder.decode(message.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BusUnavailable(f"an answer that is none: {error}", where=subject) from error
        if answer.problem:
            raise BusUnavailable(f"the events could not be read: {answer.problem}", where=subject)
        return answer

    def _record(self, stored: StoredEvent) -> Recorded | None:
        try:
            event = decode(stored.data)
            refuse_foreign(stored.subject, event)
        except UndecodableEvent as error:
            self.undecodable += 1
            if self.undecodable == 1:
                _log.warning("a message that is no event is skipped", subject=stored.subject, error=str(error))
            return None
        return Recorded(stored.sequence, stored.recorded_ms, event, stored.data)
