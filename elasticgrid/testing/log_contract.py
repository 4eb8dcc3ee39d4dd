"""What every `EventLog` adapter must do, as tests. Subclass `EventLogContract` and give it a fixture `log`."""
# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from elasticgrid.core.errors import Conflict, InvalidInput
from elasticgrid.core.events import (
    Event,
    EventData,
    JobPauseRequested,
    LaunchStopped,
    NodeLeft,
    OutcomeDecided,
    Recorded,
)
from elasticgrid.core.names import derived_id
from elasticgrid.log.port import MAX_BATCH, EventLog, Expectation, Scope

TIME_MS = 1_750_000_000_000
JOB = Scope("acme", "j1")
DECISIONS = Scope("acme", "j1", "decision")
EVERYTHING = Scope()


def an_event(number: int, data: EventData | None = None, *, tenant: str = "acme", job: str = "j1") -> Event:
    """An event that differs from those of other numbers; a node's fact unless `data` says otherwise."""
    return Event(
        id=derived_id(TIME_MS + number, tenant, job, number),
        time_ms=TIME_MS + number,
        tenant=tenant,
        job=job,
        actor="test",
        data=NodeLeft(node=f"n{number}", reason="test") if data is None else data,
    )


def a_decision(number: int, *, job: str = "j1") -> Event:
    """An event of the decider."""
    return an_event(number, OutcomeDecided(outcome="cancelled", reason=f"test {number}"), job=job)


async def take(records: AsyncGenerator[Recorded], count: int, timeout_s: float = 20.0) -> list[Recorded]:
    """The next `count` records; the generator stays open."""
    async with asyncio.timeout(timeout_s):
        return [await anext(records) for _ in range(count)]


async def read_all(
    log: EventLog, *, after: int = 0, through: int | None = None, scope: Scope = EVERYTHING
) -> list[Recorded]:
    """Everything that `read` yields, in no longer than 20 s."""
    async with asyncio.timeout(20.0):
        return [record async for record in log.read(after=after, through=through, scope=scope)]


class EventLogContract:
    """The claims. Each test begins with an empty log."""

    @pytest.fixture
    def log(self) -> EventLog:
        """The log under test; every subclass has its own."""
        raise NotImplementedError

    async def test_an_appended_event_is_read_back_as_it_was(self, log: EventLog) -> None:
        event = an_event(1)
        assert await log.append([event]) == (1, 1)
        (record,) = await read_all(log)
        assert record.sequence == 1
        assert record.event == event
        assert record.raw == msgspec.json.encode(event)
        assert record.recorded_ms > 0

    async def test_a_batch_gets_sequences_in_its_order(self, log: EventLog) -> None:
        await log.append([an_event(1)])
        batch = [a_decision(2), an_event(3, LaunchStopped(attempt="a", reason="r")), an_event(4)]
        assert await log.append(batch) == (2, 4)
        assert [record.event for record in await read_all(log, after=1)] == batch

    async def test_the_largest_batch_is_one_append(self, log: EventLog) -> None:
        assert await log.append([an_event(n) for n in range(MAX_BATCH)]) == (1, MAX_BATCH)
        assert await log.last_sequence() == MAX_BATCH

    @pytest.mark.parametrize(
        "events",
        [
            [],
            [an_event(n) for n in range(MAX_BATCH + 1)],
            [an_event(1), an_event(2, job="j2")],
            [an_event(1), an_event(2, tenant="other")],
            [an_event(1), an_event(1)],
            [an_event(1, job="a.b")],
            [an_event(1, tenant="*")],
        ],
        ids=["none", "too many", "two jobs", "two tenants", "one id twice", "job is no name", "tenant is no name"],
    )
    async def test_what_is_no_batch_is_refused_and_nothing_appended(self, log: EventLog, events: list[Event]) -> None:
        with pytest.raises(InvalidInput):
            await log.append(events)
        assert await log.last_sequence() == 0

    async def test_an_expectation_that_holds_lets_the_append_through(self, log: EventLog) -> None:
        assert await log.append([a_decision(1)], expect=Expectation(DECISIONS, 0)) == (1, 1)
        await log.append([an_event(2)])
        assert await log.append([a_decision(3), a_decision(4)], expect=Expectation(DECISIONS, 1)) == (3, 4)
        assert await log.append([an_event(5)], expect=Expectation(JOB, 4)) == (5, 5)

    @pytest.mark.parametrize("size", [1, 3])
    async def test_a_conflict_leaves_nothing_behind(self, log: EventLog, size: int) -> None:
        await log.append([a_decision(1)])
        with pytest.raises(Conflict):
            await log.append([a_decision(10 + n) for n in range(size)], expect=Expectation(DECISIONS, 0))
        assert [record.sequence for record in await read_all(log)] == [1]
        assert await log.append([a_decision(20 + n) for n in range(size)], expect=Expectation(DECISIONS, 1)) == (
            2,
            1 + size,
        )

    async def test_facts_of_others_do_not_disturb_an_expectation_among_deciders(self, log: EventLog) -> None:
        await log.append([a_decision(1)], expect=Expectation(DECISIONS, 0))
        for number in range(2, 7):
            await log.append([an_event(number)])
        await log.append([a_decision(7, job="j2")])
        assert await log.append([a_decision(8)], expect=Expectation(DECISIONS, 1)) == (8, 8)

    async def test_of_appends_with_one_expectation_exactly_one_goes_through(self, log: EventLog) -> None:
        outcomes = await asyncio.gather(
            *(
                log.append([a_decision(2 * n), a_decision(2 * n + 1)], expect=Expectation(DECISIONS, 0))
                for n in range(5)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 4
        assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [(1, 2)]
        assert await log.last_sequence() == 2

    @pytest.mark.parametrize("size", [1, 3])
    async def test_a_retried_append_that_landed_is_answered_with_its_sequences(self, log: EventLog, size: int) -> None:
        await log.append([an_event(100)])
        events = [a_decision(n) for n in range(size)]
        landed = await log.append(events, expect=Expectation(DECISIONS, 0))
        assert landed == (2, 1 + size)
        await log.append([an_event(101)])
        assert await log.append(events, expect=Expectation(DECISIONS, 0)) == landed
        assert await log.append(events) == landed
        assert await log.last_sequence() == 2 + size

    async def test_a_retried_append_is_recognised_behind_later_decisions(self, log: EventLog) -> None:
        first = [a_decision(1), a_decision(2)]
        await log.append(first, expect=Expectation(DECISIONS, 0))
        await log.append([a_decision(3)], expect=Expectation(DECISIONS, 2))
        assert await log.append(first, expect=Expectation(DECISIONS, 0)) == (1, 2)

    async def test_a_batch_of_which_only_a_part_landed_before_is_a_conflict(self, log: EventLog) -> None:
        await log.append([a_decision(1)])
        with pytest.raises(Conflict):
            await log.append([a_decision(1), a_decision(2)])
        assert await log.last_sequence() == 1

    async def test_reading_begins_after_any_sequence_and_ends_at_any(self, log: EventLog) -> None:
        await log.append([an_event(n) for n in range(1, 11)])
        for after in (0, 1, 5, 9, 10, 11):
            for through in (None, 0, 1, 5, 10, 99):
                end = 10 if through is None else min(through, 10)
                expected = list(range(after + 1, end + 1))
                assert [r.sequence for r in await read_all(log, after=after, through=through)] == expected

    async def test_reading_an_empty_log_ends(self, log: EventLog) -> None:
        assert await read_all(log) == []
        assert await read_all(log, scope=JOB) == []
        assert await log.last_sequence() == 0

    async def test_scopes_select_tenant_job_and_writer(self, log: EventLog) -> None:
        await log.append([an_event(1), a_decision(2)])
        await log.append([an_event(3, job="j2")])
        await log.append([an_event(4, tenant="other")])
        await log.append([an_event(5, JobPauseRequested())])
        expected = {
            Scope(): [1, 2, 3, 4, 5],
            Scope("acme"): [1, 2, 3, 5],
            JOB: [1, 2, 5],
            DECISIONS: [2],
            Scope("acme", "j1", "job"): [5],
            Scope("acme", "j1", "launch"): [],
            Scope("other", "j1"): [4],
            Scope("nobody"): [],
        }
        for scope, sequences in expected.items():
            assert [r.sequence for r in await read_all(log, scope=scope)] == sequences
            assert await log.last_sequence(scope) == max(sequences, default=0)
        assert [r.sequence for r in await read_all(log, scope=JOB, after=1, through=4)] == [2]

    async def test_following_yields_what_is_there_and_then_what_comes(self, log: EventLog) -> None:
        await log.append([an_event(1), an_event(2)])
        records = log.follow(after=1)
        assert [r.sequence for r in await take(records, 1)] == [2]
        waiting = asyncio.create_task(take(records, 2))
        await log.append([an_event(3)])
        await log.append([an_event(4, job="j2")])
        assert [r.sequence for r in await waiting] == [3, 4]
        await records.aclose()

    async def test_following_a_scope_skips_the_rest(self, log: EventLog) -> None:
        records = log.follow(scope=DECISIONS)
        waiting = asyncio.create_task(take(records, 2))
        for number in range(1, 9):
            await log.append([a_decision(number) if number % 4 == 0 else an_event(number)])
        assert [r.sequence for r in await waiting] == [4, 8]
        await records.aclose()

    async def test_followers_do_not_disturb_each_other(self, log: EventLog) -> None:
        first, second = log.follow(), log.follow()
        tasks = [asyncio.create_task(take(records, 3)) for records in (first, second)]
        for number in (1, 2, 3):
            await log.append([an_event(number)])
        assert [[r.sequence for r in await task] for task in tasks] == [[1, 2, 3], [1, 2, 3]]
        await first.aclose()
        await second.aclose()
