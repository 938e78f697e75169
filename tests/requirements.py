"""Requirements as data, linked to tests in both directions.

`requirements.toml` lists every requirement. A test names those it would catch a breach of with
`@pytest.mark.requirement("ID", …)`. What no test names is in `pending.toml`: `pending`, with the capability that will
bring it, or `settled`, with the decision and what holds instead. Run as a script, this prints the table by area.
"""

from __future__ import annotations

import ast
import gc
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = (TESTS, *(ROOT / name / "tests" for name in ("bench", "fuzz", "soak", "chaos")))


@dataclass(frozen=True)
class Ledger:
    """Where each requirement stands."""

    areas: dict[str, str]
    tested: dict[str, list[str]]
    pending: dict[str, str]
    settled: dict[str, str]

    def problems(self) -> list[str]:
        """What does not add up; empty when everything does."""
        known = set(self.areas)
        found = [
            f"{place}: {id} is not a requirement"
            for id, places in self.tested.items()
            for place in places[:1]
            if id not in known
        ]
        found += [
            f"pending.toml: {id} is not a requirement" for id in {**self.pending, **self.settled} if id not in known
        ]
        found += [f"{id} is pending, and {self.tested[id][0]} names it" for id in self.pending if id in self.tested]
        found += [f"{id} is both pending and settled" for id in self.pending if id in self.settled]
        accounted = set(self.tested) | set(self.pending) | set(self.settled)
        found += [f"{id} is neither tested, nor pending, nor settled" for id in self.areas if id not in accounted]
        return found


def load() -> Ledger:
    """Read the requirements, the exceptions and every test's marks."""
    listed = tomllib.loads((TESTS / "requirements.toml").read_text("utf-8"))["requirement"]
    exceptions = tomllib.loads((TESTS / "pending.toml").read_text("utf-8"))
    tested: dict[str, list[str]] = {}
    # CPython 3.11 fails to build a syntax tree if a finaliser that runs meanwhile formats a traceback.
    gc.collect()
    gc.disable()
    try:
        for path in sorted(path for folder in FOLDERS for path in folder.rglob("test_*.py")):
            for id, line in marks_in(path.read_text("utf-8")):
                tested.setdefault(id, []).append(f"{path.relative_to(ROOT)}:{line}")
    finally:
        gc.enable()
    return Ledger(
        areas={entry["id"]: entry["area"] for entry in listed},
        tested=tested,
        pending={id: group["capability"] for group in exceptions.get("pending", ()) for id in group["ids"]},
        settled={entry["id"]: entry["decision"] for entry in exceptions.get("settled", ())},
    )


def marks_in(source: str) -> Iterator[tuple[str, int]]:
    """Ids, and the lines where `requirement(…)` names them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, node.lineno


def main() -> int:
    ledger = load()
    total, tested = Counter(ledger.areas.values()), Counter()
    settled, pending = Counter(), Counter()
    for id, area in ledger.areas.items():
        tested[area] += id in ledger.tested
        settled[area] += id in ledger.settled
        pending[area] += id in ledger.pending
    width = max(map(len, total))
    print(f"{'area':{width}}  total  tested  settled  pending")
    for area in total:
        print(f"{area:{width}}  {total[area]:5}  {tested[area]:6}  {settled[area]:7}  {pending[area]:7}")
    print(f"{'all':{width}}  {total.total():5}  {tested.total():6}  {settled.total():7}  {pending.total():7}")
    for problem in ledger.problems():
        print(problem, file=sys.stderr)
    return 1 if ledger.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
