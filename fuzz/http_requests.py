"""Throws requests at the HTTP application, in memory, and looks for what must never happen.

`python -m fuzz.http_requests [libFuzzer options] fuzz/http_corpus`. The first byte of an input says how the request is
sent (which method, which path, whether the usual headers are there) and, with its highest bit, whether the server has
limits that are small or those that are shipped; then come headers, one a line, and after an empty line the body.
`SESSION` in a header stands for a session that is open. After every input:

1. there was one whole answer, as long as it said, or the client left a stream; none of them was 500;
2. an error is a JSON-RPC error;
3. every call has ended and every slot is free;
4. the next request is answered correctly, alone and in the session;
5. nothing was logged that says that we failed;
6. it took no more CPU time and left no more memory in use than `BOUNDS` allows.

A hang is found by libFuzzer's `-timeout`, unbounded memory by its `-rss_limit_mb`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import atheris
import uvloop

with atheris.instrument_imports(include=["dragoman"]):
    import dragoman
    from dragoman.app import ServerOptions, create_server
    from dragoman.config import make_config
    from dragoman.edge.http import app  # noqa: F401
    from dragoman.edge.sdk import open_sessions, server  # noqa: F401 -- later they would not be looked at.
    from dragoman.telemetry.log import Entry, StructuredLogger
    from dragoman.testing.ids import SequentialIds
    from dragoman.testing.wire import is_json_rpc
    from dragoman.tools.builtin.echo import echo_tool

from fuzz import costly
from fuzz.costs import Bounds, Cost, memory_in_use
from fuzz.fuzzer import fuzz, write_seeds
from tests.support.answers import text_in
from tests.support.asgi import Asked, Driver, scope_of
from tests.support.http_wire import INITIALIZE, INITIALIZED, message, modern_call, request

METHODS = ("POST", "POST", "POST", "GET", "DELETE", "OPTIONS", "HEAD", "PUT")
PATHS = ("/mcp", "/mcp", "/mcp", "/mcp", "/health", "/ready", "/version", "/x")
USUAL = (
    (b"host", b"127.0.0.1"),
    (b"accept", b"application/json, text/event-stream"),
    (b"content-type", b"application/json"),
)
SETTINGS = {
    "limits": {"max_request_bytes": 4096, "max_array_size": 5, "max_string_length": 64, "max_object_depth": 4},
    "http": {"max_sessions": 50, "max_replay_bytes": 4096, "allowed_origins": ["https://app.example.org"]},
    "tools": {"max_payload_bytes": 512},
}
SHIPPED = {"http": SETTINGS["http"]}
# Measured with instrumented code: 0.1 ms for an empty input, 2.4 ms for one that opens a session; up to 2 µs per byte,
# for containers that are nested too deeply, and mostly below 1; below 1 µs per header; 26 KB held by a session.
BOUNDS = Bounds(seconds=0.05, seconds_per_byte=5e-6, seconds_per_step=20e-6, held=256 * 1024)


@dragoman.tool
async def nest(value: dict[str, Any], ctx: dragoman.ToolContext) -> Any:
    """Gives back what it is given, after a turn of the loop."""
    await asyncio.sleep(0)
    ctx.progress(1, 2)
    return value


class Target:
    """One server and one session for all inputs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.entries: list[Entry] = []
        config = make_config(settings)
        logger = StructuredLogger(self.entries.append, None, config.logging)
        ids = SequentialIds()  # Random ids are made in advance, a page of them.
        self.server = create_server(ServerOptions(config=config, tools=[echo_tool(), nest], logger=logger, ids=ids))
        self.driver = Driver(self.server.http())
        self.loop = uvloop.new_event_loop()  # asyncio's own keeps timers for a while after they are cancelled.
        self.session = self.loop.run_until_complete(self._open())

    def one_input(self, data: bytes) -> Cost:
        return self.loop.run_until_complete(self._one_input(data))

    async def _open(self) -> str:
        opened = await self.driver.ask(request(INITIALIZE))
        session: str = opened.headers["mcp-session-id"]
        await self.driver.ask(request(INITIALIZED, {"mcp-session-id": session}))
        return session

    async def _one_input(self, data: bytes) -> Cost:
        how, (head, _, body) = data[:1], data[1:].partition(b"\n\n")
        choice = how[0] if how else 0
        scope, _ = scope_of(request(None, method=METHODS[choice & 7], path=PATHS[choice >> 3 & 7]))
        lines = [line.partition(b":") for line in head.replace(b"SESSION", self.session.encode()).split(b"\n") if line]
        given = [(name.strip().lower(), value.strip()) for name, _, value in lines]
        usual = USUAL if choice & 0x40 else ()
        scope["headers"] = [*(pair for pair in usual if pair[0] not in dict(given)), *given]
        before = memory_in_use()
        cpu = await self._ask(scope, body)
        self.entries.clear()
        for _ in range(20):
            await asyncio.sleep(0)  # A session may be at work after its answer has been sent.
        held = memory_in_use() - before
        await self._probe(scope["method"] == "DELETE")
        return Cost(cpu, 1 + len(given), held)

    async def _ask(self, scope: dict[str, Any], body: bytes) -> float:
        asked = Asked(body)
        started = time.process_time()
        asked.task = asyncio.create_task(self.driver.app(scope, asked.receive, asked.send))
        for _ in range(200):
            await asyncio.sleep(0)
            if asked.task.done():
                break
        else:
            asked.leave()
            await asyncio.wait((asked.task,), timeout=10)
        cpu = time.process_time() - started
        assert asked.task.done(), "a request never ends"
        asked.task.result()
        self._check(asked)
        self._check_log()
        return cpu

    def _check(self, asked: Asked) -> None:
        if not asked.sent or asked.is_gone:
            assert asked.is_gone, "a request was not answered"
            return
        assert asked.is_complete, "an answer has no end"
        response = asked.response
        assert response.status != 500, "we failed"
        length = response.headers.get("content-length")
        assert length is None or int(length) == len(response.body), "an answer is not as long as it says"
        if response.status >= 400 and not response.headers["content-type"].startswith("text/event-stream"):
            assert response.status == 503 or is_json_rpc(response.json), "an error is not JSON-RPC"

    async def _probe(self, may_have_ended: bool) -> None:
        alone = await self.driver.ask(modern_call("echo", message="x"))
        assert text_in(alone) == {"message": "x"}, "the next request is not answered"
        call = message("tools/call", {"name": "echo", "arguments": {"message": "x"}}, "probe")
        within = await self.driver.ask(request(call, {"mcp-session-id": self.session}))
        if within.status == 404 and may_have_ended:
            self.session = await self._open()
        else:
            assert text_in(within) == {"message": "x"}, "the session no longer answers"
        opened = set(self.server.sessions.open._manager._server_instances)
        for session_id in opened - {self.session}:
            await self.driver.ask(request(None, {"mcp-session-id": session_id}, method="DELETE"))
        for _ in range(2000):
            if self.server.runner.under_way == 0:
                break
            await asyncio.sleep(0)
        assert (self.server.runner.under_way, self.server.slots.in_use) == (0, 0), "a call never ends"
        self._check_log()
        self.entries.clear()

    def _check_log(self) -> None:
        errors = [entry for entry in self.entries if isinstance(entry, dict) and entry["level"] == "error"]
        assert not errors, f"we failed: {errors[0]}"


def seeds() -> dict[str, bytes]:
    """Inputs to begin with, by name; written by `python -m fuzz.http_requests --seeds`."""
    found = {}
    session = (b"mcp-session-id: SESSION",)
    for name, raw, extra in (
        ("modern-call", modern_call("echo", message="x"), ()),
        ("modern-progress", modern_call("nest", value={"a": 1}), ()),
        ("initialize", request(INITIALIZE), ()),
        ("session-call", request(message("tools/call", {"name": "echo", "arguments": {"message": "x"}}, 1)), session),
        ("session-list", request(message("tools/list", None, 2)), session),
        ("session-cancel", request(message("notifications/cancelled", {"requestId": 1})), session),
        ("session-answer", request({"jsonrpc": "2.0", "id": 1, "result": {}}), session),
    ):
        scope, body = scope_of(raw)
        kept = [pair for pair in scope["headers"] if pair[0].startswith(b"mcp-")]
        lines = [b"%b: %b" % pair for pair in kept] + list(extra)
        found[name] = b"\x40" + b"\n".join(lines) + b"\n\n" + body
    found["session-end"] = b"\x44mcp-session-id: SESSION\n\n"
    found["session-resume"] = b"\x43mcp-session-id: SESSION\nlast-event-id: 0-1\n\n"
    found["page"] = b"\x45origin: https://app.example.org\n\n"
    found["health"] = b"\x63\n\n"
    # And those that are a step away from expensive ones, for the server with the limits that are shipped.
    for name, body in costly.CALLS.items():
        found[name] = b"\xc0mcp-session-id: SESSION\n\n" + body
    found["capabilities"] = b"\xc0\n\n" + costly.CAPABILITIES
    found["headers"] = b"\xc0x-a: b\nx-a: b\naccept: a/b;q=0.1,a/b;q=0.1,*/*\n\n" + costly.CALLS["nested"]
    return found


def main() -> None:
    if "--seeds" in sys.argv:
        write_seeds(Path(__file__).with_name("http_corpus"), seeds())
        return
    targets = Target(SETTINGS), Target(SHIPPED)
    fuzz(__doc__, lambda data: targets[data[:1] >= b"\x80"].one_input(data), BOUNDS, list(seeds().values()))


if __name__ == "__main__":
    main()
