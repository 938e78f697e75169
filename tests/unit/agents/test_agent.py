"""What can be an agent, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.agents.agent import agents_apart, make_agent
from dragoman.errors import InvalidAgent


async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
    return None


class Handler:
    async def handle(self, message: AgentMessage, ctx: AgentContext) -> Any:
        return None


class Callable:
    async def __call__(self, message: AgentMessage, ctx: AgentContext) -> Any:
        return None


async def test_functions_classes_and_callables_can_be_agents() -> None:
    assert make_agent("a", handle).make() == (handle, None)
    made, start = make_agent("a", Handler).make()
    assert (made.__self__.__class__, start) == (Handler, None)  # type: ignore[attr-defined]
    assert make_agent("a", Callable()).make()[1] is None


@pytest.mark.parametrize("agent_id", ["a", "A-1_b.c", "x" * 128])
def test_ids_are_letters_digits_and_a_few_signs(agent_id: str) -> None:
    assert make_agent(agent_id, handle).id == agent_id


@pytest.mark.parametrize("agent_id", ["", "a:b", "a b", "é", "x" * 129, "a\n", "a/b", "*", 5, None])
def test_other_ids_are_refused(agent_id: Any) -> None:
    with pytest.raises(InvalidAgent) as refused:
        agent(agent_id)(handle)
    assert [where for where, _ in refused.value.problems] == ["id"]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"effects": "inside"}, "effects"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"max_restarts": -1}, "max_restarts"),
    ],
)
def test_other_options_are_refused(options: Any, where: str) -> None:
    with pytest.raises(InvalidAgent) as refused:
        agent("a", **options)(handle)
    assert [each for each, _ in refused.value.problems] == [where]


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(InvalidAgent) as refused:
        agent("a b", effects="inside", timeout_ms=0)(lambda: None)  # type: ignore[arg-type]
    assert [each for each, _ in refused.value.problems] == ["id", "effects", "timeout_ms", ""]


def _handlers() -> list[Any]:
    def not_async(message: Any, ctx: Any) -> None: ...

    async def one_argument(message: Any) -> None: ...

    async def three_arguments(message: Any, ctx: Any, more: Any) -> None: ...

    class NoHandle: ...

    class NotAsync:
        def handle(self, message: Any, ctx: Any) -> None: ...

    class Needs(Handler):
        def __init__(self, something: Any) -> None: ...

    class OneArgument:
        async def handle(self, message: Any) -> None: ...

    class BadStart(Handler):
        def start(self, ctx: Any) -> None: ...

    class GreedyStart(Handler):
        async def start(self, ctx: Any, more: Any) -> None: ...

    return [
        not_async, one_argument, three_arguments, NoHandle, NotAsync, Needs, OneArgument, BadStart, GreedyStart, 5, None
    ]  # fmt: skip


@pytest.mark.parametrize("handler", _handlers(), ids=lambda each: getattr(each, "__name__", str(each)))
def test_other_handlers_are_refused(handler: Any) -> None:
    with pytest.raises(InvalidAgent) as refused:
        agent("a")(handler)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    ("options", "may_repeat"),
    [({}, False), ({"effects": "ledger"}, True), ({"idempotent": True}, True)],
)
def test_only_what_says_so_is_run_again(options: Any, may_repeat: bool) -> None:
    assert make_agent("a", handle, **options).may_repeat is may_repeat


def test_agents_are_told_from_other_things_that_a_server_is_given() -> None:
    @tool
    async def work() -> str:
        return ""

    @tool
    @agent("both")
    async def both(message: str, ctx: str) -> str:
        return ""

    made = make_agent("a", handle)
    rest, agents = agents_apart([work, made, both, agent("b")(Handler)])
    assert [each.id for each in agents] == ["a", "both", "b"]
    assert rest[0] is work
    assert len(rest) == 2
