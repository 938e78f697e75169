"""Modules as an ASGI application: who may come in, what is added to the executor, and which settings hold."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable
from typing import Any

import pytest
from apcore import ACL, ACLRule, Context, Executor, Identity, Middleware, Registry

from apcore_mcp import app, async_serve, serve
from dragoman.edge.http.app import HttpApp
from tests.support.answers import text_in
from tests.support.asgi import Driver
from tests.support.http_wire import INITIALIZE, INITIALIZED, Response, message, modern_call, request
from tests.support.modules import Does, Resize, registry_of

ADA = Identity("ada", type="human", roles=("editor",), attrs={"team": "maps"})
BOT = Identity("bot", type="agent")
HUMANS = ACLRule(callers=["*"], targets=["*"], effect="allow", conditions={"identity_types": ["human"]})


class Keys:
    """Knows callers by a header of its own."""

    def authenticate(self, headers: dict[str, str]) -> Identity | None:
        return {"a": ADA, "b": BOT}.get(headers.get("x-api-key", ""))


class SlowKeys:
    """The same, async."""

    def authenticate(self, headers: dict[str, str]) -> Awaitable[Identity | None]:
        async def look_up() -> Identity | None:
            return Keys().authenticate(headers)

        return look_up()


def identify(inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
    found = context.identity
    return {} if found is None else {"id": found.id, "type": found.type, "roles": [*found.roles], "attrs": found.attrs}


def modules() -> Registry:
    return registry_of(who=Does(identify), image__resize=Resize())


async def call(made: HttpApp, key: str | None = None, host: str = "127.0.0.1") -> Response:
    return await Driver(made).ask(modern_call("who", {"x-api-key": key, "host": host}))


@pytest.mark.requirement("C-05")
async def test_without_an_authenticator_anybody_may_call_and_nobody_is_anybody() -> None:
    async with async_serve(modules()) as made:
        assert not made.is_authenticated
        assert text_in(await call(made, "a")) == {}


@pytest.mark.parametrize("authenticator", [Keys(), SlowKeys()])
async def test_an_authenticator_names_the_caller_for_modules_in_both_eras(authenticator: Any) -> None:
    known = {"id": "ada", "type": "human", "roles": ["editor"], "attrs": {"team": "maps"}}
    async with async_serve(modules(), authenticator=authenticator) as made:
        assert text_in(await call(made, "a")) == known
        refused = [await call(made), await call(made, "other")]
        assert [each.status for each in refused] == [401, 401]
        here, key = Driver(made), {"x-api-key": "a"}
        opened = await here.ask(request(INITIALIZE, key))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        await here.ask(request(INITIALIZED, {**session, **key}))
        called = message("tools/call", {"name": "who", "arguments": {}}, 1)
        assert text_in(await here.ask(request(called, {**session, **key}))) == known
        assert (await here.ask(request(called, {**session, "x-api-key": "b"}))).status == 404
        assert (await here.ask(request(called, session))).status == 401


async def test_a_caller_without_an_identity_may_be_served_too() -> None:
    async with async_serve(modules(), authenticator=Keys(), require_auth=False) as made:
        assert text_in(await call(made)) == {}
        assert text_in(await call(made, "b"))["id"] == "bot"


@pytest.mark.slow
@pytest.mark.requirement("NFR-SEC-001", "FR-EXEC-005")
@pytest.mark.parametrize("is_executor", [False, True])
async def test_access_rules_and_middleware_are_added_to_the_executor(is_executor: bool) -> None:
    seen: list[str] = []

    class Notes(Middleware):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def before(self, module_id: str, inputs: dict[str, Any], context: Context[Any]) -> None:
            seen.append(f"{self._name}: {module_id}")

    source = Executor(modules()) if is_executor else modules()
    acl = ACL([HUMANS], default_effect="deny")
    told: Any = {"authenticator": Keys(), "acl": acl, "middleware": [Notes("first"), Notes("second")]}
    async with async_serve(source, **told) as made:
        assert text_in(await call(made, "a"))["id"] == "ada"
        denied = (await call(made, "b")).message["result"]
        assert (denied["isError"], denied["content"][0]["text"]) == (True, "Access denied")
    assert seen == ["first: who", "second: who"]


async def test_names_are_allowed_by_a_parameter_or_by_the_settings() -> None:
    for told in ({"allowed_hosts": ["mcp.example.org"]}, {"config": {"http": {"allowedHosts": ["mcp.example.org"]}}}):
        async with async_serve(modules(), **told) as made:
            statuses = [(await call(made, host=host)).status for host in ("mcp.example.org:80", "other.example.org")]
            assert statuses == [200, 421]


async def test_settings_are_laid_over_the_bridges_own_and_none_are_read_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVER__INSTRUCTIONS", "from the environment")
    registry = registry_of(long=Does(lambda inputs, context: {"text": "x" * 3000}))
    made = app(registry, name="maps", version="3", config={"response": {"max_response_bytes": 2048}}, explorer=True)
    async with made.lifespan():
        version = (await Driver(made).ask(request(None, method="GET", path="/version"))).json
        assert (version["name"], version["version"]) == ("maps", "3")
        assert (await Driver(made).ask(request(None, method="GET", path="/explorer/tools"))).status == 200
        opened = (await Driver(made).ask(request(INITIALIZE))).message["result"]
        assert "instructions" not in opened
        answered = (await Driver(made).ask(modern_call("long"))).message["result"]
        assert answered["content"][0]["text"] == "Module error: RESULT_TOO_LARGE"


@pytest.mark.requirement("SRS-API-02", "SRS-API-13")
async def test_hooks_run_and_the_registry_is_followed_until_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "apcore_mcp")
    seen: list[str] = []
    registry = modules()
    hooks: Any = {"on_startup": lambda: seen.append("started"), "on_shutdown": lambda: seen.append("stopped")}
    async with async_serve(registry, dynamic=True, prefix="w", **hooks) as made:
        assert seen == ["started"]
        registry.register("wait", Does(lambda inputs, context: {"waited": True}))
        assert text_in(await Driver(made).ask(modern_call("wait"))) == {"waited": True}
        unserved = (await Driver(made).ask(modern_call("image.resize", width=1))).message["result"]
        assert unserved["content"][0]["text"] == "Module not found: image.resize"
    assert seen == ["started", "stopped"]
    assert "apcore-mcp server started: 1 tools registered, transport=streamable-http" in caplog.messages


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"version": ""}, "version must not be empty"),
        ({"tags": [""]}, "Tag values must not be empty"),
        ({"prefix": ""}, "prefix must not be empty"),
        ({"explorer_prefix": "tools"}, "explorer_prefix must start with '/'"),
        ({"config": {"http": {"port": 0}}}, "http.port: must be at least 1 (config)"),
        ({"allowed_hosts": "mcp.example.org"}, "http.allowed_hosts: must be a list, not text (http.allowed_hosts)"),
        (
            {"authenticator": Keys(), "config": {"auth": {"callers": {"ada": {"token": "a" * 16}}}}},
            "auth: is set, and so is an authenticator of the application's own; use one",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name_and_changes_nothing(told: dict[str, Any], reason: str) -> None:
    executor = Executor(modules())
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        app(executor, acl=ACL([], default_effect="deny"), dynamic=True, **told)
    assert str(refused.value) == reason
    assert executor.governance_state().acl_configured is False


def test_it_takes_what_serve_takes_but_for_the_address_and_the_log() -> None:
    ours, theirs = inspect.signature(app).parameters, inspect.signature(serve).parameters
    assert theirs.keys() - ours.keys() == {"transport", "host", "port", "log_level"}
    assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
