"""The log in memory passes the contract, and records the time of the clock it was given."""

from __future__ import annotations

import pytest

from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import EventLog
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.log_contract import EventLogContract, an_event, read_all


class TestMemoryLog(EventLogContract):
    @pytest.fixture
    def log(self) -> EventLog:
        return MemoryLog(VirtualClock(5_000))


async def test_the_recorded_time_is_the_clocks() -> None:
    clock = VirtualClock(5_000)
    log = MemoryLog(clock)
    await log.append([an_event(1)])
    clock.advance(1.5)
    await log.append([an_event(2)])
    assert [record.recorded_ms for record in await read_all(log)] == [5_000, 6_500]
