"""What nobody may do over HTTP, tried on every route there is: a new one is tried as soon as it is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from callers import JOB, new_key, submitted, tenant
from litestar.handlers import BaseRouteHandler
from litestar.routes import ASGIRoute, HTTPRoute

from elasticgrid.core import events as ev
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.app import application
from elasticgrid.gateway.bodies import MAX_BODY_BYTES
from elasticgrid.gateway.login import SESSION_COOKIE
from elasticgrid.gateway.server import RunningGateway
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.archive import ArchivedEvents
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock

pytestmark = pytest.mark.security

#: Routes that answer whoever asks, and why that is right.
OPEN = {
    ("GET", "/v1/healthz"),  # load balancers have no key
    ("GET", "/v1/readyz"),
    ("GET", "/v1/version"),
    ("GET", "/v1/openapi"),  # what there is, and nothing of what is in it
    ("GET", "/v1/openapi/openapi.json"),
    ("GET", "/v1/openapi/{path:str}"),
    ("POST", "/login"),  # asks for the key itself
    ("POST", "/logout"),
    ("GET", "/metrics"),  # from this machine; looks at its caller itself
    ("GET", "/"),  # the page, which has nothing in it before a login
    ("GET", "/ui/{digest:str}/{name:str}"),
}
#: Routes with a POST that change nothing.
READING = {"/v1/jobs/{job:str}/whatif", "/v1/bus/watchers"}
MARK = "alphamark"


def routes() -> Iterator[tuple[str, str, BaseRouteHandler]]:
    """(method, path, handler) of everything the application answers."""

    def nobody() -> GatewayService:
        raise LookupError

    for route in application(nobody).routes:
        handlers = route.route_handlers if isinstance(route, HTTPRoute) else []
        assert isinstance(route, HTTPRoute | ASGIRoute)
        for handler in handlers:
            for method in sorted(handler.http_methods - {"OPTIONS", "HEAD"}):
                yield str(method), route.path, handler


ROUTES = sorted((method, path) for method, path, _ in routes())
GUARDED = [each for each in ROUTES if each not in OPEN]


def filled(path: str, **values: str) -> str:
    """The path with its parameters said."""
    default = {"provider": "small", "file_path": "latest.json", "digest": "0", "name": "x.js", "path": "x"}
    return re.sub(r"\{(\w+):\w+\}", lambda match: (default | values)[match[1]], path)


class Grid:
    """Two tenants with a job each; what is the first one's has a mark in it."""

    def __init__(self, client: httpx.AsyncClient, running: RunningGateway) -> None:
        self.client = client
        self.running = running
        self.job = self.prefix = self.sequence = self.secret = ""
        self.keys: dict[str, str] = {}

    async def build(self, log: MemoryLog) -> None:
        await tenant(self.client, MARK)
        await tenant(self.client, "beta")
        body = JOB | {"name": f"{MARK}-job", "env": {"TOKEN": f"{MARK}-value"}}
        self.job = (await self.client.post("/jobs", json=body, params={"tenant": MARK})).json()["job"]["id"]
        self.sequence = str(await log.last_sequence())
        self.secret = await new_key(self.client, tenant=MARK, scope="admin", label=f"{MARK}-label")
        self.prefix = self.secret.split("_")[1]
        await self.client.put(f"/quotas/{MARK}", json={"jobs": 77, "reason": MARK})
        await submitted(self.client, tenant="beta")
        for scope in ("read", "admin"):
            self.keys[scope] = await new_key(self.client, tenant="beta", scope=scope)

    def own(self, path: str) -> str:
        """The path of what is the first tenant's."""
        return filled(path, job=self.job, tenant=MARK, prefix=self.prefix, sequence=self.sequence)

    def nothing(self, path: str) -> str:
        """The path of something of the same kind that there is not."""
        return filled(path, job="nobody-aaaaaa", tenant="nobody", prefix="00000000", sequence="999999")

    async def ask(self, method: str, target: str, key: str, **more: Any) -> tuple[int, bytes]:
        """The status and what came of the answer before the first silence: streams do not end."""
        async with (
            httpx.AsyncClient(base_url=self.running.url, headers={"X-API-Key": key}, timeout=20) as http,
            http.stream(method, target, **more) as answer,
        ):
            if "event-stream" not in answer.headers.get("content-type", ""):
                return answer.status_code, await answer.aread()
            seen = b""
            async with asyncio.timeout(10):
                async for chunk in answer.aiter_raw():
                    seen += chunk
                    # A job that runs on has no end of its output.
                    if b"heartbeat" in seen or b"event: end" in seen or "/logs/" in target:
                        break
            return answer.status_code, seen


@pytest.fixture
async def grid(client: httpx.AsyncClient, running: RunningGateway, log: MemoryLog) -> Grid:
    found = Grid(client, running)
    await found.build(log)
    return found


async def test_every_route_but_the_open_ones_asks_for_a_key(grid: Grid, log: MemoryLog) -> None:
    before = await log.last_sequence()
    for method, path in GUARDED:
        for key in ("", "eg_00000000_" + "x" * 43, grid.secret[:-1] + "!", f"{grid.secret}x"):
            status, answer = await grid.ask(method, grid.own(path), key)
            assert status == 401, (method, path, key)
            assert MARK.encode() not in answer, (method, path)
    assert await log.last_sequence() == before


async def test_every_refusal_on_every_route_says_what_to_do_and_no_route_ignores_a_parameter(grid: Grid) -> None:
    for method, path in GUARDED:
        for key, query in (("", ""), (grid.keys["read"], "?bogus=1"), (grid.secret, "?bogus=1")):
            status, answer = await grid.ask(method, f"{grid.nothing(path)}{query}", key)
            assert 400 <= status < 500, (method, path, query, status)
            assert msgspec.json.decode(answer)["hint"], (method, path, answer)


async def test_head_is_answered_as_get_is_without_the_body(grid: Grid) -> None:
    key = grid.keys["read"]
    for method, path in ROUTES:
        if method != "GET" or "/logs/" in path or path == "/v1/openapi/{path:str}":
            continue
        target = filled(path, job="nobody-aaaaaa", tenant="beta", prefix="00000000", sequence="1")
        status, body = await grid.ask("HEAD", target, key)
        assert body == b"", path
        if "stream" not in path and "events/export" not in path:
            assert (await grid.ask("GET", target, key))[0] == status, path
    for path in ("/", "/v1/healthz", "/v1/readyz"):
        assert (await grid.ask("HEAD", path, ""))[0] == 200


async def test_a_tenants_key_finds_nothing_of_another_tenant_on_any_route(grid: Grid, log: MemoryLog) -> None:
    before = [each.raw async for each in log.read() if each.event.tenant in (MARK, "_grid")]
    for method, path in GUARDED:
        for query in ("", f"?tenant={MARK}", f"?tenant=beta&tenant={MARK}", f"?tenant=%61{MARK[1:]}", "?tenant="):
            again = "after=0&" if "stream" in path else ""
            target = f"{grid.own(path)}?{again}{query[1:]}" if query or again else grid.own(path)
            body = {"reason": "x"} if method in ("POST", "PUT") else None
            status, answer = await grid.ask(method, target, grid.keys["admin"], json=body)
            told = answer.replace(grid.job.encode(), b"").replace(b"elsewhere", b"") if status >= 400 else answer
            assert MARK.encode() not in told, (method, target, status, answer[:300])
            assert grid.prefix.encode() not in told or status >= 400, (method, target)
            assert status < 500, (method, target, answer[:300])
    assert [each.raw async for each in log.read() if each.event.tenant in (MARK, "_grid")] == before


async def test_a_secret_that_somebody_wrote_into_a_job_or_a_provider_is_in_no_answer_and_runs_all_the_same(
    grid: Grid, client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog
) -> None:
    mine = JOB | {
        "env": {"PGPASSWORD": "sesame-1", "URL": "http://h/?token=sesame-2"},
        "command": ["sh", "-c", "MY_PASS=sesame-3 python x --api-key sesame-4"],
        "setup": "curl -u bob:sesame-5 http://h",
    }
    first = {"name": "train", "command": "TOKEN=sesame-6 python x", "metadata": {"password": "sesame-7"}}
    jobs = []
    for body in (mine, first):
        answer = await client.post("/jobs", json=body, params={"tenant": MARK})
        assert answer.status_code == 201
        assert "sesame" not in answer.text
        jobs.append(answer.json()["job"]["id"])
    secretive = ProviderSpec(name="small", max_nodes=2, params={"secret_key": "sesame-8"})
    await gateway.providers.declare([secretive])
    for method, path in GUARDED:
        for job in jobs if method == "GET" and "archive" not in path and "export" not in path else ():
            target = filled(path, job=job, tenant=MARK, prefix=grid.prefix, sequence=str(await log.last_sequence()))
            parameters = f"?tenant={MARK}{'&after=0' if 'stream' in path else ''}"
            _, said = await grid.ask(method, target + parameters, (gateway.key_file).read_text().strip())
            assert b"sesame" not in said, (path, said)
    for job in jobs:
        shown = await client.get(f"/jobs/{job}", params={"tenant": MARK})
        assert "(withheld)" in shown.text
    # What runs is what was submitted.
    spec = gateway.jobs.state(MARK, jobs[0]).spec
    assert spec is not None
    assert (spec.env, spec.setup) == (mine["env"], mine["setup"])
    fleet = gateway.providers.views()
    assert [each.spec.params for each in fleet if each.spec.name == "small"] == [{"secret_key": "(withheld)"}]
    raw = b"".join([each.raw async for each in log.read()])
    assert all(f"sesame-{number}".encode() in raw for number in range(1, 9))


async def test_the_tenants_own_key_finds_it_by_the_same_questions(grid: Grid) -> None:
    found = set()
    for method, path in GUARDED:
        if method == "GET":
            target = f"{grid.own(path)}?after=0" if "stream" in path else grid.own(path)
            status, answer = await grid.ask(method, target, grid.secret)
            if status == 200 and MARK.encode() in answer:
                found.add(path)
    assert found >= {
        "/v1/events",
        "/v1/events/stream",
        "/v1/events/{sequence:int}",
        "/v1/jobs",
        "/v1/jobs/{job:str}",
        "/v1/jobs/{job:str}/events/stream",
        "/v1/keys",
        "/v1/keys/{prefix:str}",
        "/v1/quotas",
        "/v1/quotas/{tenant:str}",
        "/v1/tenants",
        "/v1/tenants/{tenant:str}",
        "/v1/timeline",
        "/v1/whoami",
    }


async def test_what_is_another_tenants_is_answered_as_what_is_not_there(grid: Grid) -> None:
    for method, path in GUARDED:
        if not re.search(r"\{(job|tenant|prefix|sequence):", path):
            continue
        body = {"reason": "x"} if method in ("POST", "PUT") else None
        answers = []
        for target in (grid.own(path), grid.nothing(path)):
            status, answer = await grid.ask(method, target, grid.keys["admin"], json=body)
            answers.append((status, msgspec.json.decode(answer)["code"] if status >= 400 else answer))
        assert answers[0] == answers[1], (method, path)
        # To be refused for what the key may not do at all says nothing of what there is.
        assert answers[0][0] in (403, 404, 400), (method, path, answers)


async def test_a_key_that_reads_changes_nothing_on_any_route(grid: Grid, log: MemoryLog) -> None:
    before = await log.last_sequence()
    for method, path in GUARDED:
        if method == "GET" or path in READING:
            continue
        status, answer = await grid.ask(method, grid.nothing(path), grid.keys["read"], json={})
        assert status == 403, (method, path, status, answer[:200])
    assert await log.last_sequence() == before


async def test_a_login_without_its_header_changes_nothing_on_any_route(grid: Grid, log: MemoryLog, key: str) -> None:
    async with httpx.AsyncClient(base_url=grid.running.url) as page:
        assert (await page.post("/login", json={"key": key})).status_code == 204
        before = await log.last_sequence()
        for method, path in GUARDED:
            if method != "GET":
                answer = await page.request(method, grid.own(path), json={})
                assert answer.status_code == 403, (method, path)
        assert await log.last_sequence() == before


async def test_no_body_ends_in_an_error_of_the_gateways_own(grid: Grid, key: str) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    bodies = (b"\xff", b"null", b"[]", b'"x"', b"{", deep, b'{"a":' * 20_000, b'{"reason":"\\ud800"}', b"1e999999")
    for method, path in ROUTES:
        if method not in ("POST", "PUT") or path == "/v1/events/import":
            continue
        for body in bodies:
            status, answer = await grid.ask(method, grid.nothing(path), key, content=body)
            assert status < 500, (method, path, body[:20], answer[:200])
            if status >= 400:
                assert set(msgspec.json.decode(answer)) >= {"type", "title", "status", "code", "detail", "hint"}
        takes_body = await grid.ask(method, grid.nothing(path), key, content=b"[]")
        if takes_body[0] == 400:
            status, answer = await grid.ask(method, grid.nothing(path), key, content=b" " * (MAX_BODY_BYTES + 1))
            assert status == 413, (method, path, status)


@pytest.mark.parametrize(
    "name", ["a\r\nX-Evil: 1", "a\nb", "a%0d%0aX-Evil:%201", "<img src=x onerror=alert(1)>", "a\x00b"]
)
async def test_what_people_name_reaches_neither_headers_nor_lines_of_the_log(
    grid: Grid, key: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    async with httpx.AsyncClient(base_url=grid.running.url, headers={"X-API-Key": key}) as http:
        answers = [
            await http.post("/v1/jobs", json=JOB | {"name": name}),
            await http.post("/v1/jobs", json={"name": name, "command": "true"}),
            await http.post("/v1/tenants", json={"name": name}),
            await http.post("/v1/keys", json={"tenant": name}),
            await http.post(f"/v1/jobs/{grid.job}/pause", json={"reason": name}, params={"tenant": MARK}),
            await http.get(f"/v1/jobs/{quote(name, safe='')}"),
            await http.get("/v1/jobs", params={"tenant": name, "limit": 1}),
            await http.get("/v1/events", params={"type": name}),
        ]
    for answer in answers:
        assert answer.status_code < 500
        assert "X-Evil" not in answer.headers
    said = capfd.readouterr()
    assert not re.search(r"^X-Evil|^b$|<img", said.out + said.err, re.MULTILINE)


async def test_no_key_and_no_session_is_in_the_log_in_what_is_said_or_in_an_error(
    grid: Grid, gateway: GatewayService, log: MemoryLog, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = "eg_" + grid.prefix + "_" + "q" * 43
    answers: list[str] = []
    async with httpx.AsyncClient(base_url=grid.running.url) as page:
        answers.append((await page.post("/login", json={"key": wrong})).text)
        answers.append((await page.post("/login", json={"key": grid.secret, "more": 1})).text)
        assert (await page.post("/login", json={"key": grid.secret})).status_code == 204
        session = page.cookies[SESSION_COOKIE]
        answers.append((await page.get("/v1/whoami")).text)
        answers.append((await page.post("/v1/jobs", json={})).text)
        answers.append((await page.get(f"/v1/jobs/{grid.secret}", headers={"X-API-Key": wrong})).text)
    said = capfd.readouterr()
    events = b"".join([each.raw async for each in log.read()]).decode()
    files = {file.name: file.read_bytes() for file in gateway.data_dir.rglob("*") if file.is_file()}
    for secret in (key, grid.secret, *grid.keys.values(), wrong, session):
        for told in (said.out, said.err, events, *answers):
            assert secret not in told
        for name, content in files.items():
            assert secret.encode() not in content or name == "admin.key"
    for name in ("admin.key", "gateway.secret"):
        assert (gateway.data_dir / name).stat().st_mode & 0o777 == 0o600


async def test_a_key_of_a_tenant_exports_its_own_part_and_nothing_of_others(grid: Grid, tmp_path: Path) -> None:
    status, archive = await grid.ask("GET", "/v1/events/export", grid.keys["read"])
    assert status == 200
    (tmp_path / "log.egz").write_bytes(archive)
    events = [each.event for each in ArchivedEvents(tmp_path / "log.egz")]
    assert {each.tenant for each in events} == {"beta", "_grid"}
    kinds = {ev.type_of(each.data) for each in events if isinstance(each, ev.Event) and each.tenant == "_grid"}
    assert kinds == {"provider.declared"}


async def test_expired_and_revoked_keys_open_no_route(
    grid: Grid, clock: VirtualClock, client: httpx.AsyncClient
) -> None:
    revoked = await new_key(client, whole_grid=True, scope="admin")
    expired = await new_key(client, whole_grid=True, scope="admin", ttl_s=1)
    await client.post(f"/keys/{revoked.split('_')[1]}/revoke", json={"reason": "gone"})
    clock.advance(1)
    for method, path in GUARDED:
        for key in (revoked, expired):
            assert (await grid.ask(method, grid.own(path), key))[0] == 401, (method, path)
