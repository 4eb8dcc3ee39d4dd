"""Quotas over HTTP: set by an admin, shown with what is left, and a submission that would go over is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from callers import JOB, asking, new_key, submitted, tenant

from elasticgrid.core import events as ev
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.clock import VirtualClock

HOUR_MS = 3_600_000


async def set_quota(client: httpx.AsyncClient, name: str, **quota: Any) -> dict[str, Any]:
    answer = await client.put(f"/quotas/{name}", json=quota)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def run_node(log: MemoryLog, gateway: GatewayService, job: str, *, price: int) -> None:
    """Let one node of the job run from now on, as decider and launcher would write it."""
    now_ms = gateway.now_ms()
    add = ev.Assignment(id="a1", provider="small", action="add", nodes=1, price_microdollars_per_hour=price)
    facts: tuple[ev.EventData, ...] = (
        ev.PlacementDecided(demand_nodes=1, placed_nodes=1, assignments=(add,)),
        ev.LaunchRequested(
            attempt="a1",
            assignment="a1",
            provider="small",
            engine="local",
            nodes=1,
            node_ids=("a1-0",),
            price_microdollars_per_hour=price,
        ),
        ev.LaunchStarted(attempt="a1", handle="h"),
    )
    for number, data in enumerate(facts):
        event = ev.Event(id=f"{job}-{number}", time_ms=now_ms, tenant="research", job=job, actor="test", data=data)
        await log.append([event])
    await gateway.caught_up(Scope("research", job))


async def test_a_quota_is_set_as_an_event_and_shown_with_what_is_left(
    client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog
) -> None:
    await tenant(client, "research")
    set_ = await set_quota(client, "research", jobs=3, nodes=8, microdollars=5_000_000, period="day", reason="spring")
    assert {line["what"]: (line["limit"], line["left"]) for line in set_["lines"]} == {
        "jobs": (3, 3),
        "nodes": (8, 8),
        "accelerator_ms": (None, None),
        "microdollars": (5_000_000, 5_000_000),
    }
    assert set_["period_end_ms"] - set_["period_start_ms"] == 24 * HOUR_MS
    await submitted(client, tenant="research")
    (_, shown) = (await client.get("/quotas")).json()["items"]
    assert [line["used"] for line in shown["lines"]] == [1, 0, 0, 0]
    facts = [each.event async for each in log.read() if isinstance(each.event, ev.Event)]
    (fact,) = [each for each in facts if isinstance(each.data, ev.QuotaSet)]
    assert (fact.actor, fact.data.reason) == (f"key:{gateway.key.prefix}", "spring")  # type: ignore[union-attr] # it is a quota
    before = await log.last_sequence()
    await set_quota(client, "research", jobs=3, nodes=8, microdollars=5_000_000, period="day")
    assert await log.last_sequence() == before


async def test_one_job_too_many_is_refused_with_the_numbers(client: httpx.AsyncClient) -> None:
    await tenant(client, "research")
    await set_quota(client, "research", jobs=1)
    job = await submitted(client, tenant="research")
    for parameters in ({"tenant": "research"}, {"tenant": "research", "dry_run": "true"}):
        refused = await client.post("/jobs", json=JOB, params=parameters)
        assert refused.status_code == 429
        assert refused.headers["content-type"].startswith("application/problem+json")
        assert refused.json()["code"] == "quota_exceeded"
        assert refused.json()["quota"] == {
            "tenant": "research",
            "what": "jobs",
            "limit": 1,
            "used": 1,
            "asked": 1,
            "frees_ms": None,
        }
        assert "Retry-After" not in refused.headers
    await submitted(client, tenant="default")
    assert (await client.get(f"/jobs/{job}", params={"tenant": "research"})).status_code == 200


async def test_a_job_that_needs_more_nodes_than_are_left_is_refused(client: httpx.AsyncClient) -> None:
    await tenant(client, "research")
    await set_quota(client, "research", nodes=2)
    refused = await client.post("/jobs", json=JOB | {"min_nodes": 3}, params={"tenant": "research"})
    assert refused.status_code == 429
    assert (refused.json()["quota"]["what"], refused.json()["quota"]["asked"]) == ("nodes", 3)
    await submitted(client, tenant="research")


async def test_a_spent_budget_refuses_until_its_period_is_over(
    client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog, clock: VirtualClock
) -> None:
    await tenant(client, "research")
    await set_quota(client, "research", microdollars=1_000_000, period_s=4 * 3_600)
    clock.advance((4 * HOUR_MS - clock.now_ms() % (4 * HOUR_MS)) / 1_000)
    began_ms = clock.now_ms()
    job = await submitted(client, tenant="research")
    await run_node(log, gateway, job, price=2_000_000)
    clock.advance(1_799)
    await submitted(client, tenant="research")
    clock.advance(1)
    refused = await client.post("/jobs", json=JOB, params={"tenant": "research"})
    quota = refused.json()["quota"]
    assert (quota["what"], quota["limit"], quota["used"]) == ("microdollars", 1_000_000, 1_000_000)
    assert quota["frees_ms"] == began_ms + 4 * HOUR_MS
    assert refused.headers["Retry-After"] == str(3 * 3_600 + 1_800)
    clock.advance(3 * 3_600 + 1_800)
    await submitted(client, tenant="research")
    shown = {line["what"]: line for line in (await client.get("/quotas/research")).json()["lines"]}
    assert shown["microdollars"]["used"] == 0
    clock.advance(360)
    shown = {line["what"]: line for line in (await client.get("/quotas/research")).json()["lines"]}
    assert (shown["microdollars"]["used"], shown["accelerator_ms"]["used"]) == (200_000, 360_000)


async def test_a_tenant_sees_its_own_quota_and_no_other(client: httpx.AsyncClient, gateway: GatewayService) -> None:
    await tenant(client, "research")
    await tenant(client, "sales")
    await set_quota(client, "sales", jobs=2)
    async with asking(gateway, await new_key(client, tenant="research")) as own:
        assert [each["tenant"] for each in (await own.get("/quotas")).json()["items"]] == ["research"]
        assert (await own.get("/quotas/sales")).status_code == 404
        assert (await own.get("/quotas/research")).status_code == 200


@pytest.mark.parametrize(
    ("quota", "where"),
    [
        ({"jobs": -1}, "jobs"),
        ({"nodes": 1.5}, "nodes"),
        ({"period": "year"}, "period"),
        ({"period_s": 60}, "period_s"),
        ({"period_s": 3_600 * 9_000}, "period_s"),
        ({"money": 5}, "money"),
    ],
)
async def test_a_quota_that_cannot_be_meant_is_refused(
    client: httpx.AsyncClient, quota: dict[str, Any], where: str
) -> None:
    answer = await client.put("/quotas/default", json=quota)
    assert (answer.status_code, answer.json()["where"]) == (400, where)
    assert (await client.put("/quotas/nobody", json={})).status_code == 404


async def test_requests_at_the_same_time_do_not_both_take_the_last_room(client: httpx.AsyncClient) -> None:
    await tenant(client, "research")
    await set_quota(client, "research", jobs=1)
    answers = await asyncio.gather(*(client.post("/jobs", json=JOB, params={"tenant": "research"}) for _ in range(5)))
    assert sorted(each.status_code for each in answers) == [201, 429, 429, 429, 429]
