"""Decisions and placements of the whole grid over HTTP: in pages that miss nothing, by what is asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx
import pytest
from callers import PROVIDERS, asking, new_key, tenant

from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, ScalingPolicy
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload


class Decided(NamedTuple):
    """One event of a decision."""

    sequence: int
    job: str
    data: ev.EventData


@pytest.fixture
async def decided(client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog) -> list[Decided]:
    """What was decided about a job of each of two tenants, the newest first."""
    for name in ("research", "vision"):
        await tenant(client, name)
    grid = SimulatedGrid(PROVIDERS)
    scaling = ScalingPolicy(cooldown_up_ms=30_000, cooldown_down_ms=60_000, reversal_ms=60_000)
    for name in ("research", "vision"):
        spec = JobSpec(name="train", command=("train",), max_nodes=3, scaling=scaling)
        grid.submit(spec, Workload(total_steps=400, demand=((1, 3),)), tenant=name)
    grid.run()
    for each in grid.recorded:
        assert isinstance(each.event, ev.Event)
        await log.append([each.event])
    await gateway.caught_up()
    found = [
        Decided(each.sequence, each.event.job, each.event.data)
        async for each in log.read()
        if isinstance(each.event, ev.Event) and ev.type_of(each.event.data).startswith("decision.")
    ]
    return found[::-1]


async def sequences(client: httpx.AsyncClient, path: str, **asked: Any) -> list[int]:
    """Of everything there is, page by page."""
    found: list[int] = []
    cursor = ""
    while True:
        answer = await client.get(path, params={**asked, "limit": 7, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += [each["sequence"] for each in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
        if not cursor:
            return found


async def test_all_decisions_come_the_newest_first_in_pages_that_miss_none(
    client: httpx.AsyncClient, decided: list[Decided]
) -> None:
    assert len(decided) > 14
    assert await sequences(client, "/decisions") == [each.sequence for each in decided]
    placed = [each.sequence for each in decided if isinstance(each.data, ev.PlacementDecided)]
    assert await sequences(client, "/placements") == placed
    (newest,) = (await client.get("/placements", params={"limit": 1})).json()["items"]
    assert newest["type"] == "decision.placement"
    assert newest["event"]["data"]["type"] == "decision.placement"


async def test_decisions_are_found_by_tenant_job_rule_and_action(
    client: httpx.AsyncClient, decided: list[Decided]
) -> None:
    scales = [(each, each.data) for each in decided if isinstance(each.data, ev.ScaleDecided)]
    rules = {data.rule for _, data in scales}
    actions = {data.action for _, data in scales}
    assert actions >= {"up", "hold"}
    for rule in rules:
        assert await sequences(client, "/decisions", rule=rule) == [e.sequence for e, d in scales if d.rule == rule]
    for action in actions:
        wanted = [e.sequence for e, d in scales if d.action == action]
        assert await sequences(client, "/decisions", action=action) == wanted
    for path in ("/decisions", "/placements"):
        own = {name: await sequences(client, path, tenant=name) for name in ("research", "vision")}
        assert own["research"]
        assert sorted(own["research"] + own["vision"], reverse=True) == await sequences(client, path)
        assert await sequences(client, path, tenant="vision", job=decided[0].job) == own["vision"]
        assert await sequences(client, path, job="none") == []


async def test_a_tenants_key_sees_its_own_decisions_alone(
    client: httpx.AsyncClient, gateway: GatewayService, decided: list[Decided]
) -> None:
    async with asking(gateway, await new_key(client, tenant="research", scope="read")) as own:
        for path in ("/decisions", "/placements"):
            found = (await own.get(path, params={"limit": 1_000})).json()["items"]
            assert {each["tenant"] for each in found} == {"research"}
            assert (await own.get(path, params={"tenant": "vision"})).status_code == 404
