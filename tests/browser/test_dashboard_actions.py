"""What can be done about a job from its page: by whom, as which job, and what is said when it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from served_log import Served, serving
from watched_page import CONTEXT, MARKS, PHONE, WatchedPage, sync_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = MARKS
expect = sync_api.expect

NAME = "llama-finetune-k3x9"
JOB = f"/?view=job&tenant=research&job={NAME}"
OVER = "/?view=job&tenant=research&job=tokenizer-ablation-2b7q"
PATH = f"/v1/jobs/{NAME}"
OF = {"tenant": "research"}


@pytest.fixture
def own_day(tmp_path: Path) -> Iterator[Served]:
    """A day that nobody else looks at: it is changed here."""
    with serving("day", tmp_path) as served:
        yield served


@pytest.fixture
def api(own_day: Served) -> Iterator[httpx.Client]:
    """Somebody else with the admin's key."""
    with httpx.Client(base_url=own_day.url, headers={"X-API-Key": own_day.key}, timeout=30) as client:
        yield client


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(**CONTEXT)
    yield made
    made.close()


@pytest.fixture
def watched(context: BrowserContext, own_day: Served) -> Iterator[WatchedPage]:
    """The page of somebody with the admin's key; nothing may be said on its console."""
    page = WatchedPage(context.new_page(), own_day.url, own_day.key)
    page.sign_in()
    page.open(JOB)
    yield page
    assert page.said == []
    assert page.asked == []


def buttons(page: Page) -> list[str]:
    page.locator(".decisions").first.wait_for()
    found = page.locator(".job-actions button")
    return [each.inner_text().removesuffix(" …") for each in found.all() if each.is_visible()]


def job_of(api: httpx.Client) -> Any:
    return api.get(PATH, params=OF).json()["job"]


def test_a_job_is_paused_and_resumed_from_its_page_and_everybody_sees_it(
    watched: WatchedPage, api: httpx.Client
) -> None:
    page = watched.page
    assert buttons(page) == ["Pause", "Resize", "Set priority", "Cancel"]
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=f"Pause: {NAME}")
    expect(dialog).to_contain_text("held at the size it has")
    dialog.get_by_label("Reason, kept in the log").fill("a look at the data")
    watched.keep("action-pause", whole=False)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator("#announce")).to_have_text(f"{NAME} is paused")
    expect(page.get_by_role("button", name="Resume")).to_be_focused()
    expect(page.locator(".why").first).to_have_text("paused a look at the data")
    assert job_of(api)["paused"] == "a look at the data"
    assert buttons(page) == ["Resume", "Resize", "Set priority", "Cancel"]
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert job_of(api)["paused"] == ""


def test_bounds_and_band_are_set_with_what_they_are_now_filled_in(watched: WatchedPage, api: httpx.Client) -> None:
    page = watched.page
    page.get_by_role("button", name="Resize").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("At least, nodes")).to_have_value("2")
    expect(dialog.get_by_label("At most, nodes")).to_have_value("8")
    dialog.get_by_label("At most, nodes").fill("5")
    dialog.get_by_role("button", name="Resize").click()
    expect(page.locator(".tile", has_text="Nodes")).to_contain_text("2 to 5 allowed")
    page.get_by_role("button", name="Set priority").click()
    expect(dialog.get_by_label("Band")).to_have_value("batch")
    dialog.get_by_label("Band").select_option("production")
    dialog.get_by_role("button", name="Set priority").click()
    expect(dialog).to_have_count(0)
    now = job_of(api)
    assert (now["min_nodes"], now["max_nodes"], now["band"]) == (2, 5, "production")


def test_what_was_meant_for_the_job_as_it_was_is_refused_with_a_way_on(watched: WatchedPage, api: httpx.Client) -> None:
    page = watched.page
    page.get_by_role("button", name="Resize").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("At most, nodes").fill("4")
    api.post(f"{PATH}/resize", params=OF, json={"max_nodes": 7}).raise_for_status()
    expect(dialog.get_by_role("status")).to_have_text("The job has changed since this was opened.")
    dialog.get_by_role("button", name="Resize").click()
    expect(dialog.get_by_role("alert")).to_contain_text("it has changed since")
    expect(dialog.get_by_role("alert")).to_contain_text("look at it again, then decide")
    watched.keep("action-conflict", whole=False)
    assert job_of(api)["max_nodes"] == 7
    watched.said.clear()  # the browser notes every refusal on its console
    dialog.get_by_role("button", name="Look again").click()
    expect(dialog.get_by_label("At most, nodes")).to_have_value("7")
    dialog.get_by_label("At most, nodes").fill("4")
    dialog.get_by_role("button", name="Resize").click()
    expect(dialog).to_have_count(0)
    assert job_of(api)["max_nodes"] == 4


def test_what_cannot_be_is_refused_in_the_words_of_the_interface(watched: WatchedPage, api: httpx.Client) -> None:
    page = watched.page
    page.get_by_role("button", name="Resize").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("At least, nodes").fill("6")
    dialog.get_by_label("At most, nodes").fill("3")
    dialog.get_by_role("button", name="Resize").click()
    problem = api.post(f"{PATH}/resize", params=OF, json={"min_nodes": 6, "max_nodes": 3}).json()
    expect(dialog.get_by_role("alert")).to_contain_text(problem["detail"])
    expect(dialog.get_by_role("alert")).to_contain_text(problem["hint"])
    expect(dialog.get_by_role("button", name="Look again")).to_be_hidden()
    watched.said.clear()


def test_a_job_is_cancelled_only_after_it_was_asked_once_more(watched: WatchedPage, api: httpx.Client) -> None:
    page = watched.page
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be taken up again")
    dialog.get_by_role("button", name="Keep it").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    assert job_of(api)["cancel_requested"] is False
    page.get_by_role("button", name="Cancel").click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_label("Reason, kept in the log").fill("wrong data")
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    assert job_of(api)["cancel_requested"] is True


@pytest.mark.parametrize(
    ("scope", "may"),
    [("read", []), ("submit", ["Cancel"]), ("operate", ["Pause", "Resize", "Set priority", "Cancel"])],
)
def test_only_what_the_key_allows_is_offered(
    scope: str, may: list[str], browser: Browser, own_day: Served, api: httpx.Client
) -> None:
    made = api.post("/v1/keys", json={"whole_grid": True, "scope": scope})
    context = browser.new_context(**CONTEXT)
    watched = WatchedPage(context.new_page(), own_day.url, made.json()["secret"])
    watched.sign_in()
    assert buttons(watched.open(JOB)) == may
    assert buttons(watched.open(OVER)) == [], "it is over"
    context.close()


def test_on_a_phone_it_is_all_in_reach(context: BrowserContext, watched: WatchedPage) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    assert len(buttons(page)) == 4
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    for each in (dialog.get_by_label("Reason, kept in the log"), dialog.get_by_role("button", name="Cancel the job")):
        box = each.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert box["height"] >= 32
    watched.keep("phone-action-cancel", whole=False)
