"""A real browser, and real servers for it to look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.interaction.node import NotInstalled, find_node, installed
from tests.interaction.servers import PATIENCE, Lines, command, environment, free_port

HERE = Path(__file__).parent
AXE = ("axe-core", "4.10.3")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
)


class Site(NamedTuple):
    """A server with an explorer."""

    root: str
    address: str
    """What it printed: where to open the page, with the token."""

    @property
    def explorer(self) -> str:
        return f"{self.root}/explorer/"


@contextmanager
def serving(tools: str, *options: str) -> Iterator[Site]:
    """`dragoman serve --explorer`, until the end of the block."""
    port = free_port()
    http = ("--transport", "streamable-http", "--port", str(port), "--explorer", *options)
    process = subprocess.Popen(
        command(str(HERE / tools), *http),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        bufsize=0,
    )
    assert process.stdout is not None
    lines = Lines(process.stdout.fileno())
    lines.start()
    try:
        found = lines.wait_until(lambda said: re.search(rb"http\S+/explorer/\S*", b"\n".join(said)))
        lines.wait_until(lambda said: any(b"mcpServers" in each for each in said) or None)
        yield Site(f"http://127.0.0.1:{port}", found[0].decode())
    finally:
        process.terminate()
        process.wait(PATIENCE)
        lines.all()
        process.stdout.close()


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
