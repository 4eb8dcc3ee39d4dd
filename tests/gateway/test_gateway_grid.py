"""Providers, cost and health over HTTP, and what the configuration does to the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

import elasticgrid
from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusUnavailable, Conflict
from elasticgrid.core.grid import GridFold
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.openapi_document import DOCUMENT, openapi_text
from elasticgrid.gateway.providers import declare_providers
from elasticgrid.gateway.service import READY_S, GatewayService, open_gateway
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Expectation, Scope
from elasticgrid.testing.clock import VirtualClock

SCHEMAS = Path(__file__).parents[2] / "schemas"
SMALL = ProviderSpec(name="small", max_nodes=2, price_microdollars_per_hour=1_000_000)
LARGE = ProviderSpec(name="large", max_nodes=6, price_microdollars_per_hour=2_000_000, market="spot")


async def types(log: MemoryLog, after: int = 0) -> list[str]:
    return [ev.type_of(each.event.data) async for each in log.read(after=after) if isinstance(each.event, ev.Event)]


async def folded(log: MemoryLog) -> GridFold:
    grid = GridFold()
    async for recorded in log.read():
        grid.apply(recorded)
    return grid


async def test_what_the_configuration_has_is_declared_once(
    log: MemoryLog, clock: VirtualClock, data_dir: Path, gateway: GatewayService
) -> None:
    assert await types(log) == ["provider.declared", "provider.declared"]
    last = await log.last_sequence()
    async with open_gateway(log, data_dir.with_name("second"), providers=(SMALL, LARGE), clock=clock):
        assert await log.last_sequence() == last


async def test_a_changed_provider_is_declared_again_and_a_missing_one_withdrawn(
    log: MemoryLog, clock: VirtualClock
) -> None:
    await declare_providers(log, GridFold(), (SMALL, LARGE), now_ms=clock.now_ms())
    dearer = replace(SMALL, price_microdollars_per_hour=3_000_000)
    last = await declare_providers(log, await folded(log), (dearer,), now_ms=clock.now_ms())
    assert last == 4
    assert await types(log, after=2) == ["provider.declared", "provider.withdrawn"]
    grid = await folded(log)
    assert [state.spec for state in grid.fleet.providers.values()] == [dearer]
    assert await declare_providers(log, grid, (dearer,), now_ms=clock.now_ms()) == 0


async def test_a_configuration_is_not_declared_on_an_old_view_of_the_fleet(log: MemoryLog, clock: VirtualClock) -> None:
    await declare_providers(log, GridFold(), (SMALL,), now_ms=clock.now_ms())
    with pytest.raises(Conflict):
        await declare_providers(log, GridFold(), (LARGE,), now_ms=clock.now_ms())


async def test_a_gateway_without_a_configuration_leaves_the_fleet_alone(
    log: MemoryLog, clock: VirtualClock, data_dir: Path
) -> None:
    await declare_providers(log, GridFold(), (SMALL,), now_ms=clock.now_ms())
    async with open_gateway(log, data_dir, clock=clock) as gateway:
        assert [each.spec for each in gateway.providers.views()] == [SMALL]
    assert await log.last_sequence() == 1


async def test_providers_are_shown_with_what_they_hold_and_why_they_take_nothing(client: httpx.AsyncClient) -> None:
    cordoned = await client.post("/providers/large/cordon", json={"reason": "new driver"})
    assert (cordoned.status_code, cordoned.json()["cordon"]) == (200, "new driver")
    large, small = (await client.get("/providers")).json()["items"]
    assert (large["refused"], large["detail"], large["free_nodes"]) == ("cordoned", "new driver", 6)
    assert (small["refused"], small["cordon"], small["spec"]["max_nodes"]) == ("", None, 2)
    again = await client.post("/providers/large/uncordon")
    assert again.json()["refused"] == ""


async def test_cordoning_twice_is_one_fact(client: httpx.AsyncClient, log: MemoryLog) -> None:
    before = await log.last_sequence()
    for _ in range(2):
        await client.post("/providers/small/cordon")
    for _ in range(2):
        await client.post("/providers/small/uncordon")
    assert await types(log, after=before) == ["provider.cordoned", "provider.uncordoned"]
    assert (await client.post("/providers/none/cordon")).status_code == 404


async def test_cost_is_reported_by_job_tenant_and_provider(client: httpx.AsyncClient) -> None:
    for by in ("job", "tenant", "provider"):
        answer = (await client.get("/cost", params={"by": by})).json()
        assert (answer["by"], answer["lines"], answer["cost_microdollars"]) == (by, [], 0)


async def test_health_says_how_far_answers_are(client: httpx.AsyncClient, gateway: GatewayService) -> None:
    assert (await client.get("/healthz")).json()["status"] == "ok"
    assert (await client.get("/readyz")).json() == {"status": "ok", "sequence": gateway.feed.last}
    assert (await client.get("/version")).json() == {"version": elasticgrid.__version__, "api": "v1"}


class UnreachableLog(MemoryLog):
    """A log that can be out of reach or stand still, and that loses the answers to some appends."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.away = False
        self.moves = asyncio.Event()
        self.moves.set()
        self.answers_to_lose = 0

    async def append(self, events: Sequence[ev.Event], *, expect: Expectation | None = None) -> tuple[int, int]:
        if self.away:
            raise BusUnavailable("the bus does not answer")
        landed = await super().append(events, expect=expect)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise BusUnavailable("the answer was lost")
        return landed

    async def last_sequence(self, scope: Scope = Scope()) -> int:
        await self.moves.wait()
        if self.away:
            raise BusUnavailable("the bus does not answer")
        return await super().last_sequence(scope)


class TestWithAnUnreliableBus:
    @pytest.fixture
    def log(self, clock: VirtualClock) -> UnreachableLog:
        return UnreachableLog(clock)

    async def test_without_the_bus_views_are_read_and_writes_are_refused_for_now(
        self, client: httpx.AsyncClient, log: UnreachableLog
    ) -> None:
        log.away = True
        assert (await client.get("/jobs")).status_code == 200
        for answer in (await client.get("/readyz"), await client.delete("/jobs/some-job")):
            assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
            assert answer.headers["Retry-After"]

    async def test_whether_it_is_ready_is_said_soon_though_the_bus_stands_still(
        self, client: httpx.AsyncClient, log: UnreachableLog
    ) -> None:
        log.moves.clear()
        async with asyncio.timeout(2 * READY_S + 5):
            answers = await asyncio.gather(*(client.get("/readyz") for _ in range(3)))
            answers.append(await client.get("/readyz"))
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
            assert "did not answer within 2 s" in answer.json()["detail"]
        assert (await client.get("/jobs")).status_code == 200
        log.moves.set()
        assert (await client.get("/readyz")).status_code == 200

    async def test_a_submission_whose_answer_was_lost_is_made_once(
        self, client: httpx.AsyncClient, log: UnreachableLog
    ) -> None:
        log.answers_to_lose = 1
        answer = await client.post("/jobs", json={"name": "a", "command": ["b"], "workdir": "/"})
        assert answer.status_code == 201
        assert (await types(log)).count("job.submitted") == 1


class BrokenLog(MemoryLog):
    """A log that can no longer be followed after some events."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.broken = asyncio.Event()

    async def follow(self, *, after: int = 0, scope: Scope = Scope()) -> AsyncGenerator[ev.Recorded]:
        async for recorded in super().read(after=after, scope=scope):
            yield recorded
        await self.broken.wait()
        raise OSError("the disk is gone")


async def test_a_gateway_whose_views_have_stopped_says_so(clock: VirtualClock, data_dir: Path) -> None:
    log = BrokenLog(clock)
    await declare_providers(log, GridFold(), (SMALL,), now_ms=clock.now_ms())
    async with open_gateway(log, data_dir, clock=clock) as gateway:
        assert await gateway.require_ready() == 1
        log.broken.set()
        with pytest.raises(OSError, match="the disk is gone"):
            await gateway.wait_failed()
        with pytest.raises(BusUnavailable, match="not kept up"):
            await gateway.require_ready()


async def test_the_committed_document_is_the_one_that_is_shown(client: httpx.AsyncClient) -> None:
    committed = (SCHEMAS / DOCUMENT).read_text(encoding="utf-8")
    assert committed == openapi_text(), "python -m elasticgrid.gateway.openapi_document > schemas/openapi.json"
    assert (await client.get("/openapi")).text == committed


def test_every_reference_of_the_document_leads_somewhere() -> None:
    text = openapi_text()
    document = json.loads(text)
    assert document["openapi"].startswith("3.1")
    names = set(document["components"]["schemas"])
    parts = text.split('"$ref": "#/components/schemas/')[1:]
    assert {part.split('"', 1)[0] for part in parts} <= names
    assert all("default" in each["responses"] for path in document["paths"].values() for each in path.values())
