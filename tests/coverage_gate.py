"""Fails when fewer than 80 % of the branches were taken; `coverage report` itself looks at lines and branches together."""

from __future__ import annotations

import json
import subprocess
import sys

totals = json.loads(subprocess.check_output([sys.executable, "-m", "coverage", "json", "-q", "-o", "/dev/stdout"]))["totals"]
lines = 100 * totals["covered_lines"] / totals["num_statements"]
branches = 100 * totals["covered_branches"] / totals["num_branches"]
print(f"coverage: {lines:.1f} % of lines, {branches:.1f} % of branches")
sys.exit(0 if lines >= 90 and branches >= 80 else 1)
