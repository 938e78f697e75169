"""What both fuzzers do with libFuzzer."""

from __future__ import annotations

import gc
import hashlib
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import atheris

from fuzz.amplify import amplify
from fuzz.costs import Bounds, Cost, CostOracle

TOKENS = Path(__file__).with_name("tokens.dict")
OUT = Path(__file__).with_name("out")
MAX_LENGTH = 256 * 1024
"""Of an input. Costs that grow faster than it do not show in the few kilobytes that libFuzzer would try."""
AMPLIFIED = 8
"""One in so many inputs is followed by a large one, made of it or of a seed. A mutator for libFuzzer that makes such
inputs would fill its corpus with them. It depends on the input alone, so an input that is kept fails again."""


def fuzz(about: str | None, run: Callable[[bytes], Cost], bounds: Bounds, seeds: Sequence[bytes]) -> None:
    """Run inputs until libFuzzer's options say that it is enough; `--help` prints `about` and the bounds.

    `seeds` are run first, so that what is loaded at its first use, such as the SDK, is there for good.
    """
    if "--help" in sys.argv:
        print(about, f"An input may cost: {bounds}", sep="\n")
        return
    print(f"An input may cost: {bounds}", file=sys.stderr)
    for data in seeds:
        run(data)
    gc.collect()
    gc.freeze()  # Garbage is collected for every input, and not looked for among what is there for good.
    judge = CostOracle(run, bounds)

    def one_input(data: bytes) -> None:
        judge(data)
        number, is_amplified = divmod(zlib.crc32(data), AMPLIFIED)
        if is_amplified == 0:
            _judge_large(data if number % 2 else seeds[number // 2 % len(seeds)], number, judge)

    atheris.Setup([*sys.argv, f"-dict={TOKENS}", f"-max_len={MAX_LENGTH}"], one_input)
    atheris.Fuzz()


def _judge_large(data: bytes, number: int, judge: Callable[[bytes], None]) -> None:
    large = amplify(data, MAX_LENGTH, random.Random(number))
    try:
        judge(large)
    except Exception:
        OUT.mkdir(exist_ok=True)
        kept = OUT / f"amplified-{hashlib.sha1(large).hexdigest()}"
        kept.write_bytes(large)
        print(f"The input that failed is an amplified one: {kept}", file=sys.stderr)
        raise


def write_seeds(folder: Path, seeds: dict[str, bytes]) -> None:
    """Write inputs to begin with, by name."""
    for name, data in seeds.items():
        folder.joinpath(name).write_bytes(data)
