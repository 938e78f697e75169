"""Run a target of the Makefile, by default `test`, on each supported Python that is installed.

Each runs in an environment of its own.

Interpreters are found on PATH as `python3.12` and so on, and among pyenv's versions. With `--newest`, only the newest
one runs that is not the version of this process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_VERSION_OF = "import platform; print(platform.python_version())"


def find(version: str) -> tuple[str, str] | None:
    """The path and the full version of an interpreter that works; a shim for a version that is not active does not."""
    for path in _candidates(version):
        try:
            found = subprocess.run([path, "-c", _VERSION_OF], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            continue
        if found.startswith(f"{version}."):
            return path, found
    return None


def _candidates(version: str) -> Iterator[str]:
    if path := shutil.which(f"python{version}"):
        yield path
    if pyenv := shutil.which("pyenv"):
        root = Path(subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip())
        patches = [path.name.rpartition(".")[2] for path in root.glob(f"versions/{version}.*")]
        for patch in sorted((int(each) for each in patches if each.isdecimal()), reverse=True):
            yield str(root / "versions" / f"{version}.{patch}" / "bin" / "python")


def run(path: str, version: str, target: str) -> bool:
    """Whether the target succeeds. Tests that need a tool of the main environment are skipped here."""
    environment = {key: value for key, value in os.environ.items() if key != "DRAGOMAN_TESTS_REQUIRE_ALL"}
    command = ["make", target, f"PYTHON={path}", f"VENV=.venv-{version}"]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newest", action="store_true", help="only the newest version that is not this one")
    parser.add_argument("--target", default="test", help="[%(default)s]")
    options = parser.parse_args()
    installed = {version: found for version in VERSIONS if (found := find(version))}
    chosen = list(installed)
    if options.newest:
        this = f"{sys.version_info.major}.{sys.version_info.minor}"
        chosen = [version for version in installed if version != this][-1:]
    summary, is_green = [], True
    for version in VERSIONS:
        if version not in installed:
            summary.append(f"{version}: not installed")
        elif version not in chosen:
            summary.append(f"{version}: not run")
        else:
            path, full = installed[version]
            print(f"== Python {full}", flush=True)
            began = time.monotonic()
            is_passed = run(path, version, options.target)
            is_green = is_green and is_passed
            summary.append(f"{full}: {'passed' if is_passed else 'FAILED'} in {time.monotonic() - began:.0f} s")
    print("Pythons:", "; ".join(summary), flush=True)
    if not chosen:
        print("No other supported Python is installed.", flush=True)
    return 0 if is_green else 1


if __name__ == "__main__":
    sys.exit(main())
