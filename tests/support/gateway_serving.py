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
import pytest

from dragoman.adapters.private_storage import PrivateStorage
from dragoman.app import ServerOptions, configure, create_server
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.edge.http.app import HttpApp
from dragoman.errors import StorageBusy
from dragoman.gateway.port import SigningKeys
from dragoman.gateway.requests import ActionRequests, KeptRequest
from dragoman.knowledge.port import ActionRequest, Applied, Audit, AuditEvent, DocumentChange, Documents
from dragoman.messaging.bus import Bus, BusMessage, DeadLetter, DeadLetters
from dragoman.messaging.subjects import actions_subject, replies_subject
from dragoman.replies.vocabulary import STATUSES
from dragoman.runtime import Runtime
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger
from dragoman.testing import ManualClock
from tests.support.answers import error_in, value_in
from tests.support.asgi import Asked, Driver
from tests.support.gateway import ACTIONS_PATH, Signer, as_body
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, Response, message, modern, request
from tests.support.waiting import PATIENCE

TENANT = "acme"
_JSON = {"content-type": "application/json"}
NOW, LATER, BUS = TRANSPORTS = "now", "later", "bus"
EACH_TRANSPORT = (NOW, *(pytest.param(each, marks=pytest.mark.slow) for each in (LATER, BUS)))
"""For tables of many cases: the fast tests go through them over one transport."""
BASE = "http://127.0.0.1"
_END = b"the end"
"""Published where replies are, behind the last one that there can be."""
INTERNAL = "svc:internal"
TOKEN = "a-token-of-an-internal-caller"


def internal(*roles: str, tenants: tuple[str, ...] = (TENANT,), token: str = TOKEN) -> dict[str, Any]:
    """The settings of a caller who is known by a token."""
    return {"token": token, "roles": list(roles), "tenants": list(tenants)}


class GatewayApp:
    """A gateway, its clock, which stands still, and all that it has logged."""

    def __init__(
        self, runtime: Runtime, app: HttpApp, clock: ManualClock, entries: list[Entry], transport: str = NOW
    ) -> None:
        self.runtime = runtime
        self.transport = transport
        """How envelopes are sent by `send`, `post` and `act`: one of `TRANSPORTS`."""
        self.clock = clock
        self.driver = Driver(app)
        self._entries = entries
        storage = runtime.facilities.storage
        self.documents = storage.port(Documents)
        self.keys = storage.port(SigningKeys)
        self.bus = storage.port(Bus)
        self.dead = storage.port(DeadLetters)
        self.requests = storage.port(ActionRequests)
        self._audit = storage.port(Audit)

    async def signer(self, *roles: str, tenant: str = TENANT, **options: Any) -> Signer:
        """An external caller whose key is known."""
        signer = Signer(tenant, *roles, **options)
        assert await self.keys.add(signer.key(created_at=self.clock.now().timestamp()))
        return signer

    def token(self, signer: Signer, body: bytes, path: str = ACTIONS_PATH, method: str = "POST", **claims: Any) -> str:
        """A token for one request, of this moment."""
        if self.transport == BUS and path == ACTIONS_PATH:
            return self.bus_token(signer, body, actions_subject(signer.tenant), **claims)
        now = int(self.clock.now().timestamp())
        return signer.token(body, f"{BASE}{path}", method, **{"iat": now, "exp": now + 60, **claims})

    def bus_token(self, signer: Signer, body: bytes, subject: str, **claims: Any) -> str:
        """A token for one message, of this moment."""
        now = int(self.clock.now().timestamp())
        return signer.token(body, subject, "PUBLISH", **{"iat": now, "exp": now + 60, **claims})

    async def finished(self, signer: Signer, request_id: str) -> KeptRequest:
        """Wait until a signer's request has an answer."""
        async with asyncio.timeout(PATIENCE):
            while True:
                kept = await self.requests.find({signer.tenant}, signer.principal, request_id.lower())
                assert kept is not None
                if kept.body is not None:
                    return kept
                await asyncio.sleep(0.002)

    async def dead_letters(self, count: int) -> list[DeadLetter]:
        """Wait until there are so many dead letters."""
        async with asyncio.timeout(PATIENCE):
            while True:
                if len(letters := await self.dead.page(None, 1000)) >= count:
                    return letters
                await asyncio.sleep(0.002)

    def envelope(self, signer: Signer, action: str, args: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """An envelope of this moment."""
        return signer.envelope(action, dict(args), **{"timestamp": self.clock.timestamp(), **fields})

    def begin(self, envelope: Any, token: str, **headers: str) -> Asked:
        """Send an envelope, or the bytes in its place, without waiting for the answer."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.driver.begin(request(body, {"authorization": f"Bearer {token}", **named}, path=ACTIONS_PATH))

    async def send(self, envelope: Any, token: str, signer: Signer | None = None, **headers: str) -> Response:
        """The answer to an envelope, or to the bytes in its place. Whoever sends it later than NOW is a `signer`."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        if self.transport == NOW or signer is None:
            return await answered(self.begin(body, token, **headers))
        if self.transport == LATER:
            response = await answered(self.begin(body, token, prefer="respond-async", **headers))
            if response.status != 202:
                return response
            kept = await self.finished(signer, response.headers["location"].rpartition("/")[2])
            assert kept.http_status is not None
            assert kept.body is not None
            return Response(kept.http_status, _JSON, kept.body)
        told = await OverBus(self, signer).told(body, token, **headers)
        return Response(200 if told["ok"] else STATUSES[told["error"]["code"]], _JSON, msgspec.json.encode(told))

    async def post(self, signer: Signer, envelope: Any, **headers: str) -> Response:
        """The same with a signature."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        return await self.send(body, self.token(signer, body), signer, **headers)

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
    def local_secret(self) -> str | None:
        """What the owner of the data directory brings, where that makes a client the owner."""
        app: HttpApp = self.driver.app
        return app.local_secret

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
    config: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    *,
    is_near: bool = True,
    transport: str = NOW,
    **options: Any,
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
        yield GatewayApp(runtime, app, clock, entries, transport)
    finally:
        await app.stop(0.1)


async def keep_keys(folder: Path, *signers: Signer) -> None:
    """Make keys known to servers that use a folder."""
    async with open_gateway(folder=folder) as gateway:
        for signer in signers:
            assert await gateway.keys.add(signer.key())


class HeldDocuments:
    """Documents of an engine that takes its time: changes wait for the gate."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._documents, name)

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return await self._documents.carry_out(change, request)


class HeldStorage(PrivateStorage):
    """The engine of these documents; `ENGINES` takes it in the place of another."""

    documents: type[HeldDocuments] = HeldDocuments

    def _make_ports(self) -> dict[type, Any]:
        ports = super()._make_ports()
        return {**ports, Documents: self.documents(ports[Documents])}


class FailingDocuments(HeldDocuments):
    """Documents whose engine fails so many times."""

    failures = 0

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        if self.failures:
            self.failures -= 1
            raise StorageBusy("the storage is busy")
        return await super().carry_out(change, request)


class FailingStorage(HeldStorage):
    documents = FailingDocuments


async def advance_until_finished(gateway: GatewayApp, signer: Signer, id: str) -> KeptRequest:
    """Let time pass, until a request has its answer."""
    finishing = asyncio.create_task(gateway.finished(signer, id))
    while not finishing.done():
        gateway.clock.advance(1)
        await asyncio.sleep(0.001)
    return await finishing


# The same actions, asked for in different ways.


class Answer(msgspec.Struct, frozen=True):
    """What an action came to, however it was asked for."""

    data: dict[str, Any] | None = None
    code: str | None = None
    details: Mapping[str, Any] = {}
    hits: int | None = None
    """How many passages the index has found, as `usage` says it; MCP has no word for it."""


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
        return _answer_of((await self._gateway.send(body, token)).json)


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


class Later:
    """Envelopes over HTTP that are carried out later, and whose answers are fetched when they are there."""

    def __init__(self, gateway: GatewayApp, signer: Signer) -> None:
        self._gateway, self._signer = gateway, signer

    async def do(self, action: str, args: Mapping[str, Any], key: str | None = None) -> Answer:
        keyed = {} if key is None else {"idempotency_key": key}
        return await self.send(self._gateway.envelope(self._signer, f"knowledge.{action}", args, **keyed))

    async def send(self, envelope: Any, token: str | None = None) -> Answer:
        """The answer to an envelope, or to the bytes in its place."""
        gateway, body = self._gateway, envelope if isinstance(envelope, bytes) else as_body(envelope)
        response = await gateway.send(body, token or gateway.token(self._signer, body), prefer="respond-async")
        if response.status == 202:
            place = response.headers["location"]
            await gateway.finished(self._signer, place.rpartition("/")[2])
            response = await gateway.get(place, self._signer)
        return _answer_of(response.json)


class OverBus:
    """Messages that are published on the bus, and answered by a reply there, or not at all."""

    def __init__(self, gateway: GatewayApp, signer: Signer) -> None:
        self._gateway, self._signer = gateway, signer

    async def do(self, action: str, args: Mapping[str, Any], key: str | None = None) -> Answer:
        keyed = {} if key is None else {"idempotency_key": key}
        return await self.send(self._gateway.envelope(self._signer, f"knowledge.{action}", args, **keyed))

    async def send(self, envelope: Any, token: str | None = None, subject: str | None = None) -> Answer:
        """The reply to an envelope, or to the bytes in its place; else the error of the dead letter."""
        body = envelope if isinstance(envelope, bytes) else as_body(envelope)
        subject = subject or actions_subject(self._signer.tenant)
        token = token or self._gateway.bus_token(self._signer, body, subject)
        return _answer_of(await self.told(body, token, subject))

    async def told(self, body: bytes, token: str, subject: str | None = None, **headers: str) -> dict[str, Any]:
        """The body of the answer."""
        gateway, subject = self._gateway, subject or actions_subject(self._signer.tenant)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["Authorization"] = f"Bearer {token}"
        message = BusMessage(subject=subject, id=str(uuid4()), body=body, headers=named)
        replies = replies_subject(self._signer.tenant, _request_id_in(body))
        subscription = gateway.bus.subscribe(replies, most_per_subject=1, ack_seconds=60)
        taking = asyncio.create_task(subscription.take())
        try:
            assert await gateway.bus.publish(message)
            letter: DeadLetter | None = None
            while not taking.done():
                letters = [each for each in await gateway.dead.page(subject, 1000) if each.message.id == message.id]
                if letters and letter is None:  # A reply may be stored with it: it comes before what is published now.
                    letter = letters[0]
                    await gateway.bus.publish(BusMessage(subject=replies, id=str(uuid4()), body=_END))
                await asyncio.sleep(0.002)
            delivery = taking.result()
            await gateway.bus.ack(delivery)
            if letter is not None and delivery.message.body != _END:
                await gateway.bus.ack(await subscription.take())
            if delivery.message.body == _END:
                assert letter is not None
                error = msgspec.json.decode(letter.errors[-1])
                return {"ok": False, "error": {name: error[name] for name in ("code", "message", "details")}}
            payload: dict[str, Any] = msgspec.json.decode(delivery.message.body)["payload"]
            return payload
        finally:
            taking.cancel()
            await subscription.close()


def _request_id_in(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["request_id"])
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return "unreadable"


def _answer_of(body: Mapping[str, Any]) -> Answer:
    if body["ok"]:
        return Answer(body["data"], hits=body["usage"]["qdrant_hits"])
    return Answer(None, body["error"]["code"], body["error"]["details"])


NOBODY: dict[str, Any] = {"auth": {"callers": {}}}
"""Settings without internal callers."""
WAYS = ("signed", "token", "later", "bus", "modern", "handshake")


async def open_way(gateway: GatewayApp, name: str) -> Way:
    """An owner of the tenant, in one of the `WAYS`."""
    if name == "signed":
        return OverHttp(gateway, await gateway.signer("owner"))
    if name == "token":
        return OverHttp(gateway, Signer(TENANT, "owner", sub=INTERNAL), TOKEN)
    if name in ("later", "bus"):
        signer = await gateway.signer("owner")
        return Later(gateway, signer) if name == "later" else OverBus(gateway, signer)
    return OverMcp(gateway) if name == "modern" else await OverMcp.in_session(gateway)
