"""The official SDK's client is asked by a spawned server: it answers, declines, lies, is slow, and leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from tests.support.person import Person, text_of
from tests.support.sdk_client import Log, both_eras, connected, error_of
from tests.support.served import path_of

pytestmark = pytest.mark.slow

SERVE = ("-m", "dragoman", "serve", path_of("asking_tools.py"))


@both_eras
async def test_a_person_a_model_and_the_client_itself_are_asked(mode: str, log: Log) -> None:
    ada = Person({"name": "Ada"})
    async with connected(mode, log, SERVE, **ada.callbacks()) as client:
        assert await text_of(client, "test_input_required_result_multiple_inputs") == "Paris Ada file:///work"
    assert ada.asked == ["What is your name?", "Generate a greeting"]
    rounds = {"legacy": 1, "auto": 2}[mode]
    assert log.records() == [("test_input_required_result_multiple_inputs", "success")] * rounds


@both_eras
async def test_a_question_can_depend_on_an_answer(mode: str, log: Log) -> None:
    ada = Person({"name": "Ada"}, {"color": "blue"})
    async with connected(mode, log, SERVE, **ada.callbacks()) as client:
        assert await text_of(client, "test_input_required_result_multi_round") == "Ada likes blue"
    assert ada.asked == ["Step 1: What is your name?", "Step 2: What is your favorite color, Ada?"]


@both_eras
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_can_say_no(mode: str, log: Log, action: str) -> None:
    ada = Person(action)
    async with connected(mode, log, SERVE, **ada.callbacks()) as client:
        error = error_of(await client.call_tool("delete", {"path": "a"}))
        assert (error["code"], error["details"]["reason"]) == ("UNAUTHORIZED", "declined")
    assert "deleting" not in log.path.read_text("utf-8")
    assert log.records()[-1] == ("delete", "tool_error")


async def test_a_lie_is_an_error_in_the_handshake_era(log: Log) -> None:
    eve = Person({"sure": "certainly"})
    async with connected("legacy", log, SERVE, **eve.callbacks()) as client:
        assert error_of(await client.call_tool("delete", {"path": "a"}))["code"] == "INVALID_ARGUMENT"
    assert "deleting" not in log.path.read_text("utf-8")


async def test_a_lie_is_asked_again_in_the_modern_era(log: Log) -> None:
    eve = Person({"sure": "certainly"}, {"sure": True})
    async with connected("auto", log, SERVE, **eve.callbacks()) as client:
        assert await text_of(client, "delete", {"path": "a"}) == "a: True"
    assert eve.asked == ["Really delete a?"] * 2


async def test_a_client_that_cannot_be_asked_is_told_so(log: Log) -> None:
    async with connected("legacy", log, SERVE) as client:
        assert error_of(await client.call_tool("delete", {"path": "a"}))["details"]["reason"] == "unsupported"
    async with connected("auto", log, SERVE) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("delete", {"path": "a"})
        assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        assert refused.value.error.data["requiredCapabilities"] == {"elicitation": {"form": {}}}


@both_eras
async def test_a_client_that_stops_waiting_takes_its_question_with_it(mode: str, log: Log) -> None:
    asked = asyncio.Event()

    async def never(context: Any, params: Any) -> types.ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with connected(mode, log, SERVE, elicitation_callback=never) as client:
        call = asyncio.create_task(client.call_tool("delete", {"path": "a"}))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await text_of(client, "test_tool_with_logging") == "done"
    outcome = {"legacy": "aborted", "auto": "success"}[mode]  # A modern call has ended with its question.
    assert log.records() == [("delete", outcome), ("test_tool_with_logging", "success")]


async def test_a_client_that_leaves_while_it_is_asked_leaves_nothing_behind(log: Log) -> None:
    asked = asyncio.Event()

    async def never(context: Any, params: Any) -> types.ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with connected("legacy", log, SERVE, elicitation_callback=never) as client:
        call = asyncio.create_task(client.call_tool("delete", {"path": "a"}))
        await asked.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    # The SDK may have answered the question with an error before it left.
    assert log.records() in ([("delete", "aborted")], [("delete", "tool_error")])


async def test_a_person_who_takes_too_long_is_not_waited_for(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TIMEOUTS__INPUT_MS", "200")

    async def never(context: Any, params: Any) -> types.ElicitResult:
        await asyncio.Event().wait()
        raise AssertionError

    async with connected("legacy", log, SERVE, elicitation_callback=never) as client:
        assert error_of(await client.call_tool("delete", {"path": "a"}))["details"]["reason"] == "timeout"
        assert await text_of(client, "test_tool_with_logging") == "done"


async def test_asking_in_the_middle_of_the_work_takes_a_live_way_back(log: Log) -> None:
    ada = Person({"username": "ada", "email": "ada@example.com"})
    async with connected("legacy", log, SERVE, **ada.callbacks()) as client:
        said = await text_of(client, "test_elicitation", {"message": "Who?"})
        assert said == "User response: Contact(username='ada', email='ada@example.com')"
        assert await text_of(client, "test_sampling", {"prompt": "Where?"}) == "LLM response: Paris"
    async with connected("auto", log, SERVE, **ada.callbacks()) as client:
        for name, arguments in (("test_elicitation", {"message": "Who?"}), ("test_sampling", {"prompt": "Where?"})):
            assert error_of(await client.call_tool(name, arguments))["details"]["reason"] == "unsupported"


@both_eras
async def test_forms_arrive_with_their_defaults_and_choices(mode: str, log: Log) -> None:
    ada = Person("decline", "decline")
    async with connected(mode, log, SERVE, **ada.callbacks()) as client:
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


@both_eras
async def test_log_messages_reach_a_client_that_wants_them(mode: str, log: Log) -> None:
    said: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        said.append(params.data)

    async with connected(mode, log, SERVE, logging_callback=on_log, log_level="info") as client:
        await text_of(client, "test_tool_with_logging")
    assert said == ["Tool execution started", "Tool processing data", "Tool execution completed"]


async def test_a_state_outlives_the_process_that_made_it_where_the_key_is_shared(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(state: str | None = None) -> types.CallToolResult | types.InputRequiredResult | str:
        answers = {"sure": types.ElicitResult(action="accept", content={"sure": True})} if state else None
        async with connected("auto", log, SERVE, **Person().callbacks()) as client:
            try:
                return await client.session.call_tool(
                    "delete", {"path": "a"}, input_responses=answers, request_state=state, allow_input_required=True
                )
            except MCPError as error:
                return error.message

    monkeypatch.setenv("DRAGOMAN_SECURITY__STATE_KEY", "k" * 32)
    first = await ask()
    assert isinstance(first, types.InputRequiredResult)
    second = await ask(first.request_state)
    assert isinstance(second, types.CallToolResult)
    assert not second.is_error
    monkeypatch.delenv("DRAGOMAN_SECURITY__STATE_KEY")
    assert await ask(first.request_state) == "Invalid or expired requestState"
