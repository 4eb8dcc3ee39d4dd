"""Who may ask: only the holder of the key, which is made once and read by its owner alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from elasticgrid.core.errors import InvalidInput
from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.auth import ADMIN_KEY_FILE, admin_key
from elasticgrid.gateway.service import GatewayService

GUARDED = ("/jobs", "/jobs/x", "/events", "/events/stream", "/providers", "/cost")


@pytest.fixture
def stranger(gateway: GatewayService) -> httpx.AsyncClient:
    app = create_app(gateway)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type] # Litestar names every message's type, httpx any mapping
    return httpx.AsyncClient(transport=transport, base_url="http://grid/v1")


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "guess"},
        {"X-API-Key": "\u20ac".encode()},
        {"Authorization": "Basic abc"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer guess"},
    ],
)
async def test_without_the_key_nothing_is_told(
    stranger: httpx.AsyncClient, path: str, headers: dict[str, str | bytes]
) -> None:
    answer = await stranger.get(path, headers=headers)  # type: ignore[arg-type] # bytes are what is no text can be sent as
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_authenticated"
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_without_the_key_nothing_is_done(stranger: httpx.AsyncClient, gateway: GatewayService) -> None:
    before = gateway.feed.last
    for method, path in (("POST", "/jobs"), ("DELETE", "/jobs/x"), ("POST", "/providers/small/cordon")):
        assert (await stranger.request(method, path, content=b"{")).status_code == 401
    assert gateway.feed.last == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/openapi"])
async def test_health_and_version_are_for_everyone(stranger: httpx.AsyncClient, path: str) -> None:
    assert (await stranger.get(path)).status_code == 200


async def test_the_key_is_taken_as_a_bearer_token_too(stranger: httpx.AsyncClient, key: str) -> None:
    assert (await stranger.get("/jobs", headers={"Authorization": f"Bearer {key}"})).status_code == 200
    assert (await stranger.get("/jobs", headers={"x-api-key": key})).status_code == 200


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = admin_key(tmp_path / "data")
    assert admin_key(tmp_path / "data") == first
    file = tmp_path / "data" / ADMIN_KEY_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == [ADMIN_KEY_FILE]
    text = file.read_text().strip()
    assert text.startswith(first.prefix)
    assert text not in repr(first)


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(admin_key, [tmp_path] * 16))
    assert len(set(keys)) == 1


@pytest.mark.parametrize("content", ["", "short", "with space " * 8, "x" * 5_000, "\u00e9" * 64])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / ADMIN_KEY_FILE
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(InvalidInput, match="holds no key"):
        admin_key(tmp_path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    admin_key(tmp_path)
    (tmp_path / ADMIN_KEY_FILE).chmod(0o640)
    with pytest.raises(InvalidInput, match="other users can read"):
        admin_key(tmp_path)


def test_a_link_in_the_keys_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("k" * 64)
    os.symlink(tmp_path / "elsewhere", tmp_path / ADMIN_KEY_FILE)
    with pytest.raises(InvalidInput, match="no plain file"):
        admin_key(tmp_path)
