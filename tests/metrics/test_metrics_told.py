"""What `/metrics` says is what the log says, in Prometheus' own manner, and to whom it is said."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import httpx
import pytest
from exported import FAILURES, everything, labels_of, values

from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold
from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.metrics_routes import is_of_this_machine
from elasticgrid.gateway.server import serve_gateway
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.archive import ArchivedEvents
from elasticgrid.testing.bus import until

BASE_UNITS = ("_seconds", "_bytes", "_ratio", "_dollars", "_dollars_per_hour")
#: What a job, a node or a person is called has no end of values.
UNBOUNDED = {"job", "node", "launch", "attempt", "key", "actor", "path"}


async def text(gateway: GatewayService) -> str:
    return (await gateway.metrics.exposition("")).body.decode()


async def test_names_follow_the_practice_and_no_label_has_values_without_end(tmp_path: Path) -> None:
    async with everything(tmp_path) as (gateway, _):
        labels = labels_of(gateway.metrics.registry)
        families = list(gateway.metrics.registry.collect())
    ours = [each for each in families if each.name.startswith("elasticgrid_")]
    assert len(ours) > 30
    for family in ours:
        assert re.fullmatch(r"elasticgrid_[a-z_]+", family.name)
        assert family.documentation.endswith((".", "the value is 1.")), family.name
        assert not family.name.endswith(("_total", "_count", "_sum", "_ms", "_us", "_microdollars"))
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        if re.search(r"duration|latency|_age|cost|price", family.name):
            assert family.name.endswith(BASE_UNITS)
    assert {name for name, used in labels.items() if used & UNBOUNDED} == set()


async def test_totals_are_those_of_the_whole_log_also_after_a_restart(tmp_path: Path) -> None:
    recorded = list(ArchivedEvents(FAILURES))
    decided: Counter[tuple[str, ...]] = Counter()
    failed: Counter[tuple[str, ...]] = Counter()
    types: Counter[tuple[str, ...]] = Counter()
    for each in recorded:
        assert isinstance(each.event, ev.Event)
        types[(ev.type_of(each.event.data),)] += 1
        if isinstance(each.event.data, ev.ScaleDecided):
            decided[each.event.data.action, each.event.data.rule] += 1
        if isinstance(each.event.data, ev.LaunchFailed):
            failed[(each.event.data.failure,)] += 1
    assert failed

    for _ in ("at first", "after a restart that finds its views on the disk"):
        async with everything(tmp_path) as (gateway, _clock):
            told = await text(gateway)
            found = values(told, "elasticgrid_decisions_total")
            assert {key: number for key, number in found.items() if key[0] in ("up", "down", "hold")} == decided
            assert {key: n for key, n in values(told, "elasticgrid_log_events_total").items() if n} == types
            by_failure: Counter[tuple[str, ...]] = Counter()
            for (failure, _provider), number in values(told, "elasticgrid_launch_failures_total").items():
                by_failure[(failure,)] += int(number)
            assert +by_failure == failed


@pytest.mark.parametrize("first", [20, 60, 90, 140, None])
async def test_what_there_is_now_is_what_the_fold_of_the_same_events_holds(tmp_path: Path, first: int | None) -> None:
    grid = GridFold()
    for recorded in list(ArchivedEvents(FAILURES))[:first]:
        grid.apply(recorded)
    async with everything(tmp_path, first=first) as (gateway, clock):
        told = await text(gateway)
        cost = await gateway.views.cost(by="provider", as_of_ms=clock.now_ms())
        jobs = (await gateway.views.jobs(as_of_ms=clock.now_ms())).items
    phases = Counter(job.phase for job in grid.jobs())
    assert {key[0]: n for key, n in values(told, "elasticgrid_jobs").items() if n} == phases
    charged = sum(usage.charged for usage in grid.fleet.usage.values())
    assert sum(values(told, "elasticgrid_nodes").values()) == charged
    # Each node's cost is rounded down by itself, here and there, but not the same nodes are settled yet.
    spent = values(told, "elasticgrid_cost_dollars_total")[()]
    assert spent * 1_000_000 == pytest.approx(cost.cost_microdollars, abs=100)
    price = sum(values(told, "elasticgrid_price_dollars_per_hour").values())
    assert price == pytest.approx(sum(job.price_microdollars_per_hour for job in jobs) / 1_000_000)


async def test_a_failed_job_and_launch_are_an_increase_from_nothing(tmp_path: Path) -> None:
    async with everything(tmp_path, first=5) as (gateway, _):
        told = await text(gateway)
    assert set(values(told, "elasticgrid_launch_failures_total").values()) == {0}
    assert ("auth", "spot") in values(told, "elasticgrid_launch_failures_total")


async def test_both_formats_are_spoken(tmp_path: Path) -> None:
    async with everything(tmp_path) as (gateway, _):
        plain = await gateway.metrics.exposition("text/plain")
        open_metrics = await gateway.metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert plain.media_type.startswith("text/plain")
    assert open_metrics.media_type.startswith("application/openmetrics-text")
    assert open_metrics.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("host", "headers", "local"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.9"}, False),
        ("127.0.0.1", {"forwarded": "for=203.0.113.9"}, False),
        ("10.0.0.7", {}, False),
        ("172.17.0.1", {"x-forwarded-for": "127.0.0.1"}, False),
        ("testclient", {}, False),
        ("", {}, False),
    ],
)
def test_only_who_is_on_this_machine_itself_needs_no_key(host: str, headers: dict[str, str], local: bool) -> None:
    assert is_of_this_machine(host, headers) is local


async def test_from_elsewhere_a_key_is_asked_for_and_a_bearer_token_is_one(tmp_path: Path) -> None:
    async with everything(tmp_path) as (gateway, _):
        key = gateway.key_file.read_text().strip()
        transport = httpx.ASGITransport(create_app(gateway), client=("203.0.113.9", 4_000))  # type: ignore[arg-type] # Litestar names every message's type
        async with httpx.AsyncClient(transport=transport, base_url="http://grid") as asking:
            refused = await asking.get("/metrics")
            wrong = await asking.get("/metrics", headers={"Authorization": "Bearer guess"})
            taken = await asking.get("/metrics", headers={"Authorization": f"Bearer {key}"})
    assert (refused.status_code, wrong.status_code, taken.status_code) == (401, 401, 200)
    assert taken.headers["Content-Type"].startswith("text/plain")
    assert b"elasticgrid_build_info" in taken.content


@pytest.mark.server
async def test_requests_are_counted_by_their_route_and_watchers_while_they_watch(tmp_path: Path) -> None:
    async with everything(tmp_path) as (gateway, _), await serve_gateway(gateway) as server:
        headers = {"X-API-Key": gateway.key_file.read_text().strip()}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as asking:
            await asking.get("/v1/jobs/none")
            await asking.get("/v1/jobs/other")
            await asking.get("/no/such/path")
            async with asking.stream("GET", "/v1/events/stream?after=0") as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data:"):
                        break
                during = (await asking.get("/metrics")).text
            await until(lambda: gateway.feed.watchers == 0)
            after = (await asking.get("/metrics")).text
    requests = values(after, "elasticgrid_http_requests_total")
    assert requests["GET", "/v1/jobs/{job}", "404"] == 2
    assert requests["GET", "unmatched", "404"] == 1
    assert requests["GET", "/metrics", "200"] == 1
    assert requests["GET", "/v1/events/stream", "200"] == 1
    assert values(during, "elasticgrid_sse_subscribers")[()] == 1
    assert values(after, "elasticgrid_sse_subscribers")[()] == 0
    assert values(after, "elasticgrid_sse_events_total")[()] >= 1
