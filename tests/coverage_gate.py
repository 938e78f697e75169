"""Fails below 90 % of the lines or 80 % of the branches; `coverage report` itself looks at both together.

The apcore bridge is small beside the runtime, so it has to reach that by itself as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LINES, BRANCHES = 90, 80
PARTS = ("src/", "src/apcore_mcp/")
_COUNTED = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def totals_of(report: dict[str, Any], part: str) -> dict[str, int]:
    """What the files of a part add up to, in a report of `coverage json`."""
    files = [each["summary"] for path, each in report["files"].items() if Path(path).as_posix().startswith(part)]
    return {name: sum(each[name] for each in files) for name in _COUNTED}


def verdict(totals: dict[str, Any]) -> tuple[bool, str]:
    """Whether enough was covered, and what to say about it."""
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    enough = lines >= LINES and branches >= BRANCHES
    return enough, f"coverage: {lines:.1f} % of lines (of at least {LINES}), {branches:.1f} % of branches ({BRANCHES})"


def main() -> int:
    report = subprocess.check_output([sys.executable, "-m", "coverage", "json", "-q", "-o", "/dev/stdout"])
    verdicts = {part: verdict(totals_of(json.loads(report), part)) for part in PARTS}
    for part, (_, said) in verdicts.items():
        print(f"{part}: {said}")
    return 0 if all(enough for enough, _ in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
