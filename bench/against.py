"""This tree beside another commit, by the server's CPU time per call: `python -m bench.against REV`.

1. Each tree takes part twice. In every round the four copies take turns at the same work, in processes that live for
   one round, because two processes of the same code can differ by several per cent for as long as they live.
2. The change is the median over the rounds of this tree's cost divided by the other's, as the speed of a machine drifts
   between rounds and hardly within one. After ± is the median distance of a round from that.
3. The two copies of a tree are compared in the same way: how far it is from itself is noise.
4. A path is ok if the change is at most 3 % plus the larger of those two distances.

Client, load and tools are this tree's; only the package that serves them differs. Exits with 0 if every path is ok, 1
if one is slower, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.copies import PATHS, Copy, costs_of_a_round
from bench.measure import ROOT
from bench.process import BenchError
from bench.rounds import ENOUGH_ROUNDS, Plan, plan_for, rotated

MARGIN = 0.03
_SECONDS = 0.06


@dataclass(frozen=True)
class Change:
    """A cost as a fraction of another above or below it: 0.03 is 3 % more. `change` is the median of the rounds."""

    change: float
    deviation: float
    """The median distance of a round from `change`."""
    rounds: int

    @classmethod
    def of(cls, costs: Sequence[float], others: Sequence[float]) -> Change:
        ratios = [cost / other for cost, other in zip(costs, others, strict=True)]
        ratio = statistics.median(ratios)
        return cls(ratio - 1, statistics.median(abs(each - ratio) for each in ratios), len(ratios))

    @property
    def distance(self) -> float:
        """How large the change is, or may be by chance: twice the deviation by the root of the rounds is about the
        standard error of the median."""
        return abs(self.change) + 2 * self.deviation / math.sqrt(self.rounds)

    def __str__(self) -> str:
        return f"{self.change:+.1%} ± {self.deviation:.1%}"


@dataclass(frozen=True)
class Costs:
    """What a call cost the two copies of a tree, in microseconds of CPU time, round by round."""

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)

    @property
    def rounds(self) -> list[float]:
        return [sum(pair) / 2 for pair in zip(self.first, self.second, strict=True)]


@dataclass(frozen=True)
class Verdict:
    """This tree beside the other one on one path."""

    this: Costs
    other: Costs

    @property
    def change(self) -> Change:
        return Change.of(self.this.rounds, self.other.rounds)

    @property
    def noise(self) -> tuple[Change, Change]:
        """This tree beside itself, and the other one."""
        this, other = self.this, self.other
        return Change.of(this.first, this.second), Change.of(other.first, other.second)

    @property
    def limit(self) -> float:
        return MARGIN + max(each.distance for each in self.noise)

    @property
    def is_ok(self) -> bool:
        return self.change.change <= self.limit


def worded(rev: str, verdicts: Mapping[str, Verdict]) -> str:
    """The report: a paragraph per path."""
    lines = [f"CPU time per call of this tree against {rev}", ""]
    for path, verdict in verdicts.items():
        this, other = (statistics.median(costs.rounds) for costs in (verdict.this, verdict.other))
        mine, theirs = verdict.noise
        lines += [
            f"{PATHS[path]}: {this:,.1f} µs, {rev} {other:,.1f} µs",
            f"  this vs {rev}: {verdict.change}; this vs itself: {mine}; {rev} vs itself: {theirs}",
            f"  no call costs more than 3 % plus the distance of a tree from itself, {verdict.limit:.1%}: "
            + ("ok" if verdict.is_ok else "SLOWER"),
        ]
    return "\n".join(lines)


def compare(plan: Plan, rev: str, source: Path, paths: Sequence[str]) -> dict[str, Verdict]:
    """Measure this tree against packages in another folder, path by path."""
    this, other = _copies("this", ROOT / "src"), _copies(rev, source)
    for copy in (this[0], other[0]):
        copy.check_source()
    verdicts = {path: Verdict(Costs(), Costs()) for path in paths}
    for turn in range(plan.rounds):
        for path, costs in costs_of_a_round(plan, rotated([this[0], other[0], other[1], this[1]], turn), paths):
            verdict = verdicts[path]
            for tree, found in ((this, verdict.this), (other, verdict.other)):
                for copy, rounds in zip(tree, (found.first, found.second), strict=True):
                    rounds.append(costs[copy.name])
            each = ", ".join(f"{name} {cost:,.1f} µs" for name, cost in costs.items())
            plan.say(f"round {turn + 1} of {plan.rounds}, {path}: {each}")
    return verdicts


def _copies(tree: str, source: Path) -> tuple[Copy, Copy]:
    return Copy(tree, source), Copy(f"{tree} again", source)


@contextmanager
def checked_out(rev: str, folder: Path) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    tree = folder / "tree"
    _git("worktree", "add", "--quiet", "--detach", str(tree), rev)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    # In a session of its own: Ctrl-C at a terminal ends this process, and not the git that cleans up after it.
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise BenchError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    started = time.monotonic()

    def say(words: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {words}", file=sys.stderr, flush=True)

    try:
        rev = _git("rev-parse", "--short", "--verify", f"{options.rev}^{{commit}}")
        with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name, checked_out(rev, Path(name)) as tree:
            plan = replace(
                plan_for(short=False, rounds=options.rounds),
                seconds=options.seconds,
                folder=Path(name),
                say=say,
            )
            verdicts = compare(plan, rev, tree / "src", options.paths)
    except BenchError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 2
    print(worded(rev, verdicts))
    return 0 if all(verdict.is_ok for verdict in verdicts.values()) else 1


def _stop(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _options() -> argparse.Namespace:
    def paths(value: str) -> list[str]:
        if unknown := set(value.split(",")) - set(PATHS):
            raise argparse.ArgumentTypeError(f"no such path: {', '.join(sorted(unknown))}")
        return [path for path in PATHS if path in value.split(",")]

    parser = argparse.ArgumentParser(
        prog="python -m bench.against",
        description=__doc__,
        epilog="paths: " + "; ".join(f"{path}: {title}" for path, title in PATHS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rev", metavar="REV", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=ENOUGH_ROUNDS, help="[%(default)s]")
    parser.add_argument("--paths", type=paths, default=list(PATHS), metavar="PATH,PATH", help="[all of them]")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of one turn of one copy [%(default)s]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
