"""An issuer of tokens: a real HTTP server on this machine, whose keys and moods can be changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import PATIENCE

OPENID = "/.well-known/openid-configuration"
OAUTH = "/.well-known/oauth-authorization-server"
KEYS = "/keys"


class Issuer:
    """What it publishes, by path; a document is bytes, or a status to answer with."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes | int] = {}
        self.asked: list[str] = []
        self.ready = threading.Event()
        self.ready.set()
        self.url = ""

    def publish(self, *keys: Any, at: str = OPENID) -> None:
        """Use these keys from now on."""
        self.documents[at] = json.dumps({"issuer": self.url, "jwks_uri": self.url + KEYS}).encode()
        self.documents[KEYS] = json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


@contextmanager
def serve_issuer() -> Iterator[Issuer]:
    """An issuer on a port of its own."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            issuer.ready.wait(PATIENCE)
            found = issuer.documents.get(self.path, 404)
            self.send_response(200 if isinstance(found, bytes) else found)
            if found == 302:
                self.send_header("location", issuer.url + "/elsewhere")
            self.end_headers()
            if isinstance(found, bytes):
                try:
                    self.wfile.write(found)
                except OSError:
                    pass  # Whoever asked has read enough.

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.ready.set()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
