"""`dragoman top`: what two looks at a server amount to, what a terminal shows of it, and what it says to bad input."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dragoman.cache.bounded import BoundedCache
from dragoman.cli.commands import app
from dragoman.cli.scrape import Look, Unreachable, View, _samples, compare, look, quantile, since_start
from dragoman.cli.top import _base
from dragoman.cli.top_page import page
from dragoman.extras import install_command
from dragoman.telemetry.log import CompletionRecord
from dragoman.telemetry.metrics import Levels, Metrics

runner = CliRunner()
LEVELS = Levels(
    in_flight=3,
    slots=10,
    slots_in_use=9,
    lag_seconds=0.25,
    memory_bytes=64 << 20,
    sessions=4,
    cache=BoundedCache[Any]().stats(),
)


class Ended(msgspec.Struct):
    is_found: bool = True
    ran: bool = True


class Counted:
    """Metrics as a server would have them, and looks at them."""

    def __init__(self) -> None:
        self.metrics = Metrics(lambda name: None, lambda: LEVELS)

    def calls(self, name: str, count: int, duration_ms: float = 1.0, outcome: str = "success") -> None:
        for _ in range(count):
            self.metrics.observe(CompletionRecord("", "info", "", "", "", name, duration_ms, outcome, 2), Ended())

    def refusals(self, reason: str, count: int) -> None:
        facts = {"error_code": "RESOURCE_EXHAUSTED", "reason": reason}
        for _ in range(count):
            record = CompletionRecord("", "warn", "", "", "", "add", 0.01, "tool_error", 2, **facts)
            self.metrics.observe(record, Ended(ran=False))

    def look(self, at: float) -> Look:
        return Look(at, "running", at, _samples(self.metrics.snapshot().page()[0].decode()))


def test_rates_are_those_of_the_time_between_two_looks_and_counts_those_since_the_start() -> None:
    counted = Counted()
    counted.calls("add", 100)
    counted.refusals("no_free_slot", 5)
    before = counted.look(10.0)
    counted.calls("add", 30, duration_ms=2.0)
    counted.calls("add", 10, duration_ms=2.0, outcome="tool_error")
    counted.calls("scan", 2, duration_ms=100.0)
    counted.refusals("rate_limited", 8)
    counted.metrics.refused_request(401)
    view = compare(before, counted.look(14.0))
    assert (view.calls, view.calls_per_second, view.interval_seconds) == (155, 12.5, 4.0)
    add, scan = view.tools
    assert (add.name, add.calls, add.calls_per_second, add.failures_per_second) == ("add", 153, 12.0, 4.5)
    assert 1 < (add.p50_ms or 0) <= 2.5
    assert (scan.name, scan.calls) == ("scan", 2)
    assert 50 < (scan.p95_ms or 0) <= 100
    assert [(each.reason, each.refusals, each.refusals_per_second) for each in view.refusals] == [
        ("rate_limited", 8, 2.0),
        ("HTTP 401", 1, 0.25),
        ("no_free_slot", 5, 0.0),
    ]
    assert (view.in_flight, view.slots_in_use, view.slots, view.lag_ms, view.sessions) == (3, 9, 10, 250.0, 4)


def test_a_server_that_was_restarted_counts_from_nothing() -> None:
    old, new = Counted(), Counted()
    old.calls("add", 1000)
    new.calls("add", 20)
    view = compare(old.look(10.0), new.look(12.0))
    assert view.calls_per_second == 10.0
    assert view.tools[0].p50_ms is not None


def test_the_first_look_is_held_against_the_start() -> None:
    counted = Counted()
    counted.calls("add", 50)
    now = counted.look(25.0)
    assert compare(since_start(now), now).calls_per_second == 2.0


@pytest.mark.parametrize(
    ("share", "buckets", "milliseconds"),
    [
        (0.5, {}, None),
        (0.5, {"0.1": 0.0, "+Inf": 0.0}, None),
        (0.5, {"0.1": 10.0, "+Inf": 10.0}, 50.0),
        (0.95, {"0.1": 0.0, "0.2": 100.0, "+Inf": 100.0}, 195.0),
        (0.5, {"0.1": 50.0, "0.2": 100.0, "+Inf": 100.0}, 100.0),
        (0.99, {"0.1": 50.0, "0.2": 60.0, "+Inf": 100.0}, 200.0),
        (0.5, {"+Inf": 10.0}, 0.0),
    ],
)
def test_quantiles_are_read_off_the_buckets(
    share: float, buckets: dict[str, float], milliseconds: float | None
) -> None:
    assert quantile(share, buckets) == (None if milliseconds is None else pytest.approx(milliseconds))


def shown(view: View, width: int = 80, height: int = 24, trouble: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(page(view, "http://127.0.0.1:8000", console, trouble))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (60, 24)])
def test_everything_fits_the_terminal_however_many_tools_and_reasons_there_are(width: int, height: int) -> None:
    counted = Counted()
    for number in range(150):
        counted.calls(f"a_tool_with_quite_a_long_name_{number}" + "x" * 60, 1 + number)
    for number in range(30):
        counted.refusals(f"reason_{number}", 1 + number)
    now = counted.look(10.0)
    lines = shown(compare(since_start(now), now), width, height, trouble="nobody answers at all " * 20)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("a_tool_with_quite_a_long_name_149" in each for each in lines) or width == 60


def test_a_server_that_has_done_nothing_is_shown_too() -> None:
    now = Counted().look(10.0)
    lines = shown(compare(since_start(now), now))
    assert "calls/s 0.0" in lines[1]
    assert lines[-1].strip() == "nothing refused"


def test_no_name_can_write_to_the_terminal() -> None:
    counted = Counted()
    counted.calls("[red]\x1b[2J\x07name", 1)
    now = counted.look(1.0)
    text = "\n".join(shown(compare(since_start(now), now)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]\\u001b[2J" in text


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:8000"),
        ("https://example.org/tools/metrics/", "https://example.org/tools"),
        ("localhost:8000/sse", "http://localhost:8000"),
    ],
)
def test_any_address_of_the_server_will_do(given: str, base: str) -> None:
    assert _base(given) == base


@contextmanager
def something(status: int, body: bytes) -> Iterator[str]:
    """A server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: it would be noise in the test run."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"<html>hello</html>", "are no metrics that can be read"),
        (200, b"go_goroutines 7\n", "is not Dragoman"),
        (200, b"", "is not Dragoman"),
        (200, b"\xff\xfe\x00", ""),
        (401, b"", "give --token, or set DRAGOMAN_TOKEN"),
        (403, b'{"error": {"message": "The scope metrics is missing"}}', "status 403. The scope metrics is missing"),
        (403, b'{"error": {"message": "\\u001b[2J"}}', r"\u001b[2J"),
        (404, b"{}", "is http.metrics off?"),
        (302, b"", "status 302"),
        (500, b"[]", "status 500"),
    ],
)
def test_what_answers_and_has_no_metrics_is_said_to(status: int, body: bytes, reason: str) -> None:
    with something(status, body) as url:
        result = runner.invoke(app, ["top", url, "--once"])
    assert result.exit_code == 1
    assert reason in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1", "http://no host/", "127.0.0.1:99999"])
def test_an_address_where_nobody_is_is_named(url: str) -> None:
    result = runner.invoke(app, ["top", url, "--json"])
    assert result.exit_code == 1
    assert "nobody answers at" in result.stderr


def test_where_the_library_is_missing_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    with something(200, b"dragoman_build_info 1\n") as url:
        result = runner.invoke(app, ["top", url, "--once"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert install_command("http") in result.stderr


def test_a_token_that_cannot_be_one_is_not_sent() -> None:
    with pytest.raises(Unreachable, match="no bearer token"):
        look("http://127.0.0.1:1", "two\r\nx-evil: 1")


def test_without_an_address_it_is_the_one_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_HTTP__HOST", "0.0.0.0")
    monkeypatch.setenv("DRAGOMAN_HTTP__PORT", "1")
    result = runner.invoke(app, ["top", "--once"])
    assert "nobody answers at http://127.0.0.1:1:" in result.stderr
