"""Routes that look back: over time, why, what led to what, the newest first, and what if."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.gateway.app import create_app
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

QUICK = ScalingPolicy(
    cooldown_up_ms=30_000,
    cooldown_down_ms=60_000,
    reversal_ms=60_000,
    target_tokens_per_s=5_000,
    default_restart_ms=10_000,
    min_evidence_ms=10_000,
    max_restart_ppm=1_000_000,
    max_changes_per_hour=30,
)
JOB = "/jobs/train"
OF = {"tenant": "demo"}


@pytest.fixture(scope="module")
def simulated() -> SimulatedGrid:
    """A job that grows and completes."""
    grid = SimulatedGrid((ProviderSpec(name="here", max_nodes=6, price_microdollars_per_hour=1_000_000),))
    spec = JobSpec(
        name="train", command=("python",), max_nodes=4, grace_ms=5_000, join_timeout_ms=60_000, scaling=QUICK
    )
    grid.submit(spec, Workload(total_steps=300, demand=((200_000, 4), (1, 1))))
    grid.run()
    return grid


@pytest.fixture
async def looked_at(gateway: GatewayService, log: MemoryLog, clock: VirtualClock, simulated: SimulatedGrid) -> None:
    """The simulated log, in the gateway's."""
    for recorded in simulated.recorded:
        clock.advance(max(recorded.recorded_ms - clock.now_ms(), 0) / 1_000)
        await log.append([recorded.event])  # type: ignore[list-item] # the simulation knows all its events
    await gateway.caught_up()


async def got(client: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


pytestmark = pytest.mark.usefixtures("looked_at")


async def test_the_grid_in_numbers_counts_jobs_by_phase_and_what_they_cost(client: httpx.AsyncClient) -> None:
    grid = await got(client, "/grid")
    cost = await got(client, "/cost")
    assert grid["jobs"] == {"completed": 1}
    assert grid["cost_microdollars"] == cost["cost_microdollars"] > 0
    assert grid["price_microdollars_per_hour"] == 0
    assert (await got(client, "/grid", tenant="other"))["jobs"] == {}


async def test_a_job_over_time_tells_sizes_rounds_nodes_and_decisions(client: httpx.AsyncClient) -> None:
    series = await got(client, f"{JOB}/series", **OF)
    assert max(series["training"]["value"]) == 4
    assert len(series["rounds"]) >= 2
    assert len(series["lanes"]) >= 4
    assert next(each["action"] for each in series["decisions"] if each["action"] != "hold") == "up"
    assert series["steps"]["source"] == "decisions"
    assert (await client.get("/jobs/nobody/series", params=OF)).status_code == 404
    assert (await client.get(f"{JOB}/series", params={"tenant": "other"})).status_code == 404


async def test_the_card_of_a_decision_has_its_own_placement(client: httpx.AsyncClient) -> None:
    series = await got(client, f"{JOB}/series", **OF)
    grown = next(each for each in series["decisions"] if each["current_nodes"] and each["action"] == "up")
    card = await got(client, f"{JOB}/decisions/{grown['sequence']}", **OF)
    assert card["sequence"] == grown["sequence"]
    assert (card["current_nodes"], card["target_nodes"]) == (grown["current_nodes"], grown["target_nodes"])
    assert card["placement_sequence"] == grown["sequence"] + 1
    assert [each["rule"] for each in card["rules"] if each["verdict"] == "decided"] == [grown["rule"]]
    assert (await client.get(f"{JOB}/decisions/1", params=OF)).status_code == 404


async def test_events_come_newest_first_in_pages_that_join_without_gap_or_overlap(client: httpx.AsyncClient) -> None:
    everything = [each["sequence"] for each in (await got(client, "/events", limit=1000))["items"]]
    found: list[int] = []
    before: int | None = None
    while before != 0:
        page = await got(client, "/events", order="desc", limit=7, **({"before": before} if before else {}))
        found += [each["sequence"] for each in page["items"]]
        assert page["more"] == bool(page["next_before"])
        before = page["next_before"]
    assert found == everything[::-1]


async def test_events_are_chosen_by_kind_and_by_time(client: httpx.AsyncClient) -> None:
    everything = (await got(client, "/events", limit=1000))["items"]
    launches = (await got(client, "/events", type="launch", limit=1000))["items"]
    assert launches == [each for each in everything if each["type"].startswith("launch.")]
    middle_ms = everything[len(everything) // 2]["recorded_ms"]
    early = (await got(client, "/events", until_ms=middle_ms, limit=1000))["items"]
    late = (await got(client, "/events", since_ms=middle_ms, order="desc", limit=1000))["items"]
    assert early + late[::-1] == everything
    assert early
    assert late


async def test_a_timeline_has_a_line_for_each_event_of_its_span(client: httpx.AsyncClient) -> None:
    events = (await got(client, "/events", limit=1000, **OF))["items"]
    lines = (await got(client, "/timeline", limit=1000, **OF))["items"]
    assert [each["sequence"] for each in lines] == [each["sequence"] for each in events]
    assert {each["what"] for each in (await got(client, "/timeline", type="node"))["items"]} >= {"node.joined"}
    first = await got(client, "/timeline", limit=3)
    second = await got(client, "/timeline", limit=3, after=first["next_after"])
    assert first["more"]
    assert first["items"][-1]["sequence"] < second["items"][0]["sequence"]


async def test_an_event_tells_what_led_to_it_and_what_it_led_to(client: httpx.AsyncClient) -> None:
    joined = (await got(client, "/events", type="node.joined"))["items"][0]
    assert await got(client, f"/events/{joined['sequence']}") == joined
    chain = await got(client, f"/events/{joined['sequence']}/causes")
    assert chain["causes"][0]["line"]["sequence"] == joined["sequence"]
    assert chain["causes"][-1]["line"]["what"] == "job.submitted"
    submitted = chain["causes"][-1]["line"]["sequence"]
    followed = (await got(client, f"/events/{submitted}/causes"))["effects"]
    assert joined["sequence"] in [each["line"]["sequence"] for each in followed]
    assert (await client.get("/events/99999")).status_code == 404
    assert (await client.get(f"/events/{joined['sequence']}", params={"tenant": "other"})).status_code == 404


async def test_a_policy_is_told_in_the_names_and_units_of_a_job_file(client: httpx.AsyncClient) -> None:
    items = {each["setting"]: each["value"] for each in (await got(client, f"{JOB}/policy", **OF))["items"]}
    assert items["scaling.cooldown_up_s"] == "30"
    assert items["scaling.target_queue_share"] == "0.2"
    assert items["scaling.grow_factor"] == "2"
    assert items["scaling.target_step_s"] == ""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([], "settings are wanted"),
        (["scaling.cooldown_up_s=0"], "keeps no step samples"),
        (["scaling.no_such_thing=1"], "there is no field of this name"),
        (["scaling.cooldown_up_s=soon"], "a number is wanted"),
    ],
)
async def test_a_what_if_that_cannot_be_run_says_why(client: httpx.AsyncClient, settings: list[str], says: str) -> None:
    answer = await client.post(f"{JOB}/whatif", params=OF, json={"settings": settings})
    assert answer.status_code == 400
    assert says in answer.text


async def test_the_page_and_its_files_are_there_for_everybody_and_hold_no_data(
    gateway: GatewayService, key: str
) -> None:
    transport = httpx.ASGITransport(create_app(gateway))  # type: ignore[arg-type] # Litestar names every message's type
    async with httpx.AsyncClient(transport=transport, base_url="http://grid") as stranger:
        page = await stranger.get("/")
        assert page.status_code == 200
        assert "unsafe" not in page.headers["content-security-policy"]
        assert key not in page.text
        style = next(part for part in page.text.split('"') if part.endswith("base.css"))
        asked = await stranger.get(style)
        assert asked.headers["content-type"].startswith("text/css")
        assert "immutable" in asked.headers["cache-control"]
        assert asked.headers["content-encoding"] == "gzip"
        plain = await stranger.get(style, headers={"Accept-Encoding": "identity"})
        assert plain.text == asked.text
        folder = style.rsplit("/", 1)[0]
        for path in (
            f"{folder}/../assets.py",
            f"{folder}/%2e%2e%2fassets.py",
            f"{folder}/index.html",
            "/ui/0/base.css",
        ):
            assert (await stranger.get(path)).status_code == 404, path
