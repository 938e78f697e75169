"""The explorer's endpoints: exact bodies, who may run what, and nothing that leaks."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from dragoman import Ask, Image, ToolContext, tool
from dragoman.access.callers import Caller
from dragoman.calls.call import Call
from dragoman.calls.origin import Origin
from dragoman.config import make_config
from dragoman.errors import ConfigError, InvalidArgument, NotFound, StorageBusy, StorageError, StorageUncertain
from dragoman.explorer.explorer import NOT_ASKED
from dragoman.explorer.recent_calls import MOST_LISTED, RecentCalls, Ring
from dragoman.explorer.responses import unusable
from dragoman.telemetry.log import CompletionRecord
from dragoman.tools.tool import tool_of
from tests.support.explorer_page import Page, eventually, open_explorer
from tests.support.waiting import PATIENCE

SECRET = "the database password is hunter2"


@tool(name="image-resize", description="Resize an image", destructive=False, idempotent=True)
async def resize(width: int, height: int = 600) -> dict[str, int]:
    return {"width": width, "height": height}


@tool(name="agent/send/call", read_only=True)
async def slashed(text: str = "") -> str:
    return f"sent {text}"


@tool
async def broken() -> str:
    """Fails."""
    raise RuntimeError(SECRET)


@tool
async def picky(what: str) -> str:
    """Refuses by itself."""
    if what == "gone":
        raise NotFound("There is no such thing")
    raise InvalidArgument("Not that", {"field": "what"})


@tool
async def picture() -> Image:
    """A picture."""
    return Image(b"png")


@tool
async def endless(ctx: ToolContext) -> str:
    """Waits to be stopped."""
    ctx.progress(1, 4, "a quarter")
    ctx.log("info", {"still": "here"})
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()
    return "never"


@tool
async def asking(name: str, sure: Annotated[bool, Ask("Really, {name}?")]) -> str:
    """Asks first."""
    return f"{name}: {sure}"


@tool(timeout_ms=30)
async def slow() -> str:
    """Is too slow."""
    await asyncio.sleep(0.2)
    return "late"


TOOLS = (resize, slashed, broken, picky, picture, endless, asking, slow)


explorer = functools.partial(open_explorer, TOOLS)


# The page.


@pytest.mark.requirement("FR-EXPLORER-001")
async def test_the_page_is_there_when_it_is_enabled_and_not_otherwise() -> None:
    async with explorer() as page:
        found = await page.get("/explorer/")
    assert (found.status, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    async with explorer(enabled=False) as page:
        assert page.app.pages == ()
        assert (await page.get("/explorer/")).status == 404
        assert page.runtime.metrics is not None
        assert page.runtime.observers == [page.runtime.metrics.observe]


@pytest.mark.parametrize("sse", [False, True])
async def test_the_page_is_served_beside_either_transport(sse: bool) -> None:
    async with explorer(sse=sse) as page:
        assert (await page.get("/explorer/")).status == 200
        assert (await page.get("/explorer/server")).json["endpoint"] == ("/sse" if sse else "/mcp")


async def test_without_its_last_slash_the_page_is_found_all_the_same_wherever_it_is_mounted() -> None:
    async with explorer(prefix="/deep/down") as page:
        moved = await page.request("GET", "/host/deep/down", root="/host")
        assert (moved.status, moved.headers["location"]) == (307, "down/")
        assert (await page.request("GET", "/host/deep/down/", root="/host")).status == 200


@pytest.mark.requirement("FR-EXPLORER-005")
async def test_the_page_is_one_file_that_names_nothing_elsewhere() -> None:
    async with explorer() as page:
        text = (await page.get("/explorer/")).body.decode()
    assert re.findall(r"""(?:src|href|action)\s*=\s*["'](?!#|data:)""", text) == []
    assert re.findall(
        r"@import|url\(|importScripts|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
    ) == [
        "innerHTML"  # In the comment that says that there is none.
    ]
    assert re.findall(r"https?://[^\s'\"]+", text) == ["http://www.w3.org/2000/svg", "http://www.w3.org/2000/svg"]
    assert len(text) < 110_000


@pytest.mark.requirement("FR-EXPLORER-005")
async def test_the_policy_lets_the_pages_own_script_and_style_run_and_nothing_else() -> None:
    async with explorer() as page:
        found = await page.get("/explorer/")
    policy = dict(each.strip().split(" ", 1) for each in found.headers["content-security-policy"].split(";"))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>".encode(), found.body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert {
        key: policy[key] for key in ("default-src", "connect-src", "frame-ancestors", "base-uri", "form-action")
    } == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert policy["img-src"] == "data: blob:"
    assert "unsafe" not in found.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/explorer/", "/explorer/tools", "/explorer/tools/none", "/explorer/nowhere"])
async def test_every_answer_is_hardened(path: str) -> None:
    async with explorer() as page:
        headers = (await page.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["cache-control"] == "no-store"


@pytest.mark.requirement("FR-EXPLORER-006")
@pytest.mark.parametrize("prefix", ["/custom", "/custom/"])
async def test_the_prefix_moves_every_endpoint(prefix: str) -> None:
    async with explorer(prefix=prefix) as page:
        assert page.app.pages[0].startswith("/custom/#token=")
        assert (await page.get("/custom/")).headers["content-type"].startswith("text/html")
        assert (await page.get("/custom/tools")).status == 200
        assert (await page.get("/custom/tools/image-resize")).json["name"] == "image-resize"
        assert (await page.call("image-resize", {"width": 1}, "/custom")).json == {
            "result": {"width": 1, "height": 600}
        }
        for path in ("/explorer/", "/explorer/tools", "/customers", "/customs/tools"):
            assert (await page.get(path)).status == 404


@pytest.mark.requirement("FR-EXPLORER-006")
@pytest.mark.parametrize("prefix", ["explorer", "", "/", "//", "/a b", "/a?b", "/a/../b", "/%2e", "/mcp", "/mcp/"])
def test_a_prefix_that_cannot_be_is_refused_by_name(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"explorer\.prefix"):
        make_config({"explorer": {"enabled": True, "prefix": prefix}})


def test_a_prefix_above_the_endpoint_is_refused_only_where_it_matters() -> None:
    sections = {"http": {"path": "/explorer/mcp"}}
    assert make_config(sections).http.path == "/explorer/mcp"
    with pytest.raises(ConfigError, match=r"explorer\.prefix"):
        make_config({**sections, "explorer": {"enabled": True}})


# The tools.


@pytest.mark.requirement("FR-EXPLORER-002")
async def test_the_list_has_names_descriptions_and_all_four_hints_and_nothing_else() -> None:
    async with explorer() as page:
        found = await page.get("/explorer/tools")
    listed = {each["name"]: each for each in found.json}
    assert found.headers["content-type"] == "application/json"
    assert list(listed) == sorted(["health", *(tool_of(each).name for each in TOOLS)])
    assert listed["image-resize"] == {
        "name": "image-resize",
        "description": "Resize an image",
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": True,
        },
    }
    # Where a tool says nothing, MCP's defaults; what only reads cannot destroy.
    assert list(listed["broken"]["annotations"].values()) == [False, True, False, True]
    assert list(listed["agent/send/call"]["annotations"].values()) == [True, False, False, True]


@pytest.mark.requirement("FR-EXPLORER-003")
async def test_a_tool_is_shown_with_its_schema_and_found_by_its_whole_name() -> None:
    async with explorer() as page:
        found = (await page.get("/explorer/tools/image-resize")).json
        assert list(found) == ["name", "description", "annotations", "inputSchema"]
        assert found["inputSchema"]["required"] == ["width"]
        assert (await page.get("/explorer/tools/agent/send/call")).json["name"] == "agent/send/call"
        for name in ("foo", "agent/send", "image-resize/", "", "a" * 5000):
            missing = await page.get(f"/explorer/tools/{name}")
            assert (missing.status, missing.json) == (404, {"error": f"Tool '{name[:200]}' not found"})


# To run them.


@pytest.mark.requirement("FR-EXPLORER-004")
async def test_a_tool_runs_through_the_pipeline_and_only_its_result_is_answered() -> None:
    async with explorer() as page:
        done = await page.call("image-resize", {"width": 800})
        assert (done.status, done.json) == (200, {"result": {"width": 800, "height": 600}})
        details = await page.details(done)
        stages = [each["name"] for each in (await page.get("/explorer/pipeline")).json]
        slashed_done = await page.call("agent/send/call", {"text": "x"})
        shown = await page.call("picture", {})
    assert (details["outcome"], details["transport"], details["caller"]) == ("success", "explorer", "anonymous")
    assert [each["name"] for each in details["stages"]] == stages
    assert stages[0] == "RecordCompletion"
    assert stages[-2:] == ["handler", "answer"]
    assert all(each["microseconds"] >= 0 for each in details["stages"])
    assert slashed_done.json == {"result": "sent x"}
    assert shown.json == {"result": [{"type": "image", "data": "cG5n", "mimeType": "image/png"}]}


@pytest.mark.requirement("FR-EXPLORER-004")
async def test_nothing_is_run_unless_that_was_allowed() -> None:
    async with explorer(allow_execute=False) as page:
        for name in ("image-resize", "foo"):
            refused = await page.call(name, {"width": 1})
            assert (refused.status, refused.json) == (403, {"error": "Tool execution is disabled"})
        assert page.app.pages == ("/explorer/",)
        assert (await page.get("/explorer/server")).json["mayExecute"] is False
        assert (await page.get("/explorer/calls")).json == {"calls": [], "last": 0}


@pytest.mark.requirement("FR-EXPLORER-004")
async def test_an_unknown_tool_wrong_input_and_a_failure_each_have_their_answer() -> None:
    async with explorer() as page:
        unknown = await page.call("foo", {})
        wrong = await page.call("image-resize", {"width": "wide"})
        failed = await page.call("broken", {})
    assert (unknown.status, unknown.json) == (404, {"error": "Tool 'foo' not found"})
    assert (wrong.status, wrong.json) == (
        400,
        {"error": 'Input validation failed: /width: the value is not of type "integer"'},
    )
    assert (failed.status, failed.json) == (500, {"error": "The tool failed"})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'"x"', b"null", b"NaN", b"\xff", b'{"a":"\xff"}', b"[" * 100_000]
)
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    async with explorer() as page:
        refused = await page.call("image-resize", body)
    said = refused.json["error"].removeprefix("Input validation failed: ")
    assert (refused.status, [*refused.json]) == (400, ["error"])
    assert said.startswith("Parse error: ") or said == "the body must be a JSON object"


async def test_a_body_that_is_too_long_is_not_read() -> None:
    async with explorer({"limits": {"max_request_bytes": 1000}}) as page:
        assert (await page.call("image-resize", {"width": "x" * 2000})).status == 413


@pytest.mark.parametrize("token", [None, "", "wrong", "\xe9"])
async def test_without_the_token_nothing_is_run(token: str | None) -> None:
    async with explorer() as page:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["x-explorer-token"] = token
        for path in ("/explorer/tools/image-resize/call", "/explorer/running/x"):
            refused = await page.request("POST", path, b'{"width":1}', headers)
            assert refused.status == 403
            assert "token" in refused.json["error"]
        assert (await page.get("/explorer/calls")).json["last"] == 0


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
async def test_what_a_form_of_another_page_could_send_is_refused(kind: str) -> None:
    async with explorer() as page:
        refused = await page.request(
            "POST", "/explorer/tools/image-resize/call", b'{"width":1}', {**page.credentials(), "content-type": kind}
        )
        assert refused.status == 415
        allowed = await page.call("image-resize", {"width": 1}, **{"content-type": "application/json; charset=utf-8"})
        assert allowed.status == 200


async def test_other_sites_and_names_are_refused_before_anything_else() -> None:
    async with explorer() as page:
        for path in ("/explorer/", "/explorer/tools", "/explorer/calls"):
            assert (await page.get(path, origin="http://evil.example")).status == 403
            assert (await page.get(path, host="evil.example")).status == 421
        refused = await page.call("image-resize", {"width": 1}, origin="https://evil.example")
        assert refused.status == 403
        preflight = await page.request(
            "OPTIONS", "/explorer/tools/image-resize/call", headers={"origin": "http://localhost:3000"}
        )
        assert preflight.status == 405
        assert "access-control-allow-headers" not in preflight.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", ""),
        ("POST", "tools"),
        ("POST", "tools/image-resize"),
        ("PUT", "tools/image-resize/call"),
        ("DELETE", "calls"),
    ],
)
async def test_other_methods_are_refused(method: str, path: str) -> None:
    async with explorer() as page:
        assert (await page.request(method, f"/explorer/{path}", headers=page.credentials())).status == 405


# What else the page shows.


async def test_an_error_is_explained_with_its_fields_and_without_what_is_not_for_clients() -> None:
    async with explorer() as page:
        wrong = await page.details(await page.call("image-resize", {"height": "x"}))
        picky = await page.call("picky", {"what": "this"})
        refused = await page.details(picky)
        gone = await page.call("picky", {"what": "gone"})
        failed_answer = await page.call("broken", {})
        failed = await page.details(failed_answer)
    assert (wrong["outcome"], wrong["errorCode"]) == ("tool_error", "INVALID_ARGUMENT")
    assert {each["path"] for each in wrong["error"]["fields"]} == {"/width", "/height"}
    assert wrong["error"]["retryable"] is False
    assert wrong["error"]["hint"].startswith("The arguments do not fit the tool's schema")
    assert [each["name"] for each in wrong["stages"]][-2:] == ["ValidateArguments", "answer"]
    assert (picky.status, picky.json) == (500, {"error": "Not that"})
    assert refused["error"]["fields"] == [{"path": "/what", "message": "Not that"}]
    assert (gone.status, gone.json) == (500, {"error": "There is no such thing"})
    assert SECRET not in failed_answer.body.decode() + str(failed)
    assert "RuntimeError" not in str(failed)


async def test_what_is_beyond_a_limit_is_named_by_its_path() -> None:
    async with explorer({"limits": {"max_string_length": 5}}) as page:
        refused = await page.call("agent/send/call", {"text": "too long"})
        assert refused.status == 400
        assert refused.json["error"].startswith("Input validation failed: /text: ")
        assert [each["path"] for each in (await page.details(refused))["error"]["fields"]] == ["/text"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("\ud800", {"errors": [{"path": 3}, "x", {"path": "/a", "message": "\ud800"}], "field": 7}),
        InvalidArgument("odd", {"errors": "none", "object": object()}),
        InvalidArgument("odd", {"deep": functools.reduce(lambda inner, _: [inner], range(100_000), [])}),
        InvalidArgument("odd", ["no", "mapping"]),  # type: ignore[arg-type]
    ],
)
async def test_an_error_that_a_tool_made_up_badly_is_shown_all_the_same(error: InvalidArgument) -> None:
    @tool
    async def odd() -> str:
        """Makes up errors."""
        raise error

    async with open_explorer([odd]) as page:
        failed = await page.call("odd", {})
        assert failed.status == 500
        assert (await page.details(failed))["error"]["code"] == "INVALID_ARGUMENT"


async def test_a_result_that_no_client_could_be_sent_is_a_failure_here_too() -> None:
    @tool
    async def much() -> str:
        """Returns a lot."""
        return "x" * 5000

    @tool
    async def unspeakable() -> Any:
        """Returns what has no JSON form."""
        return object()

    for dialect in ("structured", "envelope"):
        sections = {"response": {"max_response_bytes": 4096, "dialect": dialect}}
        async with open_explorer([much, unspeakable], sections) as page:
            assert (await page.call("much", {})).status == 500
            assert (await page.call("unspeakable", {})).status == 500


async def test_a_call_that_was_too_slow_can_be_looked_at_before_it_has_ended() -> None:
    async with explorer() as page:
        late = await page.call("slow", {})
        assert (late.status, late.json) == (500, {"error": "No result within 30 ms"})
        details = await page.details(late)
        assert details["error"]["code"] == "TIMEOUT"
        assert "outcome" not in details
        details = await eventually(lambda: page.details(late), lambda each: "outcome" in each)
        assert details["outcome"] == "late_completed"


async def test_recent_calls_are_listed_newest_first_and_only_the_new_ones() -> None:
    async with explorer() as page:
        await page.runtime.call("image-resize", {"width": 1})
        await page.call("foo", {})
        first = (await page.get("/explorer/calls")).json
        assert [(each["toolName"], each["outcome"], each["transport"]) for each in first["calls"]] == [
            ("foo", "tool_error", "explorer"),
            ("image-resize", "success", "local"),
        ]
        assert (await page.get(f"/explorer/calls?after={first['last']}")).json == {"calls": [], "last": 2}
        await page.runtime.call("image-resize", {"width": 1})
        assert [each["number"] for each in (await page.get("/explorer/calls?after=2")).json["calls"]] == [3]
        for odd in ("x", "-1", "9" * 30, "99", "%00"):
            assert len((await page.get(f"/explorer/calls?after={odd}")).json["calls"]) == 3
        assert (await page.get("/explorer/calls/none")).status == 404
        plain = (await page.get(f"/explorer/calls/{first['calls'][1]['runId']}")).json
        assert "stages" not in plain
        assert plain["toolName"] == "image-resize"


async def test_load_says_how_the_server_is() -> None:
    async with explorer() as page:
        await page.call("image-resize", {"width": 1})
        await page.call("broken", {})
        load = (await page.get("/explorer/load")).json
    assert (load["state"], load["completed"], load["failed"], load["underWay"]) == ("running", 2, 1, 0)
    assert load["health"]["status"] == "healthy"
    assert load["health"]["resources"]["maxConcurrentExecutions"] == 10


@pytest.mark.parametrize("path", ["nowhere", "pipeline/", "load/x", "server/x", "calls/", "running/none"])
async def test_other_paths_lead_nowhere(path: str) -> None:
    async with explorer() as page:
        found = await page.get(f"/explorer/{path}")
    assert (found.status, list(found.json)) == (404, ["error"])


# While a tool runs.


async def until(page: Page, name: str, found: Callable[[Any], object]) -> Any:
    async def report() -> Any:
        return (await page.get(f"/explorer/running/{name}")).json

    return await eventually(report, found)


async def test_progress_and_words_are_shown_and_leaving_stops_the_tool() -> None:
    async with explorer() as page:
        leaves = asyncio.Event()
        headers = {**page.credentials(), "x-correlation-id": "mine"}
        running = asyncio.create_task(
            page.request("POST", "/explorer/tools/endless/call", b"{}", headers, leaves=leaves)
        )
        report = await until(page, "mine", lambda each: each.get("progress"))
        assert report == {
            "progress": {"progress": 1, "total": 4, "message": "a quarter"},
            "said": [{"level": "info", "text": '{"still":"here"}'}],
            "questions": [],
        }
        leaves.set()
        assert (await running).status == 0
        assert (await page.get("/explorer/running/mine")).status == 404

        async def recent() -> Any:
            return (await page.get("/explorer/calls")).json["calls"]

        calls = await eventually(recent, bool)
        assert (calls[0]["outcome"], calls[0]["correlationId"]) == ("aborted", "mine")


async def test_a_question_is_answered_by_whoever_runs_the_tool() -> None:
    async with explorer() as page:
        headers = {**page.credentials(), "x-correlation-id": "q"}
        running = asyncio.create_task(page.request("POST", "/explorer/tools/asking/call", b'{"name":"Ada"}', headers))
        report = await until(page, "q", lambda each: each.get("questions"))
        (question,) = report["questions"]
        assert question["message"] == "Really, Ada?"
        assert list(question["schema"]["properties"]) == ["sure"]

        async def answer(body: Any) -> int:
            sent = msgspec.json.encode(body)
            return (await page.request("POST", "/explorer/running/q", sent, page.credentials())).status

        accepted = {"action": "accept", "content": {"sure": True}}
        assert await answer({"id": question["id"] + 1, "result": accepted}) == 404
        assert await answer({"id": "x"}) == 400
        garbled = b'{"id": 1, "result": {"a": "\xff"}}'
        assert (await page.request("POST", "/explorer/running/q", garbled, page.credentials())).status == 400
        assert await answer({"id": question["id"], "result": accepted}) == 200
        assert (await running).json == {"result": "Ada: True"}
        assert await answer({"id": question["id"], "result": accepted}) == 404


async def test_a_question_is_not_waited_for_when_nobody_looks_any_longer() -> None:
    async with explorer() as page:
        leaves = asyncio.Event()
        headers = {**page.credentials(), "x-correlation-id": "q"}
        body = b'{"name":"Ada"}'
        running = asyncio.create_task(page.request("POST", "/explorer/tools/asking/call", body, headers, leaves=leaves))
        await until(page, "q", lambda each: each.get("questions"))
        leaves.set()
        await running
        assert await page.runtime.runner.drain(PATIENCE)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_call_whose_questions_nobody_can_find_is_answered_without_waiting(is_taken: bool) -> None:
    async with explorer() as page, asyncio.timeout(20):
        leaves = asyncio.Event()
        headers = {**page.credentials(), "x-correlation-id": "q"}
        first = asyncio.create_task(
            page.request("POST", "/explorer/tools/asking/call", b'{"name":"Ada"}', headers, leaves=leaves)
        )
        await until(page, "q", lambda each: each.get("questions"))
        answer = await page.call("asking", {"name": "Ben"}, **({"x-correlation-id": "q"} if is_taken else {}))
        leaves.set()
        await first
        assert (answer.status, answer.json) == (
            500,
            {"error": f"The client cannot be asked about 'sure'. {NOT_ASKED}"},
        )
        assert (await page.call("image-resize", {"width": 1})).status == 200


# Who is asking.

AUTH = {
    "callers": {
        "ada": {"token": "a" * 32},
        "ben": {"token": "b" * 32, "scopes": ["tool:image-*"]},
    }
}
ADA, BEN = {"authorization": f"Bearer {'a' * 32}"}, {"authorization": f"Bearer {'b' * 32}"}


async def test_where_callers_say_who_they_are_only_the_page_itself_is_for_everybody() -> None:
    async with explorer({"auth": AUTH}) as page:
        assert (await page.get("/explorer/")).status == 200
        for path in ("tools", "tools/image-resize", "calls", "calls/x", "load", "pipeline", "server", "running/x"):
            assert (await page.get(f"/explorer/{path}")).status == 401
        assert (await page.call("image-resize", {"width": 1})).status == 401
        assert (await page.call("image-resize", {"width": 1}, **ADA)).status == 200
        assert (await page.get("/explorer/server", **ADA)).json["isAuthenticated"] is True


async def test_a_caller_sees_the_tools_it_may_call_and_the_calls_it_made() -> None:
    async with explorer({"auth": AUTH}) as page:
        assert [each["name"] for each in (await page.get("/explorer/tools", **BEN)).json] == ["image-resize"]
        assert (await page.get("/explorer/tools/broken", **BEN)).status == 404
        refused = await page.call("broken", {}, **BEN)
        assert (refused.status, refused.json) == (500, {"error": "The scope tool:broken is needed"})
        made = await page.call("image-resize", {"width": 1}, **ADA)
        run = f"/explorer/calls/{made.headers['x-run-id']}"
        assert (await page.get(run, **ADA)).json["caller"] == "ada"
        assert (await page.get(run, **BEN)).status == 404
        assert [each["caller"] for each in (await page.get("/explorer/calls", **BEN)).json["calls"]] == ["ben"]


# What is kept.


def record(number: int, tool_name: str = "t") -> CompletionRecord:
    return CompletionRecord("now", "info", "tool call completed", f"run-{number}", "c", tool_name, 1.0, "success", 2)


def call_of(caller: Caller) -> Call:
    return Call(Origin(caller), "t", {}, "r", "c", lambda call, outcome: None)


def test_the_ring_is_bounded_in_count_and_in_bytes() -> None:
    ring: Ring[str] = Ring(3, 10)
    for number in range(5):
        ring.put(str(number), "x", 2)
    assert (len(ring), ring.bytes, ring.get("1"), ring.newest_first()) == (3, 6, None, ["x", "x", "x"])
    ring.put("heavy", "y", 9)
    assert (len(ring), ring.bytes, ring.get("heavy")) == (1, 9, "y")
    ring.put("too heavy", "z", 11)
    assert (len(ring), ring.get("too heavy")) == (1, None)
    ring.put("heavy", "lighter", 4)
    assert (len(ring), ring.bytes, ring.get("heavy")) == (1, 4, "lighter")


def test_recent_calls_are_bounded_whatever_is_called() -> None:
    recent = RecentCalls(most=1000, most_bytes=20_000)
    ada = Caller("ada")
    for number in range(5000):
        recent.observe(record(number, "t" * (number % 128)), call_of(ada))
    assert recent.total == 5000
    assert recent.find("run-1", lambda whose, tool: True) is None
    assert recent.find("run-4999", lambda whose, tool: whose == Caller("ben")) is None
    assert recent.find("run-4999", lambda whose, tool: whose == ada) is not None
    listed = recent.since(0, lambda whose, tool: True)
    assert len(listed) <= MOST_LISTED
    assert sum(len(msgspec.json.encode(each)) for each in listed) <= 20_000
    assert [each.number for each in listed] == list(range(5000, 5000 - len(listed), -1))


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (StorageBusy("locked"), (503, b'{"error":"The ledger cannot be used now"}')),
        (
            StorageUncertain("disk I/O error"),
            (500, b'{"error":"The storage failed, and whether the change was stored is unknown: look again"}'),
        ),
    ],
)
def test_a_change_that_may_be_stored_is_not_said_to_be_refused(error: StorageError, answer: tuple[int, bytes]) -> None:
    response = unusable("ledger", error)
    assert (response.status, response.body) == answer
