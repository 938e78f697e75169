"""One tree of errors, and the channel that each of them is answered on."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from typing import Any

import msgspec
import pytest

from dragoman import ToolContext, errors, tool
from dragoman.calls.call import Call
from dragoman.calls.origin import Origin
from dragoman.errors import (
    Aborted,
    ConfigError,
    DragomanError,
    ErrorCode,
    InvalidArgument,
    InvalidTool,
    NotInitialized,
    PartFailed,
    StructuredError,
    TargetError,
    Unauthorized,
    create_error,
)
from dragoman.replies.structured import wrap_tool_error
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, open_server

# The tree itself


def drawn() -> list[tuple[int, str]]:
    """The tree in the module's docstring: depth and name of each class."""
    pattern = re.compile(r"^((?:[│ ]   )*)(?:[├└]── )?([A-Z]\w+)(?=\s|$)")
    tree = errors.__doc__.split("\n\n")[1].splitlines()
    found = [pattern.match(line) for line in tree]
    return [(len(match[1]) // 4 + ("─" in line), match[2]) for line, match in zip(tree, found, strict=True) if match]


def walked(kind: type, depth: int = 0) -> list[tuple[int, str]]:
    here = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    below = [entry for each in here for entry in walked(each, depth + 1)]
    return [(depth, kind.__name__), *below]


def test_the_tree_that_is_drawn_is_the_tree_that_there_is() -> None:
    assert drawn() == walked(DragomanError)


def test_all_names_are_exported_and_no_others() -> None:
    here = {
        name
        for name, value in vars(errors).items()
        if getattr(value, "__module__", None) == "dragoman.errors" and not name.startswith("_")
    }
    assert sorted(here) == sorted(errors.__all__)


@pytest.mark.requirement("FND-ERR-02")
def test_the_application_codes_are_exactly_these() -> None:
    assert [(code.name, code.value) for code in ErrorCode] == [
        (name, name)
        for name in (
            "INVALID_ARGUMENT",
            "NOT_FOUND",
            "TIMEOUT",
            "RESOURCE_EXHAUSTED",
            "INTERNAL",
            "UNAUTHORIZED",
            "NOT_INITIALIZED",
        )
    ]


@pytest.mark.requirement("FND-ERR-04")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("InvalidArgument", "INVALID_ARGUMENT"),
        ("NotFound", "NOT_FOUND"),
        ("Unauthorized", "UNAUTHORIZED"),
        ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
        ("TimedOut", "TIMEOUT"),
        ("InternalFailure", "INTERNAL"),
        ("ParseError", -32700),
        ("InvalidRequest", -32600),
        ("MethodNotFound", -32601),
        ("InvalidParams", -32602),
        ("InternalError", -32603),
        ("NotInitialized", -32002),
        ("UnsupportedVersion", -32022),
        ("DuplicateTool", "INVALID_ARGUMENT"),
        ("InvalidTool", "INVALID_ARGUMENT"),
        ("Aborted", "ABORTED"),
    ],
)
def test_each_error_has_its_code(name: str, code: int | str) -> None:
    assert getattr(errors, name).code == code


@pytest.mark.requirement("FND-ERR-01")
def test_no_error_is_both_a_tools_and_the_protocols() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, DragomanError)]
    assert len(kinds) > 10
    assert not [kind for kind in kinds if issubclass(kind, errors.ToolError) and issubclass(kind, errors.ProtocolError)]


# What errors carry


@pytest.mark.requirement("FND-ERR-05")
def test_the_factory_makes_an_error_without_ids() -> None:
    error = create_error(ErrorCode.NOT_FOUND, "no such thing", {"name": "x"})
    assert error == StructuredError(ErrorCode.NOT_FOUND, "no such thing", {"name": "x"}, None, None)
    assert msgspec.to_builtins(error) == {"code": "NOT_FOUND", "message": "no such thing", "details": {"name": "x"}}
    assert msgspec.to_builtins(create_error(ErrorCode.INTERNAL, "m")) == {"code": "INTERNAL", "message": "m"}


@pytest.mark.requirement("FND-ERR-03", "FND-ERR-05")
def test_the_helper_wraps_a_copy_with_the_ids_of_the_call() -> None:
    error = create_error(ErrorCode.TIMEOUT, "too late", {"timeoutMs": 5})
    call = Call(Origin(), "t", {}, "run-7", "corr-7", lambda call, outcome: None)
    result = msgspec.to_builtins(wrap_tool_error(error, call))
    assert result.keys() == {"content", "isError", "_meta"}
    assert result["isError"] is True
    ((kind, text),) = [(item["type"], item["text"]) for item in result["content"]]
    assert kind == "text"
    assert json.loads(text) == {
        "code": "TIMEOUT",
        "message": "too late",
        "details": {"timeoutMs": 5},
        "runId": "run-7",
        "correlationId": "corr-7",
    }
    assert error == create_error(ErrorCode.TIMEOUT, "too late", {"timeoutMs": 5})


def test_an_error_tells_the_client_its_code_message_and_details() -> None:
    error = InvalidArgument("bad", {"errors": []})
    assert str(error) == "bad"
    assert error.structured("r", "c") == StructuredError(ErrorCode.INVALID_ARGUMENT, "bad", {"errors": []}, "r", "c")


def test_errors_say_what_is_wrong_in_words_and_keep_the_facts() -> None:
    invalid = InvalidTool("t", [("name", "is odd"), ("", "and more")])
    assert str(invalid) == "tool 't' cannot be registered: name: is odd; and more"
    assert invalid.problems == (("name", "is odd"), ("", "and more"))
    config = ConfigError([("a.b", "is wrong"), ("c", "too")])
    assert str(config) == "a.b: is wrong\nc: too"
    failed = PartFailed("mail", OSError("no route"))
    assert (str(failed), failed.part) == ("The part 'mail' cannot be started: OSError: no route", "mail")
    target = TargetError("x.py", "gone")
    assert (str(target), target.target, target.reason) == ("cannot load tools from 'x.py': gone", "x.py", "gone")
    assert (str(Aborted("deadline")), Aborted("deadline").reason) == ("aborted: deadline", "deadline")
    assert (str(Aborted()), Aborted().reason) == ("aborted", None)


def test_not_initialized_explains_itself() -> None:
    data = NotInitialized().data
    assert data is not None
    assert data["code"] == "NOT_INITIALIZED"
    assert "initialize" in data["message"]


# How they are answered


@tool
def add(a: int) -> int:
    return a


@tool
def broken() -> None:
    raise RuntimeError("hunter2 is in this text")


@tool
def guarded() -> None:
    raise Unauthorized("Administrators only", {"role": "admin"})


def tool_error(answer: dict[str, Any]) -> dict[str, Any]:
    """The structured error in an answer, after checking that it came on the tools' channel."""
    assert "error" not in answer
    result = answer["result"]
    assert result["isError"] is True
    (item,) = result["content"]
    assert item["type"] == "text"
    error = json.loads(item["text"])
    assert error["runId"] == result["_meta"]["dragoman/runId"]
    assert error["correlationId"] == result["_meta"]["dragoman/correlationId"]
    assert error.keys() - {"details"} == {"code", "message", "runId", "correlationId"}
    return error


async def call(client: MemoryClient, name: str, arguments: dict[str, Any], meta: Any = None) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return await client.request("tools/call", params if meta is None else {**params, "_meta": meta})


@pytest.mark.requirement("FND-ERR-01", "FND-ERR-03", "FND-ERR-04")
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("add", {"a": "x"}, "INVALID_ARGUMENT"),
        ("add", {}, "INVALID_ARGUMENT"),
        ("unknown", {}, "NOT_FOUND"),
        ("broken", {}, "INTERNAL"),
        ("guarded", {}, "UNAUTHORIZED"),
        ("add", {"a": 1, "padding": "x" * 100}, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_a_tool_result(name: str, arguments: dict[str, Any], code: str) -> None:
    config = {"tools": {"maxPayloadBytes": 100}}
    async with open_server([add, broken, guarded], config, ids=SequentialIds()) as server:
        client = await server.client()
        error = tool_error(await call(client, name, arguments, {"correlationId": "mine"}))
        assert (error["code"], error["runId"], error["correlationId"]) == (code, "run-1", "mine")
        error = tool_error(await call(client, name, arguments))
        assert (error["code"], error["runId"], error["correlationId"]) == (code, "run-2", "corr-1")


@pytest.mark.requirement("FND-ERR-01", "FND-ERR-04")
async def test_a_timeout_and_a_full_server_are_tool_results_too() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool(timeout_ms=100)
    async def wait(context: ToolContext) -> None:
        started.set()
        await ended.wait()

    clock = ManualClock()
    config = {"resources": {"maxConcurrentExecutions": 1}}
    async with open_server([wait], config, clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        waiting = client.begin("tools/call", {"name": "wait", "arguments": {}})
        await started.wait()
        refused = tool_error(await call(client, "wait", {}))
        clock.advance(0.1)
        late = tool_error(await client.answer(waiting))
        ended.set()
    assert (refused["code"], refused["runId"]) == ("RESOURCE_EXHAUSTED", "run-2")
    setting = "resources.max_concurrent_executions"
    assert refused["details"] == {"reason": "no_free_slot", "limit": 1, "retryable": True, "setting": setting}
    assert (late["code"], late["runId"]) == ("TIMEOUT", "run-1")
    assert late["details"] == {"timeoutMs": 100, "setting": "timeouts.tool_overrides.wait"}


@pytest.mark.requirement("FND-ERR-01", "FND-ERR-04", "FND-RPC-02")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{oops", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":9,"method":"no/such"}', -32601),
        (b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":1}}', -32602),
        (b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"add","arguments":[]}}', -32602),
    ],
)
async def test_what_is_wrong_with_a_message_is_a_json_rpc_error(line: bytes, code: int) -> None:
    async with open_server([add]) as server:
        client = await server.client()
        client.send(line + b"\n")
        answer = client.received()[-1]
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["error"]["code"] == code


@pytest.mark.requirement("FND-ERR-01", "FND-ERR-04")
async def test_a_call_before_the_handshake_is_a_json_rpc_error_with_the_application_code_in_its_data() -> None:
    async with open_server([add], ids=SequentialIds()) as server:
        answer = await call(server.connect(), "add", {"a": 1})
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["error"]["code"] == -32002
    assert (answer["error"]["data"]["code"], answer["error"]["data"]["correlationId"]) == ("NOT_INITIALIZED", "conn-1")


async def test_the_text_of_an_exception_stays_in_the_log() -> None:
    async with open_server([broken]) as server:
        client = await server.client()
        error = tool_error(await call(client, "broken", {}))
    assert error["message"] == "The tool failed"
    assert "hunter2" not in json.dumps(client.messages)
    assert b"hunter2 is in this text" in server.stderr


async def test_details_that_cannot_be_sent_do_not_cost_the_client_its_answer() -> None:
    @tool
    def odd() -> None:
        raise Unauthorized("no", {"why": object()})

    async with open_server([odd]) as server:
        error = tool_error(await call(await server.client(), "odd", {}))
    assert (error["code"], error["message"]) == ("UNAUTHORIZED", "no")
