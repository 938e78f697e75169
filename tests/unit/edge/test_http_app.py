"""The application as others mount and start it, and what becomes of requests when something of ours breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dragoman
from dragoman.access.authenticator import Authenticator
from dragoman.access.callers import Caller
from dragoman.app import ServerOptions, create_server
from dragoman.clock import SystemClock
from dragoman.config import make_config
from dragoman.edge.asgi import Bodies, Disconnected, RequestRefused, TooLarge
from dragoman.errors import ConfigError, Unauthenticated, VerifierUnavailable
from dragoman.runtime import Runtime
from dragoman.telemetry.log import CompletionRecord, Entry, StructuredLogger
from dragoman.tools.tool import Tool, ToolDefinition
from tests.support.answers import error_in, text_in
from tests.support.asgi import Driver, scope_of
from tests.support.http_wire import INITIALIZE, INITIALIZED, MISSHAPEN, message, modern, modern_call, request
from tests.support.waiting import PATIENCE, until

HEALTH = request(None, method="GET", path="/health")


@dragoman.tool
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@dragoman.tool
async def count(to: int, ctx: dragoman.ToolContext) -> int:
    """Reports progress with every step."""
    for step in range(to):
        ctx.progress(step + 1, to)
        await asyncio.sleep(0)
    return to


@dragoman.tool
async def wait(ctx: dragoman.ToolContext) -> str:
    """Ends when nobody wants the answer any longer."""
    await ctx.cancellation.wait()
    return "cancelled"


@dragoman.tool
async def nap(seconds: float) -> float:
    """Takes its time, and needs nothing from its client."""
    await asyncio.sleep(seconds)
    return seconds


async def _where(arguments: dict[str, Any], context: dragoman.ToolContext) -> Any:
    return arguments


where = Tool(
    ToolDefinition(
        name="where",
        description="Is routed by its region.",
        input_schema={
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "shard": {"type": "integer", "x-mcp-header": "Shard"},
            },
        },
    ),
    _where,
)


class Scene:
    """A server in memory, its log, and a client."""

    def __init__(self, settings: dict[str, Any] | None = None, *more: Any) -> None:
        config = make_config(settings or {})
        self.entries: list[Entry] = []
        logger = StructuredLogger(self.entries.append, None, config.logging)
        self.server: Runtime = create_server(
            ServerOptions(config=config, tools=[echo, count, wait, nap, where, *more], logger=logger)
        )
        self.app = self.server.http()
        self.driver = Driver(self.app)
        self.ask = self.driver.ask


@asynccontextmanager
async def scene(settings: dict[str, Any] | None = None, *more: Any) -> AsyncIterator[Scene]:
    made = Scene(settings, *more)
    yield made
    await made.app.stop()


async def test_the_first_request_starts_what_nobody_has_started() -> None:
    async with scene() as here:
        answers = await asyncio.gather(*(here.ask(modern_call("echo", message=str(n), id=n)) for n in range(20)))
        assert [text_in(each) for each in answers] == [{"message": str(n)} for n in range(20)]
        assert here.server.is_running


async def test_a_lifespan_starts_and_stops_it() -> None:
    made = Scene()
    incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    living = asyncio.create_task(made.app({"type": "lifespan"}, incoming.get, sent.put))
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    assert made.server.is_running
    incoming.put_nowait({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await living
    assert not made.server.is_running


async def test_a_lifespan_that_fails_at_the_first_request_costs_that_request_and_is_logged() -> None:
    @asynccontextmanager
    async def fail() -> AsyncIterator[None]:
        raise RuntimeError("the database is down")
        yield

    entries: list[Entry] = []
    logger = StructuredLogger(entries.append)
    app = dragoman.http_app([echo], allow_unauthenticated=True, lifespan=fail, logger=logger)
    answered = await Driver(app).ask(modern_call("echo", message="hi"))
    assert (answered.status, answered.code, "database" in answered.body.decode()) == (500, -32603, False)
    assert any("the database is down" in str(entry) for entry in entries)


async def test_the_lifespan_of_another_application_can_hold_it() -> None:
    made = Scene()
    async with made.app.lifespan():
        assert (await made.ask(HEALTH)).status == 200
        assert made.server.is_running
    assert not made.server.is_running


async def test_mounted_it_answers_below_its_root_and_says_where_it_is() -> None:
    async with scene() as here:
        for path, status in (("/tools/health", 200), ("/tools/mcp", 400), ("/tools/x", 404)):
            scope, _ = scope_of(request(None, method="GET", path=path))
            scope["root_path"] = "/tools"
            found: list[Any] = []

            async def receive() -> Any:
                return {"type": "http.disconnect"}

            async def send(sent: Any, found: list[Any] = found) -> None:
                found.append(sent)

            await here.app(scope, receive, send)
            assert (path, found[0]["status"]) == (path, status)
        assert b"MCP is at /tools/mcp" in found[1]["body"]


async def test_what_is_no_http_is_closed() -> None:
    async with scene() as here:
        sent: list[Any] = []

        async def send(each: Any) -> None:
            sent.append(each)

        await here.app({"type": "websocket"}, asyncio.Queue[Any]().get, send)
        assert sent == [{"type": "websocket.close", "code": 1003}]


async def test_a_defect_of_ours_costs_one_request_and_tells_nobody_its_reasons() -> None:
    async with scene() as here:
        await here.ask(HEALTH)

        def broken(*_: object) -> None:
            raise ValueError("the secret reason")

        reader = here.app._eras.modern.reader
        works, reader.read = reader.read, broken  # type: ignore[method-assign, assignment]
        answered = await here.ask(modern_call("echo", message="hi"))
        reader.read = works  # type: ignore[method-assign]
        correlation_id = answered.error["data"]["correlationId"]
        told = {"code": -32603, "message": "Internal error", "data": {"correlationId": correlation_id}}
        assert (answered.status, answered.error) == (500, told)
        errors = [entry for entry in here.entries if isinstance(entry, dict) and entry["level"] == "error"]
        assert [entry["message"] for entry in errors] == ["request failed"]
        assert text_in(await here.ask(modern_call("echo", message="hi"))) == {"message": "hi"}


async def test_a_client_that_is_gone_before_its_body_is_read_is_forgotten() -> None:
    async with scene() as here:
        scope, _ = scope_of(modern_call("echo", message="hi"))

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(sent: Any) -> None:
            raise AssertionError("there is nobody to be told")

        await here.app(scope, receive, send)
        assert here.server.runner.under_way == 0


async def test_a_body_that_comes_in_pieces_is_read_to_its_end_or_to_the_limit() -> None:
    async with scene({"limits": {"max_request_bytes": 2000}}) as here:
        asked = modern_call("echo", message="hi")
        scope, body = scope_of(asked)

        async def ask_in_pieces(pieces: list[bytes]) -> int:
            sent: list[Any] = []
            queue = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
            queue[-1]["more_body"] = False

            async def receive() -> Any:
                return queue.pop(0) if queue else await asyncio.Event().wait()

            async def send(each: Any) -> None:
                sent.append(each)

            await here.app(dict(scope), receive, send)
            return int(sent[0]["status"])

        assert await ask_in_pieces([bytes([byte]) for byte in body]) == 200
        assert await ask_in_pieces([body, b" " * (2000 - len(body))]) == 200
        assert await ask_in_pieces([body, b" " * (2000 - len(body)), b" "]) == 413
        assert await ask_in_pieces([b" " * 2001]) == 413


@pytest.mark.parametrize("method", ["DELETE", "GET"])
@pytest.mark.parametrize("length", ["2001", None], ids=["announced", "not announced"])
async def test_a_body_that_is_too_long_for_a_session_is_a_json_rpc_error(method: str, length: str | None) -> None:
    async with scene({"limits": {"max_request_bytes": 2000}}) as here:
        opened = await here.ask(request(INITIALIZE))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"], "content-length": length}
        refused = await here.ask(request(b" " * 2001, headers, method=method))
    assert (refused.status, refused.json["error"]["message"]) == (413, "The body is longer than 2000 bytes")


async def test_clients_together_cannot_send_more_than_there_is_room_for() -> None:
    bodies = Bodies(most_each=10, most_together=25)

    def sending(*pieces: bytes) -> tuple[asyncio.Task[bytes], asyncio.Queue[Any]]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for piece in pieces:
            queue.put_nowait({"type": "http.request", "body": piece, "more_body": True})
        return asyncio.create_task(bodies.read(queue.get)), queue

    first, first_queue = sending(b"x" * 10)
    second, second_queue = sending(b"y", b"y" * 9)
    third, _ = sending(b"z" * 5, b"z")
    with pytest.raises(RequestRefused) as refused:
        await third
    assert (refused.value.status, bodies.held) == (503, 20)
    first_queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    assert await first == b"x" * 10
    second_queue.put_nowait({"type": "http.disconnect"})
    with pytest.raises(Disconnected):
        await second
    large, _ = sending(b"x" * 10, b"x")
    with pytest.raises(TooLarge):
        await large
    assert bodies.held == 0


async def test_progress_makes_a_modern_answer_a_stream_and_a_client_without_streams_is_spared_it() -> None:
    async with scene() as here:
        asked = {"name": "count", "arguments": {"to": 3}}
        told = await here.ask(modern("tools/call", asked, meta={"progressToken": "p"}))
        assert [each.get("method") for each in told.messages] == [*["notifications/progress"] * 3, None]
        quiet = await here.ask(modern("tools/call", asked, {"accept": "application/json"}, meta={"progressToken": "p"}))
        assert (text_in(quiet), quiet.headers["content-type"]) == (3, "application/json")


@pytest.mark.parametrize(
    ("arguments", "headers", "is_served"),
    [
        ({"region": "eu", "shard": 42}, {"mcp-param-region": "eu", "mcp-param-shard": "42.0"}, True),
        ({"region": "eu"}, {"mcp-param-region": "=?base64?ZXU=?="}, True),
        ({}, {}, True),
        ({"region": "eu"}, {}, False),
        ({"region": "eu"}, {"mcp-param-region": "us"}, False),
        ({}, {"mcp-param-region": "us"}, False),
    ],
    ids=str,
)
async def test_a_tool_that_is_routed_by_its_arguments_is_served_when_the_headers_say_the_same(
    arguments: dict[str, Any], headers: dict[str, str | None], is_served: bool
) -> None:
    async with scene() as here:
        answered = await here.ask(modern_call("where", headers, **arguments))
        if is_served:
            assert text_in(answered) == arguments
        else:
            assert (answered.status, answered.code) == (400, -32020)


@pytest.mark.parametrize("is_stream", [False, True], ids=["before", "after"])
async def test_a_call_of_the_lane_can_be_cancelled_before_and_after_it_became_a_stream(is_stream: bool) -> None:
    async with scene({"server": {"shutdown_timeout_ms": 100}}) as here:
        opened = await here.ask(request(INITIALIZE))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, session))
        asked = here.driver.begin(
            request(message("tools/call", {"name": "nap", "arguments": {"seconds": 10 * PATIENCE}}, 5), session)
        )
        await until(lambda: here.server.runner.under_way and bool(asked.sent) == is_stream)
        cancelled = await here.ask(request(message("notifications/cancelled", {"requestId": 5}), session))
        assert (cancelled.status, cancelled.body) == (202, b"")
        async with asyncio.timeout(PATIENCE):
            await asked.task
        assert asked.response.status == 200
        assert (asked.response.message["id"], asked.response.code) == (5, -32800)
        again = await here.ask(request(message("tools/call", {"name": "nap", "arguments": {"seconds": 0}}, 5), session))
        assert text_in(again) == 0


# Who is asking.


class Tokens(Authenticator):
    """An authenticator whose tokens say themselves what they are good for: `name:scope,scope`."""

    def __init__(self) -> None:
        super().__init__((), SystemClock())

    def known(self, authorization: bytes | None) -> Caller | None:
        return None

    async def authenticate(self, authorization: bytes | None) -> Caller:
        if authorization == b"Bearer later":
            raise VerifierUnavailable("the issuer does not answer")
        if authorization is None:
            raise Unauthenticated("there is no token")
        name, _, scopes = authorization.decode().removeprefix("Bearer ").partition(":")
        return Caller(name, scopes=frozenset(scopes.split(",")))


@pytest.mark.parametrize("as_stream", [False, True], ids=["lane", "SDK"])
async def test_in_a_session_the_token_of_the_request_decides_and_not_the_one_that_opened_it(as_stream: bool) -> None:
    async with scene() as here:
        here.app._admission._authenticator = Tokens()
        opened = await here.ask(request(INITIALIZE, {"authorization": "Bearer ada:tool:*"}))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, {**session, "authorization": "Bearer ada:tool:*"}))
        params: dict[str, Any] = {"name": "echo", "arguments": {"message": "hi"}}
        if as_stream:
            params["_meta"] = {"progressToken": 1}

        async def call(token: str, number: int) -> Any:
            body = message("tools/call", params, number)
            return await here.ask(request(body, {**session, "authorization": f"Bearer {token}"}))

        assert text_in(await call("ada:tool:echo", 1)) == {"message": "hi"}
        refused = await call("ada:tool:other", 2)
        assert error_in(refused.message["result"])["code"] == "UNAUTHORIZED"
        assert (await call("ben:tool:*", 3)).status == 404


async def test_a_token_that_cannot_be_verified_now_may_be_tried_again() -> None:
    async with scene() as here:
        here.app._admission._authenticator = Tokens()
        answered = await here.ask(modern_call("echo", {"authorization": "Bearer later"}, message="hi"))
        assert (answered.status, answered.code, answered.headers["retry-after"]) == (503, -32603, "5")
        assert "issuer" not in answered.body.decode()


@dragoman.tool
async def whose(ctx: dragoman.ToolContext) -> dict[str, Any]:
    """Tells who calls."""
    return {"name": ctx.caller.name, "identity": ctx.caller.identity}


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_application_can_identify_callers_by_any_header(is_async: bool) -> None:
    def identify(headers: dict[str, str]) -> Caller | None:
        known = {"key-of-ada": Caller("ada", identity={"team": "maps"})}
        return known.get(headers.get("x-api-key", ""))

    async def identify_later(headers: dict[str, str]) -> Caller | None:
        await asyncio.sleep(0)
        return identify(headers)

    app = dragoman.http_app([whose], identify=identify_later if is_async else identify)
    assert app.is_authenticated
    here = Driver(app)
    known = await here.ask(modern_call("whose", {"x-api-key": "key-of-ada"}))
    assert text_in(known) == {"name": "ada", "identity": {"team": "maps"}}
    for headers in ({}, {"x-api-key": "other"}):
        refused = await here.ask(modern_call("whose", headers))
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    opened = await here.ask(request(INITIALIZE, {"x-api-key": "key-of-ada"}))
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    assert (await here.ask(request(INITIALIZED, {**session, "x-api-key": "other"}))).status == 401
    assert (await here.ask(HEALTH)).status == 200
    await app.stop(0)


async def test_of_two_simultaneous_requests_with_one_id_the_second_is_refused_also_when_the_token_expires() -> None:
    app = dragoman.http_app([count], identify=lambda headers: Caller("ada", expires_at=time.time() + 600))
    here = Driver(app)
    session = {"mcp-session-id": (await here.ask(request(INITIALIZE))).headers["mcp-session-id"]}
    assert (await here.ask(request(INITIALIZED, session))).status == 202
    params = {"name": "count", "arguments": {"to": 3}, "_meta": {"progressToken": 1}}
    first, second = (here.begin(request(message("tools/call", params, 5), session)) for _ in range(2))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(first.task, second.task)
    assert first.response.messages[-1]["result"]["structuredContent"] == {"result": 3}
    assert (second.response.status, second.response.error["message"]) == (
        400,
        "Invalid request: a request with this id is under way",
    )
    await app.stop(0)


async def test_a_caller_that_the_application_identifies_has_a_share_of_the_sessions() -> None:
    settings = {"http": {"max_sessions": 4, "max_sessions_per_caller": 1}}
    app = dragoman.http_app([whose], settings, identify=lambda headers: Caller(headers["x-user"]))
    opened = [await Driver(app).ask(request(INITIALIZE, {"x-user": user})) for user in ("ada", "ada", "bob")]
    assert [each.status for each in opened] == [200, 503, 200]
    await app.stop(0)


async def test_an_application_that_identifies_callers_gets_every_value_of_a_header() -> None:
    seen: list[dict[str, str]] = []
    app = dragoman.http_app([whose], identify=seen.append)
    twice = b"x-user: ada\r\nx-user: root\r\ncookie: a=1\r\ncookie: b=2\r\n"
    asked = modern_call("whose", {"x-user": "ada"}).replace(b"x-user: ada\r\n", twice)
    assert (await Driver(app).ask(asked)).status == 401
    assert (seen[0]["x-user"], seen[0]["cookie"]) == ("ada, root", "a=1; b=2")
    await app.stop(0)


async def test_an_initialize_that_is_answered_with_an_error_leaves_no_session_behind() -> None:
    app = dragoman.http_app([echo], {"http": {"max_sessions": 1}}, allow_unauthenticated=True)
    here = Driver(app)
    wrong = {**INITIALIZE, "params": {**INITIALIZE["params"], "capabilities": {"roots": "x"}}}
    for _ in range(2):
        assert (await here.ask(request(wrong))).messages[-1]["error"]["code"] == -32602
        await until(lambda: not app._eras.handshake._sessions.open._manager._server_instances)
    assert "result" in (await here.ask(request(INITIALIZE))).messages[-1]
    await app.stop(0)


@pytest.mark.parametrize(("body", "reason"), MISSHAPEN)
async def test_a_message_of_the_wrong_shape_is_refused_without_being_repeated(body: Any, reason: str) -> None:
    async with scene() as here:
        session = {"mcp-session-id": (await here.ask(request(INITIALIZE))).headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, session))
        refused = await here.ask(request(body, session))
        assert (refused.status, refused.error["message"]) == (400, f"Invalid request: {reason}")
        assert "secret" not in refused.body.decode()
        assert "secret" not in str(here.entries)


async def test_an_id_is_in_use_until_its_request_is_answered_also_when_the_client_has_left() -> None:
    async with scene() as here:
        session = {"mcp-session-id": (await here.ask(request(INITIALIZE))).headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, session))
        meta = {"_meta": {"progressToken": 1}}
        waiting = request(message("tools/call", {"name": "wait", **meta}, 5), session)
        left = here.driver.begin(waiting)
        await until(lambda: here.server.runner.under_way)
        left.leave()
        await left.task
        again = await here.ask(waiting)
        assert (again.status, again.error["message"]) == (400, "Invalid request: a request with this id is under way")
        await here.ask(request(message("notifications/cancelled", {"requestId": 5}), session))
        await until(lambda: not here.server.runner.under_way)
        counted = {"name": "count", "arguments": {"to": 1}, **meta}
        counting = request(message("tools/call", counted, 5), session)
        assert (await here.ask(counting)).messages[-1]["result"]["structuredContent"] == {"result": 1}


@pytest.mark.parametrize("returned", [None, True, "ada", {"name": "ada"}])
async def test_an_application_that_fails_to_identify_a_caller_serves_nobody(returned: Any) -> None:
    def fail(headers: dict[str, str]) -> Any:
        if returned is None:
            raise RuntimeError("the directory is down")
        return returned

    app = dragoman.http_app([whose], identify=fail)
    answered = await Driver(app).ask(modern_call("whose"))
    assert (answered.status, answered.code, "directory" in answered.body.decode()) == (500, -32603, False)
    await app.stop(0)


def test_callers_are_identified_by_the_settings_or_by_the_application_and_not_by_both() -> None:
    settings = {"auth": {"callers": {"ada": {"token": "a" * 16}}}}
    with pytest.raises(ConfigError, match="authenticator of the application's own"):
        dragoman.http_app([whose], settings, identify=lambda headers: None)


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        ("box.example.org", "box.example.org:8000", 200),
        ("box.example.org", "other.example.org", 421),
        ("0.0.0.0", "box.example.org", 421),
        ("0.0.0.0", "192.0.2.7:8000", 200),
        ("*", "box.example.org", 421),
    ],
)
async def test_the_name_that_a_server_listens_at_is_its_own(host: str, name: str, status: int) -> None:
    app = dragoman.http_app([echo], {"http": {"host": host}}, allow_unauthenticated=True)
    asked = request(None, {"host": name}, method="GET", path="/health")
    assert (await Driver(app).ask(asked)).status == status
    await app.stop(0)


def test_an_application_that_anybody_may_call_has_to_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="nobody is authenticated"):
        dragoman.http_app([echo])
    assert not dragoman.http_app([echo], allow_unauthenticated=True).is_authenticated


# How it ends.


async def test_a_request_in_a_session_after_the_end_is_refused_as_retryable() -> None:
    made = Scene()
    opened = await made.ask(request(INITIALIZE))
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    await made.ask(request(INITIALIZED, session))
    await made.app.stop()
    call = message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1)
    for asked in (
        request(call, session),
        request(message("ping", None, 2), session),
        request(None, session, method="GET"),
        request(None, session, method="DELETE"),
        request(INITIALIZE),
        modern("prompts/list"),
    ):
        answered = await made.ask(asked)
        assert (answered.status, answered.code, answered.headers["retry-after"]) == (503, -32603, "1")
    assert made.app.metrics is not None
    assert made.app.metrics.snapshot().http_refusals == {503: 6}
    error = error_in((await made.ask(modern_call("echo", message="hi"))).message["result"])
    assert (error["code"], error["details"]["retryable"]) == ("RESOURCE_EXHAUSTED", True)
    assert (await made.ask(request(None, method="GET", path="/ready"))).json == {"status": "closed"}


@dragoman.resource("x:wait")
async def wait_to_be_read(ctx: dragoman.ToolContext) -> str:
    """As `wait`."""
    await ctx.cancellation.wait()
    return "cancelled"


@pytest.mark.parametrize(
    "asking",
    [message("tools/call", {"name": "wait"}, 1), message("resources/read", {"uri": "x:wait"}, 1)],
    ids=["of a tool", "of a resource"],
)
async def test_a_session_that_is_ended_ends_the_calls_in_it(asking: Any) -> None:
    async with scene(None, wait_to_be_read) as here:
        opened = await here.ask(request(INITIALIZE))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, session))
        asked = here.driver.begin(request(asking, session))
        await until(lambda: here.server.runner.under_way)
        assert (await here.ask(request(None, session, method="DELETE"))).status == 200
        await until(lambda: not here.server.runner.under_way)
        await asked.task
        records = [entry for entry in here.entries if isinstance(entry, CompletionRecord)]
        assert [record.outcome for record in records] == ["disconnected_completed"]
