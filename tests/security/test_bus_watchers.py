"""The gateway hands out what a dashboard enters the bus with: for its own tenant, for a while, and read only."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from bus_users import Trying

from elasticgrid.bus.connect import BusAddress
from elasticgrid.bus.credentials import Credentials, write_credentials
from elasticgrid.core.errors import NotAllowed
from elasticgrid.log.asked import AskedLog
from elasticgrid.log.port import Scope
from elasticgrid.runtime.control_plane import ControlPlane
from elasticgrid.runtime.services import default_providers
from elasticgrid.testing.bus import connection

pytestmark = [pytest.mark.server, pytest.mark.security]


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncGenerator[ControlPlane]:
    async with ControlPlane(tmp_path / "data", default_providers()) as running:
        yield running


def asking(plane: ControlPlane, key: str | None = None) -> httpx.AsyncClient:
    key = plane.key_file.read_text().strip() if key is None else key
    return httpx.AsyncClient(base_url=plane.url, headers={"X-API-Key": key}, trust_env=False, timeout=30)


def address(plane: ControlPlane, answer: dict[str, Any], folder: Path) -> BusAddress:
    path = folder / f"{answer['tenant']}.json"
    write_credentials(path, msgspec.convert(answer["credentials"], Credentials))
    bus = plane.client.connected_url
    assert bus is not None
    return BusAddress(f"nats://{bus.netloc}", str(path))


async def test_an_admin_gets_a_credential_that_reads_one_tenant_and_writes_nothing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with asking(plane) as http:
        made = await http.post("/v1/bus/watchers", json={"tenant": "acme", "name": "wall", "lasts_s": 60})
    assert made.status_code == 201, made.text
    told = made.json()
    assert abs(told["expires_s"] - time.time() - 60) < 10
    where = address(plane, told, tmp_path)
    async with connection(where) as client:
        log = AskedLog(client)
        assert await log.last_sequence(Scope(tenant="acme")) == 0
        with pytest.raises(NotAllowed):
            await log.last_sequence(Scope(tenant="other"))
    async with Trying(where) as tried:
        for subject in ("grid.samples.acme.j.0", "grid.events.acme.j.job.what", "grid.watchers.acme", "$JS.API.INFO"):
            assert await tried.publish(subject)


async def test_a_tenants_key_gets_one_for_its_own_tenant_alone(plane: ControlPlane) -> None:
    async with asking(plane) as http:
        for tenant in ("acme", "other"):
            assert (await http.post("/v1/tenants", json={"name": tenant})).is_success
        key = (await http.post("/v1/keys", json={"tenant": "acme", "scope": "read"})).json()["secret"]
    async with asking(plane, key) as http:
        own = await http.post("/v1/bus/watchers", json={})
        assert (own.status_code, own.json()["tenant"]) == (201, "acme")
        assert (await http.post("/v1/bus/watchers", json={"tenant": "other"})).status_code == 404
    async with asking(plane, "") as http:
        assert (await http.post("/v1/bus/watchers", json={})).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {"lasts_s": 0},
        {"lasts_s": 86_401},
        {"tenant": "a.b"},
        {"tenant": ">"},
        {"name": "a b"},
        {"more": 1},
        {"lasts_s": "1"},
    ],
)
async def test_what_cannot_be_meant_is_refused_with_what_is_wrong(plane: ControlPlane, body: dict[str, Any]) -> None:
    async with asking(plane) as http:
        answer = await http.post("/v1/bus/watchers", json={"tenant": "acme", **body})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.json()["code"] == "invalid_input"
