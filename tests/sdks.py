"""Run the tests of what the SDK does on the lowest and the newest version of it that `pyproject.toml` allows.

`make test` runs them on the version of `requirements.lock`. Only another one gets an environment of its own, so that
this takes seconds while lowest, newest and locked are one, and one to three minutes for each that is not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/unit/edge/test_sdk_fit.py",
    "tests/unit/edge/test_sse_sessions.py",
    "tests/interaction/test_differential.py",
    "tests/interaction/test_sdk_client.py",
    "tests/interaction/test_http_resume.py",
    "tests/interaction/test_http_clients.py",
)


def bound() -> str:
    """The requirement of the SDK."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (found,) = [each for each in project["dependencies"] if re.match(r"mcp\b", each)]
    return str(found)


def lowest(requirement: str) -> str:
    """The lowest version that a requirement allows, with all three numbers."""
    version = re.search(r">=\s*([\d.]+)", requirement)
    assert version is not None
    numbers = version[1].split(".")
    return ".".join([*numbers, "0", "0"][:3])


def newest(requirement: str) -> str:
    """The newest version of the index that pip would install for a requirement."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
    said = subprocess.run([*command, "--report", "-", requirement], capture_output=True, text=True, check=True)
    return str(json.loads(said.stdout)["install"][0]["metadata"]["version"])


def passes(version: str) -> bool:
    """Whether the tests pass with this version, in an environment of its own."""
    folder = ROOT / f".venv-mcp-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [*install, "--require-hashes", "-r", str(ROOT / "requirements.lock")],
            [*install, "--no-deps", "-e", str(ROOT)],
            [*install, f"mcp=={version}"],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
    environment = {key: value for key, value in os.environ.items() if key != "DRAGOMAN_TESTS_REQUIRE_ALL"}
    command = [str(python), "-m", "pytest", "-q", "-m", "not nightly", *TESTS]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    requirement, locked = bound(), metadata.version("mcp")
    wanted = {"lowest": lowest(requirement), "newest": newest(requirement)}
    print(f"{requirement}: locked {locked}, " + ", ".join(f"{name} {version}" for name, version in wanted.items()))
    others = sorted({*wanted.values()} - {locked})
    failed = [version for version in others if not passes(version)]
    for version in others:
        print(f"mcp {version}: {'FAILED' if version in failed else 'passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
