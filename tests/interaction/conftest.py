"""Fixtures for programs that need Node.js."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ext_tasks
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


@pytest.fixture(scope="session")
def tasks_package(node: Node) -> ext_tasks.TasksPackage:
    """The TypeScript packages for clients with tasks, installed once for all test runs."""
    try:
        home = installed(node, ext_tasks.PACKAGE, ext_tasks.VERSION, ext_tasks.CLIENT)
    except NotInstalled as error:
        pytest.skip(str(error))
    return ext_tasks.TasksPackage(node, home)
