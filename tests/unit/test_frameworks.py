"""Runtimes that another framework fills with its tools."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dragoman import ToolContext, frameworks
from dragoman.access.callers import Caller
from dragoman.errors import RegistrationError
from dragoman.frameworks import Framework, framework_settings, make_app, make_runtime, serve_framework
from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.runtime import Runtime
from dragoman.tools.tool import Tool, ToolDefinition
from tests.support.answers import text_in
from tests.support.asgi import Driver
from tests.support.http_wire import modern_call

MAPS: Framework = ("maps", {"server": {"shutdown_timeout_ms": 1234}, "limits": {"max_array_size": 5}})


async def find(arguments: dict[str, Any], context: ToolContext) -> dict[str, str]:
    return {"found": arguments["place"]}


locate = Tool(ToolDefinition(name="locate", description="Finds a place.", input_schema={"type": "object"}), find)


class Maps:
    """A framework with one tool, and a note of what happens to it."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = tools or (locate,)
        self.seen: list[str] = []

    def build(self, given: Facilities) -> Contribution:
        return Contribution(
            tools=self.tools,
            start=lambda: self.seen.append(f"{len(given.catalogue)} tools"),
            stop=lambda: self.seen.append("undone"),
        )

    @property
    def parts(self) -> tuple[Framework, Part]:
        return MAPS, Part(name="maps", build=self.build)


async def test_a_framework_is_announced_filled_and_undone_in_order() -> None:
    maps = Maps()

    async def on_startup() -> None:
        maps.seen.append("started")

    runtime, _ = make_runtime(
        *maps.parts, name="atlas", on_startup=on_startup, on_shutdown=lambda: maps.seen.append("stopped")
    )
    assert runtime.identity.server_info["name"] == "atlas"
    await runtime.start()
    assert (await runtime.call("locate", {"place": "Rome"})).value == {"found": "Rome"}
    await runtime.stop()
    assert maps.seen == ["1 tools", "started", "undone", "stopped"]


async def test_a_framework_whose_start_fails_is_undone() -> None:
    maps = Maps()

    async def fail() -> None:
        raise RuntimeError("no maps")

    app = make_app(*maps.parts, name="atlas", on_startup=fail, on_shutdown=lambda: maps.seen.append("stopped"))
    with pytest.raises(RuntimeError, match="no maps"):
        await app.start()
    assert maps.seen == ["1 tools", "undone"]


async def test_an_application_of_a_framework_knows_its_callers() -> None:
    app = make_app(*Maps().parts, name="atlas", identify=lambda headers: Caller(headers["x-user"]), explorer=True)
    async with app.lifespan():
        answered = await Driver(app).ask(modern_call("locate", {"x-user": "ada"}, place="Rome"))
        assert text_in(answered) == {"found": "Rome"}
    assert app.pages == ("/explorer/",)


def test_an_application_that_cannot_be_made_is_undone() -> None:
    maps = Maps()
    config = {"auth": {"callers": {"ada": {"token_env_var": "NOBODY_SETS_THIS"}}}}
    with pytest.raises(ValueError, match="NOBODY_SETS_THIS"):
        make_app(*maps.parts, name="atlas", config=config)
    assert maps.seen == ["undone"]


def test_a_part_that_a_runtime_cannot_have_is_stopped() -> None:
    maps = Maps(locate, locate)
    with pytest.raises(RegistrationError, match="locate"):
        make_runtime(*maps.parts, name="atlas")
    assert maps.seen == ["undone"]


def test_the_settings_are_the_frameworks_then_the_users_then_the_flags() -> None:
    environ = {"DRAGOMAN_LIMITS__MAX_STRING_LENGTH": "8", "DRAGOMAN_HTTP__PORT": "1"}
    config = {"limits": {"max_array_size": 6, "max_string_length": 7}}
    made = framework_settings(MAPS, "atlas", "2", {"http.port": 2}, config=config, environ=environ)
    assert (made.server.name, made.server.version, made.server.shutdown_timeout_ms) == ("atlas", "2", 1234)
    assert (made.limits.max_array_size, made.limits.max_string_length, made.http.port) == (6, 8, 2)


def test_serving_undoes_what_was_begun_when_the_address_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def taken(runtime: Runtime, kind: str) -> int:
        raise OSError("in use")

    monkeypatch.setattr(frameworks, "serve_until_stopped", taken)
    caplog.set_level(logging.INFO, "maps")
    maps = Maps()
    told: Any = {"name": "atlas", "transport": "SSE", "host": "0.0.0.0", "port": 8000, "log_level": None}
    with pytest.raises(OSError, match="in use"):
        serve_framework(*maps.parts, nothing="No maps", **told)
    assert maps.seen == ["undone"]
    assert caplog.messages == [
        "SSE transport is deprecated; use streamable-http instead",
        "Others can reach this address, and nobody is authenticated",
    ]
