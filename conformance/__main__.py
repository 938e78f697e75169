"""Runs the suite: `make conformance`. Fails when a check fails that is not expected to, or one passes that is."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from tests.support.node import Node, find_node, installed
from tests.support.processes import environment, free_port

PACKAGE, VERSION = "@modelcontextprotocol/conformance", "0.2.0-alpha.12"
REVISIONS = ("2025-11-25", "2026-07-28")
HERE = Path(__file__).parent
PUBLISHED = HERE.parent / "docs" / "conformance.json"
SCENARIO = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)


class Score(msgspec.Struct):
    """How many checks passed, of how many; and which scenarios have failures, with their number."""

    passed: int
    checks: int
    failing: dict[str, int]


def main() -> int:
    node = find_node()
    if node is None:
        print("Node.js 22.19 or newer is needed: make node")
        return 1
    suite = installed(node, PACKAGE, VERSION) / "dist" / "index.js"
    port = free_port()
    command = [sys.executable, "examples/conformance.py", "--port", str(port)]
    server = subprocess.Popen(command, cwd=HERE.parent, env=environment())
    try:
        wait_for(f"http://127.0.0.1:{port}/ready")
        scores = {each: run(node, suite, f"http://127.0.0.1:{port}/mcp", each) for each in REVISIONS}
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(15)
    PUBLISHED.write_bytes(msgspec.json.format(msgspec.json.encode({"suite": VERSION, "scores": scores})) + b"\n")
    expected = tomllib.loads((HERE / "expected-failures.toml").read_text())
    good = ended == 0
    for revision, score in scores.items():
        print(f"{revision}: {score.passed} of {score.checks} checks passed")
        for scenario in sorted(score.failing.keys() | expected[revision].keys()):
            failed, allowed = score.failing.get(scenario, 0), expected[revision].get(scenario, 0)
            if failed != allowed:
                good = False
                print(f"  {scenario}: {failed} checks failed, and {allowed} were expected to")
    return 0 if good else 1


def wait_for(url: str, patience: float = 20.0) -> None:
    """Until somebody answers there."""
    until = time.monotonic() + patience
    while True:
        try:
            urlopen(url, timeout=2).close()
            return
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def run(node: Node, suite: Path, url: str, revision: str) -> Score:
    """Everything that a revision of the protocol requires, and what is run besides."""
    command = [node.node, str(suite), "server", "--url", url, "--requirements", revision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=node.environment, check=False)
    found = [(name, int(passed), int(failed)) for name, passed, failed in SCENARIO.findall(done.stdout)]
    if not found:
        raise RuntimeError(f"the suite did not run: {(done.stdout + done.stderr)[-2000:]}")
    passed = sum(passed for _, passed, _ in found)
    failing = {name: failed for name, _, failed in found if failed}
    return Score(passed, passed + sum(failing.values()), failing)


if __name__ == "__main__":
    sys.exit(main())
