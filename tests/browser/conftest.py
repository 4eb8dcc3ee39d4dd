"""A browser, pages in it, and gateways over simulated logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from served_log import Open, Served, serving
from watched_page import ARGUMENTS, CHROMIUM, CONTEXT, WatchedPage, sync_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway over a simulated day."""
    with serving("day", tmp_path_factory.mktemp("day")) as served:
        yield served


@pytest.fixture(scope="module")
def signed_in(browser: Browser, day: Served) -> Iterator[BrowserContext]:
    """Somebody who has signed in at `day`."""
    context = browser.new_context(**CONTEXT)
    page = context.new_page()
    WatchedPage(page, day.url, day.key).sign_in()
    page.close()
    yield context
    context.close()


@pytest.fixture
def opened(browser: Browser, signed_in: BrowserContext, day: Served) -> Iterator[Open]:
    """Opens pages of somebody who has signed in; with options they are in a browser's window of their own.

    At the end nothing may have been said on their consoles or asked of anybody else.
    """
    pages: list[WatchedPage] = []
    contexts: list[BrowserContext] = []

    def open_page(**options: Any) -> WatchedPage:
        context = signed_in
        if options:
            context = browser.new_context(**{**CONTEXT, **options}, storage_state=signed_in.storage_state())
            contexts.append(context)
        pages.append(WatchedPage(context.new_page(), day.url, day.key))
        return pages[-1]

    yield open_page
    for watched in pages:
        watched.page.unroute_all(behavior="ignoreErrors")
        watched.page.close()
    for context in contexts:
        context.close()
    assert [text for watched in pages for text in watched.said] == []
    assert [url for watched in pages for url in watched.asked] == []
