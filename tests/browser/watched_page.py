"""A page in a real browser that notes what it says on its console and what it asks of the network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
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
DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 375, "height": 740}
#: On a busy machine everything takes longer; a test waits for what is to happen and not for a time.
PATIENCE_MS = 60_000

MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


class WatchedPage:
    """One page of the dashboard.

    Attributes:
        page: the browser's.
        said: on the console, besides what `expected` allows.
        asked: hosts other than the gateway's that it wanted something of.
    """

    def __init__(self, page: Page, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self.page = page
        self.page.set_default_timeout(PATIENCE_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc and not url.startswith(("data:", "blob:")):
            self.asked.append(url)

    def sign_in(self) -> Page:
        """Sign in as a person does, and wait for the grid."""
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("Key").fill(self.key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.locator(".tile").first.wait_for()
        return self.page

    def open(self, address: str = "/") -> Page:
        """Go to an address."""
        self.page.goto(f"{self.url}{address}")
        return self.page

    def keep(self, name: str, *, whole: bool = True) -> None:
        """A screenshot for people, beside CI's other artefacts."""
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"dashboard-{name}.png", full_page=whole)


#: How contexts of these tests are unless they say otherwise; far from UTC, which the page's times are in.
CONTEXT: dict[str, Any] = {"viewport": DESK, "timezone_id": "America/New_York"}


def drawn(page: Page) -> None:
    """Wait until the job's plots are there."""
    page.locator(".plot .main-svg").first.wait_for()
    page.locator(".plot .barlayer .point").first.wait_for(state="attached")
