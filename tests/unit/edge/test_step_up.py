"""A client whose token does not cover a tool is told which scope to ask its issuer for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import dragoman
from dragoman import tool
from tests.support.asgi import Driver
from tests.support.http_wire import INITIALIZE, INITIALIZED, message, modern_call, request
from tests.support.tokens import AUDIENCE, EC, ISSUER, mint, public


@tool
async def allowed() -> str:
    return "yes"


@tool
async def other() -> str:
    return "no"


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    keys = tmp_path / "keys.json"
    keys.write_bytes(public(EC))
    auth = {"jwks": str(keys), "issuer": ISSUER, "audience": AUDIENCE, "resource": AUDIENCE}
    return Driver(dragoman.http_app([allowed, other], {"auth": auth, "http": {"allowed_hosts": ["*"]}}))


def bearer(scope: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {mint({'scope': scope, 'exp': int(time.time()) + 300})}"}


async def test_a_call_beyond_the_scopes_is_forbidden_and_says_what_it_takes(driver: Driver) -> None:
    caller = bearer("tool:allowed")
    assert (await driver.ask(modern_call("allowed", caller))).status == 200
    refused = await driver.ask(modern_call("other", caller))
    assert refused.status == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    assert 'scope="tool:other"' in refused.headers["www-authenticate"]
    result = json.loads(refused.body)["result"]
    assert result["isError"]
    assert "tool:other" in result["content"][0]["text"]
    assert (await driver.ask(modern_call("other", bearer("tool:allowed tool:other")))).status == 200


async def test_in_a_session_too(driver: Driver) -> None:
    caller = bearer("tool:allowed")
    opened = await driver.ask(request(INITIALIZE, caller))
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await driver.ask(request(INITIALIZED, {**caller, **session}))
    refused = await driver.ask(request(message("tools/call", {"name": "other"}, 1), {**caller, **session}))
    assert refused.status == 403
    assert 'scope="tool:other"' in refused.headers["www-authenticate"]
    await driver.app.stop()
