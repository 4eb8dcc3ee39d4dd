"""Logging in: the key is sent once, and a cookie that scripts cannot read reads as the key does."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.ended_sessions import ENDED_FILE, EndedSessions
from elasticgrid.gateway.login import SESSION_COOKIE, SESSION_MS, WRITE_HEADER, WRITE_VALUE
from elasticgrid.gateway.problems import NotAuthenticated
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock

WRITES = {WRITE_HEADER: WRITE_VALUE}


@pytest.fixture
async def page(gateway: GatewayService) -> AsyncGenerator[httpx.AsyncClient]:
    """A browser's page: it keeps cookies and has no key."""
    transport = httpx.ASGITransport(create_app(gateway))  # type: ignore[arg-type] # Litestar names every message's type
    async with httpx.AsyncClient(transport=transport, base_url="http://grid") as asking:
        yield asking


async def log_in(page: httpx.AsyncClient, key: str) -> httpx.Response:
    answer = await page.post("/login", json={"key": key})
    assert answer.status_code == 204, answer.text
    return answer


async def test_a_login_reads_what_its_key_reads_and_says_whose_it_is(page: httpx.AsyncClient, key: str) -> None:
    assert (await page.get("/v1/jobs?limit=1")).status_code == 401
    await log_in(page, key)
    assert (await page.get("/v1/jobs?limit=1")).status_code == 200
    who = (await page.get("/v1/whoami")).json()
    assert who["prefix"] == key[:8]
    assert (who["tenant"], who["scope"], who["session"]) == ("", "admin", True)
    assert who["scopes"] == ["read", "submit", "operate", "admin"]


async def test_the_cookie_is_kept_from_scripts_and_other_sites_and_has_nothing_of_the_key(
    page: httpx.AsyncClient, key: str
) -> None:
    cookie = (await log_in(page, key)).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie
    value = page.cookies[SESSION_COOKIE]
    content = base64.urlsafe_b64decode(value.split(".")[0] + "==").decode()
    assert key[8:] not in value + content


async def test_over_tls_the_cookie_is_for_tls_alone(gateway: GatewayService, key: str) -> None:
    transport = httpx.ASGITransport(create_app(gateway))  # type: ignore[arg-type] # as above
    async with httpx.AsyncClient(transport=transport, base_url="https://grid") as page:
        assert "Secure" in (await log_in(page, key)).headers["set-cookie"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"key": 7}', b"[", b'{"key":"x","user":"y"}'])
async def test_a_login_without_a_key_in_it_is_refused(page: httpx.AsyncClient, body: bytes) -> None:
    answer = await page.post("/login", content=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.mark.parametrize("wrong", ["", "guess", "eg_00000000_" + "x" * 43, "\u20ac" * 20])
async def test_a_wrong_key_logs_nobody_in(page: httpx.AsyncClient, wrong: str) -> None:
    answer = await page.post("/login", json={"key": wrong})
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_authenticated"
    assert SESSION_COOKIE not in answer.headers.get("set-cookie", "")


async def test_a_cookie_alone_changes_nothing(page: httpx.AsyncClient, key: str, gateway: GatewayService) -> None:
    await log_in(page, key)
    answer = await page.post("/v1/providers/small/cordon")
    assert answer.status_code == 403
    assert answer.json()["where"] == WRITE_HEADER
    assert (await page.post("/v1/providers/small/cordon", headers=WRITES)).status_code == 200


@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": "http://elsewhere"},
        {"Origin": "null"},
        {"Origin": "http://grid:81"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_what_another_site_made_the_browser_send_changes_nothing(
    page: httpx.AsyncClient, key: str, foreign: dict[str, str]
) -> None:
    assert (await page.post("/login", json={"key": key}, headers=foreign)).status_code == 403
    await log_in(page, key)
    assert (await page.post("/v1/providers/small/cordon", headers=WRITES | foreign)).status_code == 403
    assert (await page.post("/logout", headers=foreign)).status_code == 403
    own = {"Origin": "http://grid", "Sec-Fetch-Site": "same-origin"}
    assert (await page.post("/v1/providers/small/cordon", headers=WRITES | own)).status_code == 200


async def test_a_session_ends_by_time_and_by_logging_out(
    page: httpx.AsyncClient, key: str, clock: VirtualClock
) -> None:
    await log_in(page, key)
    clock.advance((SESSION_MS - 1) / 1_000)
    assert (await page.get("/v1/whoami")).status_code == 200
    clock.advance(0.001)
    answer = await page.get("/v1/whoami")
    assert (answer.status_code, answer.json()["detail"]) == (401, "the session is over")
    await log_in(page, key)
    assert (await page.post("/logout")).status_code == 204
    assert SESSION_COOKIE not in page.cookies
    assert (await page.get("/v1/whoami")).status_code == 401


async def test_a_session_that_was_logged_out_opens_nothing_any_more_whoever_has_kept_its_cookie(
    page: httpx.AsyncClient, key: str, gateway: GatewayService, data_dir: Path, clock: VirtualClock
) -> None:
    await log_in(page, key)
    kept = {"Cookie": f"{SESSION_COOKIE}={page.cookies[SESSION_COOKIE]}"}
    await log_in(page, key)
    other = {"Cookie": f"{SESSION_COOKIE}={page.cookies[SESSION_COOKIE]}"}
    page.cookies.clear()
    assert (await page.post("/logout", headers=kept)).status_code == 204
    assert (await page.get("/v1/whoami", headers=kept)).status_code == 401
    assert (await page.get("/v1/whoami", headers=other)).status_code == 200
    # Nor does it with a gateway that was started again.
    async with open_gateway(MemoryLog(clock), data_dir, clock=clock) as again:
        with pytest.raises(NotAuthenticated):
            again.keyring.who_is_logged_in(kept["Cookie"].partition("=")[2])
        assert again.keyring.who_is_logged_in(other["Cookie"].partition("=")[2]).scope == "admin"
    assert (data_dir / ENDED_FILE).stat().st_mode & 0o077 == 0


def test_sessions_that_were_ended_are_forgotten_when_they_are_over_and_never_more_than_so_many_are_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / ENDED_FILE
    ended = EndedSessions(path, most=1_000)
    for number in range(5_000):
        ended.add(f"early{number}", 10, 0)
    assert 900 <= len(ended) <= 1_000
    assert "early4999" in ended
    for number in range(1_000):
        ended.add(f"late{number}", 30, 20)
    assert "early4999" not in ended
    assert "late999" in ended
    assert path.read_text().count("\n") <= 1_000
    assert "late999" in EndedSessions(path)


async def test_a_cookie_that_was_changed_or_made_up_is_no_session(page: httpx.AsyncClient, key: str) -> None:
    await log_in(page, key)
    good = page.cookies[SESSION_COOKIE]
    content, _, signature = good.partition(".")
    longer = (
        base64.urlsafe_b64encode(base64.urlsafe_b64decode(content + "==").replace(b"]", b"0]")).decode().rstrip("=")
    )
    for value in (
        "x",
        ".",
        f"{content}.",
        f".{signature}",
        f"{longer}.{signature}",
        good[:-2],
        f"{good}.{good}",
        "\u00e9",
    ):
        page.cookies.clear()
        answer = await page.get("/v1/whoami", headers={b"Cookie": f"{SESSION_COOKIE}={value}".encode()})
        assert answer.status_code == 401, value
