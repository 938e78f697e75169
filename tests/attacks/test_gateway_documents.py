"""One tenant's documents must not cost another: what it keeps is bounded, by whatever way it asks."""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

import pytest

from dragoman.config import make_config
from dragoman.edge.http.server import HttpServer
from tests.support.document_entries import Tree
from tests.support.gateway import create_args
from tests.support.gateway_serving import TOKEN, WAYS, open_gateway, open_way
from tests.support.http_serving import listening
from tests.support.waiting import until

MEGABYTE = 1_048_576
MOST_BYTES = 100_000
LIMITS: dict[str, Any] = {"knowledge": {"documents_per_tenant": 4, "document_bytes_per_tenant": MOST_BYTES}}
TOO_MUCH = ("RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
"""The codes of the contract and of MCP, and below those of arguments that fit the schema and no document."""
UNFIT = ("UNPROCESSABLE_ENTITY", "INVALID_ARGUMENT")


def text_of(size: int) -> dict[str, str]:
    return {"mime_type": "text/plain", "body": "x" * size}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.slow
async def test_what_a_tenant_keeps_is_bounded_by_every_way(name: str) -> None:
    async with open_gateway(LIMITS) as gateway:
        way, ids = await open_way(gateway, name), [str(uuid4()) for _ in range(5)]
        for metadata, path in (
            ({"title": "x" * 2049}, "metadata.title"),
            ({"title": "t", "tags": ["x" * 257]}, "metadata.tags"),
            ({"title": "t", "tags": ["x"] * 101}, "metadata.tags"),
            ({"title": "t", "source": "x" * 2049}, "metadata.source"),
        ):
            told = await way.do("create_document", create_args(ids[0], metadata=metadata))
            assert (told.code in UNFIT, told.details["errors"][0]["path"]) == (True, path)
        for id in ids[:3]:
            assert (await way.do("create_document", create_args(id))).code is None
        large = create_args(ids[3], content=text_of(MOST_BYTES))
        patch = {"document_id": ids[0], "patch": {"content": text_of(MOST_BYTES)}, "update_mask": ["content"]}
        for action, args in (("create_document", large), ("update_document", patch)):
            told = await way.do(action, args)
            facts = told.code in TOO_MUCH, told.details["reason"], told.details["quota"], told.details["limit"]
            assert facts == (True, "document_quota", "document_bytes_per_tenant", MOST_BYTES)
        assert (await way.do("create_document", create_args(ids[3]))).code is None
        told = await way.do("create_document", create_args(ids[4]))
        assert (told.code in TOO_MUCH, told.details["quota"]) == (True, "documents_per_tenant")
        move = {"document_id": ids[0], "new_parent_id": ids[1]}
        assert (await way.do("move_document", move)).code is None
        assert (await way.do("delete_document", {"document_id": ids[1]})).code is None
        assert (await way.do("create_document", create_args(ids[4]))).code is None


@pytest.mark.slow
async def test_readers_that_read_nothing_are_sent_a_part_of_a_page_and_stop_it_when_they_leave() -> None:
    page, readers = 12 * MEGABYTE, 6
    async with open_gateway() as gateway:
        await Tree(gateway.documents).create("a", body="'" * (page // len("&#x27;")))
        app = gateway.driver.app
        server = HttpServer(app, make_config().http)
        head = f"GET /knowledge/documents/acme/a HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        async with listening(server) as port:
            lines = [small_line(port) for _ in range(readers)]
            for line in lines:
                line.send(head.encode())
            await until(lambda: sum(each.line.unread_since is not None for each in server.connections) == readers)
            sent = app.metrics.sent_bytes
            assert sent < readers * page / 2
            for line in lines:
                line.close()
            await until(lambda: not server.connections)
            assert app.metrics.sent_bytes < sent + readers * MEGABYTE


def small_line(port: int) -> socket.socket:
    """A connection whose client takes little before it reads."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(("127.0.0.1", port))
    return line
