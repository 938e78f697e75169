"""A real browser, and real servers for it to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.node import NotInstalled, find_node, installed
from tests.support.pages import DESK, Opener, choose
from tests.support.sites import QUIET, Site, serving
from tests.support.waiting import PATIENCE

HERE = Path(__file__).parent
AXE = ("axe-core", "4.10.3")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving("tools_on_show.py", "--allow-execute") as found:
        yield found


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, which looks for what keeps people out."""
    node = find_node()
    if node is None:
        pytest.skip("Node.js 22.19 or newer is not installed: make node")
    try:
        return (installed(node, *AXE) / "axe.min.js").read_text("utf-8")
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def pages(browser: Browser) -> Iterator[Opener]:
    """Opens pages, and fails when one of them ran into an error, or ran anything that was shown in it."""
    contexts, problems = [], []

    def open_page(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.goto(address)
        return page

    yield open_page
    ran = [page.evaluate("window.pwned") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert problems == []
    assert [each for each in ran if each is not None] == []


@pytest.fixture
def visit(pages: Opener, site: Site) -> Opener:
    """Opens pages of the explorer."""

    def open_page(address: str | None = None, *, tool: str | None = None, **options: Any) -> Page:
        page = pages(address or site.address, **options)
        if tool is not None:
            choose(page, tool)
        return page

    return open_page
