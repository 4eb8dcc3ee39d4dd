"""The page over a real grid: a job is submitted and grows, connections are lost, and the page has all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from cable import Cable
from real_grid import EXAMPLE, RealGrid, eventually
from watched_page import CONTEXT, MARKS, WatchedPage, drawn, sync_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [*MARKS, pytest.mark.process]
expect = sync_api.expect
#: How long a job may take for what it does within seconds on a machine that does nothing else.
JOB_MS = 240_000


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[RealGrid]:
    with RealGrid(tmp_path) as running:
        yield running


@pytest.fixture
def cable(grid: RealGrid) -> Iterator[Cable]:
    with Cable(grid.port) as between:
        yield between


@pytest.fixture
def watched(browser: Browser, cable: Cable, grid: RealGrid) -> Iterator[WatchedPage]:
    context = browser.new_context(**CONTEXT)
    yield WatchedPage(context.new_page(), cable.url, grid.key)
    context.close()


def listed(page: Page) -> list[int]:
    """The sequences of every event in the list, from the newest on; they are in the page as one scrolls."""
    body = page.locator(".vlist-events .vbody")
    found: dict[int, None] = {}
    top = -1
    while True:
        for text in page.locator(".vlist-events .vspace .c-seq").all_inner_texts():
            found[int(text)] = None
        now = body.evaluate("(body) => { body.scrollTop += 300; return body.scrollTop; }")
        if now == top:
            return sorted(found, reverse=True)
        top = now
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_a_job_is_submitted_and_grows_and_the_page_shows_it_without_being_loaded_again(
    grid: RealGrid, watched: WatchedPage
) -> None:
    page = watched.sign_in()
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("main")).to_contain_text("No job was submitted yet.")
    page.evaluate("window.loadedOnce = true")
    job = grid.run("submit", str(EXAMPLE / "job.yaml"))
    page.locator(".vlist-jobs a", has_text=job).click()
    expect(page.locator("h1")).to_contain_text("running", timeout=JOB_MS)
    expect(page.locator(".tile", has_text="Nodes").locator("b")).to_have_text("4", timeout=JOB_MS)
    expect(page.locator(".decision", has_text="2 → 4 nodes")).to_contain_text("queue_bound")
    expect(page.locator("pre.log")).to_contain_text("rank 0 | ", timeout=JOB_MS)
    drawn(page)
    # Steps are drawn from the samples, which come while one looks.
    points = "document.querySelector('.js-plotly-plot')._fullData.find((each) => each.yaxis === 'y3').x.length"
    before = page.evaluate(points)
    eventually(lambda: page.evaluate(points) > before, JOB_MS / 1000, "more steps are drawn")
    expect(page.get_by_text("Steps are told from the decisions")).to_have_count(0)
    assert page.evaluate("window.loadedOnce"), "the page was loaded again"
    watched.keep("job-live")

    # What if it had grown in smaller steps?
    expect(page.locator("h1")).to_contain_text("completed", timeout=JOB_MS)
    page.get_by_role("link", name="Look back at it").click()
    page.locator(".setting select").select_option("scaling.grow_factor")
    page.locator(".setting input").fill("1.5")
    page.get_by_role("button", name="Run it").click()
    table = page.get_by_role("region", name="Recorded and what if")
    empty = page.locator(".whatif .state.empty")
    expect(table.or_(empty).first).to_be_visible(timeout=JOB_MS)
    expect(page.locator(".whatif")).to_contain_text(re.compile("first different decision|Nothing would have been"))
    watched.keep("whatif")
    assert watched.said == []
    assert watched.asked == []


def test_a_gateway_that_is_started_again_and_a_cable_that_is_pulled_lose_no_event(
    grid: RealGrid, cable: Cable, watched: WatchedPage
) -> None:
    job_file = grid.folder / "job.yaml"
    job = {"name": "waits", "run": "sleep 600", "nodes": {"min": 1, "max": 2}, "grace_s": 1, "workdir": "."}
    job_file.write_text(json.dumps(job))
    page = watched.sign_in()
    watched.open("/?view=events")
    live = page.locator("#live")
    expect(live).to_have_text("live")
    name = grid.run("submit", str(job_file))
    rows = page.locator(".vlist-events .vspace .vrow")
    expect(rows.filter(has_text="decision.world").first).to_be_visible(timeout=JOB_MS)

    # It has no hook: what is known of it is drawn, and that there are no steps is said.
    watched.open(f"/?view=job&tenant=default&job={name}")
    drawn(page)
    expect(page.get_by_text("This job publishes no steps")).to_be_visible()
    page.wait_for_function(
        """() => {
            const bars = document.querySelector('.js-plotly-plot')._fullData.filter((each) => each.orientation === 'h');
            const of = (doing) => bars.filter((each) => each.meta === doing).flatMap((each) => each.x);
            const lasted = (doing) => Math.max(0, ...of(doing));
            return lasted('training') > 5 * lasted('waiting');
        }"""
    )
    assert page.locator(".plot .annotation-text").all_text_contents() == ["Nodes", "Cost, USD", "Rounds and nodes"]
    ticks = page.locator(".plot .ytick text").all_text_contents()
    assert ticks == [str(number) for number in range(len(ticks))]
    watched.keep("job-without-steps")
    watched.open("/?view=events")
    expect(live).to_have_text("live")

    grid.stop()
    expect(live).to_have_text("reconnecting")
    watched.keep("reconnecting", whole=False)
    grid.start()
    expect(live).to_have_text("live")

    cable.pull()
    expect(live).to_have_text("reconnecting")
    grid.run("jobs", "pause", name, "--reason", "nobody looks")
    grid.run("jobs", "resume", name)
    cable.put_back()
    expect(live).to_have_text("live")
    expect(rows.filter(has_text="job.resume_requested").first).to_be_visible(timeout=JOB_MS)

    grid.run("jobs", "cancel", name)
    expect(rows.filter(has_text="decision.outcome").first).to_be_visible(timeout=JOB_MS)
    with httpx.Client(base_url=grid.url, headers={"X-API-Key": grid.key}, timeout=30) as client:
        seen = listed(page)
        logged = [each["sequence"] for each in client.get("/v1/events", params={"limit": 1000}).json()["items"]]
    assert seen == [each for each in reversed(logged) if each <= seen[0]]
    assert seen[0] >= logged[-1] - 5
    assert watched.asked == []
