"""`dragoman serve --gateway` in a process of its own, with keys in its database, and a raw client for it."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.http_process import HttpProcess
from tests.support.http_wire import Response, request

CREATE, UPDATE, DELETE, MOVE = (f"knowledge.{each}_document" for each in ("create", "update", "delete", "move"))
MANY = 1_000_000
"""Requests a minute: nothing that a test sends is refused for its number."""
Headers = Mapping[str, str | None] | Iterable[tuple[str, str]]


def add_keys(folder: Path, *signers: Signer, created_at: float | None = None, revoked_at: float | None = None) -> None:
    """Make the keys of `signers` known to servers with this data directory."""

    async def add() -> None:
        database = SqliteDatabase(folder / FILE_NAME, (*KNOWLEDGE, *GATEWAY))
        for signer in signers:
            assert await SqliteSigningKeys(database).add(signer.key(created_at, revoked_at))
        await database.close()

    asyncio.run(add())


class GatewayProcess(HttpProcess):
    """A gateway on a free port of this machine, whose data are in `folder`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        callers: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        lines = [line for name, caller in (callers or {}).items() for line in _caller_lines(name, caller)]
        config = folder / "gateway.toml"
        config.write_text("\n".join(lines))
        chosen = {
            "storage.data_dir": folder,
            "gateway.requests_per_minute_per_tenant": MANY,
            "gateway.requests_per_minute_per_principal": MANY,
            **(settings or {}),
        }
        super().__init__(None, "--gateway", "--config", str(config), *arguments, settings=chosen, cwd=folder)

    def __enter__(self) -> GatewayProcess:
        return self

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = ACTIONS_PATH) -> str:
        """The address that a token for a request to `path` names."""
        return f"http://{self.host}{path}"

    def post(self, body: bytes, token: str | None, headers: Headers = (), path: str = ACTIONS_PATH) -> Response:
        """The answer to a POST; what `headers` say wins."""
        return self.ask(self.data_of(body, token, headers, path))

    def data_of(self, body: bytes, token: str | None, headers: Headers = (), path: str = ACTIONS_PATH) -> bytes:
        """The bytes of a POST."""
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        names = {name.lower() for name, _ in given}
        usual = {"host": self.host, "authorization": None if token is None else f"Bearer {token}"}
        fields = [(name, value) for name, value in usual.items() if name not in names]
        return request(body, [(name, value) for name, value in (*fields, *given) if value is not None], path=path)

    def submit(self, signer: Signer, body: bytes, headers: Headers = (), **claims: Any) -> Response:
        """The answer to a body that `signer` has signed for this server."""
        return self.post(body, signer.token(body, self.url(), **claims), headers)

    def act(self, signer: Signer, action: str, args: dict[str, Any], headers: Headers = (), **fields: Any) -> Response:
        """The answer to an envelope that `signer` has signed."""
        return self.submit(signer, as_body(signer.envelope(action, args, **fields)), headers)

    def create(self, signer: Signer, **args: Any) -> str:
        """The id of a document that is there now."""
        id = str(uuid.uuid4())
        answered = self.act(signer, CREATE, create_args(id, **args))
        assert answered.status == 200, answered
        return id

    def count(self, table: str, where: str = "1") -> int:
        """How many rows of a table there are."""
        with closing(sqlite3.connect(self.folder / FILE_NAME)) as connection:
            found = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0]
        return int(found)

    def rows(self) -> dict[str, int]:
        """How many rows everything has that a request to the gateway can write."""
        tables = "signing_nonce", "gateway_quota", "document", "document_revision", "document_receipt"
        return {table: self.count(table) for table in (*tables, "document_stream", "audit_event")}


def _caller_lines(name: str, caller: Mapping[str, Any]) -> list[str]:
    def worded(value: Any) -> str:
        return repr(list(value)) if isinstance(value, list | tuple) else repr(value)

    return [f'[auth.callers."{name}"]', *(f"{key} = {worded(value)}" for key, value in caller.items())]


def code_of(answered: Response) -> str:
    """The contract's code of a refusal, which must have a hint and a trace, and tell nothing about the server."""
    said = answered.json
    assert said["ok"] is False
    assert {"hint", "trace_id"} <= said["error"]["details"].keys()
    for secret in (b"Traceback", b"sqlite", b"SELECT", b"INSERT", b".py", b"/tmp/", b"/work/", b"dragoman.db"):
        assert secret not in answered.body, answered.body
    code: str = said["error"]["code"]
    return code
