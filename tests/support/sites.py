"""Servers with an explorer, and how a browser is started to look at one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.forking import start
from tests.support.processes import Lines, command, environment, free_port
from tests.support.served import path_of
from tests.support.waiting import PATIENCE

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
    process = start(
        command(path_of(tools), *http),
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
