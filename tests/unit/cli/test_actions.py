"""`dragoman actions send`: the fields that it fills in, and what becomes of the answers of a server."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from dragoman.cli import actions
from dragoman.cli.actions import completed, pauses
from dragoman.cli.commands import app
from dragoman.gateway.envelope import read_envelope
from tests.support.operator import Operator
from tests.support.processes import free_port
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE, wait_until

runner = CliRunner()
ENVELOPE: dict[str, Any] = {
    "principal": {"roles": ["owner"]},
    "action": "knowledge.create_document",
    "action_version": "1.0.0",
    "payload": {"schema_version": "1.0", "args": {"big": 12345678901234567890123, "small": 1.50}},
}
PLACE = "/mcp/requests/0d2f8d7c-3b1f-4a53-9a0a-1f0c6d1b9a01"


class Answer(NamedTuple):
    status: int
    body: Any
    location: str | None = None


ACCEPTED = Answer(202, {"ok": True, "data": {"status": "accepted"}}, PLACE)
OPEN = Answer(200, {"ok": True, "data": {"status": "retrying"}})
DONE = Answer(200, {"ok": True, "data": {"id": "d", "revision": 1}})


class Server:
    """Gives the answers of a test, one after another. An answer may be made from the envelope.

    For None, and when there are no more, the connection ends without an answer.
    """

    def __init__(self) -> None:
        self.answers: list[Answer | Callable[[dict[str, Any]], Answer] | None] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.envelope: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.envelope = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.do_GET()

            def do_GET(self) -> None:
                outer.seen.append(
                    (self.command, self.path, {name.lower(): each for name, each in self.headers.items()})
                )
                made = outer.answers.pop(0) if outer.answers else None
                if made is None:
                    self.close_connection = True
                    return
                answer = made if isinstance(made, Answer) else made(outer.envelope)
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("content-length", str(len(body)))
                if answer.location is not None:
                    self.send_header("location", answer.location)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/mcp/actions"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(actions, "pauses", lambda: iter([0.0] * 100))
    made = runner.invoke(app, ["keys", "generate", "--tenant", "acme", "--role", "owner", "--out", "key.json"])
    assert made.exit_code == 0, made.output
    return "key.json"


def send(server: Server, key: str, *words: str, answers: list[Any]) -> Result:
    server.answers = answers
    body = json.dumps(ENVELOPE)
    return runner.invoke(app, ["actions", "send", "-", "--key", key, "--url", server.url, *words], input=body)


# What is sent.


def test_missing_fields_are_filled_in_and_the_envelope_is_accepted() -> None:
    sent, sender = completed(msgspec.json.encode(ENVELOPE), None, "dk-1", "acme")
    envelope = read_envelope(sent)
    assert (envelope.tenant_id, envelope.principal.sub, envelope.principal.roles) == ("acme", "dk-1", ("owner",))
    assert (sender.sub, sender.request_id, sender.trace_id) == ("dk-1", envelope.request_id, envelope.trace_id)
    assert envelope.sent_at > 0
    other, _ = completed(msgspec.json.encode(ENVELOPE), "me", "dk-1", "acme")
    assert read_envelope(other).principal.sub == "me"
    assert read_envelope(other).request_id != envelope.request_id


def test_what_is_there_goes_out_as_it_is() -> None:
    fields = {"request_id": 7, "correlation_id": None, "trace_id": "t", "timestamp": "then", "tenant_id": "other"}
    given = b'{"payload": {"big": 12345678901234567890123, "small": 1.50, "b": 1e999}, "principal": {"sub": "svc"}}'
    body = msgspec.json.encode({**fields, "envelope_version": "9", "ttl_sec": 1})[:-1] + b"," + given[1:]
    sent, sender = completed(body, None, "dk-1", "acme")
    for field, value in {**fields, "envelope_version": "9", "ttl_sec": 1}.items():
        assert msgspec.json.encode({field: value})[1:-1] in sent
    assert b'{"big": 12345678901234567890123, "small": 1.50, "b": 1e999}' in sent
    assert (sender.sub, sender.request_id, sender.trace_id) == ("svc", "7", "t")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"1", b'{"principal":[]}', b'{"principal":{"sub":7}}'])
def test_a_file_that_holds_no_envelope_is_not_sent(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        completed(body, None, "dk-1", "acme")
    assert ended.value.exit_code == 2
    assert "the envelope has to be a JSON object" in capsys.readouterr().err


def test_a_sender_beside_another_one_in_the_envelope_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    body = msgspec.json.encode({"principal": {"sub": "you"}})
    with pytest.raises(typer.Exit):
        completed(body, "me", "dk-1", "acme")
    assert "--sub is me, and the envelope is of you" in capsys.readouterr().err
    assert completed(body, "you", "dk-1", "acme")[1].sub == "you"


# What is made of the answers.


@pytest.mark.slow
def test_the_body_of_the_answer_is_printed_and_tells_the_exit_code(server: Server, key: str) -> None:
    done = send(server, key, answers=[DONE])
    assert (done.exit_code, json.loads(done.stdout), done.stderr) == (0, DONE.body, "")
    assert (server.envelope["tenant_id"], "prefer" in server.seen[0][2]) == ("acme", False)
    refused = Answer(409, {"ok": False, "error": {"code": "CONFLICT"}})
    result = send(server, key, answers=[refused])
    assert (result.exit_code, json.loads(result.stdout)) == (1, refused.body)


@pytest.mark.slow
def test_a_request_for_later_is_told_by_its_status_and_address(server: Server, key: str) -> None:
    place = server.url.replace("/mcp/actions", PLACE)
    said = send(server, key, "--async", answers=[ACCEPTED])
    assert (said.exit_code, said.stdout, server.seen[0][2]["prefer"]) == (0, f"accepted: {place}\n", "respond-async")
    as_json = send(server, key, "--async", "--json", answers=[ACCEPTED])
    expected = {"status": "accepted", "requestId": server.envelope["request_id"], "location": place}
    assert json.loads(as_json.stdout) == expected
    at_once = send(server, key, "--async", answers=[DONE])
    assert (at_once.exit_code, json.loads(at_once.stdout)) == (0, DONE.body)


def busy(status: int) -> Answer:
    return Answer(status, {"ok": False, "error": {"code": "UNAVAILABLE", "details": {"trace_id": "another"}}})


def test_the_final_answer_is_waited_for_with_a_new_token_for_each_look(server: Server, key: str) -> None:
    result = send(server, key, "--async", "--wait", answers=[ACCEPTED, OPEN, busy(503), busy(429), OPEN, DONE])
    assert (result.exit_code, json.loads(result.stdout)) == (0, DONE.body)
    assert [(method, path) for method, path, _ in server.seen[1:]] == [("GET", PLACE)] * 5
    assert len({headers["authorization"] for _, _, headers in server.seen}) == 6


@pytest.mark.parametrize("status", [429, 503, 404])
def test_a_failure_that_is_final_ends_the_wait_whatever_its_status(server: Server, key: str, status: int) -> None:
    def final(envelope: dict[str, Any]) -> Answer:
        return Answer(status, {"ok": False, "error": {"code": "X", "details": {"trace_id": envelope["trace_id"]}}})

    result = send(server, key, "--async", "--wait", answers=[ACCEPTED, busy(503), final])
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (1, "X")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_an_interrupted_wait_tells_where_the_answer_will_be(server: Server, key: str, tmp_path: Path) -> None:
    server.answers = [ACCEPTED, *[OPEN] * 10_000]
    (tmp_path / "envelope.json").write_text(json.dumps(ENVELOPE))
    words = ("actions", "send", "envelope.json", "--key", key, "--url", server.url, "--async", "--wait")
    with Operator(tmp_path, TOOLS).begin(*words) as waiting:
        wait_until(lambda: len(server.seen) > 2)
        waiting.send_signal(signal.SIGINT)
        said, complaint = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, said) == (130, "")
    place = server.url.replace("/mcp/actions", PLACE)
    assert complaint.splitlines()[-2:] == [
        "dragoman: interrupted; the request goes on",
        f"  its answer will be at {place}",
    ]


@pytest.mark.parametrize("place", ["", "http://evil.example/x", "//evil.example/x", "x"])
def test_an_address_on_another_server_is_not_asked(server: Server, key: str, place: str) -> None:
    result = send(server, key, "--async", "--wait", answers=[ACCEPTED._replace(location=place)])
    assert (result.exit_code, result.stdout, len(server.seen)) == (1, "", 1)
    assert "the server does not say where its answer will be" in result.stderr


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b"{}", b'{"ok":1}'])
def test_a_server_that_is_no_gateway_is_told_from_one(server: Server, key: str, body: bytes) -> None:
    result = send(server, key, answers=[Answer(502, body)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did not answer as a gateway does, with status 502" in result.stderr


def test_a_server_that_is_not_there_is_a_failure_and_nothing_secret_is_said(key: str) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp/actions"
    result = runner.invoke(app, ["actions", "send", "-", "--key", key, "--url", url], input=json.dumps(ENVELOPE))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"dragoman: nobody answers at {url}: ")
    assert json.loads(Path(key).read_text())["d"] not in result.stderr


def test_a_server_that_goes_away_while_it_is_waited_for_is_given_up_in_the_end(server: Server, key: str) -> None:
    result = send(server, key, "--async", "--wait", answers=[ACCEPTED])
    assert (result.exit_code, result.stdout, len(server.seen)) == (1, "", 1 + 10)
    assert "nobody answers at" in result.stderr


@pytest.mark.slow
def test_a_server_that_restarts_now_and_then_is_waited_for(server: Server, key: str) -> None:
    result = send(server, key, "--async", "--wait", answers=[ACCEPTED, *[*[None] * 9, OPEN] * 3, DONE])
    assert (result.exit_code, json.loads(result.stdout)) == (0, DONE.body)


@pytest.mark.parametrize(
    "words",
    [("--wait",), ("--url", "127.0.0.1"), ("--url", "http://127.0.0.1:1/a?b"), ("--key", "missing"), ("--sub", "a\nb")],
)
def test_what_cannot_be_sent_is_refused(server: Server, key: str, words: tuple[str, ...]) -> None:
    result = send(server, key, *words, answers=[DONE])
    assert (result.exit_code, result.stdout, server.seen) == (2, "", [])


def test_pauses_grow_up_to_a_bound() -> None:
    found = list(islice(pauses(), 40))
    assert found[0] <= 0.1
    assert all(first < second for first, second in pairwise(found[:8]))
    assert max(found) == found[-1] <= 5
