"""Calls on their way to a module and back."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import pathlib
import threading
import uuid
from typing import Any

import pytest
from apcore import ACL, ACLRule, Context, Executor, Identity, Registry
from apcore.config import Config
from apcore.errors import InvalidInputError, ModuleError, SchemaValidationError
from apcore.errors import ModuleNotFoundError as ApcoreNotFound
from apcore.middleware import Middleware
from apcore.utils.redaction import REDACTED_VALUE, redact_sensitive
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from apcore_mcp import MCP_PROGRESS_KEY, report_progress
from apcore_mcp.server.calls import identity_of
from apcore_mcp.server.router import ExecutionRouter
from dragoman import Caller
from dragoman.access.callers import ANONYMOUS, LOCAL
from dragoman.schemas.schema import compile_schema
from dragoman.schemas.sensitive import redact
from tests.support.counted import Counted
from tests.support.modules import SECRET, Anything, Does, Resize, ResizeInput, Streams, registry_of, serving, text_of
from tests.support.waiting import PATIENCE, until

NOON = datetime.datetime(2024, 1, 15, 12, tzinfo=datetime.UTC)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def router(**modules: Any) -> ExecutionRouter:
    return ExecutionRouter(Executor(registry_of(**modules)))


async def told(called: ExecutionRouter, name: str, arguments: dict[str, Any] | None = None) -> tuple[bool | None, str]:
    result = await called.handle_call(name, arguments)
    (block,) = result.content
    return result.is_error, block.text  # type: ignore[union-attr]


# What comes back


@pytest.mark.requirement("FR-EXEC-001", "UC-003", "SRS-API-15")
async def test_the_output_of_a_module_is_the_text_of_the_result() -> None:
    seen: list[Any] = []
    nested = {"a": {"b": [1, None, {"c": "ü"}]}}
    called = router(image__resize=Resize(), look=Does(lambda inputs, context: seen.append(inputs) or nested))
    assert await told(called, "image.resize", {"width": 3}) == (False, '{"width": 3, "height": 1}')
    is_error, text = await told(called, "look", {})
    assert (is_error, json.loads(text), seen) == (False, nested, [{}])
    assert (await told(called, "look"))[0] is False
    assert seen == [{}, {}]


async def test_writing_an_output_stops_when_it_is_too_long_to_be_answered_with() -> None:
    counted = Counted()
    modules = registry_of(large=Does(lambda inputs, context: {"rows": [counted] * 100_000}))
    called = ExecutionRouter(Executor(modules), most_bytes=20_000)
    assert await told(called, "large") == (True, "Module error: RESULT_TOO_LARGE")
    assert counted.times <= 8 * 20_000 // counted.length


class Double:
    """Just what the bridge needs of an executor."""

    def __init__(self, output: Any) -> None:
        self.output = output
        self.called: list[Any] = []
        self.registry: Any = None

    async def call_async(self, module_id: str, inputs: dict[str, Any], context: Any = None) -> Any:
        self.called.append((module_id, inputs, context))
        if isinstance(self.output, BaseException):
            raise self.output
        return self.output


@pytest.mark.requirement("FR-EXEC-001", "SRS-API-08")
async def test_a_call_is_the_executors_with_the_name_and_the_arguments_as_they_are() -> None:
    double: Any = Double({})
    assert await told(ExecutionRouter(double), "a.b", {"x": 1}) == (False, "{}")
    context: Any = Context.create()
    await ExecutionRouter(double).handle_call("a.b", None, context)
    assert double.called == [("a.b", {"x": 1}, None), ("a.b", {}, context)]


@pytest.mark.requirement("FR-EXEC-002")
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({}, "{}"),
        ({"a": NOON}, '{"a": "2024-01-15 12:00:00+00:00"}'),
        ({"a": pathlib.PurePosixPath("/x")}, '{"a": "/x"}'),
        ({"a": uuid.UUID(int=1)}, '{"a": "00000000-0000-0000-0000-000000000001"}'),
        ({"a": b"b"}, """{"a": "b'b'"}"""),
    ],
)
async def test_what_has_no_json_form_is_written_as_text(output: Any, text: str) -> None:
    double: Any = Double(output)
    assert await told(ExecutionRouter(double), "a") == (False, text)
    async with serving(registry_of(a=Does(lambda inputs, context: output))) as server:
        result = await (await server.client()).call_tool("a", {})
        assert (result["isError"], text_of(result)) == (False, text)


@pytest.mark.requirement("FR-EXEC-002")
@pytest.mark.parametrize("value", [Unspeakable(), float("nan"), {"b": float("inf")}])
async def test_an_output_that_cannot_be_written_at_all_is_an_error(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    double: Any = Double({"a": value})
    assert await told(ExecutionRouter(double), "a") == (True, "Failed to serialize module output")
    async with serving(registry_of(a=Does(lambda inputs, context: {"a": value}))) as server:
        result = await (await server.client()).call_tool("a", {})
        assert (result["isError"], text_of(result)) == (True, "Failed to serialize module output")
    assert all(record.getMessage().startswith("Tool call error: a - ") for record in caplog.records)
    assert len(caplog.records) == 2


async def test_not_even_one_that_is_raised_before_there_is_anything_to_wait_for() -> None:
    class Sync(Double):
        def call_async(self, module_id: str, inputs: dict[str, Any], context: Any = None) -> Any:
            raise RuntimeError("at once")

    double: Any = Sync({})
    assert await told(ExecutionRouter(double), "a") == (True, "Internal error occurred")


@pytest.mark.requirement("FR-EXEC-007", "FR-ERROR-009", "FR-ERROR-011")
@pytest.mark.parametrize("error", [RuntimeError("disk full"), KeyError("k"), TypeError("t"), OSError("/etc/secret")])
async def test_no_exception_gets_through(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    double: Any = Double(error)
    assert await told(ExecutionRouter(double), "a") == (True, "Internal error occurred")
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def wrong(error: ModuleError, **attributes: Any) -> ModuleError:
    vars(error).update(attributes)
    return error


@pytest.mark.requirement("FR-EXEC-007", "FR-ERROR-009", "FR-ERROR-011")
@pytest.mark.parametrize(
    "error",
    [
        Speechless(),
        wrong(SchemaValidationError(), message=Unspeakable()),
        wrong(InvalidInputError(), message=Unspeakable(), details=7, code=Unspeakable()),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseExceptionGroup("several", [SystemExit(1), ValueError()]),
    ],
)
async def test_an_exception_of_any_kind_is_an_error_result(error: BaseException) -> None:
    called: Any = Double(error)
    assert await told(ExecutionRouter(called), "a") == (True, "Internal error occurred")
    if isinstance(error, SystemExit | KeyboardInterrupt):  # apcore's own task would raise it in the event loop as well.
        return
    registry = registry_of(a=Does(lambda inputs, context: raise_(error)))
    assert await told(ExecutionRouter(Executor(registry)), "a") == (True, "Internal error occurred")
    async with serving(registry) as server:
        result = await (await server.client()).call_tool("a", {})
        assert (result["isError"], text_of(result)) == (True, "Internal error occurred")


def raise_(error: BaseException) -> Any:
    raise error


@pytest.mark.requirement("FR-EXEC-007", "FR-ERROR-001")
async def test_an_error_whose_details_are_no_mapping_keeps_its_text() -> None:
    double: Any = Double(wrong(ApcoreNotFound("m"), details=["not", "a", "mapping"]))
    assert await told(ExecutionRouter(double), "a") == (True, "Module not found: ")


async def test_a_call_whose_task_is_cancelled_is_cancelled() -> None:
    begun = asyncio.Event()

    async def wait(inputs: Any, context: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(told(router(a=Does(wait)), "a"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.requirement("FR-EXEC-007", "FR-ERROR-002", "SRS-API-08")
async def test_not_even_where_the_schema_of_what_failed_cannot_be_had() -> None:
    errors = [{"field": "width", "code": "int_type", "message": "Input should be a valid integer"}]
    double: Any = Double(SchemaValidationError(message="Input validation failed", errors=errors))
    text = "Input validation failed:\n- width: Input should be a valid integer (int_type)"
    assert await told(ExecutionRouter(double), "a") == (True, text)
    del double.registry
    assert await told(ExecutionRouter(double), "a") == (True, text)


@pytest.mark.requirement("FR-ERROR-001", "FR-ERROR-002", "FR-EXEC-007", "UC-004")
async def test_the_executors_own_errors_have_their_texts() -> None:
    called = router(image__resize=Resize())
    assert await told(called, "no.such") == (True, "Module not found: no.such")
    assert (await told(called, "no-such"))[1].startswith("Invalid input: ")
    wide = "Input validation failed:\n- width: Input should be a valid integer (int_type)"
    assert await told(called, "image.resize", {"width": "wide"}) == (True, wide)
    assert (await told(called, "image.resize"))[1] == "Input validation failed:\n- width: Field required (missing)"


# What happens on the way


class Trail(Middleware):
    def __init__(self, trail: list[str]) -> None:
        super().__init__()
        self._trail = trail

    def before(self, module_id: str, inputs: dict[str, Any], context: Context[Any]) -> None:
        self._trail.append("before")

    def after(self, module_id: str, inputs: Any, output: Any, context: Context[Any]) -> dict[str, Any]:
        self._trail.append("after")
        return {**output, "signed": True}


@pytest.mark.requirement("FR-EXEC-003", "FR-EXEC-005", "C-02", "NFR-SEC-001")
async def test_every_step_of_the_executor_is_taken_and_what_middleware_made_of_the_output_is_the_answer() -> None:
    trail: list[str] = []
    registry = registry_of(a=Does(lambda inputs, context: trail.append("execute") or {"x": 1}, output_schema=Only))
    executor = Executor(registry, middlewares=[Trail(trail)])
    assert json.loads((await told(ExecutionRouter(executor), "a"))[1]) == {"x": 1, "signed": True}
    async with serving(executor) as server:
        result = await (await server.client()).call_tool("a", {})
        assert (json.loads(text_of(result)), result["structuredContent"]) == ({"x": 1, "signed": True},) * 2
    assert trail == ["before", "execute", "after"] * 2


class Only(Anything):
    x: int


@pytest.mark.requirement("FR-EXEC-003")
@pytest.mark.parametrize(
    ("output", "text"), [({"x": 1}, '{"x": 1}'), ({"x": "one"}, "Module error: SCHEMA_VALIDATION_ERROR")]
)
async def test_an_output_is_validated_by_the_executor(output: Any, text: str) -> None:
    async with serving(registry_of(a=Does(lambda inputs, context: output, output_schema=Only))) as server:
        assert text_of(await (await server.client()).call_tool("a", {})) == text


@pytest.mark.requirement("FR-EXEC-005", "FR-ERROR-004")
async def test_the_timeout_of_an_executor_applies() -> None:
    async def sleep(inputs: Any, context: Any) -> dict[str, Any]:
        await asyncio.sleep(10 * PATIENCE)
        return {}

    config = Config({"executor": {"default_timeout": 20, "global_timeout": 1000}})
    async with serving(Executor(registry_of(slow=Does(sleep)), config=config)) as server:
        registered = server.runtime.catalogue.get("slow")
        assert registered is not None
        assert registered.timeout_ms == 1000
        result = await (await server.client()).call_tool("slow", {})
        assert (result["isError"], text_of(result)) == (True, "Module timed out after 20ms")


@pytest.mark.requirement("FR-EXEC-004", "UC-003")
async def test_a_sync_module_blocks_nobody_and_an_async_one_runs_on_the_loop() -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    class Sync(Does):
        def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:  # type: ignore[override]
            threads.append(threading.current_thread())
            release.wait(PATIENCE)
            return {"sync": True}

    def note(inputs: Any, context: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return {}

    async with serving(registry_of(sync=Sync(None), quick=Does(note))) as server:
        client = await server.client()
        blocked = client.begin("tools/call", {"name": "sync", "arguments": {}})
        assert text_of(await client.call_tool("quick", {})) == "{}"
        release.set()
        assert text_of((await client.answer(blocked))["result"]) == '{"sync": true}'
    assert sorted(thread is threading.main_thread() for thread in threads) == [False, True]


# Errors over the wire


@pytest.mark.requirement("NFR-SEC-002", "NFR-SEC-003", "FR-ERROR-002", "FR-ERROR-010", "FR-LOG-003", "UC-004")
async def test_what_is_inside_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    def fail(inputs: Any, context: Any) -> Any:
        raise RuntimeError(f"{SECRET} at {__file__}")

    async with serving(registry_of(image__resize=Resize(), bad=Does(fail))) as server:
        client = await server.client()
        failed = text_of(await client.call_tool("bad", {}))
        wrong = text_of(await client.call_tool("image.resize", {"width": SECRET, "password": SECRET * 9}))
        missing = text_of(await client.call_tool("image.resize", {}))
    assert failed == "Internal error occurred"
    assert wrong.splitlines() == [
        "Input validation failed:",
        "- width: Input should be a valid integer (int_type)",
        "- password: String should have at most 50 characters (string_too_long)",
    ]
    assert missing == "Input validation failed:\n- width: Field required (missing)"
    assert SECRET not in failed + wrong + missing
    (trace,) = [record for record in caplog.records if record.exc_info]
    assert trace.getMessage().startswith("Tool call error: bad - ModuleExecuteError: ")
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if "resize" in record.getMessage())


@pytest.mark.requirement("FR-ERROR-003", "NFR-SEC-001", "C-05", "UC-004")
async def test_the_executors_access_rules_decide_and_know_the_callers_roles() -> None:
    rules = [ACLRule(callers=["*"], targets=["*"], effect="allow", conditions={"roles": ["editor"]})]
    executor = Executor(registry_of(image__resize=Resize()), acl=ACL(rules, default_effect="deny"))
    async with serving(executor) as server:
        editor = await server.client(Caller("ada", roles=frozenset({"editor", "staff"})))
        reader = await server.client(Caller("eve", roles=frozenset({"reader"})))
        for client, text in (
            (editor, '{"width": 2, "height": 1}'),
            (reader, "Access denied"),
            (await server.client(ANONYMOUS), "Access denied"),
            (await server.client(), "Access denied"),
        ):
            assert text_of(await client.call_tool("image.resize", {"width": 2})) == text


def test_a_caller_is_known_by_name_and_roles_and_one_who_said_nothing_by_nothing() -> None:
    ada = Caller("ada", roles=frozenset({"b", "a"}), issuer="https://id", client_id="app")
    assert identity_of(ada) == Identity("ada", roles=("a", "b"), attrs={"issuer": "https://id", "client_id": "app"})
    assert identity_of(LOCAL) == Identity("local")
    assert identity_of(ANONYMOUS) is None


# Stopping


@pytest.mark.parametrize("reason", ["client", "disconnect", "deadline"])
async def test_a_module_learns_from_its_own_token_that_nobody_waits_any_longer(reason: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        begun.set()
        assert context.cancel_token is not None
        try:
            while True:
                context.cancel_token.check()
                await asyncio.sleep(0.005)
        finally:
            stopped.set()

    executor = Executor(registry_of(work=Does(work)), config=Config({"executor": {"default_timeout": 0}}))
    overrides = {"timeouts": {"tool_overrides": {"work": 50}}} if reason == "deadline" else {}
    async with serving(executor, config=overrides) as server:
        client = await server.client()
        call = client.begin("tools/call", {"name": "work", "arguments": {}})
        await begun.wait()
        if reason == "client":
            client.notify("notifications/cancelled", {"requestId": call})
        elif reason == "disconnect":
            client.disconnect()
        else:
            assert text_of((await client.answer(call))["result"]) == "Module timed out after 50ms"
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
            await server.runtime.runner.drain(PATIENCE)
        assert [each["outcome"] for each in server.records] == ["late_completed" if reason == "deadline" else "aborted"]


# Streams


async def streamed(*chunks: Any, wants: bool = True) -> tuple[list[Any], dict[str, Any]]:
    async with serving(registry_of(s=Streams(*chunks))) as server:
        client = await server.client()
        meta = {"progressToken": "t"} if wants else {}
        result = await client.call_tool("s", {}, meta)
        sent = [each["params"] for each in client.received() if each.get("method") == "notifications/progress"]
        return sent, result


@pytest.mark.requirement("FR-STREAM-001")
async def test_chunks_are_progress_and_the_result_is_all_of_them_together() -> None:
    sent, result = await streamed({"a": {"x": 1}}, {"a": {"y": NOON}, "l": [1]}, {"l": [2]})
    assert sent == [
        {"progressToken": "t", "progress": 1, "message": '{"a": {"x": 1}}'},
        {"progressToken": "t", "progress": 2, "message": '{"a": {"y": "2024-01-15 12:00:00+00:00"}, "l": [1]}'},
        {"progressToken": "t", "progress": 3, "message": '{"l": [2]}'},
    ]
    assert json.loads(text_of(result)) == {"a": {"x": 1, "y": str(NOON)}, "l": [2]}


@pytest.mark.requirement("FR-STREAM-001")
async def test_a_stream_is_sent_only_to_who_asked_for_progress() -> None:
    sent, result = await streamed({"a": 1}, wants=False)
    assert (sent, text_of(result)) == ([], '{"whole": true}')


@pytest.mark.requirement("FR-STREAM-001")
async def test_a_stream_without_chunks_is_an_empty_result_and_one_that_fails_an_error() -> None:
    sent, result = await streamed()
    assert (sent, text_of(result), result["isError"]) == ([], "{}", False)
    sent, result = await streamed({"a": 1}, RuntimeError(SECRET), {"b": 1})
    assert (len(sent), result["isError"]) == (1, True)
    assert text_of(result) == "Internal error occurred"


@pytest.mark.requirement("FR-STREAM-001")
async def test_an_executor_that_cannot_stream_answers_at_once() -> None:
    registry = registry_of(s=Streams({"a": 1}))
    double: Any = Double({"atomic": True})
    double.registry = registry
    async with serving(double) as server:
        client = await server.client()
        result = await client.call_tool("s", {}, {"progressToken": 1})
        assert text_of(result) == '{"atomic": true}'


@pytest.mark.requirement("FR-STREAM-001")
async def test_a_stream_ends_when_nobody_waits_for_it() -> None:
    ended = asyncio.Event()

    class Endless(Streams):
        async def stream(self, inputs: dict[str, Any], context: Context[Any]) -> Any:
            try:
                while True:
                    yield {"n": 1}
                    await asyncio.sleep(0.001)
            finally:
                ended.set()

    async with serving(registry_of(s=Endless())) as server:
        client = await server.client()
        call = client.begin("tools/call", {"name": "s", "arguments": {}, "_meta": {"progressToken": 1}})
        await until(lambda: any(each.get("method") == "notifications/progress" for each in client.received()))
        async with asyncio.timeout(PATIENCE):
            client.notify("notifications/cancelled", {"requestId": call})
            await ended.wait()
            await server.runtime.runner.drain(PATIENCE)
        assert [each["outcome"] for each in server.records] == ["aborted"]


@pytest.mark.requirement("FR-EXT-001", "FR-EXT-003")
async def test_a_module_that_calls_another_keeps_its_way_back_and_its_caller() -> None:
    seen: list[Any] = []

    async def outer(inputs: Any, context: Context[Any]) -> Any:
        return await context.executor.call_async("inner", {}, context)

    async def inner(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        seen.append((context.identity, MCP_PROGRESS_KEY in context.data, context.call_chain))
        await report_progress(context, 1, 2, "half")
        return {"inner": True}

    async with serving(registry_of(outer=Does(outer), inner=Does(inner))) as server:
        client = await server.client(Caller("ada"))
        assert text_of(await client.call_tool("outer", {}, {"progressToken": 7})) == '{"inner": true}'
        assert [each["params"] for each in client.received() if "params" in each] == [
            {"progressToken": 7, "progress": 1, "total": 2, "message": "half"}
        ]
    assert seen == [(Identity("ada"), True, ["outer", "inner"])]


def test_a_router_needs_nothing_but_an_executor() -> None:
    executor = Executor(Registry())
    assert ExecutionRouter(executor).executor is executor


class Quotes(Does):
    """A module whose exception quotes a sensitive argument."""

    input_schema = ResizeInput

    def __init__(self, kind: type[Exception] = RuntimeError) -> None:
        super().__init__(self._fail)
        self._kind = kind

    def _fail(self, inputs: Any, context: Any) -> Any:
        try:
            raise ValueError(f"inner {inputs['password']!r}")
        except ValueError as error:
            raise self._kind(f"cannot log in with {inputs['password']} at width {inputs['width']}") from error


@pytest.mark.requirement("NFR-SEC-002", "NFR-SEC-003")
@pytest.mark.parametrize("kind", [RuntimeError, InvalidInputError])
async def test_an_exception_that_quotes_a_sensitive_argument_is_told_and_logged_without_it(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(a=Quotes(kind))
    arguments = {"width": 12345, "password": SECRET}
    async with serving(registry) as server:
        told = text_of(await (await server.client()).call_tool("a", arguments))
        logged = caplog.text + server.stderr.decode()
    outside = await ExecutionRouter(Executor(registry)).handle_call("a", arguments)
    assert SECRET not in told + logged + caplog.text + str(outside)
    assert "cannot log in with [REDACTED] at width 12345" in caplog.text


# Sensitive results


class Account(BaseModel):
    name: str
    pin: int = Field(json_schema_extra={"x-sensitive": True})


class Accounts(BaseModel):
    first: Account
    others: list[Account] = []
    note: str | None = Field(default=None, json_schema_extra={"x-sensitive": True})


ACCOUNTS = {"first": {"name": "ada", "pin": 735_192}, "others": [{"name": "eve", "pin": 735_192}], "note": SECRET}
SHOWN = {
    "first": {"name": "ada", "pin": REDACTED_VALUE},
    "others": [{"name": "eve", "pin": REDACTED_VALUE}],
    "note": REDACTED_VALUE,
}


@pytest.mark.requirement("NFR-SEC-003")
async def test_what_an_output_schema_marks_is_replaced_in_every_result(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    registry = registry_of(a=Does(lambda inputs, context: ACCOUNTS, output_schema=Accounts))
    is_error, text = await told(ExecutionRouter(Executor(registry)), "a")
    assert (is_error, json.loads(text)) == (False, SHOWN)
    async with serving(registry) as server:
        client = await server.client()
        result = await client.call_tool("a", {})
        assert (json.loads(text_of(result)), result["structuredContent"]) == (SHOWN, SHOWN)
        (listed,) = await client.list_tools()
        compile_schema(listed["outputSchema"]).check(result["structuredContent"])
        assert "x-sensitive" not in str(listed)
    assert SECRET not in caplog.text
    assert "735192" not in caplog.text


@pytest.mark.requirement("NFR-SEC-003", "FR-STREAM-001")
async def test_what_an_output_schema_marks_is_replaced_in_every_chunk_of_a_stream() -> None:
    module = Streams(*({name: value} for name, value in ACCOUNTS.items()))
    module.output_schema = Accounts
    async with serving(registry_of(s=module)) as server:
        client = await server.client()
        result = await client.call_tool("s", {}, {"progressToken": "t"})
        sent = [each["params"]["message"] for each in client.received() if "message" in each.get("params", {})]
    assert [json.loads(each) for each in sent] == [{name: value} for name, value in SHOWN.items()]
    assert json.loads(text_of(result)) == SHOWN


async def test_the_marks_of_a_module_that_was_registered_again_count_outside_of_a_server() -> None:
    plain, marked = {"type": "object"}, {"type": "object", "properties": {"a": {"x-sensitive": True}}}
    registry = registry_of(a=Does(lambda inputs, context: {"a": 1}, output_schema=plain))
    called = ExecutionRouter(Executor(registry))
    assert await told(called, "a") == (False, '{"a": 1}')
    registry.unregister("a")
    registry.register("a", Does(lambda inputs, context: {"a": 1}, output_schema=marked))
    assert await told(called, "a") == (False, '{"a": "***REDACTED***"}')


async def test_the_schemas_of_a_module_are_generated_once_for_many_calls() -> None:
    class Counting(Registry):
        times = 0

        def get_definition(self, module_id: str, version_hint: str | None = None) -> Any:
            self.times += 1
            return super().get_definition(module_id, version_hint)

    registry = Counting()
    registry.register("a", Resize())
    called = ExecutionRouter(Executor(registry))
    for _ in range(3):
        assert (await told(called, "a", {"width": 1}))[0] is False
    assert registry.times == 1


class Leaking:
    """An output that quotes its secret when it is written."""

    def __str__(self) -> str:
        raise RuntimeError(f"pin is {SECRET}")


@pytest.mark.requirement("NFR-SEC-003", "FR-EXEC-002")
async def test_an_output_with_marks_that_cannot_be_written_is_not_quoted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = {"type": "object", "properties": {"pin": {"type": "string", "x-sensitive": True}}}
    registry = registry_of(a=Does(lambda inputs, context: {"pin": SECRET, "x": Leaking()}, output_schema=schema))
    async with serving(registry) as server:
        result = await (await server.client()).call_tool("a", {})
        assert text_of(result) == "Failed to serialize module output"
        assert SECRET not in server.stderr.decode()
    assert await told(ExecutionRouter(Executor(registry)), "a") == (True, "Failed to serialize module output")
    assert SECRET not in caplog.text
    assert "Tool call error: a - RuntimeError" in caplog.text


marks = st.just({"type": "string", "x-sensitive": True})
references = st.sampled_from([{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"$ref": "#", "x-sensitive": False}])
schemas = st.recursive(
    marks | references | st.just({}),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)}),
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"prefixItems": st.lists(inner, max_size=2), "items": inner}),
        *(
            st.fixed_dictionaries({keyword: st.lists(inner, min_size=1, max_size=2)})
            for keyword in ("anyOf", "allOf", "oneOf")
        ),
    ),
    max_leaves=8,
)
outputs = st.recursive(
    st.none() | st.integers() | st.just("text"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    properties=st.dictionaries(st.sampled_from("abc"), schemas, max_size=3),
    a=schemas,
    b=schemas,
    output=st.dictionaries(st.sampled_from("abc"), outputs, max_size=3),
)
def test_marked_values_of_a_result_are_those_that_apcore_redacts(
    properties: dict[str, Any], a: dict[str, Any], b: dict[str, Any], output: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": properties, "$defs": {"A": a, "B": b}}
    assert redact(schema, output, REDACTED_VALUE) == redact_sensitive(output, schema, sensitive_keys=[])
