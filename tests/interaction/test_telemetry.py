"""`dragoman serve` with OpenTelemetry's variables, and `dragoman top`, against real processes and a real collector."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dragoman.testing.connection import ENVELOPE
from tests.support.forking import DRAGOMAN, run
from tests.support.processes import LONG, Lines, ServerProcess, command, environment, free_port, running
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
META = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Collector:
    """Takes spans over OTLP/HTTP, as an OpenTelemetry collector does."""

    def __init__(self, delay: float = 0.0) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                time.sleep(delay)
                collector._take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: it would be noise in the test run."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        with self._came:
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {each.key: each.value.string_value for each in group.resource.attributes}
                self.services.add(named["service.name"])
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
            self._came.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.spans) >= count, PATIENCE)
        return self.spans


def logged(server: ServerProcess, message: str) -> dict[str, Any]:
    def find(lines: list[bytes]) -> dict[str, Any] | None:
        entries = (json.loads(each) for each in lines if each.startswith(b"{"))
        return next((entry for entry in entries if entry["message"] == message), None)

    return server.errors.wait_until(find)


def test_spans_of_a_server_arrive_at_the_collector_that_the_variables_name() -> None:
    with Collector() as collector:
        extra = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with ServerProcess(TOOLS, extra=extra, settings={"server.name": "porter"}) as server:
            server.handshake()
            params = {"name": "health", "arguments": {}, "_meta": META}
            assert server.request("tools/call", params)["result"]["isError"] is False
            (span,) = collector.wait(1)
            record = logged(server, "tool call completed")
    assert (span.name, span.trace_id.hex()) == ("tools/call health", TRACE)
    assert (record["traceId"], record["spanId"]) == (TRACE, span.span_id.hex())
    assert collector.services == {"porter"}


def test_what_is_not_sent_yet_is_sent_at_the_end() -> None:
    with Collector(delay=0.3) as collector:
        extra = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.endpoint}/v1/traces",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=by-attribute",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        with ServerProcess(TOOLS, extra=extra, is_modern=True) as server:
            for _ in range(3):
                server.request("tools/call", {"name": "health", "arguments": {}})
            assert collector.spans == []
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
    assert [span.name for span in collector.spans] == ["tools/call health"] * 3
    assert collector.services == {"by-attribute"}


@contextmanager
def nobody() -> Iterator[str]:
    """An address that takes connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def test_a_collector_that_never_answers_delays_neither_calls_nor_the_end() -> None:
    with nobody() as endpoint:
        extra = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        extra["OTEL_EXPORTER_OTLP_TIMEOUT"] = str(int(10 * PATIENCE))
        with ServerProcess(TOOLS, extra=extra, settings=LONG, is_modern=True) as server:
            for _ in range(50):
                server.request("tools/call", {"name": "health", "arguments": {}})
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


def test_a_collector_that_is_down_costs_spans_and_a_line_in_the_log() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        extra = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        extra["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
        with ServerProcess(TOOLS, extra=extra, is_modern=True) as server:
            answer = server.request("tools/call", {"name": "health", "arguments": {}})
            assert answer["result"]["isError"] is False

            def complaint(lines: list[bytes]) -> bytes | None:
                return next((each for each in lines if b"export" in each.lower()), None)

            entry = json.loads(server.errors.wait_until(complaint))
    assert entry["level"] in ("warn", "error")


def test_on_the_console_spans_stay_away_from_the_protocol() -> None:
    extra = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    with ServerProcess(TOOLS, extra=extra, is_modern=True) as server:
        server.request("tools/call", {"name": "health", "arguments": {}})
        server.errors.wait_until(lambda lines: next((each for each in lines if b"tools/call health" in each), None))
        assert server.leave() == 0
        assert len(server.messages()) == 1


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "otlp, console and none are known"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "only http/protobuf is spoken"),
    ],
)
def test_a_server_that_cannot_have_spans_says_why_and_serves(extra: Mapping[str, str], reason: str) -> None:
    with ServerProcess(TOOLS, extra=extra, is_modern=True) as server:
        assert server.request("tools/call", {"name": "health", "arguments": {}})["result"]["isError"] is False
        assert reason in logged(server, "there are no traces")["reason"]


# `dragoman top`, and what only a real server can count.


@contextmanager
def serving(**settings: Any) -> Iterator[str]:
    """A server over HTTP, once it is ready; gives its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = command(TOOLS, "--transport", "streamable-http", "--port", str(port))
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with running(arguments, env=environment(named), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        errors = Lines(process.stderr.fileno())
        errors.start()
        errors.wait_until(lambda lines: next((each for each in lines if b"server started" in each), None))
        assert httpx2.get(f"{url}/ready", timeout=PATIENCE).status_code == 200
        yield url
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def call(url: str, name: str, token: str | None = None) -> None:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    params = {"name": name, "arguments": {}, "_meta": ENVELOPE}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    assert httpx2.post(f"{url}/mcp", headers=headers, json=body).status_code == 200


def top(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [*DRAGOMAN, "top", *arguments]
    return run(argv, env=environment(extra=variables), text=True, timeout=PATIENCE)


def test_top_shows_what_a_server_does() -> None:
    with serving() as url:
        for name in ("health", "health", "no such tool"):
            call(url, name)
        seen = json.loads(top(f"{url}/mcp", "--json", "--every", "0.2").stdout)
        page = top(url, "--once", "--every", "0.2", COLUMNS="80", LINES="24").stdout
    assert {tool["name"]: tool["calls"] for tool in seen["tools"]} == {"health": 2, "other": 1}
    assert {each["reason"]: each["refusals"] for each in seen["refusals"]} == {"not_found": 1}
    assert (seen["state"], seen["calls"], seen["slots"], seen["callsPerSecond"]) == ("running", 3, 10, 0)
    assert seen["memoryBytes"] > 1_000_000
    lines = page.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert [words for words in (url, "running", "slots 0 of 10", "health", "not_found") if words not in page] == []


def counted(url: str) -> dict[str, float]:
    """The metrics without labels, and the refused requests by status."""
    lines = [each for each in httpx2.get(f"{url}/metrics").text.splitlines() if not each.startswith("#")]
    return {name: float(value) for name, value in (each.rsplit(" ", 1) for each in lines)}


def test_bytes_on_connections_are_counted_and_so_is_who_is_turned_away_there() -> None:
    with serving() as url:
        before = counted(url)
        call(url, "health")
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as broken:
            broken.sendall(b"x" * 500 + b"\r\n\r\n")
            assert broken.recv(4096).startswith(b"HTTP/1.1 400 ")
        after = counted(url)
    assert after['dragoman_http_refusals_total{status="400"}'] == 1
    received, sent = (
        after[name] - before[name] for name in ("dragoman_http_received_bytes_total", "dragoman_http_sent_bytes_total")
    )
    assert 900 < received < 5_000
    assert 2_000 < sent < 10_000  # The first page, and two small answers.


def test_top_needs_a_token_where_the_server_does() -> None:
    callers = json.dumps({"operator": {"token": "operator-0123456789"}})
    with serving(auth__callers=callers) as url:
        without = top(url, "--once", "--every", "0.2")
        wrong = top(url, "--once", "--every", "0.2", "--token", "somebody-0123456789")
        by_variable = top(url, "--once", "--every", "0.2", DRAGOMAN_TOKEN="operator-0123456789")
    assert (without.returncode, wrong.returncode, by_variable.returncode) == (1, 1, 0)
    assert "give --token, or set DRAGOMAN_TOKEN" in without.stderr
    assert without.stdout == ""


def test_top_on_a_terminal_goes_on_until_it_is_interrupted() -> None:
    with serving() as url:
        call(url, "health")
        main, other = pty.openpty()
        argv = [*DRAGOMAN, "top", url, "--every", "0.2"]
        variables = environment(extra={"TERM": "xterm", "COLUMNS": "80", "LINES": "24"})
        with running(argv, stdin=other, stdout=other, stderr=subprocess.PIPE, env=variables) as process:
            os.close(other)
            seen = b""
            deadline = time.monotonic() + PATIENCE
            while seen.count(b"calls/s") < 6 and time.monotonic() < deadline:
                if select.select([main], [], [], 0.1)[0]:
                    seen += os.read(main, 65_536)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # The other end is closed.
                while select.select([main], [], [], PATIENCE)[0]:
                    seen += os.read(main, 65_536)
            assert process.wait(PATIENCE) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        os.close(main)
    assert seen.count(b"calls/s") >= 6
    shows_the_cursor, leaves_the_screen = b"\x1b[?25h", b"\x1b[?1049l"
    assert seen.endswith(shows_the_cursor + leaves_the_screen)


def test_top_says_that_nobody_is_there() -> None:
    nothing = top(f"127.0.0.1:{free_port()}", "--once")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr.startswith("dragoman: nobody answers at http://127.0.0.1:")
