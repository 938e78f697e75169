"""Build a wheel, install it with every extra in a fresh environment, and use it from there.

Nothing of this checkout is used but what the wheel was built from: the commands run in an empty folder, with a home of
their own. Ends with an error at the first step that fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEP_SECONDS = 300
IMPORTS = "import apcore_mcp; apcore_mcp.serve; import dragoman.edge.http.app, joserfc, opentelemetry.sdk, apcore"


def main() -> None:
    """Do it all in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dragoman-wheel-") as place:
        folder = Path(place)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT), cwd=folder)
        (wheel,) = folder.glob("dragoman-*.whl")
        check_contents(wheel)
        run(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
        binaries = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        run(str(binaries / "python"), "-m", "pip", "install", "-q", f"{wheel}[all]", cwd=folder)
        run(str(binaries / "python"), "-m", "pip", "check", cwd=folder)
        use(binaries, folder)
    print("The wheel installs with every extra, and works.")


def check_contents(wheel: Path) -> None:
    """Fail unless the wheel holds every file of both packages."""
    kept = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=STEP_SECONDS
    ).stdout.split()
    with zipfile.ZipFile(wheel) as archive:
        missing = {name.removeprefix("src/") for name in kept} - set(archive.namelist())
    if missing:
        sys.exit(f"not in the wheel: {', '.join(sorted(missing))}")


def use(binaries: Path, folder: Path) -> None:
    """Fail unless the installed commands work in an empty folder."""
    empty = folder / "empty"
    empty.mkdir()
    dragoman = str(binaries / "dragoman")
    expect("dragoman ", run(dragoman, "--version", cwd=empty))
    called = json.loads(run(dragoman, "call", "echo", "message=hi", cwd=empty))
    expect("{'message': 'hi'}", str(called))
    found = json.loads(run(dragoman, "doctor", "--json", cwd=empty))["findings"]
    expect("dragoman", next(each["message"] for each in found if each["check"] == "packages"))
    run(str(binaries / "python"), "-P", "-c", IMPORTS, cwd=empty)
    expect("--extensions-dir", run(str(binaries / "apcore-mcp"), "--help", cwd=empty))


def expect(part: str, said: str) -> None:
    if part not in said:
        sys.exit(f"expected {part!r} in {said!r}")


def run(*command: str, cwd: Path) -> str:
    """What a command prints; or the end, with all that it said."""
    hidden = ("DRAGOMAN_", "PYTHON", "COVERAGE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    if "pip" not in command:  # Which finds packages as its user has set it up.
        home = {"HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd), "XDG_DATA_HOME": str(cwd)}
        environment |= home
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
