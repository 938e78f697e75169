"""Artifacts of a gateway in this process: sent, linked to and read as clients do it."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from tests.support.asgi import Asked, scope_of
from tests.support.gateway import Signer
from tests.support.gateway_serving import TOKEN, GatewayApp, answered
from tests.support.http_wire import Response, request

ARTIFACTS = "/mcp/artifacts"
TEXT = "text/plain"
JSON = "application/json"


def hash_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def begin_put(
    gateway: GatewayApp, content: bytes, mime: str | None = TEXT, token: str = TOKEN, **headers: str
) -> Asked:
    """Send content without waiting for the answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {"authorization": f"Bearer {token}", "content-type": mime, **named}
    return gateway.driver.begin(request(content, fields, method="PUT", path=ARTIFACTS))


async def put(
    gateway: GatewayApp, content: bytes, mime: str | None = TEXT, token: str = TOKEN, **headers: str
) -> Response:
    """The answer to content that an internal caller sends."""
    return await answered(begin_put(gateway, content, mime, token, **headers))


async def put_signed(gateway: GatewayApp, signer: Signer, content: bytes, mime: str = TEXT, **claims: Any) -> Response:
    """The answer to content that an external caller sends."""
    return await put(gateway, content, mime, gateway.token(signer, content, ARTIFACTS, "PUT", **claims))


async def stored(gateway: GatewayApp, content: bytes, mime: str = TEXT) -> dict[str, str]:
    """What the answer says of content that was kept."""
    response = await put(gateway, content, mime)
    assert response.status == 201, response
    data: dict[str, str] = response.json["data"]
    return data


async def fetch(gateway: GatewayApp, uri: str, method: str = "GET", **headers: str) -> Response:
    """The answer to whoever follows a link."""
    parts = urlsplit(uri)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return await gateway.driver.ask(request(None, named, method=method, path=path))


def by_artifact(data: dict[str, str], **fields: str) -> dict[str, Any]:
    """The payload of an envelope whose arguments are an artifact."""
    named = {name: data[name] for name in ("artifact_uri", "artifact_hash")}
    return {"schema_version": "1.0", **named, **fields}


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


class Upload(Asked):
    """A client that sends its body piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._incoming.get_nowait()

    def feed(self, piece: bytes, *, more: bool = True) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": piece, "more_body": more})


def begin_pieces(gateway: GatewayApp, length: str | None = None, token: str = TOKEN) -> Upload:
    """Begin to send text; without a length, in chunks."""
    headers = {"authorization": f"Bearer {token}", "content-type": TEXT, "content-length": length}
    scope, _ = scope_of(request(None, headers, method="PUT", path=ARTIFACTS))
    asked = Upload()
    asked.task = asyncio.create_task(gateway.driver.app(scope, asked.receive, asked.send))
    return asked
