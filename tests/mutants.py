"""Breaks the code at listed places, one at a time, and runs the tests that are marked with the requirement it breaks.

`mutants.toml` lists them. Each is made in a copy of the tree, under a time limit, and is found if a test with the mark
of its requirement fails. Exits with 1 if one survives, takes too long, or has lost its place in the code.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.requirements import load  # noqa: E402 - it is run as a script

TABLE = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "mutants.md"
TEST_SECONDS, SECONDS = 60, 300.0
"""What one test may take, and all that are marked with one requirement."""
COPIES = 2
FOUND, SURVIVED, LATE = "found", "SURVIVED", "TOO LATE"


@dataclass(frozen=True)
class Mutant:
    """One breach of a requirement: `old`, which stands in `file` once, becomes `new`."""

    id: str
    breach: str
    file: str
    old: str
    new: str

    def problem(self, root: Path) -> str | None:
        """Why it cannot be made; None if it can."""
        path = root / self.file
        count = path.read_text("utf-8").count(self.old) if path.is_file() else 0
        return None if count == 1 else f"{self.id}: {self.file} has the place {count} times: {self.breach}"


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    outcome: str
    by: str
    """The first test that failed, or why none did."""
    seconds: float


def listed() -> list[Mutant]:
    return [Mutant(**each) for each in tomllib.loads(TABLE.read_text("utf-8"))["mutant"]]


class Copy:
    """A copy of the tree, in which one mutant at a time is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # By their contents, since two mutants of one file may have the same size and second.
        compileall.compile_dir(folder / "src", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def judge(self, mutant: Mutant, files: Sequence[str]) -> Result:
        """Break the code, run the marked tests, and mend it."""
        path, began = self._folder / mutant.file, time.monotonic()
        whole = path.read_text("utf-8")
        path.write_text(whole.replace(mutant.old, mutant.new), "utf-8")
        try:
            outcome, by = self._run(mutant.id, files)
        finally:
            path.write_text(whole, "utf-8")
        return Result(mutant, outcome, by, time.monotonic() - began)

    def _run(self, id: str, files: Sequence[str]) -> tuple[str, str]:
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-m", "not nightly", "--timeout", str(TEST_SECONDS),
            "-p", "no:cacheprovider", "--requirement", id, *files,
        ]  # fmt: skip
        # Before what the environment has installed, for servers and commands, too.
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            command, cwd=self._folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return LATE, f"more than {SECONDS:.0f} s"
        if process.returncode == 1:
            return FOUND, _first_failure(said)
        if process.returncode == 0:
            return SURVIVED, "all its tests pass"
        return SURVIVED, f"pytest ends with {process.returncode}: {said.strip().splitlines()[-1:]}"


def _first_failure(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    # The last: a failure is shown with the log of its test, whose lines may begin in the same way.
    return lines[-1].split(" ")[1].partition("[")[0] if lines else "?"


def judge_all(mutants: Iterable[Mutant]) -> list[Result]:
    """What came of each, in the order of the list."""
    tested = load().tested
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    for each in enumerate(mutants):
        waiting.put(each)
    results: dict[int, Result] = {}

    def work(folder: Path) -> None:
        copy = Copy(folder)
        while not waiting.empty():
            try:
                number, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            files = sorted({place.rpartition(":")[0] for place in tested.get(mutant.id, ())})
            results[number] = result = copy.judge(mutant, files)
            print(f"{result.outcome:8} {result.seconds:5.1f} s  {mutant.id}: {mutant.breach} ({result.by})", flush=True)

    with tempfile.TemporaryDirectory(prefix="dragoman-mutants-") as folder:
        threads = [threading.Thread(target=work, args=(Path(folder, str(each)),)) for each in range(COPIES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [results[number] for number in sorted(results)]


PAGE_TEXT = """\
# Breaches that the tests find

`make mutants` breaks the code at the places in `tests/mutants.toml`, one at a time, and runs the tests that are marked
with the requirement. This is its last result: {found} of {count} breaches, of {ids} requirements, were found.

| Requirement | Breach | Found by |
|---|---|---|
{rows}
"""


def page_of(results: Sequence[Result]) -> str:
    """The last result, for the docs."""
    return PAGE_TEXT.format(
        found=sum(each.outcome == FOUND for each in results),
        count=len(results),
        ids=len({each.mutant.id for each in results}),
        rows="\n".join(
            f"| {each.mutant.id} | {each.mutant.breach} | {each.by.rpartition('/')[2]} |" for each in results
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="only the mutants of these requirements")
    options = parser.parse_args()
    mutants = [each for each in listed() if not options.ids or each.id in options.ids]
    gone = [problem for each in mutants if (problem := each.problem(ROOT)) is not None]
    results = judge_all(each for each in mutants if each.problem(ROOT) is None)
    survivors = [each for each in results if each.outcome != FOUND]
    for each in survivors:
        print(f"{each.mutant.id} survives: {each.mutant.breach} ({each.by})", file=sys.stderr)
    print(*gone, sep="\n", end="\n" if gone else "", file=sys.stderr)
    print(f"{len(results)} mutants, {len(results) - len(survivors)} found, {len(gone)} not there")
    if not options.ids and not gone:
        PAGE.write_text(page_of(results), "utf-8")
    return 1 if survivors or gone or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
