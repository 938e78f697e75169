"""Results as their tools declare them: text as it is, structured content under the output schema, errors otherwise."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pydantic
import pytest

from dragoman import Image, Text, ToolDefinition, define_tool, tool
from dragoman.schemas.returns import AS_JSON, read_return
from dragoman.testing import open_server
from dragoman.tools.content import is_content_type

DIALECTS = ["structured", "plain", "envelope"]


class Word(enum.StrEnum):
    YES = "yes"


class Color(enum.Enum):
    RED = "red"


class Row(TypedDict):
    name: str


class Item(pydantic.BaseModel):
    name: str

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.name)


class Settings(pydantic.BaseModel):
    level: int = 3


def giving(value: Any, hint: Any, **options: Any) -> Callable[..., Any]:
    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return tool(**options)(give)


async def answer_of(function: Any, dialect: str = "structured", **config: Any) -> dict[str, Any]:
    async with open_server([function], {"response": {"dialect": dialect, **config}}) as server:
        return await (await server.client()).call_tool("give", {})


SAID = 'He said "no"\n'


@pytest.mark.requirement("FND-CALL-12")
@pytest.mark.parametrize(
    ("hint", "value", "text", "content"),
    [
        (str, SAID, SAID, {"result": SAID}),
        (str, "", "", {"result": ""}),
        (Annotated[str, "what was said"], SAID, SAID, {"result": SAID}),
        (Literal["a", "b"], "a", "a", {"result": "a"}),
        (str | None, "a", "a", {"result": "a"}),
        (str | None, None, "null", {"result": None}),
        (str | int, 7, "7", {"result": 7}),
        (str | date, date(2030, 1, 31), "2030-01-31", {"result": "2030-01-31"}),
        (Word, Word.YES, "yes", {"result": "yes"}),
        (Color, Color.RED, '"red"', {"result": "red"}),
        (None, None, "null", {"result": None}),
        (int, 7, "7", {"result": 7}),
        (float, 7, "7", {"result": 7}),
        (bool, True, "true", {"result": True}),
        (list[str], ["a"], '["a"]', {"result": ["a"]}),
        (dict[str, Any], {"a": 1}, '{"a":1}', {"a": 1}),
        (dict[str, int] | None, {"a": 1}, '{"a":1}', {"result": {"a": 1}}),
        (Row, {"name": "a"}, '{"name":"a"}', {"name": "a"}),
        (Item, Item(name="ab"), '{"name":"ab","length":2}', {"name": "ab", "length": 2}),
        (Settings, Settings(), '{"level":3}', {"level": 3}),
        (Any, "a", '"a"', None),
        (object, "a", '"a"', None),
        (str | Image, "a", "a", None),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_result_is_text_for_models_and_structured_for_programs(
    dialect: str, hint: Any, value: Any, text: str, content: Any
) -> None:
    result = await answer_of(giving(value, hint), dialect)
    assert result["isError"] is False
    ((kind, said),) = [(block["type"], block["text"]) for block in result["content"]]
    assert kind == "text"
    if dialect == "envelope":
        expected = content["result"] if content is not None and content.keys() == {"result"} else content
        assert msgspec.json.decode(said)["data"] == (value if content is None else expected)
    else:
        assert said == text
    assert result.get("structuredContent") == content


async def test_a_function_without_a_return_hint_answers_with_json_and_no_structured_content() -> None:
    @tool
    def give():  # type: ignore[no-untyped-def]
        return "a"

    result = await answer_of(give)
    assert (result["content"], "structuredContent" in result) == ([{"type": "text", "text": '"a"'}], False)


@pytest.mark.parametrize("dialect", ["structured", "plain"])
async def test_tools_with_schemas_of_their_own_answer_with_json(dialect: str) -> None:
    anything = {"type": "object"}
    definition = ToolDefinition(name="give", description="", input_schema=anything)
    for made, content in (
        (define_tool(definition, lambda arguments, context: "a"), None),
        (giving("a", str, input_schema=anything), {"result": "a"}),
    ):
        result = await answer_of(made, dialect)
        assert (result["content"], result.get("structuredContent")) == ([{"type": "text", "text": '"a"'}], content)
    shaped = giving({"a": 1}, str, output_schema=anything)
    assert (await answer_of(shaped, dialect))["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, 7),
        (str, None),
        (int, "7"),
        (int, True),
        (int, 1.5),
        (float, math.nan),
        (float, math.inf),
        (bool, 1),
        (None, 0),
        (list[int], ["a"]),
        (Literal["a"], "b"),
        (Annotated[str, msgspec.Meta(max_length=1)], "ab"),
        (Annotated[int, pydantic.Field(ge=1)], 0),
        (NewType("Count", Annotated[int, msgspec.Meta(ge=1)]), 0),
        (NewType("Count", Annotated[int, pydantic.Field(ge=1)]), 0),
        (dict[str, int], {"a": "b"}),
        (dict[str, Any], [1]),
        (Row, {}),
        (str, Image(b"")),
        (list[int], [Text("a")]),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_result_that_is_not_what_was_declared_is_never_sent(dialect: str, hint: Any, value: Any) -> None:
    result = await answer_of(giving(value, hint), dialect)
    assert (result["isError"], "structuredContent" in result) == (True, False)
    text = result["content"][0]["text"]
    if dialect == "plain":
        assert text == "Internal error occurred"
    else:
        error = msgspec.json.decode(text)
        assert (error.get("error") or error)["message"] == "Result does not match the tool's output schema"


@pytest.mark.parametrize(("count", "told"), [(30, 20), (50_000, 1)])
@pytest.mark.parametrize("dialect", ["structured", "envelope"])
async def test_of_a_large_result_only_the_first_thing_that_is_wrong_is_searched_for(
    dialect: str, count: int, told: int
) -> None:
    result = await answer_of(giving([None] * count, list[int]), dialect)
    error = msgspec.json.decode(result["content"][0]["text"])
    found = error["details"] if dialect == "structured" else error["error"]["context"]
    assert len(found["errors"]) == told


@pytest.mark.parametrize("hint", [list, list[Any], tuple[Any, ...], list[Any] | None])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_content_blocks_are_sent_by_a_tool_that_declares_a_list_of_anything(dialect: str, hint: Any) -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "YQ==", "mimeType": "image/png"}]
    result = await answer_of(giving([Text("a"), Image(b"a")], hint), dialect)
    assert (result["isError"], result["content"]) == (False, blocks)
    assert result["structuredContent"] == {"result": blocks}


def test_a_return_hint_that_contains_itself_without_end_has_no_output_schema() -> None:
    class TypeAliasType:
        """As `type Json = list[Json]` makes one, from Python 3.12 on."""

        __value__: Any = None

    hint = TypeAliasType()
    hint.__value__ = list[hint]  # type: ignore[valid-type]
    assert read_return(hint, is_content_type) == (None, AS_JSON)


@pytest.mark.parametrize(
    ("hint", "value"),
    [(str, "a"), (str | date, date(2030, 1, 31)), (list[int], [1]), (int, 7), (Row, {"name": "a"}), (None, None)],
)
async def test_a_kept_result_is_answered_with_like_the_first(hint: Any, value: Any) -> None:
    function = giving(value, hint, read_only=True, cache_ttl_ms=0)
    async with open_server([function]) as server:
        client = await server.client()
        first, second = [await client.call_tool("give", {}) for _ in range(2)]
    assert second["_meta"]["dragoman/cached"] is True
    assert (first["content"], first["structuredContent"]) == (second["content"], second["structuredContent"])


async def test_a_result_that_is_not_what_was_declared_is_not_kept() -> None:
    function = giving(["a"], list[int], read_only=True, cache_ttl_ms=0)
    async with open_server([function]) as server:
        client = await server.client()
        results = [await client.call_tool("give", {}) for _ in range(2)]
    assert [result["isError"] for result in results] == [True, True]


@pytest.mark.parametrize(("hint", "value"), [(list[int], list(range(5000))), (str, "x" * 9000)])
async def test_what_the_envelope_cuts_is_valid_under_the_key_result(hint: Any, value: Any) -> None:
    result = await answer_of(giving(value, hint), "envelope", max_response_bytes=4000)
    data = msgspec.json.decode(result["content"][0]["text"])["data"]
    assert result["_meta"]["dragoman/truncated"] is True
    assert result["structuredContent"] == {"result": data}
    assert 0 < len(data) < len(value)


@pytest.mark.parametrize("dialect", ["structured", "plain"])
async def test_text_with_half_a_character_is_an_error(dialect: str) -> None:
    result = await answer_of(giving("\ud800", str), dialect)
    assert result["isError"] is True
    said = "Result not serializable" if dialect == "structured" else "Failed to serialize module output"
    assert said in result["content"][0]["text"]


@pytest.mark.requirement("INV-MCP-RESP-003")
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("character", ["x", '"', "é", "\x00"])
async def test_text_and_structured_content_are_within_the_limit_together(dialect: str, character: str) -> None:
    limit = 3000
    lengths = range(100, limit, 100)

    @tool
    def give(length: int) -> str:
        return character * length

    config = {"response": {"dialect": dialect, "max_response_bytes": limit}}
    async with open_server([give], config) as server:
        client = await server.client()
        results = [await client.call_tool("give", {"length": length}) for length in lengths]
    assert max(len(msgspec.json.encode(result)) for result in results) <= limit
    assert results[0]["isError"] is False
    assert dialect == "envelope" or results[-1]["isError"] is True
