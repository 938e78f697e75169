"""The fuzzers' oracle finds inputs that cost too much, and lets the others pass."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import pytest

from fuzz import amplify, costly, costs
from fuzz.costs import Bounds, Cost, CostFound, CostOracle

FUZZ = Path(amplify.__file__).parent
BOUNDS = Bounds(seconds=0.01, seconds_per_byte=1e-6, seconds_per_step=1e-6, held=1 << 16)
LARGE = bytes(range(256)) * 128


@pytest.fixture(autouse=True)
def _nothing_else_to_collect() -> None:
    """As in a fuzzer's own process: a collection looks only at what came since."""
    gc.collect()
    gc.freeze()


def _free(function: Callable[[bytes], object]) -> Callable[[bytes], Cost]:
    def run(data: bytes) -> Cost:
        function(data)
        return Cost(0)

    return run


def test_a_function_that_takes_time_in_proportion_to_its_input_passes() -> None:
    judge = CostOracle(lambda data: Cost(len(data) * 9e-7), BOUNDS)
    for data in (b"", b"x", LARGE, LARGE * 8):
        judge(data)


def test_a_function_that_takes_time_in_proportion_to_the_square_of_its_input_is_found() -> None:
    judge = CostOracle(lambda data: Cost(len(data) ** 2 * 1e-10), BOUNDS)
    judge(LARGE[:200])
    with pytest.raises(
        CostFound, match=r"an input of 32,768 bytes, 1 steps, takes .* µs per byte; the bound is 42\.8 ms"
    ):
        judge(LARGE)


def test_an_input_that_was_slow_once_passes() -> None:
    seconds = chain([5.0, 0.3], repeat(0.001))
    CostOracle(lambda data: Cost(next(seconds)), BOUNDS)(b"x")


def test_a_step_has_a_cost_of_its_own() -> None:
    CostOracle(lambda data: Cost(0.015, steps=10_000), BOUNDS)(b"x")
    with pytest.raises(CostFound, match=r"10 steps, takes 15\.0 ms"):
        CostOracle(lambda data: Cost(0.015, steps=10), BOUNDS)(b"x")


def test_a_connection_that_holds_on_to_much_memory_is_found_unless_it_did_so_once() -> None:
    with pytest.raises(CostFound, match=r"leaves 100,000 bytes held by its open connection, 10,000\.0 per byte"):
        CostOracle(lambda data: Cost(0, held=100_000), BOUNDS)(b"0123456789")
    held = chain([100_000], repeat(0))
    CostOracle(lambda data: Cost(0, held=next(held)), BOUNDS)(b"x")


@pytest.mark.parametrize("keep", [lambda data: [None] * 50, lambda data: bytes(5000)], ids=["small", "large"])
def test_an_input_that_leaves_memory_behind_each_time_is_found(keep: Callable[[bytes], object]) -> None:
    kept: list[object] = []
    with pytest.raises(
        CostFound, match=r"an input of 5 bytes leaves [\d,]+ bytes behind each time that it is repeated"
    ):
        CostOracle(_free(lambda data: kept.append(keep(data))), BOUNDS)(b"input")


def test_memory_that_is_kept_up_to_a_bound_passes() -> None:
    kept: list[object] = []

    def keep(data: bytes) -> None:
        kept.append(bytes(5000))
        del kept[:-100]

    CostOracle(_free(keep), BOUNDS)(b"input")
    assert len(kept) == 100


def test_garbage_in_cycles_is_not_memory_that_is_kept() -> None:
    def make(data: bytes) -> None:
        cycle: list[object] = [bytes(5000)]
        cycle.append(cycle)

    CostOracle(_free(make), BOUNDS)(b"input")


@pytest.mark.slow
def test_amplified_inputs_are_large_and_repeatable() -> None:
    for line in (*costly.CALLS.values(), b"", b"\xff\xfe"):
        found = [amplify.amplify(line, 10_000, random.Random(number)) for number in range(50)]
        assert max(map(len, found)) > 5_000
        assert max(map(len, found)) <= 10_000
        assert found == [amplify.amplify(line, 10_000, random.Random(number)) for number in range(50)]


def test_the_seeds_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (*FUZZ.glob("corpus/*"), *FUZZ.glob("http_corpus/*"))}
    assert sizes.keys() >= costly.CALLS.keys()
    assert {name: size for name, size in sizes.items() if size > 4096} == {}
    assert costs.memory_in_use() > 0
