"""The limit of actions: `http_actions_bare.py FOLDER PORT`. One handler that does what cannot be left out.

It checks the signature and what it is about, and decodes the envelope; then one transaction, which shares its commit
with others, executes the statements of a create or an update, those of the index among them. There are no rates,
roles, schemas, slots and records.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import replace

from dragoman.adapters import sqlite_contents as contents
from dragoman.adapters import sqlite_documents as documents
from dragoman.adapters import sqlite_gateway as gateway
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_heights import measure_up
from dragoman.adapters.sqlite_passage_rows import index_changed, index_new
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.knowledge.indexing import CutAhead
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE_MIGRATIONS
from dragoman.storage.migrations import migrations_for

DAY = 86_400.0
HEADERS = [(b"content-type", b"application/json")]
decode, encode = msgspec.json.decode, msgspec.json.encode


class Handler:
    """An ASGI application with one address."""

    def __init__(self, database: SqliteDatabase, keys: dict[str, Ed25519PublicKey]) -> None:
        self._database = database
        self._keys = keys

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        began = time.monotonic()
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        kid, claims = self._verified(dict(scope["headers"]), body)
        envelope = decode(body)
        data = await self._database.write(lambda transaction: self._act(transaction, kid, claims, envelope))
        usage = {"latency_ms": round((time.monotonic() - began) * 1000)}
        answer = encode({"ok": True, "data": data, "usage": usage})
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, _length(answer)]})
        await send({"type": "http.response.body", "body": answer})

    def _verified(self, headers: dict[bytes, bytes], body: bytes) -> tuple[str, dict[str, Any]]:
        token = headers[b"authorization"].removeprefix(b"Bearer ")
        signed, _, signature = token.rpartition(b".")
        header, _, payload = signed.partition(b".")
        kid = decode(_bytes(header))["kid"]
        self._keys[kid].verify(_bytes(signature), signed)
        claims = decode(_bytes(payload))
        assert claims["exp"] > time.time()
        assert claims["aud"] == "dragoman"
        assert claims["htm"] == "POST"
        assert claims["htu"].endswith("/mcp/actions")
        assert claims["body_sha256"] == hashlib.sha256(body).hexdigest()
        return kid, claims

    def _act(self, transaction: Transaction, kid: str, claims: dict[str, Any], envelope: dict[str, Any]) -> Any:
        execute, now = transaction.execute, time.time()
        tenant, sub, action = envelope["tenant_id"], claims["sub"], envelope["action"]
        args = envelope["payload"]["args"]
        id = args["document_id"]
        assert execute(gateway._SPEND, (claims["nonce"], claims["exp"], kid)).rowcount == 1
        key = (tenant, action, id, envelope["request_id"])
        assert execute(documents._RECEIPT, key).fetchone() is None
        last = execute(documents._SEQ, (tenant, sub, envelope["context_id"])).fetchone()
        assert last is None or last[0] <= envelope["seq"]
        change = _create if action == "knowledge.create_document" else _update
        revision, document = change(transaction, tenant, id, args, now)
        encoded, (content, _) = contents.encode_bare(document), execute(documents._TEXT, (tenant, id)).fetchone()
        execute(documents._KEEP_REVISION, (tenant, id, revision, now, action, sub, encoded, content, 0))
        contents.name_text(transaction, tenant, content, encoded)
        details = encode({"revision": revision, "correlation_id": envelope["correlation_id"]})
        execute(documents._NOTE, (tenant, f"document.{action}", sub, id, now, details, None))
        data = {"id": id, "revision": revision, "web_uri": f"/knowledge/documents/{tenant}/{id}"}
        execute(documents._KEEP_RECEIPT, (*key, now + DAY, hashlib.sha256(encode(args)).digest(), encode(data), 0, 0))
        execute(documents._SET_SEQ, (tenant, sub, envelope["context_id"], envelope["seq"], now + 90 * DAY))
        return data


def _create(transaction: Transaction, tenant: str, id: str, args: dict[str, Any], now: float) -> tuple[int, Any]:
    execute = transaction.execute
    parent, content = args["parent_id"], args["content"]
    assert parent == "root" or execute(documents._ONE, (tenant, parent)).fetchone() is not None
    last = execute(documents._LAST_PLACE, (tenant, parent)).fetchone()[0] or 0
    mine = (parent, last + 1, 1, args["metadata"]["title"], content["mime_type"], "[]", None, None, True)
    row = (tenant, id, *mine, now, now, None, None)
    text = contents.keep_text(transaction, tenant, contents.NewText.of(content["body"]))
    number = execute(documents._ADD, (*row, text)).lastrowid
    assert number is not None
    contents.count(transaction, tenant, documents=1)
    measure_up(transaction, tenant, parent)
    document = replace(documents._document(row), body=content["body"])
    index_new(transaction, number, document, CutAhead())
    return 1, document


def _update(transaction: Transaction, tenant: str, id: str, args: dict[str, Any], now: float) -> tuple[int, Any]:
    row = list(transaction.execute(documents._ONE, (tenant, id)).fetchone())
    before, known = documents._document(tuple(row)), args["last_known_revision"]
    row[4], row[5], row[12] = known + 1, args["patch"]["metadata"]["title"], now
    assert transaction.execute(documents._REPLACE, (*row[2:], tenant, id, known)).rowcount == 1
    document = documents._document(tuple(row))
    index_changed(transaction, document, before, CutAhead())
    return known + 1, document


def _bytes(text: bytes) -> bytes:
    return urlsafe_b64decode(text + b"=" * (-len(text) % 4))


def _length(answer: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(answer)


def opened(folder: Path) -> tuple[SqliteDatabase, dict[str, Ed25519PublicKey]]:
    """The database in a folder, and the keys in it."""
    database = SqliteDatabase(
        folder / FILE_NAME, migrations_for("sqlite", (*KNOWLEDGE_MIGRATIONS, *GATEWAY_MIGRATIONS))
    )
    found = asyncio.run(gateway.SqliteSigningKeys(database).list())
    return database, {key.kid: Ed25519PublicKey.from_public_bytes(_bytes(key.public.encode())) for key in found}


if __name__ == "__main__":
    from serving import serve

    serve(Handler(*opened(Path(sys.argv[1]))))
