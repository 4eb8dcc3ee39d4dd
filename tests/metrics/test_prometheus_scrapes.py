"""A real Prometheus collects the metrics of a real grid, and knows them by the names that the alerts ask for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.metrics.registry import new_registry
from elasticgrid.metrics.server import metrics_server
from elasticgrid.runtime.control_plane import ControlPlane
from elasticgrid.testing.bus import bus_client, embedded_server, free_ports

SERVICES = Path(__file__).parents[2] / "services"
PROVIDERS = (ProviderSpec(name="here", engine="local", max_nodes=2, price_microdollars_per_hour=500_000),)

pytestmark = [pytest.mark.server, pytest.mark.process]


@contextlib.asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, str], key_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A Prometheus with our rules that asks these targets every second."""
    program = shutil.which("prometheus")
    assert program is not None
    settings = yaml.safe_load((SERVICES / "prometheus" / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(SERVICES / "prometheus" / "alerts.yml")]
    settings["scrape_configs"] = [
        each | {"static_configs": [{"targets": [targets[each["job_name"]]]}]}
        for each in settings["scrape_configs"]
        if each["job_name"] in targets
    ]
    for each in settings["scrape_configs"]:
        if "authorization" in each:
            each["authorization"] = {"credentials_file": str(key_file)}
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False) as asking:
            yield asking
    finally:
        process.terminate()
        await process.wait()


async def result(asking: httpx.AsyncClient, query: str) -> list[dict[str, Any]]:
    with contextlib.suppress(httpx.TransportError):
        answer = await asking.get("/query", params={"query": query})
        if answer.is_success:
            found: list[dict[str, Any]] = answer.json()["data"]["result"]
            return found
    return []


async def value_of(asking: httpx.AsyncClient, query: str, timeout_s: float = 60.0) -> float:
    """The value of a query that has one, once it has."""
    async with asyncio.timeout(timeout_s):
        while not (found := await result(asking, query)):  # noqa: ASYNC110 - it is asked, it does not tell
            await asyncio.sleep(0.1)
    return float(found[0]["value"][1])


async def equals(asking: httpx.AsyncClient, query: str, wanted: float, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while await value_of(asking, query) != wanted:  # noqa: ASYNC110 - it is asked, it does not tell
            await asyncio.sleep(0.1)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus: apt-get install prometheus")
async def test_prometheus_collects_a_grid_and_raises_no_alert_of_one_that_is_well(tmp_path: Path) -> None:
    async with ControlPlane(tmp_path / "grid", PROVIDERS) as plane:
        gateway = plane.url.removeprefix("http://")
        async with prometheus(tmp_path, {"elasticgrid-gateway": gateway}, plane.key_file) as asking:
            await equals(asking, 'up{job="elasticgrid-gateway"}', 1)
            await equals(asking, "elasticgrid_log_reachable", 1)
            await equals(asking, 'elasticgrid_provider_capacity_nodes{provider="here"}', 2)
            await equals(asking, "elasticgrid_projection_lag_events", 0)
            assert await value_of(asking, "time() - elasticgrid_decider_last_tick_timestamp_seconds") < 30
            spec = JobSpec(name="short", command=("true",), workdir=str(tmp_path))
            async with httpx.AsyncClient(base_url=plane.url) as client:
                headers = {"X-API-Key": plane.key_file.read_text().strip()}
                body = {"name": spec.name, "command": list(spec.command), "workdir": spec.workdir}
                (await client.post("/v1/jobs", json=body, headers=headers)).raise_for_status()
            await equals(asking, 'elasticgrid_decisions_total{action="up",rule="bounds"}', 1)
            await equals(asking, "sum(elasticgrid_jobs)", 1)
            # Its node is gone when it is over: the control plane, which would end it, goes at the end of the test.
            await equals(asking, 'elasticgrid_jobs{phase="completed"}', 1)
            assert await value_of(asking, "elasticgrid_decision_latency_seconds_count") >= 1
            assert await value_of(asking, 'elasticgrid_append_duration_seconds_count{writer="decision"}') >= 1
            assert await value_of(asking, "process_resident_memory_bytes") > 1e7
            rules = (await asking.get("/rules")).json()["data"]["groups"]
            assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
            firing = await result(asking, 'ALERTS{alertstate="firing"}')
            assert {each["metric"]["alertname"] for each in firing} <= {"ElasticgridJobFailed"}


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus: apt-get install prometheus")
async def test_a_service_without_http_tells_its_metrics_on_an_address_of_its_own(tmp_path: Path) -> None:
    registry = new_registry()
    async with metrics_server(registry, "127.0.0.1", 0) as url:
        target = url.removeprefix("http://").removesuffix("/metrics")
        async with prometheus(tmp_path, {"elasticgrid-decider": target}, tmp_path / "none") as asking:
            await equals(asking, 'up{job="elasticgrid-decider"}', 1)
            await equals(asking, "elasticgrid_build_info", 1)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{target}/")).status_code == 404
            assert (await client.post(url)).status_code == 404
            assert (await client.get(url)).headers["Content-Type"].startswith("text/plain")


async def test_an_address_that_is_taken_is_said_to_be(tmp_path: Path) -> None:
    async with metrics_server(new_registry(), "127.0.0.1", 0) as url:
        port = int(url.rsplit(":", 1)[1].removesuffix("/metrics"))
        with pytest.raises(Exception, match="cannot listen there") as raised:
            async with metrics_server(new_registry(), "127.0.0.1", port):
                pass
    assert f"127.0.0.1:{port}" in str(raised.value)


@pytest.mark.parametrize(
    ("service", "metric"),
    [("decider", "elasticgrid_decider_last_tick_timestamp_seconds"), ("launcher", "elasticgrid_launcher_events_read")],
)
async def test_a_service_alone_tells_what_it_measures_where_it_is_told_to(
    tmp_path: Path, service: str, metric: str
) -> None:
    (port,) = free_ports(1)
    async with embedded_server(tmp_path / "bus") as server, bus_client(server):
        told = {"ELASTICGRID_NATS_URL": server.address.url, "ELASTICGRID_CREDENTIALS": server.address.credentials}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICGRID_")}
        command = ("serve", service, "--data", str(tmp_path / "own"), "--metrics", f"127.0.0.1:{port}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "elasticgrid.cli.main", *command, env=kept | told, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as asking:
                text = ""
                while f"\n{metric} " not in text:
                    assert process.returncode is None
                    with contextlib.suppress(httpx.TransportError):
                        text = (await asking.get(f"http://127.0.0.1:{port}/metrics")).text
                    await asyncio.sleep(0.1)
        finally:
            process.terminate()
            assert await process.wait() == 0
