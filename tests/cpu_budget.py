"""Fails if a run of the tests took a quarter more processor time than its budget.

What is compared is the time divided by that of a fixed piece of work on the same machine, before and after the run.
A busy machine makes both longer, and not always equally: `make budget` fails for two such runs in a row.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import msgspec

BUDGET = Path(__file__).with_name("cpu_budget.toml")
MARGIN = 1.25


def verdict(yardsticks: float, budget: float) -> tuple[bool, str]:
    """Whether that is within the budget, and what to say about it."""
    said = f"processor time: {yardsticks:.0f} times the yardstick, of {budget:.0f} and a quarter"
    return yardsticks <= MARGIN * budget, said


def main() -> int:
    budget = tomllib.loads(BUDGET.read_text("utf-8"))["test"]
    is_within, said = verdict(msgspec.json.decode(Path(sys.argv[1]).read_bytes())["yardsticks"], budget)
    print(said)
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
