"""What every `Memories` promises, whatever it keeps entries in."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.adapters import dict_index, dict_memories, sqlite_memories, sqlite_writer
from dragoman.adapters.dict_memories import DictMemories
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase, tidy
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.errors import ErrorCode, ResourceExhausted
from dragoman.search.words import text_in, words_in
from dragoman.testing import ManualClock
from dragoman.tools.builtin.memory import Entry, Item, Matches, Memories, Page, Space, Stored
from tests.support.words import beginnings_of

ADA, BOB = Space("ada", "default"), Space("bob", "default")
NOW = "2024-01-15T10:30:00.000Z"
PLENTY = 10**9


class CountingDatabase(SqliteDatabase):
    """Counts the steps of SQLite's virtual machine."""

    steps = 0

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.set_progress_handler(self._step, 1)
        return connection

    def _step(self) -> int:
        self.steps += 1
        return 0


class Opened:
    """Memories to test, and how much work an operation of theirs is."""

    def __init__(self, memories: Memories, database: CountingDatabase | None) -> None:
        self.memories = memories
        self._database = database

    def tidy(self) -> None:
        """As happens by itself when nothing is written for a moment."""
        if self._database is not None:
            connection = self._database.connect()
            while tidy(connection):
                pass
            connection.close()

    def check(self) -> None:
        """That the index has the words of the entries, and nothing else."""
        if self._database is not None:
            connection = self._database.connect()
            connection.execute("CREATE VIRTUAL TABLE temp.indexed USING fts5vocab(main, memory_term, instance)")
            indexed = connection.execute("SELECT doc, term FROM temp.indexed").fetchall()
            entries = connection.execute("SELECT -id, terms FROM memory_entry").fetchall()
            connection.close()
            assert sorted(indexed) == sorted((row, term) for row, terms in entries for term in terms.split())

    async def work(self, operation: Callable[[], Awaitable[object]]) -> tuple[int, int]:
        """Steps and allocated bytes, the same every time, unlike seconds.

        In SQLite, the steps of its virtual machine. In Python, lines and comparisons of keys; functions written in C,
        such as `sorted`, run no lines, but compare or allocate.
        """
        if self._database is not None:
            before = self._database.steps
            await operation()
            return self._database.steps - before, 0
        lines, Key.comparisons = 0, 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code.co_filename not in (dict_memories.__file__, dict_index.__file__):
                return None
            lines += 1
            return trace

        outer = sys.gettrace()
        tracemalloc.start()
        sys.settrace(trace)
        try:
            await operation()
        finally:
            sys.settrace(outer)
            allocated = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return lines + Key.comparisons, allocated


class Key(str):
    """A key that counts how often one is compared with another."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: str) -> bool:
        Key.comparisons += 1
        return str.__lt__(self, other)

    def __gt__(self, other: str) -> bool:
        Key.comparisons += 1
        return str.__gt__(self, other)


@asynccontextmanager
async def opened(
    kind: str, folder: Path, limit: int = PLENTY, clock: ManualClock | None = None
) -> AsyncIterator[Opened]:
    clock = clock or ManualClock()
    if kind == "dict":
        yield Opened(DictMemories(limit, clock), None)
        return
    database = CountingDatabase(folder / FILE_NAME)
    try:
        yield Opened(SqliteMemories(database, limit, clock), database)
    finally:
        await database.close()


@pytest.fixture(params=["sqlite", "dict"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def memories(kind: str, tmp_path: Path) -> AsyncIterator[Memories]:
    async with opened(kind, tmp_path) as made:
        yield made.memories


def keys(page: Page | Matches) -> list[str]:
    return [item.key for item in page.items]


async def test_what_is_stored_can_be_retrieved(kind: str, tmp_path: Path) -> None:
    clock = ManualClock()
    value = {"name": "Ada", "born": 1815, "works": [1.5, None, True, "Notes"], "huge": 2**80}
    async with opened(kind, tmp_path, clock=clock) as made:
        stored = await made.memories.store(ADA, "person", value)
        clock.advance(60)
        entry = await made.memories.retrieve(ADA, "person")
    size = len("persondefault") + len(f'{{"name":"Ada","born":1815,"works":[1.5,null,true,"Notes"],"huge":{2**80}}}')
    assert stored == Stored("person", True, size, NOW)
    assert entry == Entry("person", value, size, NOW)


async def test_storing_again_replaces_and_says_so(kind: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(kind, tmp_path, clock=clock) as made:
        await made.memories.store(ADA, "k", "old words")
        clock.advance(1.5)
        assert await made.memories.store(ADA, "k", "new") == Stored("k", False, 13, "2024-01-15T10:30:01.500Z")
        assert await made.memories.retrieve(ADA, "k") == Entry("k", "new", 13, "2024-01-15T10:30:01.500Z")
        assert (await made.memories.list(ADA, 10)).total == 1
        assert keys(await made.memories.search(ADA, ("old",), 10)) == []
        assert keys(await made.memories.search(ADA, ("new",), 10)) == ["k"]


async def test_what_was_never_stored_is_not_there(memories: Memories) -> None:
    assert await memories.retrieve(ADA, "k") is None
    assert await memories.list(ADA, 10) == Page((), False, 0)
    assert await memories.search(ADA, ("word",), 10) == Matches((), None)
    assert await memories.delete(ADA, ["k"]) == 0


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


async def test_the_quota_counts_utf8_bytes_and_is_passed_exactly(kind: str, tmp_path: Path) -> None:
    used = len("é".encode()) + len("default") + len('"😀"'.encode())
    async with opened(kind, tmp_path, limit=used) as made:
        memories = made.memories
        assert (await memories.store(ADA, "é", "😀")).bytes == used
        with pytest.raises(ResourceExhausted) as refused:
            await memories.store(Space("ada", "n"), "k", 1)
        assert refused.value.code is ErrorCode.RESOURCE_EXHAUSTED
        assert refused.value.details == {
            "reason": "storage_quota",
            "limit": used,
            "actual": used + 3,
            "retryable": False,
        }
        with pytest.raises(ResourceExhausted):
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


async def test_a_smaller_value_is_taken_even_when_the_quota_is_exceeded(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as made:
        memories = made.memories
        await memories.store(ADA, "k", "x" * 100)
        memories._limit = 10  # type: ignore[attr-defined]
        await memories.store(ADA, "k", "x" * 50)
        with pytest.raises(ResourceExhausted):
            await memories.store(ADA, "k", "x" * 51)


async def test_concurrent_stores_lose_nothing(memories: Memories) -> None:
    await asyncio.gather(*(memories.store(ADA, f"k{number % 50}", f"word {number}") for number in range(200)))
    assert (await memories.list(ADA, 100)).total == 50
    assert len((await memories.search(ADA, ("word",), 100)).items) == 50


async def test_what_is_stored_and_deleted_in_the_same_moment_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as made:
        memories = made.memories
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
        made.tidy()
        assert keys(await memories.search(ADA, ("blue", "19"), 10)) == ["k", "other"]
        assert keys(await memories.search(ADA, ("blue", "18"), 10)) == []


async def test_a_read_sees_every_write_that_was_awaited(memories: Memories) -> None:
    for number in range(50):
        await memories.store(ADA, "k", number)
        entry = await memories.retrieve(ADA, "k")
        assert entry is not None
        assert entry.value == number


async def test_the_index_of_a_word_begins_with_what_was_stored_last(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as made:
        for key in "abca":
            await made.memories.store(ADA, key, "word")
        await made.memories.delete(ADA, ["b"])
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    rows = connection.execute("SELECT rowid FROM memory_term WHERE memory_term MATCH '00000001word'").fetchall()
    ids = connection.execute("SELECT -id FROM memory_entry ORDER BY id DESC").fetchall()
    connection.execute("INSERT INTO memory_term (memory_term) VALUES ('integrity-check')")
    connection.close()
    assert (len(rows), rows) == (2, ids)


# The work of an operation does not grow with the number of entries.


def value_of(number: int) -> dict[str, Any]:
    return {"text": f"common word number{number} {'even' if number % 2 else 'odd'}"}


OPERATIONS: dict[str, Callable[[Memories], Awaitable[object]]] = {
    "store": lambda memories: memories.store(ADA, "key0050", "common new"),
    "retrieve": lambda memories: memories.retrieve(ADA, "key0050"),
    "list": lambda memories: memories.list(ADA, 20),
    "list from the middle": lambda memories: memories.list(ADA, 20, after="key0050"),
    "list with a prefix": lambda memories: memories.list(ADA, 20, prefix="key00"),
    "list the last": lambda memories: memories.list(ADA, 20, prefix="zz"),
    "search a common word": lambda memories: memories.search(ADA, ("common",), 20),
    "search a common beginning": lambda memories: memories.search(ADA, ("num",), 20),
    "search two common words": lambda memories: memories.search(ADA, ("common", "even"), 20),
    "search a rare word": lambda memories: memories.search(ADA, ("number7",), 20),
    "search a rare and a common word": lambda memories: memories.search(ADA, ("rare", "common"), 20),
    "search what is not there": lambda memories: memories.search(ADA, ("common", "nothing"), 20),
    "search the older half": lambda memories: memories.search(ADA, ("common",), 20, resume=50),
    "delete": lambda memories: memories.delete(ADA, ["key0051", "missing"]),
}


async def works(kind: str, folder: Path, entries: int) -> dict[str, tuple[int, int]]:
    """The work of each operation among so many entries, half of which are somebody else's."""
    async with opened(kind, folder) as made:
        memories = made.memories
        await memories.store(ADA, "zz rare", "common")
        for start in range(0, entries // 2, 250):
            numbers = range(start, min(start + 250, entries // 2))
            stores = [memories.store(space, Key(f"key{n:04}"), value_of(n)) for n in numbers for space in (ADA, BOB)]
            await asyncio.gather(*stores)
        made.tidy()
        await memories.retrieve(ADA, "warm up")
        return {name: await made.work(lambda run=run: run(memories)) for name, run in OPERATIONS.items()}  # type: ignore[misc]


@pytest.mark.requirement("PRD-P5")
@pytest.mark.parametrize("entries", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_no_operation_does_more_work_among_many_entries_than_among_few(
    kind: str, entries: int, tmp_path: Path
) -> None:
    few = await works(kind, tmp_path / "few", 200)
    many = await works(kind, tmp_path / "many", entries)
    assert min(few.values()) > (0, 0)
    assert {name: (few[name][0], steps) for name, (steps, _) in many.items() if steps > 2 * few[name][0]} == {}
    reads = {name: (few[name][1], size) for name, (_, size) in many.items() if name not in ("store", "delete")}
    assert {name: sizes for name, sizes in reads.items() if sizes[1] > 2 * sizes[0]} == {}


# Against a model.

names = st.sampled_from(["a", "ab", "b", "é", "a\0", "東京"])
spaces = st.builds(Space, st.sampled_from(["ada", "bob"]), st.sampled_from(["default", "n"]))
texts = st.sampled_from(["red", "redder", "green apple", "Äpfel", "東京 red", ""])
step = st.tuples(st.just("store"), spaces, names, texts) | st.tuples(
    st.just("delete"), spaces, st.lists(names, max_size=3), st.none()
)
steps = st.lists(st.lists(step, max_size=6), max_size=8)
LIMIT = 60


@given(steps, st.booleans())
@pytest.mark.parametrize("kind", ["sqlite", "dict"])
def test_any_history_leaves_what_a_plain_dictionary_would_hold(kind: str, steps: list[Any], are_many: bool) -> None:
    """Steps that are taken together come to the same as one after the other."""

    async def run() -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            if are_many:
                few_are_many(patch)
            async with opened(kind, Path(folder), LIMIT) as made:
                await compare(made.memories, steps)
                made.check()

    asyncio.run(run())


def few_are_many(patch: pytest.MonkeyPatch) -> None:
    """As little as there is here is treated as what there is most of."""
    patch.setattr(dict_index, "LONGEST_RUN", 2)
    patch.setattr(dict_memories, "_LETTERS_AT_ONCE", 3)
    patch.setattr(dict_memories, "_LOOKUPS_AT_ONCE", 2)
    patch.setattr(sqlite_memories, "_FEW", 1)
    patch.setattr(sqlite_writer, "MOST_FOR_LATER", 3)


async def compare(memories: Memories, steps: list[Any]) -> None:
    model: dict[Space, dict[str, str]] = {}
    outcomes: list[Any] = []
    for together in steps:
        outcomes += await asyncio.gather(
            *(
                memories.delete(space, name) if what == "delete" else memories.store(space, name, text)
                for what, space, name, text in together
            ),
            return_exceptions=True,
        )
    for (what, space, name, text), outcome in zip(chain.from_iterable(steps), outcomes, strict=True):
        held = model.setdefault(space, {})
        if what == "delete":
            there = set(name) & set(held)
            assert outcome == len(there)
            for key in there:
                del held[key]
            continue
        changed = {**model, space: {**held, name: text}}
        is_larger = size(space, name, text) > (size(space, name, held[name]) if name in held else 0)
        if is_larger and used(changed, space.owner) > LIMIT:
            assert isinstance(outcome, ResourceExhausted)
        else:
            assert outcome.created == (name not in held)
            held.pop(name, None)  # So that the model, too, is in the order of storing.
            held[name] = text
    for space, held in model.items():
        assert keys(await memories.list(space, 100)) == sorted(held)
        for prefix in ("a", "é"):
            found = await memories.list(space, 1, prefix=prefix)
            assert keys(found) == sorted(key for key in held if key.startswith(prefix))[:1]
        for query in ("red", "apple", "re", "東", "ab", "green app", "a red", "red re"):
            words = words_in(query)
            assert keys(await memories.search(space, words, 100)) == [
                key for key, text in reversed(held.items()) if has_all(f"{key} {text_in(text)}", words)
            ], query


def has_all(text: str, words: tuple[str, ...]) -> bool:
    return set(words) <= {beginning for word in words_in(text) for beginning in beginnings_of(word)}


def size(space: Space, key: str, text: str) -> int:
    return len(f'{space.namespace}{key}"{text}"'.encode())


def used(model: dict[Space, dict[str, str]], owner: str) -> int:
    return sum(
        size(space, key, text) for space, held in model.items() if space.owner == owner for key, text in held.items()
    )
