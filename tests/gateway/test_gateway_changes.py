"""Changes of jobs and providers: only as they were seen, with another band, and with notice for a provider's nodes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from callers import JOB, submitted

from elasticgrid.core import events as ev
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Scope


async def say(log: MemoryLog, gateway: GatewayService, job: str, data: ev.EventData) -> None:
    """Append a fact as decider, launcher or agent would."""
    number = await log.last_sequence()
    event = ev.Event(id=f"x{number}", time_ms=1, tenant="default", job=job, actor="test", data=data)
    await log.append([event])
    await gateway.caught_up(Scope("default", job))


async def place(log: MemoryLog, gateway: GatewayService, job: str, *, nodes: int = 2) -> None:
    add = ev.Assignment(id="a1", provider="small", action="add", nodes=nodes, price_microdollars_per_hour=1)
    await say(log, gateway, job, ev.PlacementDecided(demand_nodes=nodes, placed_nodes=nodes, assignments=(add,)))


CHANGES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "cancel": ("DELETE", "", None),
    "pause": ("POST", "/pause", {}),
    "resume": ("POST", "/resume", {}),
    "resize": ("POST", "/resize", {"max_nodes": 2}),
    "priority": ("POST", "/priority", {"band": "production"}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_meant_for_a_job_as_it_was_seen_is_done_only_if_nothing_came_since(
    client: httpx.AsyncClient, log: MemoryLog, gateway: GatewayService, change: str
) -> None:
    method, path, body = CHANGES[change]
    job = await submitted(client)
    if change == "resume":
        await client.post(f"/jobs/{job}/pause")
    seen = (await client.get(f"/jobs/{job}")).headers["ETag"]
    # Not even a fact that no person asked for.
    await place(log, gateway, job)
    before = await log.last_sequence()
    late = await client.request(method, f"/jobs/{job}{path}", json=body, headers={"If-Match": seen})
    assert (late.status_code, late.json()["code"], late.json()["sequence"]) == (412, "outdated", before)
    assert await log.last_sequence() == before
    now = (await client.get(f"/jobs/{job}")).headers["ETag"]
    assert now == late.headers["ETag"]
    done = await client.request(method, f"/jobs/{job}{path}", json=body, headers={"If-Match": now})
    assert done.status_code in (200, 202), done.text
    assert done.headers["ETag"] == f'"{await log.last_sequence()}"' != now


async def test_a_provider_is_changed_only_as_it_was_seen(client: httpx.AsyncClient) -> None:
    seen = {"If-Match": (await client.get("/providers")).headers["ETag"]}
    assert (await client.post("/providers/small/cordon", headers=seen)).status_code == 200
    assert (await client.post("/providers/small/uncordon", headers=seen)).status_code == 412
    seen = {"If-Match": (await client.get("/providers")).headers["ETag"]}
    assert (await client.post("/providers/small/uncordon", headers=seen)).status_code == 200


@pytest.mark.parametrize("etag", ["x", '"', "-1", '"1", "2"', "1" * 40, "W/"])
async def test_an_etag_that_none_gave_out_is_refused(client: httpx.AsyncClient, etag: str) -> None:
    job = await submitted(client)
    answer = await client.post(f"/jobs/{job}/pause", headers={"If-Match": etag})
    assert (answer.status_code, answer.json()["where"]) == (400, "If-Match")
    assert (await client.post(f"/jobs/{job}/pause", headers={"If-Match": "*"})).status_code == 200


async def test_a_job_is_put_into_another_band_and_shown_in_it(client: httpx.AsyncClient, log: MemoryLog) -> None:
    job = await submitted(client)
    for _ in range(2):
        answer = await client.post(f"/jobs/{job}/priority", json={"band": "production", "reason": "the paper is due"})
        assert (answer.status_code, answer.json()["band"]) == (200, "production")
    facts = [each.event.data async for each in log.read() if isinstance(each.event, ev.Event)]
    assert facts.count(ev.JobPriorityRequested(band="production", reason="the paper is due")) == 1
    assert (await client.post(f"/jobs/{job}/priority", json={"band": "urgent"})).status_code == 400
    assert (await client.post(f"/jobs/{job}/priority", json={})).status_code == 400
    again = await client.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"})
    other = again.json()["job"]["id"]
    await client.post(f"/jobs/{other}/priority", json={"band": "interactive"})
    assert (await client.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"})).json()["job"]["id"] == other


async def test_a_notice_for_a_provider_reaches_every_job_that_has_nodes_there(
    client: httpx.AsyncClient, log: MemoryLog, gateway: GatewayService
) -> None:
    there, elsewhere = await submitted(client), await submitted(client)
    await place(log, gateway, there)
    answer = await client.post("/providers/small/interrupt", json={"notice_s": 60, "reason": "a drill"})
    assert answer.status_code == 202
    deadline_ms = gateway.now_ms() + 60_000
    assert answer.json() == {
        "provider": "small",
        "deadline_ms": deadline_ms,
        "jobs": [{"tenant": "default", "job": there, "nodes": ["a1-0", "a1-1"]}],
    }
    facts = [each.event async for each in log.read() if isinstance(each.event, ev.Event)]
    (fact,) = [each for each in facts if isinstance(each.data, ev.JobInterruptRequested)]
    assert (fact.job, fact.actor, fact.data) == (
        there,
        f"key:{gateway.key.prefix}",
        ev.JobInterruptRequested(provider="small", nodes=("a1-0", "a1-1"), deadline_ms=deadline_ms, reason="a drill"),
    )
    state = gateway.jobs.state("default", there)
    assert all(node.notice_deadline_ms == deadline_ms for node in state.nodes.values())
    assert (await client.post("/providers/small/interrupt")).json()["jobs"] == []
    assert (await client.post("/providers/large/interrupt", json={"notice_s": 0})).json()["deadline_ms"] == 0
    assert (await client.post("/providers/none/interrupt")).status_code == 404
    assert elsewhere not in str(answer.json())
