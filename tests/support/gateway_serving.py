"""A gateway in this process, asked byte by byte without a socket, and the ways in which actions can be asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from dragoman.adapters.dict_documents import DictDocuments
from dragoman.adapters.dict_storage import DictStorage
from dragoman.app import ServerOptions, configure, create_server
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.clock import Clock
from dragoman.edge.http.app import HttpApp
from dragoman.gateway.port import SigningKeys
from dragoman.knowledge.port import ActionRequest, Applied, Audit, AuditEvent, DocumentChange, Documents
from dragoman.runtime import Runtime
from dragoman.storage.migrations import Migration
from dragoman.storage.settings import StorageConfig
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger
from dragoman.testing import ManualClock
from tests.support.answers import error_in, value_in
from tests.support.asgi import Asked, Driver
from tests.support.gateway import ACTIONS_PATH, Signer, as_body
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, Response, message, modern, request

TENANT = "acme"
BASE = "http://127.0.0.1"
INTERNAL = "svc:internal"
TOKEN = "a-token-of-an-internal-caller"


def internal(*roles: str, tenants: tuple[str, ...] = (TENANT,), token: str = TOKEN) -> dict[str, Any]:
    """The settings of a caller who is known by a token."""
    return {"token": token, "roles": list(roles), "tenants": list(tenants)}


class GatewayApp:
    """A gateway, its clock, which stands still, and all that it has logged."""

    def __init__(self, runtime: Runtime, app: HttpApp, clock: ManualClock, entries: list[Entry]) -> None:
        self.runtime = runtime
        self.clock = clock
        self.driver = Driver(app)
        self._entries = entries
        storage = runtime.facilities.storage
        self.documents = storage.port(Documents)
        self.keys = storage.port(SigningKeys)
        self._audit = storage.port(Audit)

    async def signer(self, *roles: str, tenant: str = TENANT, **options: Any) -> Signer:
        """An external caller whose key is known."""
        signer = Signer(tenant, *roles, **options)
        assert await self.keys.add(signer.key(created_at=self.clock.now().timestamp()))
        return signer

    def token(self, signer: Signer, body: bytes, path: str = ACTIONS_PATH, method: str = "POST", **claims: Any) -> str:
        """A token for one request, of this moment."""
        now = int(self.clock.now().timestamp())
        return signer.token(body, f"{BASE}{path}", method, **{"iat": now, "exp": now + 60, **claims})

    def envelope(self, signer: Signer, action: str, args: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """An envelope of this moment."""
        return signer.envelope(action, dict(args), **{"timestamp": self.clock.timestamp(), **fields})

    def begin(self, envelope: Any, token: str, **headers: str) -> Asked:
        """Send an envelope, or the bytes in its place, without waiting for the answer."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.driver.begin(request(body, {"authorization": f"Bearer {token}", **named}, path=ACTIONS_PATH))

    async def send(self, envelope: Any, token: str, **headers: str) -> Response:
        """The answer to an envelope, or to the bytes in its place."""
        return await answered(self.begin(envelope, token, **headers))

    async def post(self, signer: Signer, envelope: Any, **headers: str) -> Response:
        """The same with a signature."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        return await self.send(body, self.token(signer, body), **headers)

    async def act(self, signer: Signer, action: str, args: Mapping[str, Any], **fields: Any) -> Response:
        """The answer to an envelope that is right, but for what `fields` say otherwise."""
        return await self.post(signer, self.envelope(signer, f"knowledge.{action}", args, **fields))

    async def get(self, path: str, signer: Signer | None = None, token: str | None = None) -> Response:
        """The answer to a GET of an external or an internal caller, or of nobody."""
        token = self.token(signer, b"", path, "GET") if signer is not None else token
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return await self.driver.ask(request(None, headers, method="GET", path=path))

    async def events(self) -> list[AuditEvent]:
        """The audit, from its beginning."""
        return (await self._audit.page(1000))[::-1]

    @property
    def log(self) -> list[dict[str, Any]]:
        written = EntryWriter()(list(self._entries)) if self._entries else b""
        return [msgspec.json.decode(line) for line in written.splitlines()]


async def answered(asked: Asked) -> Response:
    """The whole answer to a request that was begun."""
    await asked.task
    assert asked.is_complete, asked.sent
    return asked.response


@asynccontextmanager
async def open_gateway(
    config: Mapping[str, Any] | None = None, folder: Path | None = None, *, is_near: bool = True, **options: Any
) -> AsyncIterator[GatewayApp]:
    """A gateway that runs, on SQLite if there is a folder for it, with an internal caller who is an owner."""
    clock = ManualClock(datetime.now(UTC))
    settings: dict[str, Any] = {
        "gateway": {"enabled": True},
        "storage": {"engine": "memory"} if folder is None else {"data_dir": str(folder)},
        "auth": {"callers": {INTERNAL: internal("owner")}},
    }
    for section, values in (config or {}).items():
        settings[section] = {**settings.get(section, {}), **values}
    entries: list[Entry] = []
    logger = StructuredLogger(entries.append, clock)
    runtime = create_server(ServerOptions(config=configure(settings), clock=clock, logger=logger, **options))
    app = runtime.http()
    app.listens_at(is_near=is_near)
    await app.start()
    try:
        yield GatewayApp(runtime, app, clock, entries)
    finally:
        await app.stop(0.1)


async def keep_keys(folder: Path, *signers: Signer) -> None:
    """Make keys known to servers that use a folder."""
    async with open_gateway(folder=folder) as gateway:
        for signer in signers:
            assert await gateway.keys.add(signer.key())


class HeldDocuments(DictDocuments):
    """Documents of an engine that takes its time: changes wait for the gate."""

    def __init__(self, clock: Clock, audit: Any) -> None:
        super().__init__(clock, audit)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return await super().carry_out(change, request)


class HeldStorage(DictStorage):
    """The engine of these documents; `ENGINES` takes it in the place of another."""

    def __init__(self, config: StorageConfig, clock: Clock, migrations: tuple[Migration, ...] = ()) -> None:
        super().__init__(config, clock, migrations)

    def _make_ports(self) -> dict[type, Any]:
        ports = super()._make_ports()
        return {**ports, Documents: HeldDocuments(self._clock, ports[Audit])}


# The same actions, asked for in different ways.


class Answer(msgspec.Struct, frozen=True):
    """What an action came to, however it was asked for."""

    data: dict[str, Any] | None = None
    code: str | None = None
    details: Mapping[str, Any] = {}


class Way(Protocol):
    """How actions are asked for."""

    async def do(self, action: str, args: Mapping[str, Any], key: str | None = None) -> Answer: ...


class OverHttp:
    """Envelopes, signed or with an internal caller's token."""

    def __init__(self, gateway: GatewayApp, signer: Signer, token: str | None = None) -> None:
        self._gateway, self._signer, self._token = gateway, signer, token

    async def do(self, action: str, args: Mapping[str, Any], key: str | None = None) -> Answer:
        keyed = {} if key is None else {"idempotency_key": key}
        body = as_body(self._gateway.envelope(self._signer, f"knowledge.{action}", args, **keyed))
        token = self._token or self._gateway.token(self._signer, body)
        response = await self._gateway.send(body, token)
        if response.json["ok"]:
            return Answer(response.json["data"])
        error = response.json["error"]
        return Answer(None, error["code"], error["details"])


class OverMcp:
    """Calls of the tools of the same names, over HTTP, in either era."""

    def __init__(self, gateway: GatewayApp, session: str | None = None) -> None:
        self._gateway, self._session = gateway, session

    @classmethod
    async def in_session(cls, gateway: GatewayApp) -> OverMcp:
        """In the handshake era."""
        opened = await gateway.driver.ask(request(INITIALIZE, _bearer()))
        session = opened.headers["mcp-session-id"]
        way = cls(gateway, session)
        assert (await gateway.driver.ask(request(INITIALIZED, way._headers()))).status == 202
        return way

    async def do(self, action: str, args: Mapping[str, Any], key: str | None = None) -> Answer:
        params = {"name": f"knowledge.{action}", "arguments": dict(args)}
        meta = {} if key is None else {IDEMPOTENCY_KEY: key}
        if self._session is None:
            asked = modern("tools/call", params, _bearer(), meta=meta)
        else:
            asked = request(message("tools/call", {**params, "_meta": meta}, str(uuid4())), self._headers())
        return answer_in((await self._gateway.driver.ask(asked)).message["result"])

    def _headers(self) -> dict[str, str | None]:
        return {**_bearer(), "mcp-session-id": self._session, "mcp-protocol-version": LATEST}


def answer_in(result: Mapping[str, Any]) -> Answer:
    """What the result of a call of a tool says."""
    if not result["isError"]:
        return Answer(value_in(result))
    error = error_in(result)
    return Answer(None, error["code"], error.get("details") or {})


def _bearer(token: str = TOKEN) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


NOBODY: dict[str, Any] = {"auth": {"callers": {}}}
"""Settings without internal callers."""
WAYS = ("signed", "token", "modern", "handshake")


async def open_way(gateway: GatewayApp, name: str) -> Way:
    """An owner of the tenant, in one of the `WAYS`."""
    if name == "signed":
        return OverHttp(gateway, await gateway.signer("owner"))
    if name == "token":
        return OverHttp(gateway, Signer(TENANT, "owner", sub=INTERNAL), TOKEN)
    return OverMcp(gateway) if name == "modern" else await OverMcp.in_session(gateway)
