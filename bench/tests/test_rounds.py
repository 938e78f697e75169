"""Whatever is compared takes turns, and is compared within the rounds that it shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.rounds import Run, Way, compared, cpu_of, plan_for, ratio_of, spread_of, take_turns


def _run(cpu: float = 1.0, latencies: list[float] | None = None) -> Run:
    return Run(1, 1.0, cpu, latencies or [])


def test_servers_take_turns_in_another_order_and_some_in_every_third_round_only() -> None:
    order: list[str] = []
    said: list[str] = []

    def way(name: str, every: int = 1) -> Way:
        def run() -> Run:
            order.append(name)
            return _run()

        return Way(name, run, every)

    plan = replace(plan_for(short=True, rounds=4), say=said.append)
    rounds = take_turns(plan, [way("a"), way("b"), way("seldom", 3)], "calls")
    assert order == ["a", "b", "seldom", "b", "a", "a", "b", "a", "b", "seldom"]
    assert {name: list(runs) for name, runs in rounds.items()} == {
        "a": [0, 1, 2, 3],
        "b": [0, 1, 2, 3],
        "seldom": [0, 3],
    }
    assert said[1] == "calls, round 2 of 4: a 1,000,000.0 µs, b 1,000,000.0 µs"


def test_a_ratio_is_the_median_over_the_rounds_in_which_both_took_part() -> None:
    mine = {0: _run(1.0), 1: _run(50.0), 2: _run(4.0), 3: _run(9.0)}
    theirs = {0: _run(1.0), 2: _run(2.0), 3: _run(3.0)}
    assert ratio_of(mine, theirs, cpu_of) == {"median": 2.0, "low": 1.5, "high": 2.5, "least": 1.0, "most": 3.0}


def test_a_single_round_has_no_spread() -> None:
    assert set(spread_of([7.0]).values()) == {7.0}


def test_servers_are_compared_by_the_processors_time_of_a_call() -> None:
    quick, slow = [0.001] * 100, [0.003] * 100
    rounds = {
        "ours": {turn: _run(0.5, latencies) for turn, latencies in enumerate((quick, slow, slow))},
        "theirs": {turn: _run(2.0) for turn in range(3)},
    }
    figures = compared(rounds, "ours")
    assert figures["theirs"]["ratio"]["median"] == 0.25
    assert "ratio" not in figures["ours"]
    assert figures["ours"]["cpu_us"]["median"] == pytest.approx(500_000)
    assert [figures["ours"][f"p{cut}_us"] for cut in (50, 95, 99)] == pytest.approx([3_000] * 3)
    assert "p50_us" not in figures["theirs"]
