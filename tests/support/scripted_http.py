"""A real HTTP server on this machine that answers as a function says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias

from tests.support.waiting import PATIENCE


class Asked(NamedTuple):
    """A request: names of headers are in small letters."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Said(NamedTuple):
    """An answer; the connection is closed after it."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


Answer: TypeAlias = Callable[[Asked], Said]


@contextmanager
def scripted_server(answer: Answer) -> Iterator[str]:
    """The URL of a server that answers each request, GET or POST, with what `answer` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            said = answer(Asked(self.path, headers, body))
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(said.body)
            except OSError:
                pass  # Whoever asked has read enough.

        do_POST = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
