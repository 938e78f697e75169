"""The checks of the chaos pass for a healthy ledger, and fail for each fault that they are there for."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos import rounds
from chaos.asks import Ask, answer_in
from chaos.checks import Found, problems_in
from chaos.points import POINTS, Trap
from chaos.rounds import Run
from chaos.run import AgentRound, found_in
from chaos.servers import AGENTS, Gone, Place, Served
from dragoman.agents.ledger import EntryStatus, LedgerEntry

CLIENT = "client:ada"
UNKNOWN = {"code": "TIMEOUT", "message": "The process ended", "details": {"reason": "unknown_outcome"}}


def entry(number: int, target: str, item: str, **facts: Any) -> LedgerEntry:
    made = LedgerEntry(
        number=number,
        message_id=f"message {number}",
        kind="REQUEST",
        source=CLIENT,
        target=target,
        owner=CLIENT,
        seq=number,
        payload=msgspec.json.encode({"type": "work", "payload": item}),
        accepted_at=0.0,
        expires_at=1.0,
        status=EntryStatus.COMPLETED,
        request_id=f"request {number}",
        attempts=1,
    )
    return msgspec.structs.replace(made, **facts)


def healthy() -> Found:
    return Found(
        asks=[
            Ask("request 1", "relay", "one", [1, 1]),
            Ask("request 2", "relay", "two", [2]),
            Ask("request 3", "outside", "three", [1]),
            Ask("request 4", "outside", "four", [UNKNOWN]),
            Ask("request 5", "asker", "five", [1]),
        ],
        entries=[
            entry(1, "relay", "one"),
            entry(2, "relay", "two"),
            entry(3, "outside", "three"),
            entry(4, "outside", "four", status=EntryStatus.UNKNOWN, error=msgspec.json.encode(UNKNOWN)),
            entry(5, "asker", "five"),
            entry(6, "sink", "one", kind="EVENT", source="relay", request_id=None),
            entry(7, "sink", "two", kind="EVENT", source="relay", request_id=None),
            entry(8, "tally", "five of asker", source="asker"),
            entry(9, CLIENT, "", kind="RESPONSE"),
        ],
        states={
            "relay": {"count": 2, "one": 1, "two": 2},
            "sink": {"count": 2, "one": 1, "two": 2},
            "outside": {"count": 1, "three": 1},
            "asker": {"count": 1, "five": 1},
            "tally": {"count": 1, "five of asker": 1},
        },
        outside=Counter({("outside", "three"): 1, ("outside", "four"): 1}),
    )


def with_entry(number: int, **facts: Any) -> Callable[[Found], Found]:
    def change(found: Found) -> Found:
        changed = [msgspec.structs.replace(each, **facts) if each.number == number else each for each in found.entries]
        return replace(found, entries=changed)

    return change


def without_entry(number: int) -> Callable[[Found], Found]:
    return lambda found: replace(found, entries=[each for each in found.entries if each.number != number])


def with_answers(number: int, *answers: Any) -> Callable[[Found], Found]:
    def change(found: Found) -> Found:
        asks = list(found.asks)
        asks[number - 1] = replace(asks[number - 1], answers=list(answers))
        return replace(found, asks=asks)

    return change


def with_state(agent: str, **state: int) -> Callable[[Found], Found]:
    return lambda found: replace(found, states={**found.states, agent: state})


def with_outside(**times: int) -> Callable[[Found], Found]:
    return lambda found: replace(found, outside=Counter({("outside", item): count for item, count in times.items()}))


def test_a_healthy_ledger_has_no_problems() -> None:
    assert problems_in(healthy()) == []


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda found: replace(found, contradictions=["a gap"]), "a gap"),
        (with_entry(6, status=EntryStatus.WAITING), "message 6 to sink is still waiting"),
        (with_entry(1, status=EntryStatus.UNKNOWN), "message 1 to relay is unknown, though it may be repeated"),
        (with_entry(1, status=EntryStatus.DEAD, attempts=4), "message 1 to relay is dead after 4 attempts"),
        (with_entry(1, status=EntryStatus.FAILED), "message 1 to relay is failed"),
        (with_entry(1, status=EntryStatus.EXPIRED), "message 1 to relay is expired"),
        (without_entry(1), "request request 1 to relay is in the ledger 0 times"),
        (with_entry(2, request_id="request 1"), "request request 1 to relay is in the ledger 2 times"),
        (lambda found: replace(found, asks=found.asks[1:]), "nobody asked request 1"),
        (with_answers(1), "request request 1 to relay has no answer"),
        (with_answers(1, 1, 2), "request request 1 to relay has different answers: [1, 2]"),
        (with_answers(1, 2), "request request 1 to relay was answered 2, which is not what its agent recorded"),
        (with_answers(4, 1), "request request 4 to outside is unknown, and was answered 1"),
        (with_state("sink", count=1, two=1), "sink has lost one"),
        (with_state("sink", count=3, one=1, two=2, three=3), "sink has recorded three, which did not complete"),
        (with_state("sink", count=3, one=1, two=3), "sink has counted to 3 over 2 items"),
        (with_state("sink", count=2, one=2, two=1), "sink has handled two before one, which was sent before it"),
        (with_entry(7, payload=b'{"payload":"one"}'), "sink has completed one 2 times"),
        (without_entry(6), "relay has completed one 1 times, and sent it on 0 times"),
        (with_entry(1, status=EntryStatus.DEAD, attempts=5), "relay has completed one 0 times, and sent it on 1 times"),
        (without_entry(8), "asker has completed five, and asked 0 times"),
        (with_outside(four=1), "outside has completed three, and not done it"),
        (with_outside(three=1, four=2), "outside has done four 2 times"),
        (with_entry(4, status=EntryStatus.DEAD, attempts=5), "outside has done four, which is dead"),
    ],
)
def test_a_fault_is_found(break_it: Callable[[Found], Found], problem: str) -> None:
    assert problem in problems_in(break_it(healthy()))


def test_a_trap_springs_once_at_its_point_and_its_turn() -> None:
    sprung: list[int] = []
    passed = [point for _ in range(3) for point in POINTS]
    trap = Trap("begin known", 2, lambda: sprung.append(turn))
    for turn, point in enumerate(passed):  # noqa: B007 - the trap reads it
        trap(point)
    assert sprung == [len(POINTS) + POINTS.index("begin known")]


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (UNKNOWN, True),
        ({"code": "TIMEOUT", "message": "No response", "details": {"timeoutMs": 1, "outcome": "UNKNOWN"}}, False),
        ({"code": "INTERNAL", "message": "The server's storage failed", "details": {"reason": "storage_busy"}}, False),
    ],
)
def test_an_answer_without_the_outcome_is_not_taken_for_one(error: dict[str, Any], is_final: bool) -> None:
    result = {"isError": True, "content": [{"type": "text", "text": msgspec.json.encode(error).decode()}]}
    assert answer_in(result) == (error, is_final)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "problems"), [("agents.py", []), ("repeating_agents.py", ["outside has done an item 2 times"])]
)
async def test_work_that_is_wrongly_repeated_is_found(tmp_path: Path, agents: str, problems: list[str]) -> None:
    place = Place(tmp_path, target=AGENTS.with_name(agents))
    ask = Ask("b1946ac9-2492-4d23-8c21-d4e8a9f1c2d3", "outside", "an item")
    first = await Served.start(place, "--point", "handler ended")
    with pytest.raises(Gone):
        await first.request(ask.target, ask.item, ask.request_id)
    assert await first.ended() == -signal.SIGKILL
    second = await Served.start(place)
    answer, is_final = answer_in(await second.request(ask.target, ask.item, ask.request_id))
    assert is_final
    ask.answers.append(answer)
    assert await second.end(signal.SIGTERM) == 0
    assert problems_in(await found_in(place, [ask])) == problems


@pytest.mark.slow
async def test_a_run_kills_as_often_as_it_is_told_and_finds_nothing(tmp_path: Path) -> None:
    report = await Run(AgentRound, 3, tmp_path, seed=1).run()
    assert (report.problems, report.count) == ([], 3)
    assert report.requests > 0


@pytest.mark.slow
@pytest.mark.nightly
async def test_all_servers_of_a_round_sleep_and_nothing_is_taken_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "KILLS_OF_A_SLEEP", 2)
    report = await Run(AgentRound, 8, tmp_path, seed=1).run()
    assert (report.problems, report.count) == ([], 8)
    assert report.sleeps > 0
