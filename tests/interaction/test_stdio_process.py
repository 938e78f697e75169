"""`dragoman serve` as clients meet it: a process with three descriptors, whatever is at their other end."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.support.answers import error_in
from tests.support.processes import (
    HANDSHAKE,
    INITIALIZE,
    INITIALIZED,
    Lines,
    ServerProcess,
    command,
    decode,
    environment,
    line,
    running,
)
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


def call_line(request_id: int, name: str = "echo", **arguments: Any) -> bytes:
    return line("tools/call", {"name": name, "arguments": arguments}, request_id)


@pytest.mark.requirement("FND-TEST-05")
@pytest.mark.requirement("FR-TRANSPORT-001", "FR-TRANSPORT-002")
def test_a_client_shakes_hands_lists_calls_and_leaves() -> None:
    with ServerProcess(TOOLS, settings={"server.name": "greeter"}) as server:
        assert server.handshake()["result"]["serverInfo"] == {"name": "greeter", "version": "0.1.0"}
        assert {"add", "echo", "health"} <= {tool["name"] for tool in server.list_tools()}
        assert server.call("add", a=2, b=3)["structuredContent"] == {"sum": 5}
        assert server.leave() == 0
        assert [entry["message"] for entry in server.log()] == [
            "server started",
            "tool call completed",
            "server stopped",
        ]


@pytest.mark.requirement("FND-TEST-07")
def test_every_kind_of_call_and_of_protocol_error_is_answered_in_its_own_way() -> None:
    with ServerProcess(TOOLS) as server:
        before = server.request("tools/list")["error"]
        assert (before["code"], before["data"]["code"]) == (-32002, "NOT_INITIALIZED")
        connection_id = before["data"]["correlationId"]
        server.handshake()
        assert server.call("echo", message="hi")["isError"] is False
        assert error_in(server.call("echo"))["code"] == "INVALID_ARGUMENT"
        assert error_in(server.call("nothing"))["code"] == "NOT_FOUND"
        assert error_in(server.call("fail"))["code"] == "INTERNAL"
        assert error_in(server.call("overrun"))["code"] == "TIMEOUT"
        codes = {
            b"{": (None, -32700),
            b"[]": (None, -32600),
            b'{"jsonrpc":"2.0","id":true,"method":"ping"}': (None, -32600),
            line("no/such", {}, 101).strip(): (101, -32601),
            line("tools/call", {"name": 5}, 102).strip(): (102, -32602),
        }
        for data, (request_id, code) in codes.items():
            seen = len(server.output.lines)
            server.send(data + b"\n")
            message = server.output.wait_until(lambda lines, at=seen: decode(lines[at]) if len(lines) > at else None)
            assert (message["id"], message["error"]["code"]) == (request_id, code)
            assert message["error"]["data"]["correlationId"] == connection_id


def test_a_tool_that_means_to_end_the_program_from_a_task_ends_its_call() -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        for _ in range(2):
            assert error_in(server.call("leave"))["code"] == "INTERNAL"
            assert server.call("echo", message="hi")["isError"] is False
        assert server.leave() == 0


@pytest.mark.requirement("FND-TEST-07")
def test_calls_that_timed_out_keep_their_slots_and_health_worsens_as_they_fill() -> None:
    settings = {"resources.max_concurrent_executions": 10, "timeouts.tool_overrides": '{"hang": 50}'}
    with ServerProcess(TOOLS, settings=settings) as server:
        server.handshake()
        wait_for_health(server, "healthy", in_use=0)
        for held in [server.begin_call("hang") for _ in range(9)]:
            assert error_in(server.answer(held)["result"])["code"] == "TIMEOUT"
        wait_for_health(server, "degraded", in_use=9)
        assert error_in(server.call("hang"))["code"] == "TIMEOUT"
        wait_for_health(server, "unhealthy", in_use=10)
        assert error_in(server.call("echo", message="hi"))["code"] == "RESOURCE_EXHAUSTED"


def wait_for_health(server: ServerProcess, status: str, in_use: int) -> None:
    """Return when `health` says so; on a busy machine the event loop may be late for a while, and that counts too."""
    deadline = time.monotonic() + PATIENCE
    said = None
    while said != status:
        assert time.monotonic() < deadline, f"the server is {said}, not {status}"
        health = msgspec.json.decode(server.call("health")["content"][0]["text"])
        said = health["status"]
        assert health["resources"]["concurrentExecutions"] == in_use


@pytest.mark.requirement("FND-LIFE-10")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b'{"jsonrpc":"2.0","id":9,"method":"ping",}', -32700, id="bad-json"),
        pytest.param(b'{"jsonrpc":"2.0","id":9,"method":"ping","params":"\xff\xfe"}', -32700, id="invalid-utf8"),
        pytest.param(b'{"id":9,"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}", -32700, id="10000-deep"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"echo","arguments":{"message":'
            + b'{"a":' * 10_000
            + b"1"
            + b"}" * 10_000
            + b"}}}",
            -32700,
            id="10000-deep-arguments",
        ),
        pytest.param(b"x" * (10 * MIB + 1), -32600, id="above-10-mib"),
        pytest.param(b'[{"jsonrpc":"2.0","id":9,"method":"ping"}]', -32600, id="batch"),
        pytest.param(b"\x00" * 100, -32700, id="zeros"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_and_the_next_one_is_answered(data: bytes, code: int) -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        server.send(data + b"\n")
        refusal = server.answer(None)
        assert refusal["error"]["code"] == code
        assert server.request("ping")["result"] == {}
        assert server.leave() == 0
        server.log()


def test_a_megabyte_of_arguments_comes_back_whole_and_one_byte_more_is_refused() -> None:
    overhead = len(b'{"message":""}')
    fitting = "é" * ((MIB - overhead) // 2)
    settings = {"limits.max_string_length": MIB, "response.max_response_bytes": 4 * MIB}
    with ServerProcess(TOOLS, settings=settings) as server:
        server.handshake()
        assert server.call("echo", message=fitting)["structuredContent"] == {"message": fitting}
        refusal = error_in(server.call("echo", message=fitting + "!"))
        assert (refusal["code"], refusal["details"]["actual"]) == ("RESOURCE_EXHAUSTED", MIB + 1)


@pytest.mark.requirement("FND-LOG-02")
def test_whatever_tools_write_to_stdout_ends_up_on_stderr() -> None:
    with ServerProcess(TOOLS, extra={"NOISE_AT_IMPORT": "1"}) as server:
        server.handshake()
        assert server.call("make_a_noise")["content"][0]["text"] == "quiet"
        assert server.leave() == 0
        assert [message["id"] for message in server.messages()] == [0, 1]
        noise = {each.decode() for each in server.errors.all() if not each.startswith(b"{")}
        ways = ("print", "descriptor", "subprocess")
        assert noise == {f"{moment} {way}" for moment in ("import", "call") for way in ways}


def test_what_a_tool_prints_is_on_stderr_while_the_server_still_runs() -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        server.call("make_a_noise")
        server.errors.wait_until(lambda lines: b"call print" in lines or None)


def test_a_tool_that_reads_stdin_finds_it_empty_and_steals_nothing() -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        first = server.begin_call("read_all_input")
        others = [server.begin_call("echo", message=str(number)) for number in range(100)]
        assert server.answer(first)["result"]["structuredContent"] == {"here": "", "subprocess": "''"}
        assert server.leave() == 0
        assert Counter(message["id"] for message in server.messages()) == Counter([0, first, *others])


@pytest.mark.requirement("FR-TRANSPORT-001")
def test_every_question_in_a_file_is_answered_before_the_server_ends(tmp_path: Path) -> None:
    questions = [call_line(number, message="x" * number) for number in range(1, 51)]
    questions += [call_line(number, "add", a=number, b=1) for number in range(51, 56)]
    (tmp_path / "questions").write_bytes(HANDSHAKE + b"".join(questions).rstrip(b"\n"))
    with (tmp_path / "questions").open("rb") as stdin, (tmp_path / "answers").open("wb") as stdout:
        done = subprocess.run(
            command(TOOLS),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=PATIENCE,
            check=True,
        )
    answers = {message["id"]: message["result"] for message in map(decode, (tmp_path / "answers").open("rb"))}
    assert answers.keys() == set(range(56))
    assert all(answers[number]["structuredContent"] == {"message": "x" * number} for number in range(1, 51))
    assert all(answers[number]["structuredContent"] == {"sum": number + 1} for number in range(51, 56))
    assert all(msgspec.json.decode(each)["level"] == "info" for each in done.stderr.splitlines())


@pytest.mark.requirement("FR-TRANSPORT-001")
def test_someone_at_a_terminal_can_type_requests_and_end_with_control_d() -> None:
    terminal, end = pty.openpty()
    with running(
        command(TOOLS), stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        os.close(end)
        os.write(terminal, INITIALIZE)
        os.write(terminal, INITIALIZED)
        os.write(terminal, call_line(1, "add", a=1, b=2))
        os.write(terminal, b"\x04")
        stdout, stderr = process.communicate(timeout=PATIENCE)
    os.close(terminal)
    assert process.returncode == 0
    assert [message["id"] for message in map(decode, stdout.splitlines())] == [0, 1]
    assert b"waiting for an MCP client on stdin" in stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("closed", "sent", "answers"),
    [("0<&-", b"", []), ("1>&-", HANDSHAKE, []), ("2>&-", HANDSHAKE, [0])],
    ids=["without-stdin", "without-stdout", "without-stderr"],
)
def test_a_server_that_lacks_a_stream_confuses_it_with_no_other(closed: str, sent: bytes, answers: list[int]) -> None:
    ours, theirs = socket.socketpair()
    server = ("sh", "-c", f'exec "$@" {closed}', "sh", *command(TOOLS))
    with (
        ours,
        theirs,
        running(server, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment()) as process,
    ):
        theirs.close()
        ours.settimeout(PATIENCE)
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as stdout:
            assert [message["id"] for message in map(decode, stdout)] == answers
        _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert all(msgspec.json.decode(each)["level"] == "info" for each in stderr.splitlines())


def batches(calls: int, message: str) -> Iterator[bytes]:
    for start in range(1, calls + 1, 1000):
        yield b"".join(call_line(number, message=message) for number in range(start, min(start + 1000, calls + 1)))


def test_a_client_that_does_not_read_stops_being_read_and_in_the_end_loses_nothing() -> None:
    calls = 100_000
    with ServerProcess(is_read=False) as server:
        server.send(HANDSHAKE + b"".join(call_line(-number, message="warm up") for number in range(1, 101)))
        assert select.select([server.stdout], [], [], PATIENCE)[0]
        process = psutil.Process(server.pid)
        flood = batches(calls, "x" * 1000)
        before = process.memory_info().rss
        sent = 0
        for batch in flood:
            taken = server.offer(batch, patience=1)
            sent += taken
            if taken < len(batch):
                break
        assert sent < 40 * MIB, "the server reads on although nobody reads its answers"
        assert process.memory_info().rss - before < 96 * MIB
        server.read()
        server.send(batch[taken:])
        for batch in flood:
            server.send(batch)
        server.output.wait_until(lambda lines: len(lines) >= calls + 101 or None, patience=3 * PATIENCE)
        assert process.memory_info().rss - before < 96 * MIB
        assert server.leave() == 0
        answered = Counter(message["id"] for message in server.messages())
        assert answered == Counter(range(-100, calls + 1))
        assert len(server.errors.all()) == calls + 102


def test_a_log_that_nobody_reads_holds_the_server_back_and_nothing_is_dropped() -> None:
    calls = 30_000
    with ServerProcess(is_read=False) as server:
        server.output.start()
        server.handshake()
        sent = b"".join(batches(calls, "x" * 100))
        taken = server.offer(sent, patience=1)
        assert taken < len(sent), "the server piles up log entries that nobody reads"
        server.errors.start()
        server.send(sent[taken:])
        server.output.wait_until(lambda lines: len(lines) > calls or None)
        assert server.leave() == 0
        assert len(server.errors.all()) == calls + 2


@pytest.mark.requirement("FND-CONN-05")
def test_a_closed_stdout_ends_the_server_with_its_records_written() -> None:
    with ServerProcess(TOOLS, is_read=False) as server:
        server.send(HANDSHAKE)
        os.read(server.stdout.fileno(), 65_536)
        server.stdout.close()
        server.errors.start()
        server.begin_call("echo", message="is anybody there?")
        assert server.wait() == 0
        assert server.records() == {"echo": ["success"]}


def test_an_end_in_the_middle_of_a_message_is_a_client_that_left() -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        server.send(call_line(7, message="half")[:-10])
        assert server.leave() == 0
        assert [message["id"] for message in server.messages()] == [0]
        assert server.records() == {}


@pytest.mark.requirement("FND-CONN-04", "FND-CONN-05")
@pytest.mark.requirement("FR-TRANSPORT-002")
def test_a_client_that_leaves_cancels_its_calls_and_each_leaves_its_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ServerProcess(TOOLS) as server:
        server.handshake()
        server.begin_call("wait_to_be_cancelled")
        server.begin_call("wait_to_be_cancelled")
        server.begin_call("hold", path=str(tmp_path / "pipe"))
        server.wait_for_log("under way", times=3)
        server.stdin.close()
        (tmp_path / "pipe").write_text("too late")
        assert server.wait() == 0
        assert [message["id"] for message in server.messages()] == [0]
        assert server.records() == {
            "wait_to_be_cancelled": ["aborted", "aborted"],
            "hold": ["disconnected_completed"],
        }


DOOMED_CLIENT = """
import subprocess
from tests.support.processes import HANDSHAKE, command, environment, line
from tests.support.served import TOOLS
call = line("tools/call", {"name": "wait_to_be_cancelled"}, 1)
server = subprocess.Popen(command(TOOLS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
server.stdin.write(HANDSHAKE + call)
server.stdin.flush()
server.wait()
"""


@pytest.mark.requirement("FND-CONN-05")
def test_a_client_that_is_killed_takes_its_server_with_it() -> None:
    with running([sys.executable, "-c", DOOMED_CLIENT], stderr=subprocess.PIPE) as client:
        assert client.stderr is not None
        log = Lines(client.stderr.fileno())
        log.start()
        log.wait_until(lambda lines: any(b"under way" in each for each in lines) or None)
        client.kill()
        *_, record, last = map(msgspec.json.decode, log.all())  # The server shares the pipe, and is its last writer.
        assert (record["outcome"], last["message"]) == ("aborted", "server stopped")


def test_a_client_that_never_read_the_log_still_takes_its_server_with_it() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", str(TOOLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert server.stdin is not None
    try:
        server.stdin.write(HANDSHAKE)
        os.set_blocking(server.stdin.fileno(), False)
        sent, progress = 0, time.monotonic()
        while time.monotonic() - progress < (2 if sent > 10_000 else PATIENCE):  # Until no more is read for a while.
            try:
                os.write(server.stdin.fileno(), call_line(sent + 10, message="x"))
            except BlockingIOError:
                time.sleep(0.01)
            else:
                sent, progress = sent + 1, time.monotonic()
        assert sent > 10_000
        server.stdin.close()
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.wait(PATIENCE)


WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
sys.argv = ["dragoman", "serve"]
from dragoman.cli.main import main
main()
"""


@pytest.mark.parametrize("code", [WITHOUT_UVLOOP, WITHOUT_UVLOOP.replace('sys.modules["uvloop"] = None', "")])
def test_the_server_runs_on_either_event_loop(code: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(HANDSHAKE + call_line(2, message="hi"))
    with questions.open("rb") as given:
        ran = subprocess.run([sys.executable, "-c", code], stdin=given, capture_output=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert decode(ran.stdout.splitlines()[-1])["result"]["content"] == [{"type": "text", "text": '{"message":"hi"}'}]


SPEAKS = """
import logging, warnings
from dragoman import tool

@tool
def speak() -> int:
    "Logs as libraries do."
    log = logging.getLogger("a.library")
    log.info("not important")
    log.warning("%d of %d", 1, 2)
    warnings.warn("old")
    return 1
"""


def test_what_libraries_log_and_warn_of_becomes_entries_of_the_log(tmp_path: Path) -> None:
    target = tmp_path / "speaks.py"
    target.write_text(SPEAKS)
    with ServerProcess(str(target)) as server:
        server.handshake()
        assert server.call("speak")["isError"] is False
        assert server.leave() == 0
        said = [(each["level"], each["logger"], each["message"]) for each in server.log() if "logger" in each]
    (first, second) = said
    assert first == ("warn", "a.library", "1 of 2")
    assert second[:2] == ("warn", "py.warnings")
    assert "UserWarning: old" in second[2]


@pytest.mark.parametrize(
    ("chosen", "used"), [("pass", 10_000), ("gc.set_threshold(50_000)", 50_000), ("gc.set_threshold(0)", 0)]
)
def test_garbage_is_looked_for_less_often_unless_a_tool_has_chosen_how_often(
    chosen: str, used: int, tmp_path: Path
) -> None:
    target = tmp_path / "looks.py"
    target.write_text(
        f"import gc\nfrom dragoman import tool\n{chosen}\n"
        '@tool\ndef look() -> int:\n    "How often."\n    return gc.get_threshold()[0]\n'
    )
    with ServerProcess(str(target)) as server:
        server.handshake()
        assert server.call("look")["structuredContent"] == {"result": used}
        assert server.leave() == 0
