"""Content blocks: what counts as one, and how it is written."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import mcp_types
import pydantic
import pytest

from dragoman import Audio, EmbeddedResource, Image, ResourceLink, Text, tool
from dragoman.testing import open_server
from dragoman.tools.content import (
    BlobResource,
    TextResource,
    content_blocks,
    encode_json,
    encode_within,
    is_content,
    merge_into,
)
from tests.support.counted import Counted

WRITTEN: list[tuple[Any, dict[str, Any]]] = [
    (Text("hi"), {"type": "text", "text": "hi"}),
    (
        Text("hi", annotations={"audience": ["user"]}, meta={"k": 1}),
        {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}, "_meta": {"k": 1}},
    ),
    (Image(b"\x00\xff"), {"type": "image", "data": "AP8=", "mimeType": "image/png"}),
    (Audio(b"\x00\xff"), {"type": "audio", "data": "AP8=", "mimeType": "audio/wav"}),
    (Image(b"\x00\xff", "image/jpeg"), {"type": "image", "data": "AP8=", "mimeType": "image/jpeg"}),
    (Audio(b"\x00\xff", "audio/mpeg"), {"type": "audio", "data": "AP8=", "mimeType": "audio/mpeg"}),
    (
        ResourceLink("file:///a", "a", mime_type="text/plain", size=3),
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain", "size": 3},
    ),
    (
        EmbeddedResource(TextResource("file:///a", "x", "text/plain")),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain"}},
    ),
    (
        EmbeddedResource(BlobResource("file:///a", b"\x00\xff")),
        {"type": "resource", "resource": {"uri": "file:///a", "blob": "AP8="}},
    ),
    (mcp_types.TextContent(type="text", text="theirs"), {"type": "text", "text": "theirs"}),
    (
        mcp_types.ImageContent(type="image", data="AP8=", mime_type="image/png"),
        {"type": "image", "data": "AP8=", "mimeType": "image/png"},
    ),
]


@pytest.mark.parametrize(("block", "written"), WRITTEN)
def test_blocks_are_written_the_way_mcp_has_them(block: Any, written: dict[str, Any]) -> None:
    assert is_content(block)
    assert content_blocks(block) == [block]
    assert json.loads(encode_json(block)) == written


@pytest.mark.parametrize(("block", "written"), WRITTEN)
def test_every_block_is_one_that_the_official_sdk_can_read(block: Any, written: dict[str, Any]) -> None:
    kinds = pydantic.TypeAdapter(mcp_types.ContentBlock)
    assert kinds.validate_json(encode_json(block)).type == written["type"]


@pytest.mark.parametrize(
    "value", [None, "text", 1, 1.5, True, {"type": "text", "text": "x"}, [], [Text("x")], object()]
)
def test_other_values_are_not_content(value: Any) -> None:
    assert not is_content(value)


def test_a_list_of_blocks_is_content_and_a_mixed_or_empty_one_is_an_ordinary_result() -> None:
    text, image = Text("x"), Image(b"")
    assert content_blocks([text, image]) == [text, image]
    assert content_blocks((text, image)) == [text, image]
    for ordinary in ([], (), [text, "x"], ["x"], "x", None, {"a": text}):
        assert content_blocks(ordinary) is None


async def test_blocks_that_a_handler_returns_reach_the_client_unchanged() -> None:
    @tool
    def show() -> Any:
        return [Text("a\nb"), mcp_types.TextContent(type="text", text="theirs")]

    async with open_server([show]) as server:
        result = await (await server.client()).call_tool("show")
    assert result["content"] == [{"type": "text", "text": "a\nb"}, {"type": "text", "text": "theirs"}]
    assert result["isError"] is False


class Order(pydantic.BaseModel):
    item_name: str = pydantic.Field(alias="itemName")
    note: str | None = None


def test_models_are_written_the_way_they_say() -> None:
    assert json.loads(encode_json({"order": Order(itemName="tea")})) == {"order": {"itemName": "tea", "note": None}}


@pytest.mark.parametrize("value", [object(), {"a": 1j}, [print]])
def test_what_has_no_json_form_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        encode_json(value)


# Encoding within a limit

ENDLESS: dict[str, Any] = {
    "list": [1, 2.5, None, "text", True],
    "float": 1.7976931348623157e308,
    "int": 2**80,
    "text": 'quotes " and \\ and \n and é',
    "bytes": b"\x00" * 100,
    "moment": datetime(2026, 11, 17, 8, 30, 15, 123456, UTC),
    "day": date(2026, 11, 17),
    "length": timedelta(days=1, microseconds=1),
    "decimal": Decimal("1.50"),
    "uuid": UUID(int=1),
    "block": Text("text", annotations={"audience": ["user"]}),
    "model": mcp_types.TextContent(type="text", text="theirs"),
}


@pytest.mark.parametrize("value", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("times", [1, 20, 300, 6000])
def test_what_is_exactly_as_long_as_it_may_be_is_encoded_and_one_byte_more_is_not(value: Any, times: int) -> None:
    whole = [value] * times
    encoded = encode_json(whole)
    assert encode_within(whole, len(encoded)) == encoded
    assert encode_within(whole, len(encoded) + 1) == encoded
    assert encode_within(whole, len(encoded) - 1) is None


def test_encoding_stops_when_the_limit_is_passed() -> None:
    counted = Counted()
    assert encode_within([counted] * 1_000_000, 100_000) is None
    assert counted.times < 3 * 100_000 / counted.length


def test_value_without_a_json_form_is_still_told_from_one_that_is_too_long() -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        encode_within(["x" * 2000, object()], 10_000)


def test_parts_are_merged_to_a_depth_and_replaced_below_it() -> None:
    base = {"a": {"b": {"c": 1}}, "l": [1]}
    merge_into(base, {"a": {"b": {"d": 2}}, "l": [2]}, 2)
    assert base == {"a": {"b": {"c": 1, "d": 2}}, "l": [2]}
    merge_into(base, {"a": {"b": {"e": 3}}}, 1)
    assert base == {"a": {"b": {"e": 3}}, "l": [2]}
