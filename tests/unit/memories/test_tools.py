"""The `memory_*` tools as clients use them: through the whole pipeline, over every engine."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Caller
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.memories import tools
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Item, Memories, Page
from dragoman.memories.tools import memory_tools
from dragoman.testing import ManualClock, TestServer, open_server
from tests.contract.engines import ENGINES
from tests.support.answers import error_in

NOW = "2024-01-15T10:30:00.000Z"


@pytest.fixture(params=ENGINES)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestServer]:
    clock = ManualClock()
    storage = ENGINES[request.param](tmp_path, 100_000, clock)
    async with open_server(memory_tools(storage.port(Memories)), clock=clock) as server:
        yield server
    await storage.close()


async def call(server: TestServer, name: str, **arguments: Any) -> dict[str, Any]:
    """What a client is answered; its text and its structured content say the same."""
    client = await server.client()
    result = await client.call_tool(name, arguments)
    if result["isError"]:
        return {"error": error_in(result)}
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    answer: dict[str, Any] = result["structuredContent"]
    return answer


async def error(server: TestServer, name: str, **arguments: Any) -> tuple[str, Any]:
    found = (await call(server, name, **arguments))["error"]
    return found["code"], found.get("details", {}).get("reason")


async def fill(server: TestServer, count: int) -> None:
    for number in range(count):
        await call(server, "memory_store", key=f"key{number:02}", value=f"word {number}")


def test_every_tool_says_what_kind_of_work_it_does(tmp_path: Path) -> None:
    made = memory_tools(SqliteMemories(SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS), 1, ManualClock()))
    facts = {
        tool.definition.name: (
            tool.definition.category,
            tool.definition.hints.read_only,
            tool.definition.hints.destructive,
            tool.definition.hints.idempotent,
            tool.definition.hints.open_world,
        )
        for tool in made
    }
    assert facts == {
        "memory_store": ("mutation", None, True, True, False),
        "memory_retrieve": ("query", True, None, True, False),
        "memory_search": ("query", True, None, True, False),
        "memory_list": ("query", True, None, True, False),
        "memory_delete": ("mutation", None, True, True, False),
        "memory_bulk_delete": (None, None, True, True, False),
    }
    assert all(tool.is_async and tool.definition.description for tool in made)


async def test_a_value_is_stored_replaced_retrieved_and_deleted(server: TestServer) -> None:
    value = {"text": "Grüße, 東京 😀", "numbers": [1, 2.5, 12345678901234567890123], "nothing": None}
    stored = await call(server, "memory_store", key="greeting", value=value)
    assert stored == {"key": "greeting", "created": True, "bytes": stored["bytes"], "updatedAt": NOW}
    assert stored["bytes"] == len(
        f"greetingdefault{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}".encode()
    )
    assert (await call(server, "memory_store", key="greeting", value=value))["created"] is False
    entry = await call(server, "memory_retrieve", key="greeting")
    assert entry == {"key": "greeting", "value": value, "bytes": stored["bytes"], "updatedAt": NOW}
    assert await call(server, "memory_delete", key="greeting") == {"deleted": True}
    assert await call(server, "memory_delete", key="greeting") == {"deleted": False}
    assert await error(server, "memory_retrieve", key="greeting") == ("NOT_FOUND", "unknown_key")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, "a" * 50_000])
async def test_any_json_can_be_a_value(server: TestServer, value: Any) -> None:
    await call(server, "memory_store", key="k", value=value)
    assert (await call(server, "memory_retrieve", key="k"))["value"] == value


@pytest.mark.parametrize(
    "key", [" ", "\0", "%", "a/../b", "'; DROP TABLE memory_entry; --", "😀" * 256, "é", "e\u0301"]
)
async def test_any_text_of_256_characters_can_be_a_key(server: TestServer, key: str) -> None:
    await call(server, "memory_store", key=key, value=1)
    assert (await call(server, "memory_retrieve", key=key))["key"] == key
    listed = await call(server, "memory_list", limit=1, prefix=key)
    assert [item["key"] for item in listed["items"]] == [key]
    assert await call(server, "memory_bulk_delete", keys=[key, "é", "e\u0301"]) == {"deleted": 1}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory_store", {"key": "", "value": 1}),
        ("memory_store", {"key": "x" * 257, "value": 1}),
        ("memory_store", {"key": "k"}),
        ("memory_store", {"key": "k", "value": 1, "namespace": ""}),
        ("memory_list", {"limit": 0}),
        ("memory_list", {"limit": 101}),
        ("memory_search", {"query": ""}),
        ("memory_bulk_delete", {"keys": []}),
        ("memory_bulk_delete", {"keys": [""]}),
    ],
)
async def test_what_does_not_fit_the_schema_is_refused(server: TestServer, name: str, arguments: Any) -> None:
    assert (await error(server, name, **arguments))[0] == "INVALID_ARGUMENT"


async def test_at_most_a_thousand_keys_are_deleted_at_once(server: TestServer) -> None:
    await fill(server, 3)
    keys = [f"key{number:02}" for number in range(1001)]
    assert (await error(server, "memory_bulk_delete", keys=keys))[0] == "INVALID_ARGUMENT"
    assert await call(server, "memory_bulk_delete", keys=keys[:1000]) == {"deleted": 3}


async def test_a_query_without_a_word_is_refused(server: TestServer) -> None:
    assert await error(server, "memory_search", query='"-*"') == ("INVALID_ARGUMENT", "no_words")


@pytest.mark.requirement("PRD-RESP-04")
@pytest.mark.parametrize(("count", "limit"), [(0, 3), (3, 3), (4, 3), (7, 3), (1, 1)])
async def test_a_list_goes_through_every_entry_once_and_says_truly_whether_there_are_more(
    server: TestServer, count: int, limit: int
) -> None:
    await fill(server, count)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await call(server, "memory_list", limit=limit, **cursor)
        assert (page["total"], page["limit"], page["offset"]) == (count, limit, len(found))
        assert page["hasMore"] is (page["offset"] + len(page["items"]) < page["total"])
        assert page["hasMore"] is ("nextCursor" in page)
        found += [item["key"] for item in page["items"]]
        if not page["hasMore"]:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert found == [f"key{number:02}" for number in range(count)]


@pytest.mark.requirement("PRD-RESP-04")
async def test_a_list_ends_and_adds_up_whatever_comes_and_goes_while_it_is_read(server: TestServer) -> None:
    await fill(server, 6)
    first = await call(server, "memory_list", limit=2)
    for number in range(5):
        await call(server, "memory_store", key=f"a{number}", value="before the cursor")
    second = await call(server, "memory_list", limit=2, cursor=first["nextCursor"])
    assert (second["offset"], second["total"], second["hasMore"]) == (2, 11, True)
    last = await call(server, "memory_list", limit=2, cursor=second["nextCursor"])
    assert ([item["key"] for item in last["items"]], last["offset"], last["total"]) == (["key04", "key05"], 9, 11)
    assert last["hasMore"] is False
    await call(server, "memory_bulk_delete", keys=["key00", "key01", *(f"a{number}" for number in range(5))])
    second = await call(server, "memory_list", limit=2, cursor=first["nextCursor"])
    assert (second["offset"], second["total"], second["hasMore"]) == (1, 4, True)
    assert second["offset"] + len(second["items"]) < second["total"]
    await call(server, "memory_bulk_delete", keys=["key04", "key05"])
    beyond = await call(server, "memory_list", limit=2, cursor=second["nextCursor"])
    assert (beyond["items"], beyond["offset"], beyond["total"], beyond["hasMore"]) == ([], 2, 2, False)


async def test_a_list_with_a_prefix_has_no_total(server: TestServer) -> None:
    await fill(server, 5)
    await call(server, "memory_store", key="other", value=1)
    first = await call(server, "memory_list", prefix="key", limit=3)
    assert ("total" in first, first["offset"], first["hasMore"]) == (False, 0, True)
    second = await call(server, "memory_list", prefix="key", limit=3, cursor=first["nextCursor"])
    assert ([item["key"] for item in second["items"]], second["offset"]) == (["key03", "key04"], 3)
    assert (second["hasMore"], "nextCursor" in second) == (False, False)


async def test_search_pages_through_what_it_finds(server: TestServer) -> None:
    await fill(server, 5)
    first = await call(server, "memory_search", query="wor", limit=3)
    item = {"key": "key04", "preview": '"word 4"', "bytes": 20, "updatedAt": NOW}
    assert first["items"][0] == item
    assert (first["limit"], first["hasMore"], "total" in first) == (3, True, False)
    second = await call(server, "memory_search", query="wor", limit=3, cursor=first["nextCursor"])
    assert ([item["key"] for item in second["items"]], second["hasMore"]) == (["key01", "key00"], False)
    assert "nextCursor" not in second


def written(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "nonsense",
        "ä",
        "====",
        written("null"),
        written('["list"]'),
        written('["list",-1,"k"]'),
        written('["list",1.5,"k"]'),
        written('["list",1,"k",1]'),
        written('["list",99999999999999999999,"k"]'),
        written('["search",99999999999999999999]'),
        written('["search","k"]'),
        written('["other",1]'),
        base64.urlsafe_b64encode(b'["list",1,"\xff"]').decode(),
    ],
)
async def test_a_cursor_that_was_not_given_out_is_refused(server: TestServer, cursor: str) -> None:
    assert await error(server, "memory_list", cursor=cursor) == ("INVALID_ARGUMENT", "invalid_cursor")
    assert await error(server, "memory_search", query="word", cursor=cursor) == ("INVALID_ARGUMENT", "invalid_cursor")


async def test_one_tools_cursor_is_nothing_to_the_other(server: TestServer) -> None:
    await fill(server, 2)
    listed = (await call(server, "memory_list", limit=1))["nextCursor"]
    found = (await call(server, "memory_search", query="word", limit=1))["nextCursor"]
    assert await error(server, "memory_list", cursor=found) == ("INVALID_ARGUMENT", "invalid_cursor")
    assert await error(server, "memory_search", query="word", cursor=listed) == ("INVALID_ARGUMENT", "invalid_cursor")


async def test_callers_see_only_what_is_theirs(server: TestServer) -> None:
    ada, bob = Caller("ada"), Caller("bob")
    run = server.runtime.call
    (await run("memory_store", {"key": "k", "value": "secret of ada"}, caller=ada)).unwrap()
    (await run("memory_store", {"key": "k2", "value": "more"}, caller=ada)).unwrap()
    cursor = (await run("memory_list", {"limit": 1}, caller=ada)).unwrap().next_cursor
    assert (await run("memory_retrieve", {"key": "k"}, caller=bob)).is_error
    assert (await run("memory_list", {}, caller=bob)).unwrap().items == ()
    assert (await run("memory_list", {"cursor": cursor}, caller=bob)).unwrap().items == ()
    assert (await run("memory_search", {"query": "secret"}, caller=bob)).unwrap().items == ()
    assert (await run("memory_bulk_delete", {"keys": ["k"]}, caller=bob)).unwrap().deleted == 0
    assert (await run("memory_delete", {"key": "k"}, caller=bob)).unwrap().deleted is False
    assert (await run("memory_retrieve", {"key": "k"}, caller=ada)).unwrap().value == "secret of ada"
    assert [each.key for each in (await run("memory_search", {"query": "secret"}, caller=ada)).unwrap().items] == ["k"]
    assert (await run("memory_delete", {"key": "k"}, caller=ada)).unwrap().deleted is True
    assert (await run("memory_bulk_delete", {"keys": ["k", "k2"]}, caller=ada)).unwrap().deleted == 1


async def test_namespaces_are_apart(server: TestServer) -> None:
    await call(server, "memory_store", key="k", value="one", namespace="first")
    await call(server, "memory_store", key="k", value="two", namespace="second")
    assert (await call(server, "memory_retrieve", key="k", namespace="first"))["value"] == "one"
    assert (await call(server, "memory_search", query="one", namespace="second"))["items"] == []
    assert await error(server, "memory_retrieve", key="k") == ("NOT_FOUND", "unknown_key")


async def test_beyond_the_quota_nothing_more_is_stored(server: TestServer) -> None:
    await call(server, "memory_store", key="a", value="x" * 60_000)
    refused = (await call(server, "memory_store", key="b", value="x" * 60_000))["error"]
    assert (refused["code"], refused["details"]) == (
        "RESOURCE_EXHAUSTED",
        {
            "reason": "storage_quota",
            "limit": 100_000,
            "actual": 120_020,
            "retryable": False,
            "setting": "storage.max_bytes_per_caller",
        },
    )
    assert await error(server, "memory_retrieve", key="b") == ("NOT_FOUND", "unknown_key")


async def test_tools_that_are_never_called_create_and_start_nothing(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "data" / FILE_NAME, MIGRATIONS)
    before = set(threading.enumerate())
    async with open_server(memory_tools(SqliteMemories(database, 1000, ManualClock()))) as server:
        await (await server.client()).list_tools()
        assert set(threading.enumerate()) <= before
    await database.close()
    assert not database.path.parent.exists()


async def test_a_failing_store_tells_the_client_why_and_only_the_log_where(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("not a database at all" * 100)
    database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
    async with open_server(memory_tools(SqliteMemories(database, 1000, ManualClock()))) as server:
        for name, arguments in [("memory_store", {"key": "k", "value": 1}), ("memory_retrieve", {"key": "k"})]:
            failed = (await call(server, name, **arguments))["error"]
            assert (failed["code"], failed["message"], failed["details"]) == (
                "INTERNAL",
                "The server's storage failed",
                {"reason": "storage_corrupt"},
            )
        causes = [entry["error"]["message"] for entry in server.log if entry["message"] == "tool failed"]
    assert causes == ["sqlite3.DatabaseError: file is not a database"] * 2
    await database.close()


async def test_a_full_disk_leaves_the_old_value(tmp_path: Path) -> None:
    class NearlyFull(SqliteDatabase):
        def connect(self) -> sqlite3.Connection:
            connection = super().connect()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 10}")
            return connection

    database = NearlyFull(tmp_path / FILE_NAME, MIGRATIONS)
    async with open_server(memory_tools(SqliteMemories(database, 10**9, ManualClock()))) as server:
        await call(server, "memory_store", key="k", value="old word")
        assert await error(server, "memory_store", key="k", value="new " * 20_000) == ("INTERNAL", "storage_full")
        assert (await call(server, "memory_retrieve", key="k"))["value"] == "old word"
        assert len((await call(server, "memory_search", query="old"))["items"]) == 1
        assert (await call(server, "memory_search", query="new"))["items"] == []
        assert (await call(server, "memory_list"))["total"] == 1
        assert (await call(server, "memory_store", key="k", value="fits"))["created"] is False
    await database.close()


@pytest.mark.requirement("PRD-RESP-04")
@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("carried", [0, 1, 5, 100])
@pytest.mark.parametrize("others", [1, 3, 50])
def test_more_means_that_offset_and_items_are_less_than_the_total(has_more: bool, carried: int, others: int) -> None:
    items = (Item("k", "1", 1, NOW),) * 2
    listing = tools._listing(Page(items, has_more, len(items) + others), 2, carried, is_filtered=False)
    assert listing.has_more == (listing.offset + len(items) < len(items) + others)
    assert listing.offset >= 0


@pytest.mark.parametrize("character", ["a", '"', "\\", "\0", "é", "😀"])
@pytest.mark.parametrize("modern", [False, True])
async def test_what_is_stored_can_be_read_back(character: str, modern: bool) -> None:
    settings = {
        "tools": {"memory_enabled": True},
        "storage": {"engine": "memory"},
        "response": {"max_response_bytes": 20_000},
    }
    async with open_server([], settings) as server:
        client = server.connect(modern=True) if modern else await server.client()
        least, most = 0, 20_000
        while most - least > 1:  # The longest value that is taken.
            middle = (least + most) // 2
            stored = await client.call_tool("memory_store", {"key": "k" * 256, "value": character * middle})
            if not stored["isError"]:
                least = middle
                read = await client.call_tool("memory_retrieve", {"key": "k" * 256})
                assert read["structuredContent"]["value"] == character * middle
                continue
            most = middle
            refused = error_in(stored)
            assert (refused["code"], refused["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "value_too_large")
            assert refused["details"]["actual"] > refused["details"]["limit"]
        assert least * len(json.dumps(character, ensure_ascii=False).encode()) > 6_000


async def test_where_answers_are_shortened_any_value_can_be_stored() -> None:
    settings = {
        "tools": {"memory_enabled": True},
        "storage": {"engine": "memory"},
        "response": {"dialect": "envelope", "max_response_bytes": 20_000},
    }
    async with open_server([], settings) as server:
        client = await server.client()
        stored = await client.call_tool("memory_store", {"key": "k", "value": "x" * 50_000})
        assert not stored["isError"]
        read = await client.call_tool("memory_retrieve", {"key": "k"})
        assert read["_meta"]["dragoman/nextCursor"]


@pytest.mark.requirement("FND-AGENT-11")
@pytest.mark.parametrize("most", [4_096, 16_384])
async def test_pages_are_cut_to_the_response_limit_and_say_so_and_nothing_is_missed(most: int) -> None:
    config = {"tools": {"memory_enabled": True}, "storage": {"engine": "memory"}}
    async with open_server([], {**config, "response": {"max_response_bytes": most}}) as server:
        keys = [f"{number:03}{chr(233) * 120}" for number in range(50)]
        for key in keys:
            await call(server, "memory_store", key=key, value="word " * 30)
        client = await server.client()
        for name, arguments in (("memory_list", {}), ("memory_search", {"query": "word"})):
            found: list[str] = []
            answer: dict[str, Any] = {"hasMore": True}
            while answer["hasMore"]:
                again = {"cursor": answer["nextCursor"]} if found else {}
                raw = await client.call_tool(name, {**arguments, "limit": 40, **again})
                assert len(json.dumps(raw, ensure_ascii=False).encode()) <= most
                answer = raw["structuredContent"]
                assert answer["items"]
                assert answer["truncated"] is (answer["hasMore"] and len(answer["items"]) < 40)
                assert answer["limit"] == 40
                if name == "memory_list":
                    assert (answer["offset"], answer["total"]) == (len(found), 50)
                found += [each["key"] for each in answer["items"]]
            assert sorted(found) == keys, name


@pytest.mark.requirement("FND-AGENT-11")
async def test_a_page_that_fits_is_not_cut(server: TestServer) -> None:
    await fill(server, 5)
    for name, arguments in (("memory_list", {}), ("memory_search", {"query": "word"})):
        answer = await call(server, name, limit=3, **arguments)
        assert (len(answer["items"]), answer["hasMore"], answer["truncated"]) == (3, True, False)
