"""Resources, prompts and completions as clients of both eras are served them."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from dragoman import (
    Audio,
    BlobResource,
    Caller,
    EmbeddedResource,
    Image,
    Message,
    Offers,
    TextResource,
    ToolContext,
    prompt,
    resource,
    tool,
)
from dragoman.access.callers import LOCAL
from dragoman.edge.interests import MOST_SUBSCRIPTIONS
from dragoman.errors import InvalidArgument, NotFound, ToolError, Unauthorized
from dragoman.offers.template import LONGEST_URI
from dragoman.testing import MemoryClient, TestServer, open_server
from tests.support.waiting import PATIENCE

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])


class Point(msgspec.Struct):
    x: int


class Unwritable:
    pass


@asynccontextmanager
async def serving(*offered: Any, config: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[TestServer]:
    async with asyncio.timeout(PATIENCE), open_server(offered, config, **options) as server:
        yield server


async def client_of(server: TestServer, modern: bool) -> MemoryClient:
    return server.connect(modern=True) if modern else await server.client()


async def read(client: MemoryClient, uri: str) -> dict[str, Any]:
    return await client.request("resources/read", {"uri": uri})


async def get(client: MemoryClient, name: str, **arguments: str) -> dict[str, Any]:
    return await client.request("prompts/get", {"name": name, "arguments": arguments})


async def complete(client: MemoryClient, key: str, argument: str, typed: str, **others: str) -> dict[str, Any]:
    ref = {"type": "ref/resource", "uri": key} if ":" in key else {"type": "ref/prompt", "name": key}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": typed}}
    if others:
        params["context"] = {"arguments": others}
    return await client.request("completion/complete", params)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what other threads and tasks do; `serving` sees to it that this ends."""
    while not condition():  # noqa: ASYNC110 - there is no event for most of it
        await asyncio.sleep(0)


def giving(value: Any, uri: str = "x:y", **options: Any) -> Any:
    return resource(uri, **options)(lambda: value)


def records(server: TestServer) -> list[tuple[str, str, Any]]:
    return [(each["toolName"], each["outcome"], each.get("errorCode")) for each in server.records]


# What is sent.


@both_eras
@pytest.mark.parametrize(
    ("value", "mime_type", "content"),
    [
        ("text", None, {"mimeType": "text/plain", "text": "text"}),
        ("", None, {"mimeType": "text/plain", "text": ""}),
        ("# A", "text/markdown", {"mimeType": "text/markdown", "text": "# A"}),
        (b"\x00\xff", None, {"mimeType": "application/octet-stream", "blob": "AP8="}),
        (bytearray(b"a"), "image/png", {"mimeType": "image/png", "blob": "YQ=="}),
        ({"a": [1]}, None, {"mimeType": "application/json", "text": '{"a":[1]}'}),
        ([], None, {"mimeType": "application/json", "text": "[]"}),
        (["a"], None, {"mimeType": "application/json", "text": '["a"]'}),
        (Point(1), None, {"mimeType": "application/json", "text": '{"x":1}'}),
        (None, None, {"mimeType": "application/json", "text": "null"}),
    ],
)
async def test_what_a_resource_gives_is_sent_as_what_it_is(
    modern: bool, value: Any, mime_type: str | None, content: dict[str, Any]
) -> None:
    async with serving(giving(value, mime_type=mime_type)) as server:
        result = (await read(await client_of(server, modern), "x:y"))["result"]
    assert result["contents"] == [{"uri": "x:y", **content}]
    hints = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    assert {key: result[key] for key in hints if key in result} == (hints if modern else {})


async def test_a_resource_may_have_several_contents() -> None:
    parts = [TextResource("x:y/a", "a", "text/plain"), BlobResource("x:y/b", b"b")]
    async with serving(giving(parts), giving(parts[0], "x:z")) as server:
        client = await server.client()
        assert (await read(client, "x:y"))["result"]["contents"] == [
            {"uri": "x:y/a", "mimeType": "text/plain", "text": "a"},
            {"uri": "x:y/b", "blob": base64.b64encode(b"b").decode()},
        ]
        assert len((await read(client, "x:z"))["result"]["contents"]) == 1


async def test_a_template_gives_its_function_what_its_hints_promise() -> None:
    @resource("note://{owner}/{id}")
    async def note(owner: str, id: int, ctx: ToolContext) -> dict[str, Any]:
        return {"owner": owner, "id": id, "caller": ctx.caller.name, "has_run_id": bool(ctx.run_id)}

    async with serving(note) as server:
        result = (await read(await server.client(), "note://a%2Fb/7"))["result"]
    assert msgspec.json.decode(result["contents"][0]["text"]) == {
        "owner": "a/b",
        "id": 7,
        "caller": "local",
        "has_run_id": True,
    }


@both_eras
@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", {"type": "text", "text": "hi"})]),
        (Message("hi", role="assistant"), [("assistant", {"type": "text", "text": "hi"})]),
        (
            ["hi", Message(Image(b"a"))],
            [
                ("user", {"type": "text", "text": "hi"}),
                ("user", {"type": "image", "data": "YQ==", "mimeType": "image/png"}),
            ],
        ),
        (
            [Message(EmbeddedResource(TextResource("x:y", "a"))), Message(Audio(b"a"), role="assistant")],
            [
                ("user", {"type": "resource", "resource": {"uri": "x:y", "text": "a"}}),
                ("assistant", {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"}),
            ],
        ),
        ([], []),
    ],
)
async def test_what_a_prompt_gives_is_sent_as_messages(modern: bool, value: Any, messages: list[Any]) -> None:
    @prompt
    def ask() -> Any:
        """Asks."""
        return value

    async with serving(ask) as server:
        result = (await get(await client_of(server, modern), "ask"))["result"]
    assert result["description"] == "Asks."
    assert [(each["role"], each["content"]) for each in result["messages"]] == messages


async def test_a_prompts_arguments_are_what_its_hints_promise_and_may_be_left_out() -> None:
    @prompt
    def ask(count: int, strict: bool = False) -> str:
        return repr((count, strict))

    async with serving(ask) as server:
        client = await server.client()
        said = [await get(client, "ask", count="7"), await get(client, "ask", count="7", strict="true")]
    assert [each["result"]["messages"][0]["content"]["text"] for each in said] == ["(7, False)", "(7, True)"]


async def languages(typed: str, others: Mapping[str, str]) -> list[str]:
    return [f"{typed}-{others.get('family', 'any')}"]


@prompt(
    complete={
        "language": ["Python", "PHP", "Rust"],
        "dialect": languages,
        "family": lambda typed, _: map(str, range(150)),
    }
)
def review(language: str = "", dialect: str = "", family: str = "", code: str = "") -> str:
    return ""


@both_eras
@pytest.mark.parametrize(
    ("argument", "typed", "others", "completion"),
    [
        ("language", "", {}, {"values": ["Python", "PHP", "Rust"], "total": 3, "hasMore": False}),
        ("language", "p", {}, {"values": ["Python", "PHP"], "total": 2, "hasMore": False}),
        ("language", "x", {}, {"values": [], "total": 0, "hasMore": False}),
        ("dialect", "d", {}, {"values": ["d-any"], "total": 1, "hasMore": False}),
        ("dialect", "d", {"family": "c"}, {"values": ["d-c"], "total": 1, "hasMore": False}),
        ("family", "", {}, {"values": [str(each) for each in range(100)], "total": 150, "hasMore": True}),
        ("code", "x", {}, {"values": [], "total": 0, "hasMore": False}),
    ],
)
async def test_an_argument_is_completed_from_what_was_typed_and_the_others(
    modern: bool, argument: str, typed: str, others: dict[str, str], completion: dict[str, Any]
) -> None:
    async with serving(review) as server:
        answer = await complete(await client_of(server, modern), "review", argument, typed, **others)
        assert records(server) == [(f"completion/complete review {argument}", "success", None)]
    assert answer["result"]["completion"] == completion


async def test_an_argument_whose_hint_names_its_values_is_completed_from_them() -> None:
    @prompt(complete={"strict": ["only this"]})
    def ask(style: Literal["brief", "bright", "long"], strict: bool = False) -> str:
        return style

    async with serving(ask) as server:
        client = await server.client()
        styles, strict = await complete(client, "ask", "style", "br"), await complete(client, "ask", "strict", "")
    assert set(styles["result"]["completion"]["values"]) == {"brief", "bright"}
    assert strict["result"]["completion"]["values"] == ["only this"]


async def test_a_templates_variable_is_completed_by_the_template() -> None:
    note = resource("note://{id}", complete={"id": ["7", "8"]})(lambda id: id)
    async with serving(note) as server:
        answer = await complete(await server.client(), "note://{id}", "id", "7")
    assert answer["result"]["completion"]["values"] == ["7"]


# What goes wrong.


def failing(error: BaseException) -> list[Any]:
    def fail(a: str = "") -> str:
        raise error

    def fail_to_complete(typed: str, others: Mapping[str, str]) -> list[str]:
        raise error

    return [
        resource("x:fail")(lambda: fail()),
        prompt(name="fail", complete={"a": fail_to_complete})(fail),
    ]


@both_eras
@pytest.mark.parametrize(
    ("error", "code", "message", "facts"),
    [
        (ValueError("secret"), -32603, "Internal error", {"code": "INTERNAL", "retryable": False}),
        (SystemExit("secret"), -32603, "Internal error", {"code": "INTERNAL", "retryable": False}),
        (ToolError("told"), -32603, "told", {"code": "INTERNAL", "retryable": False}),
        (Unauthorized("told", {"a": 1}), -32603, "told", {"code": "UNAUTHORIZED", "details": {"a": 1}}),
        (InvalidArgument("told"), -32602, "told", {"code": "INVALID_ARGUMENT"}),
        (NotFound("told"), -32602, "told", {"code": "NOT_FOUND"}),
        (ToolError("told", {"a": Unwritable()}), -32603, "told", {"details": {"reason": "details_not_serializable"}}),
        (ToolError("x" * 2000), -32603, "x" * 985 + "... [truncated]", {}),
        (ToolError("told", {"a": "x" * 2_000_000}), -32603, "told", {"details": {"reason": "details_too_large"}}),
    ],
)
async def test_a_function_that_raises_is_answered_with_an_error_that_says_what_it_may(
    modern: bool, error: BaseException, code: int, message: str, facts: dict[str, Any]
) -> None:
    async with serving(*failing(error)) as server:
        client = await client_of(server, modern)
        answers = [await get(client, "fail"), await complete(client, "fail", "a", ""), await read(client, "x:fail")]
        log = str(server.log)
        assert {outcome for _, outcome, _ in records(server)} == {"tool_error"}
    errors = [answer["error"] for answer in answers]
    recorded = [each["correlationId"] for each in server.records]
    assert [each["data"]["correlationId"] for each in errors] == recorded
    assert not any("runId" in each["data"] for each in errors)
    expected = [code, code, -32002 if isinstance(error, NotFound) and not modern else code]
    assert [each["code"] for each in errors] == expected
    assert [each["message"] for each in errors] == [message] * 3
    for each in errors:
        assert {key: each["data"].get(key) for key in facts} == facts
        assert "secret" not in str(each)
    assert ("secret" in log) == ("secret" in str(error))


@both_eras
async def test_an_unknown_resource_has_the_code_of_its_era_and_its_uri(modern: bool) -> None:
    long = "x:" + "a" * 5000
    async with serving(giving("")) as server:
        client = await client_of(server, modern)
        for uri in ("x:none", long, "", "not a uri"):
            error = (await read(client, uri))["error"]
            assert (error["code"], error["message"]) == (-32602 if modern else -32002, "Resource not found")
            assert error["data"]["uri"] == uri[:LONGEST_URI]
        names = [name for name, outcome, code in records(server) if (outcome, code) == ("tool_error", "NOT_FOUND")]
    assert names == [
        "resources/read x:none",
        f"resources/read {long}"[:128],
        "resources/read ",
        "resources/read not a uri",
    ]


@both_eras
async def test_what_is_unknown_missing_or_unfit_is_named(modern: bool) -> None:
    @prompt
    def ask(code: str, count: int = 1) -> str:
        return code

    note = resource("note://{id}")(_note)
    async with serving(ask, note) as server:
        client = await client_of(server, modern)
        answers = [
            await get(client, "nothing"),
            await get(client, "note://{id}"),
            await get(client, "ask"),
            await get(client, "ask", code="a", count="many"),
            await get(client, "ask", code="a", colour="red"),
            await read(client, "note://seven"),
            await complete(client, "nothing", "a", ""),
            await complete(client, "x:nothing", "a", ""),
            await complete(client, "ask", "colour", ""),
            await client.request("resources/list", {"cursor": "2"}),
            await client.request("prompts/get", {"name": "ask", "arguments": {"code": 5}}),
            await client.request("resources/read", {}),
        ]
    assert [answer["error"]["code"] for answer in answers] == [-32602] * len(answers)
    assert [answer["error"]["message"] for answer in answers][:10] == [
        "Invalid params: unknown prompt: nothing",
        "Invalid params: unknown prompt: note://{id}",
        "Invalid params: code is required",
        'Invalid params: count: the value is not of type "integer"',
        "Invalid params: unknown argument `colour`",
        'Invalid params: id: the value is not of type "integer"',
        "Invalid params: unknown reference: nothing",
        "Invalid params: unknown reference: x:nothing",
        "Invalid params: ask has no argument 'colour'",
        "Invalid params: the list has one page, and no cursor was given out",
    ]


def _note(id: int) -> int:
    return id


@pytest.mark.parametrize("value", [Unwritable(), "\ud800", {1: Unwritable()}, [TextResource("x:y", "\ud800")]])
async def test_a_resource_that_has_no_json_form_is_an_error(value: Any) -> None:
    async with serving(giving(value)) as server:
        error = (await read(await server.client(), "x:y"))["error"]
        assert records(server) == [("resources/read x:y", "tool_error", "INTERNAL")]
    assert (error["code"], error["message"]) == (-32603, "Result not serializable")


@pytest.mark.parametrize(
    "value",
    [None, 5, {"role": "user"}, [5], Message(5), Message("a", role="system"), Image(b"a"), ["\ud800"]],  # type: ignore[arg-type]
)
async def test_what_is_not_a_prompt_is_an_error(value: Any) -> None:
    async with serving(prompt(name="ask")(lambda: value)) as server:
        error = (await get(await server.client(), "ask"))["error"]
    assert (error["code"], error["message"]) == (-32603, "Result not serializable")


@pytest.mark.parametrize("values", [[5], None, 5, ["\ud800"]])
async def test_what_is_not_a_completion_is_an_error(values: Any) -> None:
    ask = prompt(name="ask", complete={"a": lambda typed, others: values})(_ask)
    async with serving(ask) as server:
        error = (await complete(await server.client(), "ask", "a", ""))["error"]
    assert error["code"] == -32603


def _ask(a: str) -> str:
    return a


@pytest.mark.slow
@both_eras
async def test_a_result_is_within_the_limit_or_an_error(modern: bool) -> None:
    limit = 1024
    sized = [giving("x" * size, f"x:{size}") for size in range(500, limit)]
    async with serving(*sized, config={"response": {"max_response_bytes": limit}}) as server:
        client = await client_of(server, modern)
        answers = [await read(client, f"x:{size}") for size in range(500, limit)]
    sent = [len(msgspec.json.encode(each["result"])) for each in answers if "result" in each]
    assert limit - 200 < max(sent) <= limit
    reasons = {each["error"]["data"]["details"]["reason"] for each in answers if "error" in each}
    assert reasons == {"result_too_large"}


# There is no side door.


@both_eras
async def test_offers_are_no_tools(modern: bool) -> None:
    async with serving(giving(""), prompt(name="ask")(lambda: "")) as server:
        client = await client_of(server, modern)
        assert [each["name"] for each in await client.list_tools()] == ["health"]
        for name in ("x:y", "ask", "resources/read x:y", "prompts/get ask"):
            assert (await client.call_tool(name))["isError"]
    assert {code for _, _, code in records(server)} == {"NOT_FOUND"}


async def test_a_read_takes_a_slot_until_it_has_really_ended_and_is_answered_at_its_deadline() -> None:
    release = threading.Event()
    slow = resource("x:slow", timeout_ms=30)(lambda: release.wait(PATIENCE) and "late")
    async with serving(slow, giving(""), config={"resources": {"max_concurrent_executions": 1}}) as server:
        client = await server.client()
        late = (await read(client, "x:slow"))["error"]
        full = (await read(client, "x:y"))["error"]
        release.set()
        await until(lambda: not server.runtime.slots.in_use)
        assert "result" in await read(client, "x:y")
        assert records(server) == [
            ("resources/read x:y", "tool_error", "RESOURCE_EXHAUSTED"),
            ("resources/read x:slow", "late_completed", None),
            ("resources/read x:y", "success", None),
        ]
    assert (late["code"], late["data"]["code"], late["data"]["retryable"]) == (-32603, "TIMEOUT", True)
    assert (full["code"], full["data"]["code"], full["data"]["retryable"]) == (-32603, "RESOURCE_EXHAUSTED", True)


async def test_what_a_prompt_is_given_is_limited_as_a_tools_arguments_are() -> None:
    config = {"tools": {"max_payload_bytes": 200}, "limits": {"max_string_length": 100}}
    async with serving(prompt(name="ask")(_ask), config=config) as server:
        client = await server.client()
        heavy, long = await get(client, "ask", a="x" * 300), await get(client, "ask", a="x" * 150)
    assert (heavy["error"]["code"], heavy["error"]["data"]["details"]["reason"]) == (-32603, "payload_too_large")
    assert long["error"]["code"] == -32602
    assert long["error"]["message"].startswith("Invalid params: a: ")


async def test_an_operator_limits_an_offer_by_the_name_in_its_records() -> None:
    config = {"limits": {"tools": {"resources/read x:y": {"calls_per_minute": 1}}}}
    async with serving(giving(""), config=config) as server:
        client = await server.client()
        assert "result" in await read(client, "x:y")
        error = (await read(client, "x:y"))["error"]
    assert (error["data"]["code"], error["data"]["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "rate_limited")


@both_eras
@pytest.mark.parametrize("leaves", [False, True], ids=["cancels", "leaves"])
async def test_a_client_that_cancels_or_leaves_ends_the_read(modern: bool, leaves: bool) -> None:
    under_way, reasons = asyncio.Event(), []

    @resource("x:wait")
    async def wait(ctx: ToolContext) -> str:
        under_way.set()
        await ctx.cancellation.wait()
        reasons.append(ctx.cancellation.reason)
        ctx.cancellation.raise_if_set()
        return ""

    async with serving(wait) as server:
        client = await client_of(server, modern)
        request_id = client.begin("resources/read", {"uri": "x:wait"})
        await under_way.wait()
        if leaves:
            client.disconnect()
        else:
            client.notify("notifications/cancelled", {"requestId": request_id})
        await until(lambda: server.records)
        assert records(server) == [("resources/read x:wait", "aborted", "ABORTED")]
    assert reasons == ["disconnect" if leaves else "client"]


async def test_a_server_that_stops_refuses_and_records_what_is_under_way() -> None:
    begun, release = threading.Event(), threading.Event()

    @resource("x:slow")
    def slow() -> str:
        begun.set()
        release.wait(PATIENCE)
        return ""

    async with serving(slow) as server:
        client = await server.client()
        request_id = client.begin("resources/read", {"uri": "x:slow"})
        await until(begun.is_set)
        await server.runtime.stop(0.05)
        error = (await client.answer(request_id))["error"]
        release.set()
        assert records(server) == [("resources/read x:slow", "timeout", None)]
    assert (error["code"], error["data"]["code"]) == (-32603, "TIMEOUT")


# Who is told what.


@pytest.mark.parametrize(
    ("offered", "options", "advertised"),
    [
        ([], {}, {"tools"}),
        ([giving("")], {}, {"tools", "resources", "completions"}),
        ([resource("x:{a}")(lambda a: a)], {}, {"tools", "resources", "completions"}),
        ([prompt(name="ask")(lambda a: a)], {}, {"tools", "prompts", "completions"}),
        ([], {"offers": Offers()}, {"tools", "resources", "prompts", "completions"}),
        ([], {"offers": Offers(expected=["resources"])}, {"tools", "resources", "completions"}),
    ],
)
async def test_a_server_says_that_it_has_what_it_serves_and_no_more(
    offered: list[Any], options: dict[str, Any], advertised: set[str]
) -> None:
    async with serving(*offered, **options) as server:
        handshake = (await server.connect().initialize())["result"]["capabilities"]
        modern = server.connect(modern=True)
        discovered = (await modern.request("server/discover"))["result"]["capabilities"]
        assert set(handshake) == {*advertised, "logging"}
        assert set(discovered) == advertised
        shared = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "completions": {},
        }
        assert discovered == {key: shared[key] for key in advertised}
        for client in (modern, await server.client()):
            for method, capability in (("resources/list", "resources"), ("prompts/list", "prompts")):
                answer = await client.request(method)
                assert ("result" in answer) is (capability in advertised)
                assert answer.get("error", {"code": -32601})["code"] == -32601


async def test_only_subscribers_are_told_of_an_update_and_only_as_long_as_they_want() -> None:
    async with serving(giving(""), giving("", "x:z")) as server:
        one, two, late = await server.client(), await server.client(), server.connect()
        await one.request("resources/subscribe", {"uri": "x:y"})
        await one.request("resources/subscribe", {"uri": "x:y"})
        await two.request("resources/subscribe", {"uri": "x:z"})
        threading.Thread(target=server.runtime.resource_updated, args=("x:y",)).start()
        await until(lambda: updates(one))
        await one.request("resources/unsubscribe", {"uri": "x:y"})
        await one.request("resources/unsubscribe", {"uri": "x:never"})
        for uri in ("x:y", "x:z", "x:none"):
            server.runtime.resource_updated(uri)
        await until(lambda: updates(two))
        assert (updates(one), updates(two), updates(late)) == (["x:y"], ["x:z"], [])
        two.disconnect()
        server.runtime.resource_updated("x:z")
        await asyncio.sleep(0)
        assert updates(two) == ["x:z"]


def updates(client: MemoryClient) -> list[str]:
    return [
        each["params"]["uri"] for each in client.received() if each.get("method") == "notifications/resources/updated"
    ]


async def test_a_subscription_to_what_a_caller_may_not_read_is_refused_like_reading_it() -> None:
    async with serving(giving(""), giving("", "x:z")) as server:
        caller = Caller("ada", scopes=frozenset({"tool:resources/read x:z"}))
        client = await server.connect(caller=caller).handshake()
        refused, reading = await client.request("resources/subscribe", {"uri": "x:y"}), await read(client, "x:y")
        assert (
            refused["error"]["message"] == reading["error"]["message"] == "The scope tool:resources/read x:y is needed"
        )
        assert refused["error"]["code"] == reading["error"]["code"]
        assert (await client.request("resources/subscribe", {"uri": "x:z"}))["result"] == {}


@both_eras
async def test_nobody_is_told_of_a_resource_that_came_later_and_that_they_may_not_read(modern: bool) -> None:
    offers = Offers()
    async with serving(offers=offers) as server:
        callers = [Caller(name, scopes=frozenset(scopes)) for name, scopes in (("a", ()), ("b", ("tool:*",)))]
        blind, seeing = (server.connect(modern=modern, caller=each) for each in callers)
        for client in (blind, seeing):
            if modern:
                client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x:y"]}})
                await until(lambda: [each for each in client.received() if "acknowledged" in each.get("method", "")])  # noqa: B023
            else:
                await client.handshake()
                assert (await client.request("resources/subscribe", {"uri": "x:y"}))["result"] == {}
        offers.register(giving("now"))
        server.runtime.resource_updated("x:y")
        await until(lambda: updates(seeing))
        assert (updates(blind), updates(seeing)) == ([], ["x:y"])


async def test_subscriptions_are_bounded() -> None:
    async with serving(giving("")) as server:
        client = await server.client()
        for each in range(MOST_SUBSCRIPTIONS):
            server.runtime.edge.announcer.interests.subscribe(client.connection, f"x:{each}", LOCAL)
        assert (await client.request("resources/subscribe", {"uri": "x:y"}))["error"]["code"] == -32602
        assert (await client.request("resources/subscribe", {"uri": "x:1"}))["result"] == {}
        assert (await client.request("resources/unsubscribe", {"uri": "x:1"}))["result"] == {}
        assert (await client.request("resources/subscribe", {"uri": "x:" + "1" * 3000}))["error"]["code"] == -32602
        assert (await client.request("resources/subscribe", {"uri": "x:y"}))["result"] == {}
        assert (await client.request("resources/subscribe", {"uri": "x:1"}))["error"]["code"] == -32602


async def test_a_client_says_which_log_messages_it_wants() -> None:
    async with serving() as server:
        client = await server.client()
        assert client.connection.log_level == "info"
        assert (await client.request("logging/setLevel", {"level": "warning"}))["result"] == {}
        assert client.connection.log_level == "warning"
        assert (await client.request("logging/setLevel", {"level": "loud"}))["error"]["code"] == -32602
        modern = server.connect(modern=True)
        assert (await modern.request("logging/setLevel", {"level": "info"}))["error"]["code"] == -32601


async def test_clients_are_told_which_list_has_changed() -> None:
    async with serving(offers=Offers()) as server:
        old, new = await server.client(), server.connect(modern=True)
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        new.begin("subscriptions/listen", {"notifications": {**wanted, "resourceSubscriptions": ["x:y"]}})
        await until(lambda: heard(new))
        runtime = server.runtime
        runtime.offers.register(giving(""))
        runtime.offers.register(prompt(name="ask")(_ask))
        runtime.catalogue.register(tool(name="act")(_ask))
        runtime.resource_updated("x:z")
        runtime.resource_updated("x:y")
        expected = ["resources/list_changed", "prompts/list_changed", "tools/list_changed"]
        await until(lambda: len(heard(new)) == 5)
        assert heard(old) == expected
        assert heard(new) == ["subscriptions/acknowledged", *expected, "resources/updated"]
        runtime.offers.unregister("x:y")
        await until(lambda: len(heard(old)) == 4)
        assert (await read(old, "x:y"))["error"]["code"] == -32002


def heard(client: MemoryClient) -> list[str]:
    return [each["method"].removeprefix("notifications/") for each in client.received() if "method" in each]


async def test_everything_is_replaced_or_nothing() -> None:
    one, two = giving("one"), giving("two")
    act, ask = tool(name="act")(_ask), prompt(name="ask")(_ask)
    async with serving(one, act) as server:
        runtime = server.runtime
        runtime.replace([one, act], [two, ask])
        assert [each.key for each in runtime.offers] == ["ask", "x:y"]
        assert [each.name for each in runtime.catalogue.list()] == ["health"]
        with pytest.raises(Exception, match="is registered already"):
            runtime.replace([ask], [giving("three"), act])
        assert [each.key for each in runtime.offers] == ["ask", "x:y"]
        assert [each.name for each in runtime.catalogue.list()] == ["health"]
        assert (await read(await server.client(), "x:y"))["result"]["contents"][0]["text"] == "two"
