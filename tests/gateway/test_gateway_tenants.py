"""Tenants and their keys: who may do what, from when until when, and where it is written down."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from callers import JOB, asking, new_key, submitted, tenant

from elasticgrid.core import events as ev
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock


async def access_facts(log: MemoryLog) -> list[ev.Event]:
    return [
        each.event
        async for each in log.read()
        if isinstance(each.event, ev.Event) and (each.event.tenant, each.event.job) == ("_grid", "access")
    ]


async def test_a_tenant_is_created_once_and_shown_with_what_it_has(client: httpx.AsyncClient) -> None:
    made = await client.post("/tenants", json={"name": "research", "note": "languages"})
    assert made.status_code == 201
    assert made.headers["Location"] == "/v1/tenants/research"
    again = await client.post("/tenants", json={"name": "research"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    await submitted(client, tenant="research")
    shown = (await client.get("/tenants/research")).json()
    assert (shown["note"], shown["jobs"], shown["nodes"]) == ("languages", 1, 0)
    assert [each["name"] for each in (await client.get("/tenants")).json()["items"]] == ["default", "research"]
    assert (await client.get("/tenants/nobody")).status_code == 404


@pytest.mark.parametrize("name", ["", "_grid", "_x", "Research", "a.b", "a/b", "x" * 64, "a\nb", "*", ">"])
async def test_what_cannot_be_a_tenant_is_refused(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/tenants", json={"name": name})
    assert answer.status_code == 400
    assert answer.json()["where"] == "tenant"


async def test_a_key_is_shown_once_and_the_log_has_only_what_it_is_recognised_by(
    client: httpx.AsyncClient, log: MemoryLog, gateway: GatewayService
) -> None:
    await tenant(client, "research")
    made = await client.post("/keys", json={"tenant": "research", "scope": "submit", "label": "nightly"})
    secret, prefix = made.json()["secret"], made.json()["key"]["prefix"]
    assert made.headers["Cache-Control"] == "no-store"
    assert secret.startswith(f"eg_{prefix}_")
    (line,) = (await client.get("/keys", params={"tenant": "research"})).json()["items"]
    assert (line["prefix"], line["scope"], line["label"], line["state"]) == (prefix, "submit", "nightly", "open")
    assert line["created_by"] == f"key:{gateway.key.prefix}"
    everything = b"".join([each.raw async for each in log.read()])
    assert prefix.encode() in everything
    assert secret.encode() not in everything
    assert secret.rsplit("_", 1)[-1].encode() not in everything
    views = b"".join(file.read_bytes() for file in gateway.data_dir.rglob("*") if file.is_file())
    assert secret.encode() not in views


async def test_the_holder_of_a_key_submits_for_its_tenant_and_is_named_in_the_log(
    client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog
) -> None:
    await tenant(client, "research")
    secret = await new_key(client, tenant="research", scope="submit")
    async with asking(gateway, secret) as own:
        job = await submitted(own)
        assert (await own.get("/whoami")).json()["tenant"] == "research"
        assert (await own.get(f"/jobs/{job}")).json()["job"]["tenant"] == "research"
        assert (await own.delete(f"/jobs/{job}")).status_code == 202
    actors = {
        each.event.actor async for each in log.read() if isinstance(each.event, ev.Event) and each.event.job == job
    }
    assert actors == {f"key:{secret.split('_')[1]}"}


@pytest.mark.parametrize(("scope", "may"), [("read", 0), ("submit", 2), ("operate", 4), ("admin", 5)])
async def test_each_scope_may_what_those_before_it_may_and_something_more(
    client: httpx.AsyncClient, gateway: GatewayService, scope: str, may: int
) -> None:
    await tenant(client, "research")
    job = await submitted(client, tenant="research")
    async with asking(gateway, await new_key(client, tenant="research", scope=scope)) as own:
        assert (await own.get(f"/jobs/{job}")).status_code == 200
        done = [
            (await own.post("/jobs", json=JOB)).status_code,
            (await own.delete(f"/jobs/{await submitted(client, tenant='research')}")).status_code,
            (await own.post(f"/jobs/{job}/pause")).status_code,
            (await own.post(f"/jobs/{job}/priority", json={"band": "production"})).status_code,
            (await own.post("/keys", json={"scope": "read"})).status_code,
        ]
    assert [status < 300 for status in done] == [True] * may + [False] * (5 - may)
    assert set(done[may:]) <= {403}


async def test_a_tenants_admin_makes_and_revokes_the_tenants_keys_and_no_others(
    client: httpx.AsyncClient, gateway: GatewayService
) -> None:
    await tenant(client, "research")
    await tenant(client, "sales")
    foreign = (await new_key(client, tenant="sales")).split("_")[1]
    async with asking(gateway, await new_key(client, tenant="research", scope="admin")) as own:
        assert (await own.post("/keys", json={"scope": "read"})).json()["key"]["tenant"] == "research"
        assert (await own.post("/keys", json={"scope": "read", "tenant": "sales"})).status_code == 404
        assert (await own.post("/keys", json={"scope": "read", "whole_grid": True})).status_code == 403
        assert {each["tenant"] for each in (await own.get("/keys")).json()["items"]} == {"research"}
        assert (await own.get(f"/keys/{foreign}")).status_code == 404
        assert (await own.delete(f"/keys/{foreign}")).status_code == 404
        assert (await own.post("/tenants", json={"name": "more"})).status_code == 403
        assert (await own.put("/quotas/research", json={"jobs": 1000})).status_code == 403
    assert (await client.get(f"/keys/{foreign}")).json()["state"] == "open"


async def test_a_revoked_key_opens_nothing_from_the_next_request_on(
    client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog
) -> None:
    await tenant(client, "research")
    secret = await new_key(client, tenant="research")
    prefix = secret.split("_")[1]
    async with asking(gateway, secret) as own:
        assert (await own.get("/whoami")).status_code == 200
        gone = await client.delete(f"/keys/{prefix}", params={"reason": "left on a laptop"})
        assert (gone.status_code, gone.json()["state"]) == (200, "revoked")
        answer = await own.get("/whoami")
        assert (answer.status_code, answer.json()["detail"]) == (401, "this key was revoked")
    assert (await client.delete(f"/keys/{prefix}")).status_code == 200
    assert [type(each.data) for each in await access_facts(log)].count(ev.KeyRevoked) == 1


async def test_a_key_expires_by_itself(client: httpx.AsyncClient, gateway: GatewayService, clock: VirtualClock) -> None:
    await tenant(client, "research")
    async with asking(gateway, await new_key(client, tenant="research", ttl_s=60)) as own:
        clock.advance(59)
        assert (await own.get("/whoami")).json()["expires_ms"] == clock.now_ms() + 1_000
        clock.advance(1)
        answer = await own.get("/whoami")
        assert (answer.status_code, answer.json()["detail"]) == (401, "this key has expired")


async def test_a_login_with_a_key_ends_with_the_key(client: httpx.AsyncClient, gateway: GatewayService) -> None:
    await tenant(client, "research")
    secret = await new_key(client, tenant="research")
    async with asking(gateway, "") as page:
        page.headers.pop("X-API-Key")
        assert (await page.post("http://grid/login", json={"key": secret})).status_code == 204
        assert (await page.get("/whoami")).json()["tenant"] == "research"
        await client.delete(f"/keys/{secret.split('_')[1]}")
        assert (await page.get("/whoami")).status_code == 401


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({}, "tenant"),
        ({"tenant": "research", "whole_grid": True}, "tenant"),
        ({"tenant": "research", "scope": "root"}, "scope"),
        ({"tenant": "research", "ttl_s": 0}, "ttl_s"),
        ({"tenant": "research", "ttl_s": 60, "expires_ms": 1}, "ttl_s"),
        ({"tenant": "research", "expires_ms": 1}, "expires_ms"),
        ({"tenant": "research", "label": "a\nb"}, "label"),
        ({"tenant": "research", "label": "x" * 201}, "label"),
        ({"tenant": "research", "burst": 0}, "burst"),
        ({"tenant": "research", "secret": "mine"}, "secret"),
    ],
)
async def test_a_key_that_cannot_be_meant_is_refused(
    client: httpx.AsyncClient, asked: dict[str, Any], where: str
) -> None:
    await tenant(client, "research")
    answer = await client.post("/keys", json=asked)
    assert (answer.status_code, answer.json()["where"]) == (400, where)


async def test_a_key_may_ask_so_often_and_no_more(
    client: httpx.AsyncClient, gateway: GatewayService, clock: VirtualClock
) -> None:
    await tenant(client, "research")
    async with asking(gateway, await new_key(client, tenant="research", rate_per_s=2, burst=3)) as own:
        assert [(await own.get("/whoami")).status_code for _ in range(4)] == [200, 200, 200, 429]
        answer = await own.get("/whoami")
        assert (answer.json()["code"], answer.headers["Retry-After"]) == ("rate_limited", "1")
        assert answer.json()["retry_after_s"] == 1
        clock.advance(0.5)
        assert (await own.get("/whoami")).status_code == 200
        assert (await own.get("/whoami")).status_code == 429
    assert (await client.get("/whoami")).status_code == 200


async def test_what_was_meant_for_something_older_is_not_done(client: httpx.AsyncClient, log: MemoryLog) -> None:
    seen = (await client.get("/tenants")).headers["ETag"]
    assert (await client.post("/tenants", json={"name": "one"}, headers={"If-Match": seen})).status_code == 201
    late = await client.post("/tenants", json={"name": "two"}, headers={"If-Match": seen})
    assert (late.status_code, late.json()["code"]) == (412, "outdated")
    assert late.headers["ETag"] == f'"{late.json()["sequence"]}"'
    assert late.json()["sequence"] == await log.last_sequence()
    now = {"If-Match": late.headers["ETag"]}
    assert (await client.post("/tenants", json={"name": "two"}, headers=now)).status_code == 201
    assert (await client.post("/tenants", json={"name": "x"}, headers={"If-Match": "yesterday"})).status_code == 400
