"""Each limit that refuses a call names, in `details.setting`, the setting that moves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dragoman import tool
from dragoman.config import Config
from dragoman.errors import ToolError
from dragoman.sections import every_setting, is_marked, kind_of
from dragoman.testing import ManualClock, open_server
from tests.support.answers import error_in
from tests.support.calls import Held, Spy, begin

DEEP: dict[str, Any] = {"a": {"b": {"c": {}}}}
OF_ARGUMENTS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "tools.max_payload_bytes": (5, {"a": "bcde"}),
    "limits.max_request_bytes": (100, {"a": "b" * 100}),
    "limits.max_array_size": (2, {"a": [1, 2, 3]}),
    "limits.max_string_length": (2, {"a": "bcd"}),
    "limits.max_object_depth": (2, DEEP),
    "limits.max_object_members": (2, {"a": 1, "b": 2, "c": 3}),
    "limits.tool_array_limits.spy": (2, {"a": [1, 2, 3]}),
    "limits.tools.spy.max_payload_bytes": (5, {"a": "bcde"}),
    "limits.tools.spy.max_array_size": (2, {"a": [1, 2, 3]}),
    "limits.tools.spy.max_string_length": (2, {"a": "bcd"}),
    "limits.tools.spy.max_object_depth": (2, DEEP),
    "limits.tools.spy.max_object_members": (2, {"a": 1, "b": 2, "c": 3}),
}
"""A low value of each, and arguments beyond it."""
OF_CALLERS = (
    "limits.calls_per_minute_per_caller",
    "limits.tools.spy.calls_per_minute",
)
OF_SLOTS = (
    "resources.max_concurrent_executions",
    "resources.max_concurrent_per_caller",
    "limits.tools.hold.max_concurrent",
)
OF_TIME = (
    "tools.default_timeout_ms",
    "timeouts.tool_overrides.hold",
    "timeouts.tool_timeouts.query",
    "timeouts.tool_timeouts.mutation",
    "timeouts.tool_timeouts.scan",
    "timeouts.tool_timeouts.execution",
)
OTHERWISE = {
    "response.max_response_bytes": "below",
    "storage.max_bytes_per_caller": "tests/unit/tools/test_storage_errors.py",
    "tasks.max_waiting": "tests/unit/tasks/test_queue.py",
    "gateway.requests_per_minute_per_tenant": "tests/interaction/test_gateway_limits.py",
    "gateway.requests_per_minute_per_principal": "tests/interaction/test_gateway_limits.py",
    "gateway.artifact_bytes_per_tenant": "tests/unit/gateway/test_keeping.py",
    "knowledge.documents_per_tenant": "tests/contract/test_document_limits.py",
    "knowledge.document_bytes_per_tenant": "tests/contract/test_document_limits.py",
    "knowledge.answer_bytes_per_tenant": "tests/contract/test_document_requests.py",
    "knowledge.max_concurrent": "tests/interaction/test_gateway_limits.py",
}
NO_ERROR_OF_A_CALL = {
    "aacp.max_concurrent": "messages wait",
    "tasks.max_concurrent": "tasks wait",
    "gateway.max_in_flight_per_tenant": "messages wait",
    "gateway.max_attempts": "the message is parked",
    "gateway.max_artifact_bytes": "an upload is refused with 413",
    "timeouts.input_ms": "the question is not answered",
    "tools.max_state_bytes": "the tool gets an exception",
    "limits.max_message_containers": "the message is refused before it is a call",
    "limits.max_message_elements": "the message is refused before it is a call",
    "response.max_kept_bytes": "the answer names the limit that it passed, `response.max_response_bytes`",
    "response.max_list_items": "the result is shortened",
    "response.max_string_length": "the result is shortened",
    "storage.vector_cache_bytes": "more is read",
}
PLACES = ("tools", "resources", "timeouts", "limits", "response", "storage", "aacp", "tasks", "gateway", "knowledge")


def config_of(setting: str, value: Any) -> dict[str, Any]:
    config: dict[str, Any] = {}
    section = config
    *path, name = setting.split(".")
    for step in path:
        section = section.setdefault(step, {})
    section[name] = value
    return config


def test_each_limit_of_calls_is_walked() -> None:
    walked = {*OF_ARGUMENTS, *OF_CALLERS, *OF_SLOTS, *OF_TIME, *OTHERWISE}
    assert all(kind_of(Config, name.split(".")) is not Any for name in walked)
    general = {name.replace(".spy.", ".<name>.").replace(".hold.", ".<name>.") for name in walked}
    limits = {name for name, kind in every_setting(Config) if is_marked(kind, "is_limit")}
    assert {name for name in limits if name.startswith(PLACES)} - general == NO_ERROR_OF_A_CALL.keys()


@pytest.mark.parametrize("setting", OF_ARGUMENTS)
async def test_arguments_beyond_a_limit_are_told_its_setting(setting: str) -> None:
    value, arguments = OF_ARGUMENTS[setting]
    spy = Spy()
    async with open_server([spy.tool], config_of(setting, value)) as server:
        error = (await server.runtime.call("spy", arguments)).error
    assert isinstance(error, ToolError)
    assert (error.details or {}).get("setting") == setting
    assert spy.calls == 0


@pytest.mark.parametrize("setting", OF_CALLERS)
async def test_a_caller_that_calls_too_often_is_told_the_setting(setting: str) -> None:
    async with open_server([Spy().tool], config_of(setting, 1), clock=ManualClock()) as server:
        client = await server.client()
        assert (await client.call_tool("spy"))["isError"] is False
        assert error_in(await client.call_tool("spy"))["details"]["setting"] == setting


@pytest.mark.parametrize("setting", OF_SLOTS)
async def test_a_call_without_a_slot_is_told_the_setting(setting: str) -> None:
    held = Held()
    async with open_server([held.tool], config_of(setting, 1)) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        refused = error_in(await client.call_tool("hold"))
        held.release.set()
    assert refused["details"]["setting"] == setting


@pytest.mark.parametrize("setting", OF_TIME)
async def test_a_call_past_its_deadline_is_told_the_setting(setting: str) -> None:
    clock, held = ManualClock(), Held()
    place, _, category = setting.rpartition(".")
    tool_of = tool(name="hold", category=category) if place == "timeouts.tool_timeouts" else tool(name="hold")  # type: ignore[call-overload]
    async with open_server([tool_of(held._run)], config_of(setting, 50), clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.06)
        late = error_in((await client.answer(call))["result"])
        held.release.set()
    assert late["details"] == {"timeoutMs": 50, "setting": setting}


async def test_a_result_that_is_too_large_is_told_the_setting() -> None:
    @tool
    async def write() -> str:
        """Writes much."""
        return "x" * 5000

    async with open_server([write], {"response": {"max_response_bytes": 2000}}) as server:
        error = error_in(await (await server.client()).call_tool("write"))
    assert error["details"]["setting"] == "response.max_response_bytes"
