"""How a server over HTTP begins to listen, and how it stops: nothing accepted is lost, and nobody can keep it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client

from dragoman.edge.http.listening import bind
from tests.support.answers import error_in, text_in
from tests.support.forking import run
from tests.support.http_process import HttpProcess, HttpSession
from tests.support.http_wire import LATEST, Response, Wire, message, modern, modern_call, request
from tests.support.processes import LONG, ServerProcess, command, environment, free_port
from tests.support.served import TOOLS as HOLDING_TOOLS
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow
TOOLS = path_of("http_tools.py")
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


class Load:
    """Clients that call without end, and know what each of their calls was answered with."""

    def __init__(self, server: HttpProcess) -> None:
        self._server = server
        self._ids = count()
        self._threads: list[threading.Thread] = []
        self.answered: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []

    def start(self, name: str, arguments: dict[str, Any], session: HttpSession | None = None) -> None:
        thread = threading.Thread(target=self._call_without_end, args=(name, arguments, session), daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client still waits"

    def _call_without_end(self, name: str, arguments: dict[str, Any], session: HttpSession | None) -> None:
        try:
            with self._server.wire() as wire:
                while True:
                    number = next(self._ids)
                    params = {"name": name, "arguments": arguments, "_meta": {"correlationId": f"call-{number}"}}
                    if session is None:
                        asked = modern("tools/call", params, id=number, meta=params["_meta"])
                    else:
                        asked = session.request(message("tools/call", params, number))
                    self._check(number, wire.ask(asked))
        except ConnectionError:
            pass  # It was not accepted, or it is a call that was answered nowhere: the records tell.
        except Exception as error:
            self.failures.append(f"{name}: {error!r}")

    def _check(self, number: int, response: Response) -> None:
        if response.status in (503, 404):  # Sessions end with the server.
            assert response.code in (-32603, -32600)
            raise ConnectionResetError
        answer = response.message
        assert (response.status, answer["id"]) == (200, number), response
        self.answered[f"call-{number}"] = answer["result"]


@BOTH
@pytest.mark.requirement("NFR-REL-001", "FND-CONN-06")
def test_no_call_that_was_accepted_is_lost_when_the_server_stops_under_load(number: int) -> None:
    settings = {"resources.max_concurrent_executions": 100}
    with HttpProcess(TOOLS, settings=settings) as server:
        load = Load(server)
        sessions = [server.open() for _ in range(6)]
        for index in range(8):
            load.start("echo", {"message": "hi"})
            load.start("nap", {"seconds": 0.02 * index})
            load.start("doze", {"seconds": 0.05})
        for session in sessions:
            load.start("echo", {"message": "hi"}, session)
            load.start("nap", {"seconds": 0.3}, session)
            load.start("report", {"steps": 3, "seconds": 0.1}, session)
        wait_until(lambda: len(load.answered) > 100)
        server.signal(number)
        assert server.wait() == 0
        load.join()
    assert load.failures == []
    recorded = {
        entry["correlationId"]: entry["outcome"] for entry in server.log() if entry["message"] == "tool call completed"
    }
    assert len(recorded) > 100
    assert recorded.keys() == load.answered.keys()
    refused = {id: result for id, result in load.answered.items() if result["isError"]}
    assert {id for id, outcome in recorded.items() if outcome != "success"} == set(refused)
    for result in refused.values():
        error = error_in(result)
        assert (error["code"], error["details"]["retryable"]) == ("RESOURCE_EXHAUSTED", True)
    assert [entry for entry in server.log() if entry["level"] == "error"] == []


def test_while_a_call_finishes_the_server_is_not_ready_and_takes_no_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with HttpProcess(HOLDING_TOOLS) as server:
        session = server.open()
        assert server.get("/ready").json == {"status": "running"}
        with server.wire() as running, server.wire() as open_already:
            assert open_already.ask(request(None, method="GET", path="/ready")).status == 200
            running.send(modern_call("hold", path=str(tmp_path / "pipe")))
            server.wait_for_log("under way")
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.get("/ready").status == 503)
            assert server.get("/ready").json == {"status": "draining"}
            assert server.get("/health").json["status"] == "ok"
            for refused in (
                server.ask(modern_call("echo", message="hi")),
                open_already.ask(modern_call("echo", message="hi")),
                session.call("echo", message="hi"),
            ):
                error = error_in(refused.message["result"])
                assert (error["code"], error["details"]["retryable"]) == ("RESOURCE_EXHAUSTED", True)
            late = server.ask(request(message("initialize", {"protocolVersion": LATEST}, 1)))
            assert (late.status, late.code, late.headers["retry-after"]) == (503, -32603, "1")
            (tmp_path / "pipe").write_text("done")
            assert text_in(running.read()) == "done"
        assert server.wait() == 0


def test_streams_end_with_their_last_word_when_the_server_stops() -> None:
    with HttpProcess(TOOLS) as server:
        session = server.open()
        with server.wire() as listening, server.wire() as standing, server.wire() as slow, server.wire() as progress:
            listening.send(modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="listen"))
            standing.send(session.request(None, {"accept": "text/event-stream"}, method="GET"))
            slow.send(session.request(message("tools/call", {"name": "nap", "arguments": {"seconds": 0.7}}, 1)))
            steps = {"name": "report", "arguments": {"steps": 7, "seconds": 0.1}, "_meta": {"progressToken": 1}}
            progress.send(session.request(message("tools/call", steps, 2)))
            for wire in (listening, standing, slow, progress):
                wire.socket.recv(1, socket.MSG_PEEK)  # Its answer has begun.
            server.signal(signal.SIGTERM)
            assert text_in(slow.read()) == 0.7
            assert [each.get("method", "answer") for each in progress.read().messages] == [
                *["notifications/progress"] * 7,
                "answer",
            ]
            last = listening.read().message
            assert (last["id"], last["result"]["resultType"]) == ("listen", "complete")
            assert standing.read().messages == []
        assert server.wait() == 0


@BOTH
@pytest.mark.requirement("FND-CONN-06", "NFR-REL-001")
def test_a_tool_that_hangs_is_answered_for_and_cannot_delay_the_exit(number: int) -> None:
    with HttpProcess(TOOLS, settings={"server.shutdown_timeout_ms": 300}) as server:
        session = server.open()
        with server.wire() as alone, server.wire() as within:
            alone.send(modern_call("hang"))
            within.send(session.request(message("tools/call", {"name": "hang"}, 1)))
            server.wait_for_log("under way", times=2)
            asked = time.monotonic()
            server.signal(number)
            for wire in (alone, within):
                assert error_in(wire.read().message["result"])["code"] == "TIMEOUT"
        assert server.wait() == 3
        assert time.monotonic() - asked >= 0.3
        assert server.records() == {"hang": ["timeout", "timeout"]}


def test_a_second_signal_ends_the_server_at_once() -> None:
    with HttpProcess(TOOLS, settings=LONG) as server, server.wire() as wire:
        wire.send(modern_call("hang"))
        server.wait_for_log("under way")
        server.signal(signal.SIGINT)
        wait_until(lambda: server.get("/ready").status == 503)
        server.signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


def test_clients_that_neither_read_nor_leave_cannot_prevent_the_exit() -> None:
    settings = {"server.shutdown_timeout_ms": 300, "response.max_response_bytes": 100_000_000}
    with HttpProcess(TOOLS, settings=settings) as server, socket.socket() as deaf, server.wire() as idle:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(modern_call("repeat", text="x", times=20_000_000))
        with server.wire() as uploading:
            uploading.send(modern_call("echo", {"content-length": "1000"}, message="hi"))
            assert idle.ask(request(None, method="GET", path="/health")).status == 200
            uploading.wait_until_read()
            server.wait_for_log("tool call completed")
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


def test_an_idle_server_stops_at_once() -> None:
    with HttpProcess(TOOLS, settings=LONG) as server:
        server.check_health()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.log()[-1]["message"] == "server stopped"


# When clients leave.


@pytest.mark.requirement("FND-CONN-02", "FND-CONN-03", "FND-CONN-04", "FND-CONN-05")
def test_a_modern_client_that_leaves_takes_its_call_along_and_nobody_elses() -> None:
    with HttpProcess(TOOLS, settings={"server.shutdown_timeout_ms": 300}) as server:
        with server.wire() as other:
            with server.wire() as leaving:
                for wire in (leaving, other):
                    wire.send(modern_call("wait"))
                server.wait_for_log("under way", times=2)
            server.wait_for_log("tool call completed")
            server.check_health()
            server.signal(signal.SIGTERM)
            assert other.read().message["result"]["isError"]
        server.wait()
        assert server.records()["wait"][0] == "aborted"


def test_a_modern_client_that_leaves_with_more_than_one_request_takes_all_of_them_along() -> None:
    with HttpProcess(TOOLS) as server:
        with server.wire() as leaving:
            leaving.send(modern_call("wait") + modern_call("echo", message="hi"))
            server.wait_for_log("under way")
        server.wait_for_log("tool call completed")
        server.check_health()


def test_a_call_in_a_session_goes_on_without_its_client_and_its_answer_can_be_fetched() -> None:
    with HttpProcess(TOOLS) as server:
        session = server.open()
        with server.wire() as leaving:
            leaving.send(session.request(message("tools/call", {"name": "nap", "arguments": {"seconds": 0.6}}, 9)))
            assert leaving.head()[0] == 200
            event_id = leaving.chunk().decode().partition("id: ")[2].split()[0]
        for _ in range(2):  # Whether it is there already or still to come.
            with server.wire() as resuming:
                headers = {"accept": "text/event-stream", "last-event-id": event_id}
                fetched = resuming.ask(session.request(None, headers, method="GET"))
                assert (fetched.status, text_in(fetched)) == (200, 0.6)
        assert (
            server.ask(session.request(None, {**headers, "last-event-id": last_id(fetched)}, method="GET")).body == b""
        )


def last_id(response: Response) -> str:
    ids = [line.partition(": ")[2] for line in response.body.decode().split("\r\n") if line.startswith("id: ")]
    return ids[-1]


# Where it listens.


@pytest.mark.requirement("FR-TRANSPORT-003")
def test_a_port_that_is_taken_or_that_there_is_not_cannot_be_listened_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", port)
        ended = serve_and_end("--transport", "streamable-http", "--port", str(port))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert f"Cannot listen on 127.0.0.1 port {port}: Address already in use" in ended.stderr
        assert f"  process {os.getpid()}, " in ended.stderr
        assert "listens there; choose another with --port" in ended.stderr
    for port in (-1, 65_536):
        with pytest.raises(ValueError, match=f"port must be between 0 and 65535, not {port}"):
            bind("127.0.0.1", port)
        ended = serve_and_end("--transport", "streamable-http", "--port", str(port))
        assert ended.returncode == 2
        assert "http.port" in ended.stderr
    ended = serve_and_end("--transport", "streamable-http", "--host", "no such host")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def serve_and_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A server that should not start."""
    return run(command(TOOLS, *arguments), env=environment(), text=True, timeout=PATIENCE)


@pytest.mark.requirement("FR-TRANSPORT-003")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_it_listens_where_it_is_told(host: str) -> None:
    with bind(host, 0) as listening:
        address, port = listening.getsockname()[:2]
        socket.create_connection((address, port), timeout=PATIENCE).close()
        with pytest.raises(OSError, match="in use"):
            bind(host, port)


@pytest.mark.requirement("FR-TRANSPORT-003")
def test_an_address_that_others_can_reach_needs_callers_or_the_word() -> None:
    ended = serve_and_end("--transport", "streamable-http", "--host", "0.0.0.0", "--port", str(free_port()))
    assert ended.returncode == 2
    assert "--allow-unauthenticated" in ended.stderr
    with HttpProcess(TOOLS, "--host", "0.0.0.0", "--allow-unauthenticated") as server:
        server.check_health()
        with Wire(server.port, socket.gethostbyname(socket.gethostname())) as wire:
            assert wire.ask(request(None, method="GET", path="/health")).status == 200


@pytest.mark.requirement("FR-TRANSPORT-005")
def test_settings_of_host_and_port_are_ignored_with_stdio() -> None:
    with ServerProcess(TOOLS, settings={"http.host": "localhost", "http.port": 1}) as server:
        server.handshake()
        assert msgspec.json.decode(server.call("echo", message="hi")["content"][0]["text"]) == {"message": "hi"}
        assert server.leave() == 0
        assert not [entry for entry in server.log() if entry["level"] in ("warn", "error")]


# The deprecated transport.


@pytest.mark.requirement("FR-TRANSPORT-004")
async def test_sse_is_deprecated_and_works() -> None:
    with HttpProcess(TOOLS, settings=LONG, transport="sse") as server:
        async with (
            sse_client(f"http://127.0.0.1:{server.port}/sse") as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
            result = await session.call_tool("echo", {"message": "hi"})
            assert result.structured_content == {"message": "hi"}
        assert server.get("/health").status == 200
        foreign = request(None, {"origin": "https://evil.example.org"}, method="GET", path="/sse")
        assert server.ask(foreign).status == 403
        unknown = request(message("ping", None, 1), path=f"/messages/?session_id={'0' * 32}")
        assert server.ask(unknown).status == 404
        assert server.ask(request(message("ping", None, 1), path="/sse")).status == 405
        with server.wire() as wire:
            wire.send(request(None, {"accept": "text/event-stream"}, method="GET", path="/sse"))
            assert wire.head()[0] == 200
            assert b"/messages/?session_id=" in wire.chunk()
            server.signal(signal.SIGTERM)
            assert wire.chunk() == b""
        assert server.wait() == 0
    warnings = [entry["message"] for entry in server.log() if entry["level"] == "warn"]
    assert "SSE transport is deprecated; use streamable-http instead" in warnings
    assert not [entry for entry in server.log() if entry["level"] == "error"]
