"""The contract of `Memories`, for every engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given

from dragoman.errors import OverQuota
from dragoman.memories.port import Item, Matches, Memories, MemoryEntry, Page, Space, Stored
from dragoman.search.words import words_in
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened
from tests.contract.histories import QUOTA, compare, histories, keys
from tests.support.waiting import PATIENCE

ADA, BOB = Space("ada", "default"), Space("bob", "default")
NOW = "2024-01-15T10:30:00.000Z"


@pytest.fixture
async def memories(engine: str, tmp_path: Path) -> AsyncIterator[Memories]:
    async with opened(engine, tmp_path) as memories:
        yield memories


async def test_what_is_stored_can_be_retrieved(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    value = {"name": "Ada", "born": 1815, "works": [1.5, None, True, "Notes"], "huge": 2**80}
    async with opened(engine, tmp_path, clock=clock) as memories:
        stored = await memories.store(ADA, "person", value)
        clock.advance(60)
        entry = await memories.retrieve(ADA, "person")
    size = len("persondefault") + len(f'{{"name":"Ada","born":1815,"works":[1.5,null,true,"Notes"],"huge":{2**80}}}')
    assert stored == Stored("person", True, size, NOW)
    assert entry == MemoryEntry("person", value, size, NOW)


async def test_storing_again_replaces_and_says_so(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(engine, tmp_path, clock=clock) as memories:
        await memories.store(ADA, "k", "old words")
        clock.advance(1.5)
        assert await memories.store(ADA, "k", "new") == Stored("k", False, 13, "2024-01-15T10:30:01.500Z")
        assert await memories.retrieve(ADA, "k") == MemoryEntry("k", "new", 13, "2024-01-15T10:30:01.500Z")
        assert (await memories.list(ADA, 10)).total == 1
        assert keys(await memories.search(ADA, ("old",), 10)) == []
        assert keys(await memories.search(ADA, ("new",), 10)) == ["k"]


async def test_what_was_never_stored_is_not_there(memories: Memories) -> None:
    assert await memories.retrieve(ADA, "k") is None
    assert await memories.list(ADA, 10) == Page((), False, 0)
    assert await memories.search(ADA, ("word",), 10) == Matches((), None)
    assert await memories.delete(ADA, ["k"]) == 0


class SlowWords(list[str]):
    """Words that whoever looks at them gets when the event is set."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__(["word"])
        self._event = event

    def __iter__(self) -> Iterator[str]:
        self._event.wait(PATIENCE)
        return super().__iter__()


async def test_one_owner_whose_searches_take_long_leaves_others_room_to_read(memories: Memories) -> None:
    for space in (ADA, BOB):
        await memories.store(space, "k", "word")
    let_go = threading.Event()
    slow = [asyncio.create_task(memories.search(ADA, SlowWords(let_go), 10)) for _ in range(10)]
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(10):
                assert keys(await memories.search(BOB, ("word",), 10)) == ["k"]
    finally:
        let_go.set()
    assert [keys(each) for each in await asyncio.gather(*slow)] == [["k"]] * 10


async def test_deleted_entries_are_gone_from_everywhere(memories: Memories) -> None:
    for key in ("a", "b", "c"):
        await memories.store(ADA, key, "word")
    assert await memories.delete(ADA, ["a", "c", "missing", "a"]) == 2
    assert await memories.retrieve(ADA, "a") is None
    assert await memories.list(ADA, 10) == Page((Item("b", '"word"', 14, NOW),), False, 1)
    assert keys(await memories.search(ADA, ("word",), 10)) == ["b"]
    assert await memories.delete(ADA, ["b"]) == 1
    assert await memories.list(ADA, 10) == Page((), False, 0)


@pytest.mark.parametrize("other", [BOB, Space("ada", "other"), Space("ada\0", "default"), Space("", "adadefault")])
async def test_spaces_know_nothing_of_each_other(memories: Memories, other: Space) -> None:
    await memories.store(ADA, "shared key", "secret")
    assert await memories.retrieve(other, "shared key") is None
    assert await memories.list(other, 10) == Page((), False, 0)
    assert keys(await memories.search(other, ("secret",), 10)) == []
    assert await memories.delete(other, ["shared key"]) == 0
    await memories.store(other, "shared key", "theirs")
    entry = await memories.retrieve(ADA, "shared key")
    assert entry is not None
    assert entry.value == "secret"
    assert (await memories.list(ADA, 10)).total == 1


async def test_a_page_goes_on_where_the_last_one_ended(memories: Memories) -> None:
    for number in (3, 1, 4, 0, 2):
        await memories.store(ADA, f"key{number}", number)
    first = await memories.list(ADA, 2)
    assert (keys(first), first.has_more, first.total) == (["key0", "key1"], True, 5)
    await memories.delete(ADA, ["key1"])  # The place is a key, whether it is still there or not.
    second = await memories.list(ADA, 2, after="key1")
    assert (keys(second), second.has_more, second.total) == (["key2", "key3"], True, 4)
    third = await memories.list(ADA, 2, after="key3")
    assert (keys(third), third.has_more) == (["key4"], False)


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("a", ["a", "a\0", "ab", "aé", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffffb"]),
        ("a\0", ["a\0"]),
        ("a\ud7ff", ["a\ud7ff"]),
        ("a\U0010ffff", ["a\U0010ffff", "a\U0010ffffb"]),
        ("%", ["%"]),
        ("B", ["B"]),
        ("\U0010ffff", ["\U0010ffff"]),
        ("zz", []),
        (
            "",
            ["%", "B", "a", "a\0", "ab", "aé", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffffb", "b", "\U0010ffff"],
        ),
    ],
)
async def test_a_prefix_is_taken_literally_and_keys_are_in_the_order_of_code_points(
    memories: Memories, prefix: str, found: list[str]
) -> None:
    for key in [
        "b",
        "a",
        "a\0",
        "ab",
        "aé",
        "a\ud7ff",
        "a\ue000",
        "a\U0010ffff",
        "a\U0010ffffb",
        "B",
        "%",
        "\U0010ffff",
    ]:
        await memories.store(ADA, key, None)
    assert keys(await memories.list(ADA, 100, prefix=prefix)) == found
    after_the_first = await memories.list(ADA, 100, prefix=prefix, after=found[0] if found else None)
    assert keys(after_the_first) == found[1:]
    assert keys(await memories.list(ADA, 100, prefix=prefix, after="%")) == [key for key in found if key > "%"]


async def test_search_finds_all_words_in_keys_strings_and_numbers_and_not_in_member_names(memories: Memories) -> None:
    await memories.store(ADA, "release-notes", {"title": "Deployment of the Database", "port": 5432})
    for query in ["release", "notes deployment", "data DEPLOY", "5432", "dátabase", "the of"]:
        assert keys(await memories.search(ADA, words_in(query), 10)) == ["release-notes"], query
    for query in ["title", "deployments", "deployment nothing", "th", "ployment", "543200"]:
        assert keys(await memories.search(ADA, words_in(query), 10)) == [], query


async def test_all_words_have_to_be_in_the_same_entry(memories: Memories) -> None:
    for key, text in (("1", "alpha beta"), ("2", "alpha gamma"), ("3", "gamma beta")):
        await memories.store(ADA, key, text)
    assert keys(await memories.search(ADA, ("beta", "gamma"), 10)) == ["3"]
    assert keys(await memories.search(ADA, ("alpha", "beta", "gamma"), 10)) == []


async def test_words_that_few_entries_have_are_found_among_those_that_many_have(memories: Memories) -> None:
    for number in range(30):
        text = f"common {'rare' if number % 10 == 3 else 'usual'} rarely {'it' if number == 13 else 'item'}"
        await memories.store(ADA, f"k{number:02}", text)
    assert (
        keys(await memories.search(ADA, ("common", "rare", "usual"), 9))
        == [f"k{n:02}" for n in range(29, -1, -1) if n % 10 != 3][:9]
    )  # A beginning of "rarely".
    assert keys(await memories.search(ADA, ("common", "it"), 9)) == ["k13"]
    assert keys(await memories.search(ADA, ("it", "usual"), 9)) == []
    first = await memories.search(ADA, ("k13", "common"), 1)
    assert (keys(first), first.resume) == (["k13"], None)
    for number in (2, 4, 9):
        await memories.store(ADA, f"more{number}", "seldom common")
    await memories.store(ADA, "more5", "seldom")
    first = await memories.search(ADA, ("common", "seldom"), 2)
    assert keys(first) == ["more9", "more4"]
    second = await memories.search(ADA, ("common", "seldom"), 2, resume=first.resume)
    assert (keys(second), second.resume) == (["more2"], None)


async def test_search_gives_the_last_stored_first_page_by_page(memories: Memories) -> None:
    for number in range(5):
        await memories.store(ADA, f"k{number}", "word" if number != 2 else "other")
    await memories.store(ADA, "k0", "word again")
    first = await memories.search(ADA, ("word",), 2)
    assert keys(first) == ["k0", "k4"]
    await memories.store(ADA, "k9", "word")  # Newer than what this search has begun with.
    second = await memories.search(ADA, ("word",), 2, resume=first.resume)
    assert (keys(second), second.resume) == (["k3", "k1"], None)


async def test_where_a_search_goes_on_tells_nothing_of_what_others_have(memories: Memories) -> None:
    for number in range(3):
        await memories.store(BOB, f"k{number}", "word")
        await memories.store(Space("ada", "other"), f"k{number}", "word")
        await memories.store(ADA, f"k{number}", "word")
    await memories.store(ADA, "k0", "word")
    pages = [await memories.search(ADA, ("word",), 1)]
    while pages[-1].resume is not None:
        pages.append(await memories.search(ADA, ("word",), 1, resume=pages[-1].resume))
    assert [(keys(page), page.resume) for page in pages] == [(["k0"], 4), (["k2"], 3), (["k1"], None)]
    assert keys(await memories.search(ADA, ("word",), 9, resume=2**63 - 1)) == ["k0", "k2", "k1"]
    assert keys(await memories.search(ADA, ("word",), 9, resume=0)) == []


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "a*",
        "word OR other",
        "NEAR(a b)",
        "words:x",
        "-x",
        "^x",
        "AND",
        "00000001word",
        '") OR ("',
        "'; DROP TABLE x",
    ],
)
async def test_a_query_is_words_and_nothing_else(memories: Memories, query: str) -> None:
    await memories.store(ADA, "k", "word")
    words = words_in(query)
    if words:
        assert keys(await memories.search(ADA, words, 10)) == []
    await memories.store(ADA, "q", query)
    if words:
        assert keys(await memories.search(ADA, words, 10)) == ["q"]


async def test_the_preview_is_the_beginning_of_the_json(memories: Memories) -> None:
    await memories.store(ADA, "long", "é" * 1000)
    await memories.store(ADA, "short", {"a": "😀"})
    long, short = (await memories.list(ADA, 10)).items
    assert (long.preview, long.bytes) == ('"' + "é" * 199, 2002 + len("longdefault"))
    assert short.preview == '{"a":"😀"}'


async def test_a_large_value_is_kept_whole_and_found_by_the_first_two_thousand_words(memories: Memories) -> None:
    value = {"text": " ".join(f"word{number}" for number in range(50_000))}
    await memories.store(ADA, "k", value)
    entry = await memories.retrieve(ADA, "k")
    assert entry is not None
    assert entry.value == value
    assert keys(await memories.search(ADA, ("word1998",), 1)) == ["k"]  # The key is the first of them.
    assert keys(await memories.search(ADA, ("word49999",), 1)) == []


async def test_the_quota_counts_utf8_bytes_and_is_passed_exactly(engine: str, tmp_path: Path) -> None:
    used = len("é".encode()) + len("default") + len('"😀"'.encode())
    async with opened(engine, tmp_path, quota=used) as memories:
        assert (await memories.store(ADA, "é", "😀")).bytes == used
        with pytest.raises(OverQuota) as refused:
            await memories.store(Space("ada", "n"), "k", 1)
        assert (refused.value.limit, refused.value.actual) == (used, used + 3)
        with pytest.raises(OverQuota):
            await memories.store(ADA, "é", "😀!")
        entry = await memories.retrieve(ADA, "é")
        assert entry is not None
        assert entry.value == "😀"  # A refused write leaves the old value.
        assert (await memories.list(Space("ada", "n"), 1)).total == 0
        await memories.store(BOB, "k", 1)  # The quota is each owner's own.
        await memories.store(ADA, "é", 1)
        await memories.store(Space("ada", "n"), "k", 1)
        assert await memories.delete(ADA, ["é"]) == 1
        assert await memories.delete(Space("ada", "n"), ["k"]) == 1
        await memories.store(ADA, "é", "😀")


async def test_concurrent_stores_lose_nothing(memories: Memories) -> None:
    await asyncio.gather(*(memories.store(ADA, f"k{number % 50}", f"word {number}") for number in range(200)))
    assert (await memories.list(ADA, 100)).total == 50
    assert len((await memories.search(ADA, ("word",), 100)).items) == 50


async def test_what_is_stored_and_deleted_in_the_same_moment_leaves_nothing_behind(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as memories:
        for number in range(20):
            await asyncio.gather(
                memories.store(ADA, "k", f"red {number}"),
                memories.store(ADA, "k", f"green {number}"),
                memories.delete(ADA, ["k"]),
                memories.store(ADA, "other", f"blue {number}"),
                memories.store(ADA, "k", f"blue {number}"),
            )
            found = {word: keys(await memories.search(ADA, (word,), 10)) for word in ("red", "green", "blue")}
            assert found == {"red": [], "green": [], "blue": ["k", "other"]}
        assert keys(await memories.search(ADA, ("blue", "19"), 10)) == ["k", "other"]
        assert keys(await memories.search(ADA, ("blue", "18"), 10)) == []


async def test_a_read_sees_every_write_that_was_awaited(memories: Memories) -> None:
    for number in range(50):
        await memories.store(ADA, "k", number)
        entry = await memories.retrieve(ADA, "k")
        assert entry is not None
        assert entry.value == number


@pytest.mark.slow
@given(histories)
@pytest.mark.parametrize("engine", ENGINES)
def test_any_history_leaves_what_a_plain_dictionary_would_hold(engine: str, history: list[Any]) -> None:
    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with opened(engine, Path(folder), QUOTA) as memories:
                await compare(memories, history)

    asyncio.run(run())
