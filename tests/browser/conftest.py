"""A real browser, and real servers for it to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.node import NotInstalled, find_node, installed
from tests.support.sites import QUIET, Site, serving

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
