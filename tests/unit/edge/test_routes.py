"""Routes that a part brings: checked and bounded as the application's own, through both doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.access.callers import Caller
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.asgi import RequestRefused
from dragoman.edge.http.app import HttpApp
from dragoman.edge.http.routes import Endpoint, Routes
from dragoman.edge.http.server import HttpServer
from dragoman.edge.settings import HttpConfig
from dragoman.errors import ConfigError
from dragoman.parts.part import Contribution, Part
from dragoman.parts.route import HttpRequest, HttpResponse, Route, Stream
from tests.support.asgi import Driver
from tests.support.http_serving import listening
from tests.support.http_wire import Response, Wire, request

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("operator", "guest")}
SETTINGS = {
    "auth": {
        "callers": {
            "operator": {"token": TOKENS["operator"]},
            "guest": {"token": TOKENS["guest"], "scopes": ["tool:*"]},
        }
    },
    "limits": {"max_request_bytes": 2000},
    "tools": {"max_payload_bytes": 1000},
}


async def tell(request: HttpRequest) -> HttpResponse:
    said = f"{request.method} {request.path} {request.caller.name} {request.endpoint}"
    return HttpResponse(200, said.encode(), ((b"content-type", b"text/plain"),))


async def keep(request: HttpRequest) -> HttpResponse:
    return HttpResponse(201, b"%d" % len(await request.body()))


async def stream(request: HttpRequest) -> Stream:
    async def send_pieces(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for piece in (b"one ", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return send_pieces


async def read_it_all(request: HttpRequest) -> Stream:
    async def take_everything(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        raise AssertionError("a body beyond the limit was read")

    return take_everything


async def fail(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("the reasons are for the log")


ROUTES = (
    Route("/open", tell, needs_caller=False, is_open=True),
    Route("/figures", tell, is_open=True),
    Route("/figures/*", tell, is_open=True),
    Route("/figures/deep/*", tell, scope="operations"),
    Route("/figures/tools/*", tell, scope=("tool:other", "tool:figures.read")),
    Route("/documents", keep, methods=("POST", "PUT"), is_open=True),
    Route("/stream", stream, is_open=True),
    Route("/uploads", read_it_all, methods=("POST",), is_open=True),
    Route("/broken", fail, is_open=True),
)


def part_with(*routes: Route) -> Part:
    return Part(name="figures", build=lambda _: Contribution(routes=routes))


@asynccontextmanager
async def app_with(*routes: Route) -> AsyncIterator[HttpApp]:
    app = create_server(ServerOptions(config=make_config(SETTINGS), parts=[part_with(*routes)])).http()
    async with app.lifespan():
        yield app


def ask(method: str, path: str, who: str | None = "operator", body: bytes | None = None, **headers: str) -> bytes:
    credentials = {} if who is None else {"authorization": f"Bearer {TOKENS[who]}"}
    return request(body, {**credentials, **headers}, method=method, path=path)


LONG = b"x" * 2001
ASKED = {
    "a route without a caller": (ask("GET", "/open", None), 200),
    "a caller": (ask("GET", "/figures"), 200),
    "no caller": (ask("GET", "/figures", None), 401),
    "a wrong token": (ask("GET", "/figures", None, authorization="Bearer wrong-0123456789abcdef"), 401),
    "a path below": (ask("GET", "/figures/2026/may?x=1"), 200),
    "a caller with every scope": (ask("GET", "/figures/deep/1"), 200),
    "a missing scope": (ask("GET", "/figures/deep/1", "guest"), 403),
    "one of several scopes, by its beginning": (ask("GET", "/figures/tools/1", "guest"), 200),
    "another method": (ask("DELETE", "/documents"), 405),
    "another method without a caller": (ask("POST", "/figures", None, b"{}"), 405),
    "another host": (ask("GET", "/open", None, host="evil.example.org"), 421),
    "another page": (ask("GET", "/open", None, origin="https://evil.example.org"), 403),
    "a page of this machine": (ask("GET", "/figures", origin="http://localhost:3000"), 200),
    "a doubled header": (ask("GET", "/open", None).replace(b"\r\n\r\n", b"\r\nhost: 127.0.0.1\r\n\r\n"), 400),
    "a body": (ask("POST", "/documents", body=b"x" * 2000), 201),
    "a body that is too long": (ask("PUT", "/documents", body=LONG), 413),
    "a long body that is read piece by piece": (ask("POST", "/uploads", body=LONG), 413),
    "a stream": (ask("GET", "/stream"), 200),
    "a defect": (ask("GET", "/broken"), 500),
    "no route": (ask("GET", "/figure"), 404),
}


@pytest.mark.parametrize(("asked", "status"), ASKED.values(), ids=ASKED)
async def test_a_part_s_route_is_answered_the_same_by_our_server_and_by_any_other(asked: bytes, status: int) -> None:
    async with app_with(*ROUTES) as app, serving(app) as port:
        first = await Driver(app).ask(asked)
        with Wire(port) as wire:
            second = await asyncio.to_thread(wire.ask, asked)
    assert (first.status, *same(first)) == (status, *same(second))


@asynccontextmanager
async def serving(app: HttpApp) -> AsyncIterator[int]:
    async with listening(HttpServer(app, HttpConfig())) as port:
        yield port


def same(response: Response) -> tuple[object, ...]:
    """What must not differ: all but ids, and headers of the connection."""
    own = ("date", "content-length", "transfer-encoding", "connection")
    headers = {name: value for name, value in response.headers.items() if name not in own}
    if response.status < 400:
        return headers, response.body
    error = response.error
    del error["data"]["correlationId"]
    return headers, error


async def test_a_handler_is_told_whose_request_it_is_and_where_clients_connect() -> None:
    async with app_with(*ROUTES) as app:
        driver = Driver(app)
        answers = [await driver.ask(asked) for asked, _ in (ASKED["a path below"], ASKED["a route without a caller"])]
    assert [each.body for each in answers] == [b"GET /figures/2026/may operator /mcp", b"GET /open anonymous /mcp"]


async def test_a_missing_scope_is_named_in_the_challenge() -> None:
    async with app_with(*ROUTES) as app:
        refused = await Driver(app).ask(ASKED["a missing scope"][0])
    assert refused.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="operations"'


async def test_a_method_that_is_not_allowed_is_told_which_are() -> None:
    async with app_with(*ROUTES) as app:
        driver = Driver(app)
        refused = await driver.ask(ask("DELETE", "/documents"))
        assert (refused.headers["allow"], refused.error["message"]) == (
            "POST, PUT",
            "Only POST and PUT are allowed here",
        )
        assert (await driver.ask(ask("HEAD", "/figures"))).status == 200


async def test_a_stream_of_a_part_ends_with_the_token_that_opened_it() -> None:
    left = asyncio.Event()

    async def endless(request: HttpRequest) -> Stream:
        async def wait(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        return wait

    runtime = create_server(ServerOptions(parts=[part_with(Route("/endless", endless, is_open=True))]))
    soon = runtime.clock.now().timestamp() + 0.2
    app = runtime.http(identify=lambda headers: Caller("ada", expires_at=soon))
    async with app.lifespan():
        answered = await Driver(app).ask(request(None, method="GET", path="/endless"))
    assert (answered.status, left.is_set()) == (200, True)


def test_the_longest_route_above_a_path_is_the_one_that_answers() -> None:
    routes = Routes(Endpoint("/mcp"), ROUTES)
    found = [routes.find(path, "GET") for path in ("/figures", "/figures/", "/figures/deep", "/figures/deep/", "/no")]
    assert [None if each is None else each.path for each in found] == [
        *("/figures", "/figures/*", "/figures/*", "/figures/deep/*", None)
    ]
    with pytest.raises(RequestRefused):
        routes.find("/figures", "POST")


@pytest.mark.parametrize("path", ["/health", "/mcp", "/figures/*"])
def test_two_routes_for_one_path_are_refused(path: str) -> None:
    routes = Route("/figures/*", tell, is_open=True), Route(path, tell, is_open=True)
    runtime = create_server(ServerOptions(parts=[part_with(*routes)]))
    with pytest.raises(ConfigError, match="served twice"):
        runtime.http()


@pytest.mark.parametrize("said", [{}, {"scope": "operations", "is_open": True}])
def test_a_route_names_a_scope_or_says_that_it_is_open(said: dict[str, Any]) -> None:
    runtime = create_server(ServerOptions(parts=[part_with(Route("/figures", tell, **said))]))
    with pytest.raises(ConfigError, match="the route /figures names"):
        runtime.http()


async def test_the_pages_of_parts_are_known() -> None:
    pages = {"/a": "/a#x", "/b": None, "/c/": "/c/"}
    async with app_with(*(Route(path, tell, is_open=True, page=page) for path, page in pages.items())) as app:
        assert app.pages == ("/a#x", "/c/")
