"""The documentation site in a real browser fits a desktop and a phone, makes no requests to other
hosts, and its search finds a message."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs a Chromium (Debian: apt-get install chromium)"
    ),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def site(html: Path) -> Iterator[str]:
    """The address of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=html)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.mark.parametrize("width", [1280, 420])
def test_pages_fit_the_window_and_ask_nobody_else(page: Page, site: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "reference-config", "reference-cli", "troubleshooting", "statistics"):
        page.goto(f"{site}{name}.html")
        assert not page.evaluate(TOO_WIDE), name
    assert asked and all(address.startswith(site) for address in asked)


def test_the_search_finds_a_message(page: Page, site: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{site}index.html")
    page.click(".md-search__button")
    page.keyboard.type("the sweep was abandoned")
    page.locator('a[href*="troubleshooting.html?h="]').first.click()
    page.wait_for_url("**/troubleshooting.html*")
