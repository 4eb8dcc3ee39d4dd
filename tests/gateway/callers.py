"""Callers with keys of their own, and a job of somebody to ask about."""

from __future__ import annotations

from typing import Any

import httpx

from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.service import GatewayService

PROVIDERS = (
    ProviderSpec(name="small", max_nodes=2, price_microdollars_per_hour=1_000_000),
    ProviderSpec(name="large", max_nodes=6, price_microdollars_per_hour=2_000_000, market="spot"),
)

JOB: dict[str, Any] = {"name": "train", "command": ["python", "train.py"], "workdir": "/srv", "max_nodes": 4}


def asking(gateway: GatewayService, key: str) -> httpx.AsyncClient:
    """Somebody with this key."""
    transport = httpx.ASGITransport(create_app(gateway))  # type: ignore[arg-type] # Litestar names every message's type
    return httpx.AsyncClient(transport=transport, base_url="http://grid/v1", headers={"X-API-Key": key})


async def tenant(client: httpx.AsyncClient, name: str) -> None:
    """Create a tenant."""
    answer = await client.post("/tenants", json={"name": name})
    assert answer.status_code == 201, answer.text


async def new_key(client: httpx.AsyncClient, **asked: Any) -> str:
    """Create a key and return the whole of it."""
    answer = await client.post("/keys", json=asked)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


async def submitted(client: httpx.AsyncClient, **parameters: str) -> str:
    """Submit a job and return its id."""
    answer = await client.post("/jobs", json=JOB, params=parameters)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"]["id"])
