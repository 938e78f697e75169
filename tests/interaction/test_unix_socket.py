"""`dragoman serve --uds`: HTTP over a Unix socket, for a proxy on the same machine."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.http_wire import modern_call, request
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets"),
]
TOOLS = path_of("http_tools.py")


def command(path: Path, *options: str) -> list[str]:
    serve = (sys.executable, "-m", "dragoman", "serve", str(TOOLS), "--transport", "streamable-http")
    return [*serve, "--uds", str(path), *options]


@contextmanager
def served(path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command(path, *options), stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            wait_until(lambda: b"server started" in server.stderr.readline())  # type: ignore[union-attr]
            yield server
        finally:
            server.kill()


def ask(path: Path, data: bytes) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(PATIENCE)
        wire.connect(str(path))
        wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: wire.recv(65_536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("workers", ["1", "2"])
def test_calls_are_served_over_a_socket_file_that_is_gone_with_the_server(tmp_path: Path, workers: str) -> None:
    path = tmp_path / "http.sock"
    with served(path, "--workers", workers) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for number in range(10):
            status, body = ask(path, modern_call("echo", id=number, message="hi"))
            assert (status, msgspec.json.decode(body)["id"]) == (200, number)
        assert ask(path, request(None, method="GET", path="/health"))[0] == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert not path.exists()


def test_a_file_that_a_killed_server_has_left_is_replaced_and_any_other_is_not(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with served(path) as server:
        os.kill(server.pid, signal.SIGKILL)
        server.wait(PATIENCE)
        assert path.exists()
    with served(path):
        assert ask(path, request(None, method="GET", path="/health"))[0] == 200
        refused = subprocess.run(command(path), capture_output=True, timeout=4 * PATIENCE)
        assert (refused.returncode, b"in use" in refused.stderr) == (2, True)
        assert ask(path, request(None, method="GET", path="/health"))[0] == 200
    path.unlink()
    path.write_text("precious")
    refused = subprocess.run(command(path), capture_output=True, timeout=4 * PATIENCE)
    assert (refused.returncode, path.read_text()) == (2, "precious")


def test_a_server_that_cannot_start_leaves_no_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    missing = [str(tmp_path / "missing.py") if part == str(TOOLS) else part for part in command(path)]
    refused = subprocess.run(missing, capture_output=True, timeout=4 * PATIENCE)
    assert (refused.returncode, b"no such file" in refused.stderr) == (2, True)
    assert not path.exists()
