"""Fails below 90 % of the lines or 80 % of the branches; `coverage report` itself looks at both together."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

LINES, BRANCHES = 90, 80


def verdict(totals: dict[str, Any]) -> tuple[bool, str]:
    """Whether enough was covered, and what to say about it."""
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    enough = lines >= LINES and branches >= BRANCHES
    return enough, f"coverage: {lines:.1f} % of lines (of at least {LINES}), {branches:.1f} % of branches ({BRANCHES})"


def main() -> int:
    report = subprocess.check_output([sys.executable, "-m", "coverage", "json", "-q", "-o", "/dev/stdout"])
    enough, said = verdict(json.loads(report)["totals"])
    print(said)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
