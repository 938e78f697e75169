"""What was cut can be read to its end, by whoever got the beginning and by nobody else."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dragoman.access.callers import LOCAL, Caller
from dragoman.cache.bounded import BoundedCache
from dragoman.cache.settings import CacheConfig
from dragoman.replies.artifacts import WHOLE, Artifact, Artifacts, Place
from dragoman.testing import ManualClock
from dragoman.tools.pages import ListResponse, TextResponse
from tests.support.desk import Desk, body_of

ADA, BOB = Caller("ada"), Caller("bob")


def continuations(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body_of(answer)["metadata"]["continuations"]
    return found


def test_answer_says_what_was_cut_and_how_to_go_on() -> None:
    value = {"rows": list(range(250)), "a/b~c": {"text": "x" * 20_000}}
    answer = Desk().give(value)
    told = [{key: each[key] for key in ("path", "kind", "total", "kept")} for each in continuations(answer)]
    assert told == [
        {"path": "/rows", "kind": "list", "total": 250, "kept": 100},
        {"path": "/a~1b~0c/text", "kind": "string", "total": 20_000, "kept": 9985},
    ]
    assert answer["_meta"]["dragoman/nextCursor"] == continuations(answer)[0]["cursor"]


def test_list_goes_on_where_it_was_cut() -> None:
    desk = Desk()
    (first,) = continuations(desk.give(list(range(250))))
    answer = desk.go_on(first["cursor"])
    second = body_of(answer)["data"]
    assert second == answer["structuredContent"]
    cursor = second.pop("nextCursor")
    assert second == {"items": list(range(100, 200)), "total": 250, "limit": 100, "offset": 100, "hasMore": True}
    third = body_of(desk.go_on(cursor))["data"]
    assert third == {"items": list(range(200, 250)), "total": 250, "limit": 100, "offset": 200, "hasMore": False}


def test_string_goes_on_where_it_was_cut() -> None:
    desk = Desk()
    (first,) = continuations(desk.give("a" * 9985 + "b" * 100))
    part = body_of(desk.go_on(first["cursor"]))["data"]
    assert part == {"text": "b" * 100, "total": 10_085, "offset": 9985, "hasMore": False}


def test_same_cursor_gives_the_same_part_again() -> None:
    desk = Desk()
    (first,) = continuations(desk.give(list(range(500))))
    assert desk.go_on(first["cursor"]) == desk.go_on(first["cursor"])


def test_more_cuts_than_can_be_told_leave_the_whole_to_be_read() -> None:
    desk = Desk()
    value = ["x" * 10_001 + str(n) for n in range(30)]
    answer = desk.give(value)
    assert [each["kind"] for each in continuations(answer)] == ["string"] * 20 + ["json"]
    assert desk.whole(answer) == value


def test_item_that_is_too_large_by_itself_is_shortened_as_a_result_is() -> None:
    desk = Desk(max_response_bytes=2000, max_list_items=3)
    value = [1, 2, 3, {"text": "x" * 5000, "numbers": list(range(500))}, {str(n): n for n in range(500)}, 6]
    assert desk.whole(desk.give(value)) == value


def test_parts_are_complete_even_where_strings_may_hardly_be_anything() -> None:
    desk = Desk(max_string_length=1, max_list_items=1)
    assert desk.whole(desk.give(["abc", "de", ["f", "gh"]])) == ["abc", "de", ["f", "gh"]]


# Who may


def test_cursor_of_another_caller_leads_nowhere_as_an_unknown_one_does() -> None:
    desk = Desk()
    (first,) = continuations(desk.give(list(range(250)), desk.call(caller=ADA)))
    token, place, offset, at = first["cursor"].split(".")
    answers = [
        desk.go_on(first["cursor"], BOB),
        desk.go_on(first["cursor"], LOCAL),
        desk.go_on(f"{token[::-1]}.{place}.{offset}.{at}", ADA),
        desk.go_on(f"{token}.99.{offset}.{at}", ADA),
        desk.go_on(f"{token}.{place}.251.{at}", ADA),
        desk.go_on(f"{token}.{place}.{offset}", ADA),
        desk.go_on(f"{token}.0.{offset}.{at}", ADA),
        desk.go_on(f"{token}.{place}.{offset}.999999", ADA),
        desk.go_on(f"{token}.{place}.{offset}.{int(at) - 1}", ADA),
        desk.go_on("", ADA),
        desk.go_on(f"{first['cursor']}\n", ADA),
        desk.go_on("../../etc/passwd", ADA),
    ]
    assert {body_of(answer)["error"]["code"] for answer in answers} == {"NOT_FOUND"}
    assert all(answer == answers[0] for answer in answers)
    assert body_of(desk.go_on(first["cursor"], ADA))["success"] is True


def test_cursor_that_has_expired_leads_nowhere() -> None:
    clock = ManualClock()
    desk = Desk(clock=clock, cache=CacheConfig(default_ttl_ms=1000))
    (first,) = continuations(desk.give(list(range(250))))
    assert body_of(desk.go_on(first["cursor"]))["success"] is True
    clock.advance(1.001)
    assert body_of(desk.go_on(first["cursor"]))["error"]["code"] == "NOT_FOUND"


def test_cursors_cannot_be_guessed() -> None:
    desk = Desk()
    tokens = {continuations(desk.give(list(range(250))))[0]["cursor"].split(".")[0] for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {22}


# What is kept


@pytest.mark.slow
@pytest.mark.requirement("PRD-P1")
def test_long_run_of_results_keeps_memory_under_the_bound() -> None:
    bound = 4_000_000
    cache: BoundedCache[Artifact] = BoundedCache(CacheConfig(max_size_bytes=bound), ManualClock())
    artifacts = Artifacts(cache)
    tracemalloc.start()
    try:
        for number in range(2000):
            places = [(WHOLE, 0), *((Place("string", ("rows", index, "text")), 10) for index in range(20))]
            value = {"rows": [{"text": f"{number}" * 250} for _ in range(20)]}
            assert artifacts.keep(ADA, value, places)
            assert cache.stats().current_size_bytes <= bound
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * bound


# Parts


@pytest.mark.parametrize(
    ("items", "offset", "total", "has_more"),
    [([], 0, 0, False), ([1], 0, 1, False), ([1], 0, 2, True), ([1], 1, 2, False), ([], 1, 2, True)],
)
def test_list_has_more_exactly_when_items_come_after_it(
    items: list[int], offset: int, total: int, has_more: bool
) -> None:
    assert ListResponse(items=items, total=total, limit=5, offset=offset, has_more=not has_more).has_more is has_more


@pytest.mark.parametrize("wrong", [{"total": -1}, {"offset": -1}, {"limit": 0}])
def test_list_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be at least"):
        ListResponse(**{"items": [], "total": 0, "limit": 1, "offset": 0, **wrong})


def test_text_has_more_exactly_when_characters_come_after_it() -> None:
    assert TextResponse(text="ab", total=3, offset=0).has_more is True
    assert TextResponse(text="ab", total=3, offset=1).has_more is False
