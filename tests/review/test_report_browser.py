"""The report in a real browser: it opens offline, asks the network for nothing, and can be used without a mouse."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_jobs import QUICK, job, providers

from elasticgrid.core import events as ev
from elasticgrid.review.report_data import gather
from elasticgrid.review.report_html import html_report
from elasticgrid.review.whatif import what_if
from elasticgrid.review.whatif_change import Change
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARTIFACTS = Path(__file__).parents[2] / "ci-artifacts"
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NASTY = "<img src=x onerror=\"document.title='owned'\">"
DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 375, "height": 740}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it, and a cancel reason and an actor that want to be markup."""
    grid = SimulatedGrid(providers())
    grid.fail_launches("spot", "stockout", f"no capacity {NASTY}", times=1)
    one = grid.submit(job("one"), Workload(total_steps=400, demand=((200_000, 4), (1, 1))))
    two = grid.submit(job("two"), Workload(total_steps=900, demand=((1, 2),)))
    grid.at(190_000, lambda: grid.lose_node(one))
    grid.at(260_000, lambda: grid.fail_worker(one, code=7))
    grid.at(400_000, lambda: grid.request(two, ev.JobCancelRequested(reason=NASTY)))
    grid.run()
    change = Change(scaling=QUICK, scaling_values={"cooldown_down_ms": 600_000})
    data = gather(
        grid.recorded,
        grid.samples,
        source=f"{NASTY}.egz",
        software="1.0.0",
        what_if=what_if(grid.recorded, grid.samples, change),
    )
    path = tmp_path_factory.mktemp("report") / "incident.html"
    path.write_text(html_report(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Open]:
    """Opens the report; at the end nothing may have been said on the console or asked of the network."""
    pages: list[Page] = []
    said: list[str] = []
    asked: list[str] = []

    def open_page(**options: Any) -> Page:
        page = browser.new_page(**{"viewport": DESK, **options})
        pages.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-drawn=yes]", state="attached")
        page.wait_for_selector("#lanes .plot .main-svg")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []
    assert asked == [report.as_uri()] * len(pages)


def keep(page: Page, name: str) -> None:
    """A screenshot for people, beside CI's other artefacts."""
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"report-{name}.png", full_page=True)


def test_the_report_opens_offline_with_all_its_plots(opened: Open) -> None:
    page = opened()
    assert page.locator(".plot .main-svg").count() >= 5
    assert page.locator("#lanes .plot .barlayer .point").count() > 5
    assert page.locator("#plots .plot .scatterlayer .trace").count() >= 6
    assert page.title() == "Incident report: one, two"
    keep(page, "light")


def test_a_text_that_wants_to_be_markup_is_shown_letter_by_letter(opened: Open) -> None:
    page = opened()
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
    assert NASTY in page.locator("header").inner_text()
    assert NASTY in page.locator("#failures").inner_text()
    page.locator("#lanes .plot").hover()
    assert page.title() != "owned"


def test_the_policy_stops_what_would_ask_the_network_or_run_a_script(browser: Browser, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    blocked = page.evaluate(
        """async () => {
            const blocked = [];
            document.addEventListener('securitypolicyviolation', (event) => blocked.push(event.effectiveDirective));
            await fetch('https://example.invalid/').catch(() => null);
            const script = document.createElement('script');
            script.textContent = 'document.title = "owned"';
            document.head.append(script);
            await new Promise((done) => setTimeout(done, 100));
            return blocked;
        }"""
    )
    assert blocked == ["connect-src", "script-src-elem"]
    assert page.title() != "owned"
    page.close()


def luminance(page: Page, selector: str, which: str) -> float:
    colour: str = page.evaluate(
        "([selector, which]) => getComputedStyle(document.querySelector(selector))[which]", [selector, which]
    )
    red, green, blue = (int(each) for each in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_light_and_dark_follow_the_system_in_the_page_and_in_the_plots(opened: Open) -> None:
    page = opened(color_scheme="dark")
    for selector, which in (("body", "color"), ("#lanes .ytick text", "fill"), ("#plots .legendtext", "fill")):
        assert luminance(page, selector, which) > 0.7, selector
    assert luminance(page, "body", "backgroundColor") < 0.2
    keep(page, "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("#lanes .ytick text").first).to_have_css("fill", "rgb(28, 35, 48)")
    assert luminance(page, "body", "backgroundColor") > 0.9


def test_everything_is_reached_and_used_by_keyboard(opened: Open) -> None:
    page = opened()
    focused = "document.activeElement.textContent.trim() || document.activeElement.id"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the report"
    assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index] # it is on the page
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.locator("#decisions details summary").first.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#decisions details[open]").count() == 1
    page.locator("#decisions button[data-open]").focus()
    page.keyboard.press("Enter")
    assert page.locator("#decisions details:not([open])").count() == 0
    keep(page, "decisions")


def test_the_timeline_is_filtered_and_sorted_by_keyboard(opened: Open) -> None:
    page = opened()
    rows = page.locator("#timeline-table tbody tr:visible")
    total = rows.count()
    page.locator("#filter-text").focus()
    page.keyboard.type("queue_bound")
    found = rows.count()
    assert 0 < found < total
    assert page.locator("#filter-shown").inner_text() == f"{found} of {total} events"
    page.locator("#filter-text").fill("")
    page.locator("#filter-kind").select_option("launch")
    assert 0 < rows.count() < total
    assert all(
        text.startswith("launch.") for text in page.locator("tbody tr:visible td:nth-child(6)").all_inner_texts()[-9:]
    )
    head = page.locator("#timeline-table th").first
    head.locator("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    numbers = [int(text) for text in page.locator("#timeline-table tbody tr:visible td:first-child").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)


def test_what_one_plot_shows_of_time_the_others_show_too(opened: Open) -> None:
    page = opened()
    page.evaluate(
        "Plotly.relayout(document.querySelector('[data-plot=size]'), "
        "{'xaxis.range[0]': '2025-06-15 15:08:00', 'xaxis.range[1]': '2025-06-15 15:09:00'})"
    )
    expect(page.locator("[data-plot=cost] .xtick text").first).to_have_text(re.compile("^15:08:00"))
    expect(page.locator("#lanes .xtick text").last).to_have_text(re.compile("^15:09:00"))


def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Open) -> None:
    page = opened(viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#lanes .plot").bounding_box()["width"] <= PHONE["width"]  # type: ignore[index] # it is there
    small = page.evaluate(
        "Math.min(...[...document.querySelectorAll('p, li, td')].map("
        "(each) => parseFloat(getComputedStyle(each).fontSize)))"
    )
    assert small >= 12
    keep(page, "phone")


def test_without_scripts_the_tables_say_it_all(browser: Browser, report: Path) -> None:
    page = browser.new_page(java_script_enabled=False, viewport=DESK)
    page.goto(report.as_uri())
    assert page.locator("#timeline-table tbody tr").count() > 100
    page.close()
