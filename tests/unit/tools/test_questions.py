"""Questions are declared as parameters; what cannot be asked is refused when the tool is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from dragoman import Ask, Root, Roots, Sample, ToolContext, tool
from dragoman.errors import InvalidArgument, InvalidTool
from dragoman.testing import open_server
from dragoman.tools.questions import FormKind, RootsKind, SampleKind, is_offered
from dragoman.tools.tool import tool_of


def test_what_is_asked_for_is_not_part_of_the_schema() -> None:
    @tool
    def delete(path: str, sure: Annotated[bool, Ask("Really delete {path}?")], ctx: ToolContext) -> str:
        """Deletes."""
        return path

    assert tool_of(delete).definition.input_schema["properties"] == {"path": {"type": "string"}}
    (question,) = tool_of(delete).questions
    assert question.params({"path": "a"}) == {
        "message": "Really delete a?",
        "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]},
    }


def test_an_input_schema_of_ones_own_leaves_the_questions_alone() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    @tool(input_schema=schema)
    def delete(path: str, sure: Annotated[bool, Ask("Sure?")]) -> str:
        """Deletes."""
        return path

    assert tool_of(delete).definition.input_schema == schema
    assert [question.name for question in tool_of(delete).questions] == ["sure"]


def declared_dict(x: Annotated[dict[str, int], Ask("x?")]) -> None: ...
def declared_union(x: Annotated[int | str, Ask("x?")]) -> None: ...
def inside_a_union(x: Annotated[int, Ask("x?")] | None = None) -> None: ...
def inside_a_list(x: list[Annotated[int, Ask("x?")]]) -> None: ...
def not_called(x: Annotated[int, Roots]) -> None: ...
def unknown_name(x: Annotated[int, Ask("{y}?")]) -> None: ...
def itself(x: Annotated[int, Ask("{x}?")]) -> None: ...
def later(x: Annotated[int, Ask("{y}?")], y: Annotated[int, Ask("y?")]) -> None: ...
def positional(x: Annotated[int, Ask("{}?")]) -> None: ...
def not_a_format(x: Annotated[int, Ask("{?")]) -> None: ...
def unknown_parameter(x: Annotated[int, Ask(lambda y: "x?")]) -> None: ...
async def _word() -> str: ...
def async_wording(x: Annotated[int, Ask(_word)]) -> None: ...
def no_wording(x: Annotated[int, Ask(5)]) -> None: ...
def sampled_number(x: Annotated[int, Sample("x?")]) -> None: ...
def roots_as_text(x: Annotated[list[str], Roots()]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (declared_dict, "a form needs fields"),
        (declared_union, "a field has one type"),
        (inside_a_union, "stands outermost"),
        (inside_a_list, "stands outermost"),
        (not_called, "Roots has to be called"),
        (unknown_name, "'y', which is no argument"),
        (itself, "'x', which is no argument"),
        (later, "'y', which is no argument, and no question before it"),
        (positional, "'', which is no argument"),
        (not_a_format, "cannot be read"),
        (unknown_parameter, "'y', which is no argument"),
        (async_wording, "not async"),
        (no_wording, "worded by a text"),
        (sampled_number, "is a str"),
        (roots_as_text, r"list\[Root\]"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(InvalidTool, match=f"x: .*{said}"):
        tool(function)


async def test_a_result_that_depends_on_answers_is_not_kept() -> None:
    @tool(read_only=True, cache_ttl_ms=1000)
    def guess(x: Annotated[int, Ask("x?")]) -> int:
        """Guesses."""
        return x

    with pytest.raises(InvalidTool, match="depends on answers"):
        async with open_server([guess]):
            pass


def questions(made: Any) -> dict[str, Any]:
    return {question.name: question for question in tool_of(made).questions}


def test_a_question_sees_arguments_defaults_and_the_answers_that_it_names() -> None:
    @tool
    def order(
        item: str,
        size: Annotated[str, Ask("Which size of {item}, {count} times?")],
        sure: Annotated[bool, Ask(lambda item, size: f"{item} in {size}?")],
        count: int = 3,
    ) -> None:
        """Orders."""

    asked = questions(order)
    assert asked["size"].params({"item": "hat"})["message"] == "Which size of hat, 3 times?"
    assert asked["size"].params({"item": "hat", "count": 5})["message"] == "Which size of hat, 5 times?"
    assert asked["sure"].params({"item": "hat", "size": "S"})["message"] == "hat in S?"
    assert (asked["size"].needs, asked["sure"].needs) == (frozenset(), {"size"})


def test_braces_and_attributes_can_be_part_of_a_wording() -> None:
    @tool
    def show(root: Annotated[list[Root], Roots()], x: Annotated[int, Ask("{{{root[0].uri}}}?")]) -> None:
        """Shows."""

    assert questions(show)["x"].params({"root": [Root("file:///a")]})["message"] == "{file:///a}?"


def test_sampling_asks_with_all_that_was_said() -> None:
    assert SampleKind(5, "Be brief.").params("Why?") == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Why?"}}],
        "maxTokens": 5,
        "systemPrompt": "Be brief.",
    }


TEXT = {"type": "text", "text": "because"}


@pytest.mark.parametrize("content", [TEXT, [TEXT], [{"type": "image"}, TEXT]])
def test_a_models_answer_is_its_text(content: Any) -> None:
    assert SampleKind(5, None).read({"role": "assistant", "content": content}) == "because"


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (SampleKind(5, None), {}),
        (SampleKind(5, None), {"content": "because"}),
        (SampleKind(5, None), {"content": [{"type": "text", "text": 5}]}),
        (SampleKind(5, None), {"content": {"type": "image", "data": ""}}),
        (RootsKind(), {}),
        (RootsKind(), {"roots": [{"name": "no uri"}]}),
        (RootsKind(), {"roots": "all"}),
    ],
)
def test_an_answer_of_another_kind_is_refused(kind: SampleKind | RootsKind, result: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        kind.read(result)


FORM = {"elicitation": {"form": {}}}


@pytest.mark.parametrize(
    ("kind", "capabilities", "offered"),
    [
        (FormKind, {}, False),
        (FormKind, {"elicitation": {}}, True),
        (FormKind, FORM, True),
        (FormKind, {"elicitation": {"url": {}}}, False),
        (FormKind, {"elicitation": {"url": {}, "form": {}}}, True),
        (FormKind, {"elicitation": True}, False),
        (SampleKind, {"sampling": {}}, True),
        (SampleKind, FORM, False),
        (RootsKind, {"roots": {"listChanged": True}}, True),
        (RootsKind, {"roots": None}, False),
    ],
)
def test_a_client_is_asked_only_what_it_said_it_can_answer(kind: Any, capabilities: Any, offered: bool) -> None:
    assert is_offered(kind, capabilities) is offered
