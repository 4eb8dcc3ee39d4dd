"""The page at `/` over a simulated day: what it shows, that texts stay texts, keyboard, phone, themes, its policy."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from big_grid import NASTY
from served_log import Open, Served
from watched_page import CONTEXT, DESK, MARKS, PHONE, WatchedPage, drawn, sync_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = MARKS
expect = sync_api.expect

JOB = "/?view=job&tenant=research&job=llama-finetune-k3x9"
INCIDENT = "/?view=incident&tenant=research&job=llama-finetune-k3x9"
EVENTS = "/?view=events"
VIEWS = {"grid": "/?view=grid", "job": JOB, "incident": INCIDENT, "events": EVENTS}
READY = {
    "grid": ".vlist-jobs .vspace .vrow",
    "job": ".plot .barlayer .point",
    "incident": ".density .barlayer .point",
    "events": ".vlist-events .vspace .vrow",
}


def ready(page: Page, view: str) -> None:
    page.locator(READY[view]).first.wait_for(state="attached")


# --------------------------------------------------------------------------------------------------------------------
# Who may look
# --------------------------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_in_words_and_the_right_one_opens_the_grid(browser: Browser, day: Served) -> None:
    page = browser.new_page(viewport=DESK)
    page.goto(day.url)
    expect(page.get_by_label("Key")).to_be_focused()
    page.get_by_label("Key").fill("not the key")
    page.keyboard.press("Enter")
    expect(page.locator("#login-problem")).to_contain_text("not a key of this gateway")
    page.get_by_label("Key").fill(day.key)
    page.keyboard.press("Enter")
    expect(page.locator(".tile").first).to_contain_text("Burn rate")
    page.close()


def test_the_session_is_a_cookie_that_no_script_reads_and_that_signing_out_ends_in_every_window(
    browser: Browser, day: Served
) -> None:
    context = browser.new_context(**CONTEXT)
    watched = WatchedPage(context.new_page(), day.url, day.key)
    page = watched.sign_in()
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert watched.key not in page.content()
    others = [WatchedPage(context.new_page(), day.url, day.key).open(view) for view in ("/", "/?view=events", JOB)]
    for other in others:
        expect(other.locator("#live-text")).to_have_text("live")
    page.get_by_role("button", name="Sign out").click()
    for each in (page, *others):
        expect(each.get_by_label("Key")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Key")).to_be_visible()
    context.close()


# --------------------------------------------------------------------------------------------------------------------
# What is shown
# --------------------------------------------------------------------------------------------------------------------


def test_the_grid_shows_providers_with_their_marks_jobs_by_phase_and_what_it_costs(opened: Open) -> None:
    watched = opened()
    page = watched.open()
    tiles = page.locator(".tiles").inner_text()
    assert re.search(r"Burn rate\s+\$22\.00/h", tiles), tiles
    assert re.search(r"Nodes in use\s+12 of 24", tiles), tiles
    cordoned = page.locator(".provider", has_text="gcp-spot")
    expect(cordoned).to_contain_text("cordoned")
    expect(cordoned.locator(".meter")).to_have_attribute("aria-label", "gcp-spot: 2 in use, 0 coming, 0 draining, of 4")
    rows = page.locator(".vlist-jobs .vspace .vrow")
    expect(rows).to_have_count(4)
    page.locator(".chip", has_text="failed").click()
    expect(rows).to_have_count(1)
    assert "phase=failed" in page.url
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator(".state.empty")).to_contain_text("No job is like that")
    watched.keep("grid-nothing-found")


def test_a_job_is_shown_on_one_time_axis_with_rounds_nodes_and_decisions(opened: Open) -> None:
    watched = opened()
    page = watched.open(JOB)
    drawn(page)
    assert page.locator(".plot .xaxislayer-above .xtick").count() > 0
    assert page.locator(".plot .main-svg .subplot").count() >= 6
    texts = page.locator(".plot .annotation-text").all_text_contents()
    assert texts[:2] == ["Nodes", "Share of the step spent waiting for a worker"]
    assert texts[-1] == "Rounds and nodes"
    # Times are UTC wherever the browser is; this one is in New York.
    assert all(text.startswith("15:") for text in page.locator(".plot .xtick text").all_text_contents())
    expect(page.locator(".tile", has_text="Deadline")).to_contain_text("47 % of its time used")
    page.get_by_text("The plots as tables").click()
    expect(page.get_by_role("region", name="Rounds")).to_contain_text("15:07:11")


def test_a_mark_of_a_decision_opens_its_card_with_rules_numbers_and_candidates(opened: Open) -> None:
    watched = opened()
    page = watched.open(JOB)
    drawn(page)
    # Of the traces with marks, the one whose marks point upwards.
    place = page.evaluate(
        """() => {
            const plot = document.querySelector('.js-plotly-plot');
            const trace = plot._fullData.find((each) => each.meta === 'decisions'
                && each.marker.symbol === 'triangle-up');
            const { xaxis, yaxis } = plot._fullLayout;
            const box = plot.getBoundingClientRect();
            return [box.left + xaxis._offset + xaxis.d2p(trace.x[1]), box.top + yaxis._offset + yaxis.d2p(trace.y[1])];
        }"""
    )
    page.mouse.move(place[0] - 3, place[1])
    page.mouse.move(*place)
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("queue_bound")
    page.mouse.click(*place)
    card = page.get_by_role("dialog")
    expect(card).to_contain_text("2 → 4 nodes")
    expect(card).to_contain_text("Rules, in order")
    expect(card.get_by_role("region", name="Candidates")).to_contain_text("aws-steady")
    expect(card.locator("tr", has_text="queue_bound")).to_contain_text("decided")
    assert "decision=" in page.url
    watched.keep("card", whole=False)


def test_the_address_holds_what_is_shown_so_that_it_can_be_sent_to_a_colleague(opened: Open) -> None:
    page = opened().open(JOB)
    drawn(page)
    page.evaluate(
        "Plotly.relayout(document.querySelector('.js-plotly-plot'), "
        "{'xaxis.range[0]': '2025-06-15 15:10:00', 'xaxis.range[1]': '2025-06-15 15:14:00'})"
    )
    expect(page.get_by_role("button", name="Show all of it")).to_be_visible()
    page.locator(".decision", has_text="4 → 8").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("4 → 8 nodes")
    sent = page.url
    assert "from=1749999" in sent or "from=1750000" in sent
    other = page.context.new_page()
    other.goto(sent)
    expect(other.get_by_role("dialog")).to_contain_text("4 → 8 nodes")
    other.keyboard.press("Escape")
    drawn(other)
    ticks = other.locator(".plot .xtick text").all_text_contents()
    assert all("15:09" < text < "15:15" for text in ticks), ticks
    other.close()


def test_an_incident_has_its_timeline_what_led_to_what_and_an_archive_to_hand_on(opened: Open) -> None:
    watched = opened()
    page = watched.open(INCIDENT)
    ready(page, "incident")
    watched.keep("incident")
    page.locator("select[name=type]").select_option("launch")
    page.get_by_role("button", name="Show", exact=True).click()
    rows = page.locator(".vlist-timeline .vspace .vrow")
    expect(rows.first).to_contain_text("launch.requested")
    assert all("launch." in text for text in rows.all_inner_texts())
    assert "type=launch" in page.url
    rows.nth(1).locator(".c-text").click()
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("launch.failed")
    expect(panel.locator(".chain").first).to_contain_text("job.submitted")
    panel.locator(".chain button", has_text="job.submitted").click()
    expect(panel.locator("h2")).to_have_text("Event 4")
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export this span").click()
    archive = download.value.path()
    assert archive.stat().st_size > 1_000
    assert archive.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"  # Zstandard


def test_what_is_about_the_whole_grid_is_part_of_an_incident(opened: Open) -> None:
    page = opened().open("/?view=incident")
    ready(page, "incident")
    expect(page.locator(".density .legendtext", has_text="grid")).to_be_attached()
    page.goto(f"{page.url}&tenant=research&job=llama-finetune-k3x9")
    page.locator("select[name=type]").select_option(label="about the grid")
    page.get_by_role("button", name="Show", exact=True).click()
    rows = page.locator(".vlist-timeline .vspace .vrow")
    expect(rows.filter(has_text="provider.cordoned")).to_contain_text("gcp-spot")
    assert "type=grid" in page.url
    assert all(text.startswith("provider.") for text in page.locator(".vspace .c-type").all_inner_texts())
    expect(page.locator(".density .barlayer .point").first).to_be_attached()


def test_what_is_text_is_there_before_the_plots_are(opened: Open) -> None:
    page = opened(locale="en-GB").open()
    held: list[Route] = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(page.url.split("?")[0] + JOB[1:])
    expect(page.locator(".decision").first).to_be_visible()
    expect(page.get_by_role("region", name="Nodes of the job")).to_be_visible()
    expect(page.locator(".tile", has_text="Round")).to_be_visible()
    page.wait_for_function("document.querySelector('script[src*=plotly]') !== null")
    assert page.locator(".plot .main-svg").count() == 0
    while not held:
        page.wait_for_timeout(50)
    held[0].continue_()
    drawn(page)


def test_money_has_dollars_at_its_axis_and_few_nodes_have_each_number_once(opened: Open) -> None:
    page = opened(locale="en-GB").open()

    def small(route: Route) -> None:
        """The job with a thousandth of its cost, and one node at most."""
        answer = route.fetch()
        series = answer.json()
        series["cost"]["value"] = [value / 100_000 for value in series["cost"]["value"]]
        for name in ("target", "training", "paid"):
            series[name]["value"] = [min(value, 1) for value in series[name]["value"]]
        series["decisions"] = []
        route.fulfill(response=answer, json=series)

    page.route("**/series*", small)
    page.goto(page.url.split("?")[0] + JOB[1:])
    drawn(page)
    assert page.locator(".plot .ytick text").all_text_contents() == ["0", "1"]
    money = page.locator(".plot .y5tick text").all_text_contents()
    assert len(money) > 2
    assert all(re.fullmatch(r"\$[\d,.]+", text) for text in money), money


def test_a_what_if_that_cannot_be_told_says_why(opened: Open) -> None:
    watched = opened()
    page = watched.open(INCIDENT)
    page.get_by_role("button", name="Run it").click()
    expect(page.locator(".whatif .state.error")).to_contain_text("this log keeps no step samples")
    watched.said.clear()  # the browser notes every refusal on its console


def test_events_are_filtered_and_paged_and_each_opens(opened: Open) -> None:
    watched = opened()
    page = watched.open(EVENTS)
    rows = page.locator(".vlist-events .vspace .vrow")
    ready(page, "events")
    newest = int(rows.first.locator(".c-seq").inner_text())
    assert newest > 300
    assert rows.count() < 60, "only what is in sight is in the page"
    page.get_by_label("Type").fill("decision")
    page.get_by_label("Job").fill("reward-model-p0aa")
    page.get_by_role("button", name="Filter").click()
    expect(rows.first.locator(".c-type")).to_contain_text("decision.")
    assert set(page.locator(".vlist-events .vspace .c-about").all_inner_texts()) == {"reward-model-p0aa"}
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Before #").fill("10")
    page.get_by_role("button", name="Filter").click()
    expect(rows.first.locator(".c-seq")).to_have_text("9")
    expect(rows).to_have_count(9)


# --------------------------------------------------------------------------------------------------------------------
# Texts of the log
# --------------------------------------------------------------------------------------------------------------------


def test_what_wants_to_be_markup_is_shown_letter_by_letter_in_every_view(opened: Open) -> None:
    watched = opened()
    page = watched.open()

    def renamed(route: Route) -> None:
        """What a gateway with such a job in its log would answer."""
        answer = route.fetch()
        text = answer.text().replace('"p7a1-1"', json.dumps(NASTY)).replace("aws-steady", json.dumps(NASTY)[1:-1])
        route.fulfill(response=answer, body=text.replace("vision-sweep-77d1", json.dumps(NASTY)[1:-1]))

    page.route(re.compile(r"/v1/(jobs|providers|events|timeline)(?!.*stream)"), renamed)
    for view, address in {**VIEWS, "events": f"{EVENTS}&type=launch.failed"}.items():
        page.goto(f"{watched.url}{address}")
        ready(page, view)
        shown = page.locator("main").inner_text() + "".join(page.locator("main text").all_text_contents())
        assert NASTY in shown, view
        assert page.locator("main img").count() == 0
        assert page.title() != "owned"
    page.goto(f"{watched.url}{JOB}")
    drawn(page)
    page.locator(".decision", has_text="2 → 4").first.or_(page.locator(".decision").first).click()
    expect(page.get_by_role("dialog")).to_contain_text(NASTY)
    assert page.title() != "owned"


# --------------------------------------------------------------------------------------------------------------------
# Keyboard, screen readers, phones, themes
# --------------------------------------------------------------------------------------------------------------------


def test_everything_is_reached_and_used_by_keyboard(opened: Open) -> None:
    page = opened().open()
    focused = "document.activeElement.textContent.trim() || document.activeElement.id"
    ready(page, "grid")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    jobs = page.get_by_role("table", name="Jobs")
    for _ in range(12):
        page.keyboard.press("Tab")
        if jobs.evaluate("(table) => table === document.activeElement"):
            break
    expect(jobs).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("End")
    expect(page.locator(".vrow.active")).to_contain_text("llama-finetune")
    assert jobs.get_attribute("aria-activedescendant") == page.locator(".vrow.active").get_attribute("id")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("llama-finetune-k3x9")
    drawn(page)
    decision = page.locator(".decision", has_text="4 → 8").first
    decision.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("4 → 8 nodes")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(decision).to_be_focused()
    page.go_back()
    ready(page, "grid")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_landmarks_one_heading_and_names_for_what_can_be_used(opened: Open, view: str) -> None:
    page = opened().open(VIEWS[view])
    ready(page, view)
    for role in ("banner", "navigation", "main"):
        expect(page.get_by_role(role)).to_have_count(1)
    expect(page.locator("h1")).to_have_count(1)
    assert page.locator("[aria-live=polite], [role=status]").count() >= 1
    nameless: list[Any] = page.evaluate(
        """() => [...document.querySelectorAll('main button, main input, main select, main a, header button')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length))
            .map((each) => each.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("view", VIEWS)
def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Open, view: str) -> None:
    watched = opened(viewport=PHONE)
    page = watched.open(VIEWS[view])
    ready(page, view)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        """Math.min(...[...document.querySelectorAll('main p, main li, main td, main span, main button')]
            .filter((each) => each.checkVisibility()).map((each) => parseFloat(getComputedStyle(each).fontSize)))"""
    )
    assert small >= 11.5
    watched.keep(f"phone-{view}")


def luminance(colour: str) -> float:
    red, green, blue = (int(float(each)) for each in re.findall(r"[\d.]+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def colour_of(page: Page, selector: str, which: str) -> float:
    return luminance(
        page.evaluate(
            "([selector, which]) => getComputedStyle(document.querySelector(selector))[which]", [selector, which]
        )
    )


def test_light_and_dark_follow_the_system_until_one_is_chosen(opened: Open) -> None:
    watched = opened(color_scheme="dark")
    page = watched.open(JOB)
    drawn(page)
    assert colour_of(page, "body", "backgroundColor") < 0.2
    assert colour_of(page, "body", "color") > 0.7
    assert colour_of(page, ".plot .xtick text", "fill") > 0.5
    watched.keep("job-dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator(".plot .xtick text").first).to_have_css("fill", "rgb(90, 100, 117)")
    assert colour_of(page, "body", "backgroundColor") > 0.9
    watched.keep("job-light")
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert colour_of(page, "body", "backgroundColor") < 0.2
    page.reload()
    assert colour_of(page, "body", "backgroundColor") < 0.2
    for view in ("grid", "events"):
        page.goto(f"{watched.url}{VIEWS[view]}")
        ready(page, view)
        watched.keep(f"{view}-dark")


# --------------------------------------------------------------------------------------------------------------------
# The policy, and what goes wrong
# --------------------------------------------------------------------------------------------------------------------


def test_the_policy_stops_scripts_styles_and_requests_that_are_not_the_pages_own(browser: Browser, day: Served) -> None:
    page = browser.new_page()
    answer = page.goto(day.url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    blocked = page.evaluate(
        """async () => {
            const blocked = [];
            document.addEventListener('securitypolicyviolation', (event) => blocked.push(event.effectiveDirective));
            await fetch('https://example.invalid/').catch(() => null);
            const script = document.createElement('script');
            script.textContent = 'document.title = "owned"';
            document.head.append(script);
            document.body.setAttribute('style', 'display: none');
            await new Promise((done) => setTimeout(done, 100));
            return blocked;
        }"""
    )
    assert blocked == ["connect-src", "script-src-elem", "style-src-attr"]
    assert page.title() != "owned"
    page.close()


def test_a_view_that_cannot_be_loaded_says_so_and_is_loaded_when_asked_again(opened: Open) -> None:
    watched = opened()
    page = watched.open()
    page.route("**/v1/jobs/**/series*", lambda route: route.abort())
    page.goto(f"{watched.url}{JOB}")
    expect(page.locator(".state.error")).to_contain_text("the gateway does not answer")
    watched.keep("error")
    page.unroute("**/v1/jobs/**/series*")
    page.get_by_role("button", name="Try again").click()
    drawn(page)
    page.goto(f"{watched.url}/?view=job&tenant=research&job=nobody")
    expect(page.locator(".state.error")).to_contain_text("there is no job nobody")
    watched.said.clear()  # the browser notes what failed on its console


def test_a_session_that_is_over_is_noticed_and_a_key_is_asked_for(opened: Open) -> None:
    watched = opened(locale="en-GB")
    page = watched.open(JOB)
    drawn(page)
    page.context.clear_cookies()
    page.locator(".decision").first.click()
    expect(page.get_by_label("Key")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    watched.said.clear()  # the browser notes the refusal on its console
