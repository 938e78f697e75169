"""The official SDK's client is asked, over every transport: it answers, declines, lies, is slow, and leaves."""

from __future__ import annotations

import asyncio
from tempfile import NamedTemporaryFile
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.support.http_serving import serving
from tests.support.person import Person, text_of
from tests.support.sdk_client import (
    WAYS,
    Way,
    connected,
    error_of,
    every_way,
    handshake_ways,
    modern_ways,
    offered_by,
    spawned,
)
from tests.support.served import asking_tools

pytestmark = pytest.mark.slow


@every_way
async def test_a_person_a_model_and_the_client_itself_are_asked(way: Way) -> None:
    ada = Person({"name": "Ada"})
    async with connected(way, asking_tools, **ada.callbacks()) as server:
        assert await text_of(server.client, "test_input_required_result_multiple_inputs") == "Paris Ada file:///work"
        assert ada.asked == ["What is your name?", "Generate a greeting"]
        rounds = 2 if way.is_modern else 1
        await server.recorded(*[("test_input_required_result_multiple_inputs", "success")] * rounds)


@every_way
async def test_a_question_can_depend_on_an_answer(way: Way) -> None:
    ada = Person({"name": "Ada"}, {"color": "blue"})
    async with connected(way, asking_tools, **ada.callbacks()) as (client, _):
        assert await text_of(client, "test_input_required_result_multi_round") == "Ada likes blue"
    assert ada.asked == ["Step 1: What is your name?", "Step 2: What is your favorite color, Ada?"]


@every_way
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_can_say_no(way: Way, action: str) -> None:
    ada = Person(action)
    async with connected(way, asking_tools, **ada.callbacks()) as server:
        error = error_of(await server.client.call_tool("delete", {"path": "a"}))
        assert (error["code"], error["details"]["reason"]) == ("UNAUTHORIZED", "declined")
        asking = [("delete", "success")] if way.is_modern else []  # A modern call ends with its question.
        await server.recorded(*asking, ("delete", "tool_error"))
        assert b"deleting" not in server.read_log()


@handshake_ways
async def test_a_lie_is_an_error_in_the_handshake_era(way: Way) -> None:
    eve = Person({"sure": "certainly"})
    async with connected(way, asking_tools, **eve.callbacks()) as server:
        assert error_of(await server.client.call_tool("delete", {"path": "a"}))["code"] == "INVALID_ARGUMENT"
        await server.recorded(("delete", "tool_error"))
        assert b"deleting" not in server.read_log()


@modern_ways
async def test_a_lie_is_asked_again_in_the_modern_era(way: Way) -> None:
    eve = Person({"sure": "certainly"}, {"sure": True})
    async with connected(way, asking_tools, **eve.callbacks()) as (client, _):
        assert await text_of(client, "delete", {"path": "a"}) == "a: True"
    assert eve.asked == ["Really delete a?"] * 2


@handshake_ways
async def test_a_handshake_client_that_cannot_be_asked_is_told_so_in_the_result(way: Way) -> None:
    async with connected(way, asking_tools) as (client, _):
        assert error_of(await client.call_tool("delete", {"path": "a"}))["details"]["reason"] == "unsupported"


@modern_ways
async def test_a_modern_client_that_cannot_be_asked_is_told_which_capability_it_lacks(way: Way) -> None:
    async with connected(way, asking_tools) as (client, _):
        with pytest.raises(MCPError) as refused:
            await client.call_tool("delete", {"path": "a"})
        assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        assert refused.value.error.data["requiredCapabilities"] == {"elicitation": {"form": {}}}


class Silent:
    """Somebody who is asked and does not answer."""

    def __init__(self) -> None:
        self.asked, self.withdrawn = asyncio.Event(), asyncio.Event()

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.withdrawn.set()
        raise AssertionError


@every_way
async def test_a_client_that_stops_waiting_takes_its_question_with_it(way: Way) -> None:
    silent = Silent()
    async with connected(way, asking_tools, elicitation_callback=silent) as server:
        call = asyncio.create_task(server.client.call_tool("delete", {"path": "a"}))
        await silent.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await silent.withdrawn.wait()
        assert await text_of(server.client, "test_tool_with_logging") == "done"
        outcome = "success" if way.is_modern else "aborted"  # A modern call has ended with its question.
        await server.recorded(("delete", outcome), ("test_tool_with_logging", "success"))


async def test_a_client_that_leaves_while_it_is_asked_over_stdio_leaves_nothing_behind() -> None:
    silent = Silent()
    serve = ("-m", "dragoman", "serve", str(asking_tools.__file__))
    with NamedTemporaryFile("w") as log:
        async with spawned("legacy", serve, log=log, elicitation_callback=silent) as server:
            call = asyncio.create_task(server.client.call_tool("delete", {"path": "a"}))
            await silent.asked.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        # The SDK may have answered the question with an error before it left.
        assert server.records() in ([("delete", "aborted")], [("delete", "tool_error")])


async def test_a_client_that_leaves_while_it_is_asked_over_http_leaves_nothing_behind() -> None:
    silent = Silent()
    async with serving(offered_by(asking_tools)) as server:
        async with Client(server.url, mode="legacy", elicitation_callback=silent) as client:
            call = asyncio.create_task(client.call_tool("delete", {"path": "a"}))
            await silent.asked.wait()
        await asyncio.gather(call, return_exceptions=True)
        await server.recorded(("delete", "aborted"))


@handshake_ways
async def test_a_person_who_takes_too_long_is_not_waited_for(way: Way) -> None:
    settings = {"timeouts.input_ms": 200}
    async with connected(way, asking_tools, settings, elicitation_callback=Silent()) as (client, _):
        assert error_of(await client.call_tool("delete", {"path": "a"}))["details"]["reason"] == "timeout"
        assert await text_of(client, "test_tool_with_logging") == "done"


@handshake_ways
async def test_a_handshake_client_can_be_asked_in_the_middle_of_the_work(way: Way) -> None:
    ada = Person({"username": "ada", "email": "ada@example.com"})
    async with connected(way, asking_tools, **ada.callbacks()) as (client, _):
        said = await text_of(client, "test_elicitation", {"message": "Who?"})
        assert said == "User response: Contact(username='ada', email='ada@example.com')"
        assert await text_of(client, "test_sampling", {"prompt": "Where?"}) == "LLM response: Paris"


@modern_ways
async def test_a_modern_client_cannot_be_asked_in_the_middle_of_the_work(way: Way) -> None:
    async with connected(way, asking_tools, **Person().callbacks()) as (client, _):
        for name, arguments, method in (
            ("test_elicitation", {"message": "Who?"}, "elicitation/create"),
            ("test_sampling", {"prompt": "Where?"}, "sampling/createMessage"),
        ):
            refused = error_of(await client.call_tool(name, arguments))
            assert refused["details"] == {"reason": "client_cannot_be_asked", "method": method}


@every_way
async def test_forms_arrive_with_their_defaults_and_choices(way: Way) -> None:
    ada = Person("decline", "decline")
    async with connected(way, asking_tools, **ada.callbacks()) as (client, _):
        await text_of(client, "test_elicitation_sep1034_defaults")
        await text_of(client, "test_elicitation_sep1330_enums")
    defaults, enums = (form["properties"] for form in ada.forms)
    assert {name: field["default"] for name, field in defaults.items()} == {
        "name": "John Doe",
        "age": 30,
        "score": 95.5,
        "status": "active",
        "verified": True,
    }
    assert [sorted(field) for field in enums.values()] == [
        ["enum", "type"],
        ["oneOf", "type"],
        ["enum", "enumNames", "type"],
        ["items", "type"],
        ["items", "type"],
    ]


@every_way
async def test_log_messages_reach_a_client_that_wants_them(way: Way) -> None:
    said: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        said.append(params.data)

    async with connected(way, asking_tools, logging_callback=on_log, log_level="info") as (client, _):
        await text_of(client, "test_tool_with_logging")
    assert said == ["Tool execution started", "Tool processing data", "Tool execution completed"]


async def test_a_state_outlives_the_process_that_made_it_where_the_key_is_shared() -> None:
    shared = {"security.state_key": "k" * 32}

    async def ask(
        settings: dict[str, str], state: str | None = None
    ) -> types.CallToolResult | types.InputRequiredResult | str:
        answers = {"sure": types.ElicitResult(action="accept", content={"sure": True})} if state else None
        async with connected(WAYS["stdio-modern"], asking_tools, settings, **Person().callbacks()) as (client, _):
            try:
                return await client.session.call_tool(
                    "delete", {"path": "a"}, input_responses=answers, request_state=state, allow_input_required=True
                )
            except MCPError as error:
                return error.message

    first = await ask(shared)
    assert isinstance(first, types.InputRequiredResult)
    second = await ask(shared, first.request_state)
    assert isinstance(second, types.CallToolResult)
    assert not second.is_error
    assert await ask({}, first.request_state) == "Invalid or expired requestState"
