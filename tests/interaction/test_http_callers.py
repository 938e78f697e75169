"""Over HTTP, callers are told apart: by their tokens, in their sessions, and in what they may call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.answers import error_in, text_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, message, modern, modern_call, request
from tests.support.served import path_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TOOLS = path_of("http_tools.py")
ADA, BEN, EVE = "adas-token-0123456789", "bens-token-0123456789", "nobodys-token-012345"
SETTINGS = f"""
[auth.callers.ada]
token = "{ADA}"

[auth.callers.ben]
token = "{BEN}"
scopes = ["tool:echo", "tool:na*"]
"""


def bearer(token: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProcess]:
    settings = tmp_path_factory.mktemp("settings") / "dragoman.toml"
    settings.write_text(SETTINGS)
    with HttpProcess(TOOLS, "--config", str(settings)) as server:
        yield server


BAD_CREDENTIALS: dict[str, str | None] = {
    "none": None,
    "a stranger's": f"Bearer {EVE}",
    "nothing": "",
    "no token": "Bearer",
    "an empty token": "Bearer ",
    "another scheme": f"Basic {ADA}",
    "only the token": ADA,
    "half a token": f"Bearer {ADA[:-1]}",
    "more than a token": f"Bearer {ADA}x",
    "two tokens": f"Bearer {ADA}, Bearer {BEN}",
    "a very long one": "Bearer " + "x" * 50_000,
    "no ASCII": "Bearer ünïcödé",
}


@pytest.mark.parametrize("credentials", BAD_CREDENTIALS.values(), ids=BAD_CREDENTIALS)
def test_whoever_does_not_say_who_it_is_is_told_to(server: HttpProcess, credentials: str | None) -> None:
    headers = {"authorization": credentials}
    for asked in (
        modern_call("echo", headers, message="hi"),
        request(INITIALIZE, headers),
        request(None, {**headers, "mcp-session-id": "any"}, method="GET"),
        request(None, {**headers, "mcp-session-id": "any"}, method="DELETE"),
        request(b"{", {**headers, "content-type": "text/plain"}),
    ):
        answered = server.ask(asked)
        assert (answered.status, answered.code) == (401, -32600)
        assert answered.headers["www-authenticate"].startswith("Bearer")
        assert ADA not in str(answered)


@pytest.mark.requirement("FR-HEALTH-001", "FR-HEALTH-002")
@pytest.mark.parametrize("path", ["/health", "/healthz"])
@pytest.mark.parametrize("credentials", [None, f"Bearer {ADA}", f"Bearer {EVE}", "nonsense"])
def test_health_is_told_to_anybody(server: HttpProcess, path: str, credentials: str | None) -> None:
    answered = server.ask(request(None, {"authorization": credentials}, method="GET", path=path))
    assert answered.status == 200
    health = answered.json
    assert {**health, "uptime_seconds": None} == {"status": "ok", "module_count": 9, "uptime_seconds": None}
    assert isinstance(health["uptime_seconds"], float)
    assert health["uptime_seconds"] > 0


@pytest.mark.requirement("FR-HEALTH-001")
def test_uptime_grows(server: HttpProcess) -> None:
    before = server.get("/health").json["uptime_seconds"]
    wait_until(lambda: server.get("/health").json["uptime_seconds"] > before)


def test_readiness_and_version_are_told_to_anybody(server: HttpProcess) -> None:
    assert server.get("/ready").json == {"status": "running"}
    version = server.get("/version").json
    assert (version["name"], version["protocolVersions"][-1]) == ("dragoman", "2026-07-28")


@pytest.mark.parametrize(("token", "name"), [(ADA, "ada"), (BEN, "ben")])
def test_a_caller_is_known_by_its_token(server: HttpProcess, token: str, name: str) -> None:
    answered = server.ask(modern_call("who", bearer(token)))
    if name == "ada":
        assert text_in(answered) == "ada"
        assert text_in(server.open(bearer(token)).call("who")) == "ada"
    else:
        assert error_in(answered.message["result"])["code"] == "UNAUTHORIZED"


def test_a_caller_with_scopes_sees_and_calls_what_they_cover(server: HttpProcess) -> None:
    listed = server.ask(modern("tools/list", None, bearer(BEN))).message["result"]["tools"]
    assert sorted(tool["name"] for tool in listed) == ["echo", "nap"]
    session = server.open(bearer(BEN))
    listed = session.post(message("tools/list", None, 1)).message["result"]["tools"]
    assert sorted(tool["name"] for tool in listed) == ["echo", "nap"]
    assert text_in(session.call("nap", seconds=0)) == 0
    for answered in (
        session.call("doze", seconds=0),
        session.call("who"),
        server.ask(modern_call("doze", bearer(BEN), seconds=0)),
    ):
        error = error_in(answered.message["result"])
        assert error["code"] == "UNAUTHORIZED"
        assert "tool:" in str(error)
    assert text_in(server.ask(modern_call("doze", bearer(ADA), seconds=0))) == 0


def test_a_session_is_not_there_for_another_caller(server: HttpProcess) -> None:
    session = server.open(bearer(ADA))
    theirs = bearer(BEN)
    call = message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1)
    asked = {
        "the lane": session.request(call, theirs),
        "the SDK": session.request(message("tools/list", None, 2), theirs),
        "a notification": session.request(message("notifications/cancelled", {"requestId": 1}), theirs),
        "a stream": session.request(None, {**theirs, "accept": "text/event-stream"}, method="GET"),
        "its end": session.request(None, theirs, method="DELETE"),
    }
    unknown = server.ask(request(call, {**theirs, "mcp-session-id": "0" * 32})).json
    for what, data in asked.items():
        answered = server.ask(data)
        assert answered.error["data"].keys() == {"correlationId"} == unknown["error"]["data"].keys()
        told = {**answered.json, "error": {**answered.error, "data": unknown["error"]["data"]}}
        assert (what, answered.status, told) == (what, 404, unknown)
    assert text_in(session.call("echo", message="hi")) == {"message": "hi"}


def test_another_caller_can_neither_resume_nor_cancel_a_call(server: HttpProcess) -> None:
    session = server.open(bearer(ADA))
    with server.wire() as wire:
        wire.send(session.request(message("tools/call", {"name": "nap", "arguments": {"seconds": 0.5}}, 9)))
        assert wire.head()[0] == 200
        event_id = wire.chunk().decode().partition("id: ")[2].split()[0]
        resume = {"accept": "text/event-stream", "last-event-id": event_id}
        assert server.ask(session.request(None, {**resume, **bearer(BEN)}, method="GET")).status == 404
        cancel = message("notifications/cancelled", {"requestId": 9})
        assert server.ask(session.request(cancel, bearer(BEN))).status == 404
        # A session of one's own does not help: the event is not one of it.
        own = server.open(bearer(BEN))
        foreign = server.ask(own.request(None, {**resume, "last-event-id": "1-1"}, method="GET"))
        assert foreign.status == 400
        assert text_in(server.ask(session.request(None, resume, method="GET"))) == 0.5


def test_a_session_without_a_token_is_refused_even_if_it_is_known(server: HttpProcess) -> None:
    session = server.open(bearer(ADA))
    call = message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1)
    assert server.ask(session.request(call, {"authorization": None})).status == 401
    assert server.ask(session.request(call, bearer(EVE))).status == 401
    assert server.ask(session.request(None, {"authorization": None}, method="DELETE")).status == 401
    assert text_in(session.call("echo", message="hi")) == {"message": "hi"}
