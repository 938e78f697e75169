"""Clients of a server that stops, and what it reads from strangers."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.support.answers import text_in
from tests.support.http_process import HttpProcess, HttpSession
from tests.support.http_wire import INITIALIZE, Wire, message, modern, modern_call, request
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until
from tests.support.worker_processes import TOKENS, Session, served
from tests.support.worker_processes import modern_call as call_worker

pytestmark = pytest.mark.slow

TOOLS = path_of("process_tools.py")


class Clients:
    """Clients that call without end, each over a connection that it keeps until it is told not to."""

    def __init__(self, server: HttpProcess) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []
        self.seen: Counter[str] = Counter()

    def start(self, session: HttpSession | None) -> None:
        thread = threading.Thread(target=self._call_without_end, args=(session,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client still waits"

    def _call_without_end(self, session: HttpSession | None) -> None:
        call = message("tools/call", {"name": "where", "arguments": {}}, 1)
        asked = modern_call("where") if session is None else session.request(call)
        while True:
            try:
                wire = self._server.wire()
            except OSError:
                return  # The server is gone.
            with wire:
                self._use(wire, asked)

    def _use(self, wire: Wire, asked: bytes) -> None:
        is_new = True
        while True:
            try:
                answer = wire.ask(asked)
            except OSError:
                # A connection that is opened as the server leaves may be cut; one that was answered on may not.
                self.seen["cut" if is_new else "unanswered"] += 1
                return
            is_new = False
            self.seen["answered"] += 1
            if answer.headers.get("connection") == "close":
                self.seen["told"] += 1
                assert wire.is_ended
                return


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_no_request_of_clients_that_keep_their_connections_is_left_unanswered_by_a_stop(options: tuple[str]) -> None:
    settings = {"resources.max_concurrent_executions": 200}
    with HttpProcess(TOOLS, *options, settings=settings) as server:
        clients = Clients(server)
        session = None if options else server.open()  # With workers, a session is gone before its worker's neighbours.
        for index in range(32):
            clients.start(session if index % 4 == 0 else None)
        wait_until(lambda: clients.seen["answered"] > 200)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        clients.join()
        assert (clients.seen["unanswered"], clients.seen["told"] >= 20) == (0, True)


def test_each_answer_of_a_server_that_stops_is_the_last_on_its_connection() -> None:
    listen = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="listen")
    with HttpProcess(TOOLS) as server:
        session = server.open()
        with server.wire() as holding, server.wire() as idle, server.wire() as within, server.wire() as stream:
            assert text_in(idle.ask(modern_call("where"))) == server.pid
            stream.send(listen)
            assert stream.head()[0] == 200
            holding.send(modern_call("hold", seconds=1.0) + modern_call("where"))
            server.wait_for_log("under way")
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.get("/ready").status == 503)
            answers = {
                "refused": idle.ask(modern_call("where")),
                "refused in a session": within.ask(session.request(message("tools/call", {"name": "where"}, 1))),
                "a list": server.ask(modern("tools/list")),
                "of the kernel": server.ask(modern("resources/list")),
                "health": server.get("/health"),
                "not found": server.get("/nothing"),
            }
            assert {name: each.headers.get("connection") for name, each in answers.items()} == dict.fromkeys(
                answers, "close"
            )
            assert (answers["of the kernel"].status, answers["of the kernel"].headers["retry-after"]) == (503, "1")
            held = holding.read()
            assert (text_in(held), held.headers.get("connection")) == ("held", None)  # Another request waits.
            assert holding.read().headers["connection"] == "close"
            assert all(wire.is_ended for wire in (holding, idle, within))
        assert server.wait() == 0


def test_a_handshake_that_meets_a_stop_while_the_sdk_is_loaded_is_refused_as_retryable(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with HttpProcess(TOOLS, extra={"SLOW_IMPORT": str(gate)}) as server, server.wire() as early:
        early.send(request(INITIALIZE))
        server.wait_for_log("loading the SDK")
        server.signal(signal.SIGTERM)
        refused = early.read()  # However long the import takes.
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, -32603, "1")
        assert server.wait() == 0
    assert not [entry for entry in server.log() if entry.get("level") == "error"]


async def test_workers_whose_parent_is_killed_end_even_if_a_tool_has_taken_their_signals() -> None:
    with served(TOOLS, settings={"server.shutdown_timeout_ms": 1000}) as server:
        for via in (0, 1):
            await call_worker(server.port, "ignore_signals", via)
        pids = server.pids()
        server.signal(signal.SIGKILL)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        log = server.log()
        assert sorted(each["worker"] for each in log if each["message"] == "server stopped") == [0, 1]
        errors = [each["message"] for each in log if each["level"] in ("warn", "error")]
        assert errors == ["the parent is gone: stopping"] * 2


# What is read from strangers.

CONFIG = f"""
[auth.callers.alice]
token = "{TOKENS["alice"]}"
"""


def wire_to(port: int, worker: int) -> Wire:
    """A connection to this worker: chance decides which one takes a connection."""
    for _ in range(200):
        wire = Wire(port)
        if msgspec.json.decode(wire.ask(request(None, method="GET", path="/version")).body)["worker"] == worker:
            return wire
        wire.close()
    raise AssertionError(f"worker {worker} takes no connections")


async def test_no_body_is_read_from_a_stranger_for_a_session_of_another_worker(tmp_path: Path) -> None:
    config = tmp_path / "dragoman.toml"
    config.write_text(CONFIG)
    with served(TOOLS, "--config", str(config)) as server:
        session = await Session.open(server.port, 0, "alice")
        unsent: dict[str, Any] = {"mcp-session-id": session.id, "content-length": "1000"}
        known = {**unsent, "authorization": f"Bearer {TOKENS['alice']}"}
        continued = {"content-length": "1000", "mcp-name": "result_continue", "mcp-method": "tools/call"}
        expected = {
            401: [request(b"", unsent), request(b"", continued), request(b"", unsent, method="DELETE")],
            413: [request(b"", {**known, "content-length": str(1 << 30)})],
            415: [request(b"", {**known, "content-type": "text/plain"})],
        }
        for status, requests in expected.items():
            for each in requests:
                with wire_to(server.port, 1) as wire:
                    assert wire.ask(each).status == status
        with wire_to(server.port, 1) as wire:  # Health is for all, whatever else a request says.
            assert wire.ask(request(None, {"mcp-session-id": session.id}, method="GET", path="/health")).status == 200
        assert isinstance(await session.call("where", 1), int)
