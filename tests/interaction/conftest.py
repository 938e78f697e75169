"""Fixtures for programs that need Node.js."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inspector import PACKAGE, VERSION
from tests.support.node import Node, NotInstalled, find_node, installed


@pytest.fixture(scope="session")
def node() -> Node:
    found = find_node()
    if found is None:
        pytest.skip("Node.js 22.19 or newer is not installed: make node")
    return found


@pytest.fixture(scope="session")
def inspector(node: Node) -> Path:
    """The Inspector's program, installed once for all test runs."""
    try:
        home = installed(node, PACKAGE, VERSION)
    except NotInstalled as error:
        pytest.skip(str(error))
    return home / "clients" / "launcher" / "build" / "index.js"
