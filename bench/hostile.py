"""What a hostile tenant asks of a gateway: the loads of `bench.neighbours`, at the default rates of a tenant."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from bench.http_load import Answer
from bench.queries import Texts
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.knowledge.index import PassageIndex
from dragoman.knowledge.part import catch_up
from dragoman.knowledge.port import Documents, UpdateDocument
from tests.support.document_entries import Tree
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args

HOSTILE = "hostile"
MODEL = "slow model"
"""The case, and the words by which the model knows whom to keep waiting."""
NAMES = 5
"""A principal has a fifth of its tenant's rate."""
TOKENS = {
    f"reader-{n}": {"token": f"a-token-of-reader-{n}", "roles": ["viewer"], "tenants": [HOSTILE]} for n in range(NAMES)
}
"""Callers of the page, which takes no signed requests: the setting `auth.callers`."""
RATE = 10.0
"""Requests a second: 600 a minute."""
_ARTIFACTS = "/mcp/artifacts"
_KB, _MB = 1024, 1 << 20
_BYTES_OF_A_WORD = 7.3
_LEAVES_AFTER = 0.3
_BEGINS = 0.7
"""Seconds of the load before the others begin."""


@dataclass(frozen=True)
class Size:
    """How large it all is: texts in KB, numbers of documents, of bodies and of readers."""

    text_kb: int = 4_000
    pages_kb: tuple[int, ...] = (12 * _KB, 60 * _KB)
    tree: int = 2_000
    large_in_a_tree: int = 5
    readers: int = 40
    bodies: int = 600
    body_kb: int = 300
    queries: int = 100

    @classmethod
    def small(cls) -> Size:
        return cls(200, (300, 600), 50, 1, 5, 20, 20, 5)


@dataclass(frozen=True)
class Prepared:
    """What is in the tree of the hostile tenant when the server starts, for these loads in so many rounds."""

    loads: Sequence[str]
    size: Size
    rounds: int


def id_of(name: str) -> str:
    """The id of a document that is prepared."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


async def grow(prepared: Prepared, storage: SqliteStorage) -> None:
    """Make the documents that the loads need, and index them."""
    tree, texts, size = Tree(storage.port(Documents), HOSTILE), _Texts(), prepared.size

    async def create(name: str, body: str, parent: str = "root") -> None:
        await tree.create(id_of(name), parent if parent == "root" else id_of(parent), title=name, body=body)

    async def compared() -> None:
        lines = ["\n".join([" ".join(("y", word) * 99 + ("y",))] * 300) for word in "uv"]
        await create("compared", lines[0])
        await tree.do(UpdateDocument(id=id_of("compared"), fields={"content.body": lines[1]}))

    async def deleted() -> None:
        for turn in range(prepared.rounds):
            for name, small, large in (
                ("many", size.tree, 0),
                ("large", 0, size.large_in_a_tree),
                ("due", size.tree // 2, 1),
            ):
                top = f"{name} {turn}"
                await create(top, "")
                bodies = [texts.kb(1) for _ in range(small)] + [texts.kb(size.text_kb) for _ in range(large)]
                await asyncio.gather(*(create(f"{top} {n}", body, top) for n, body in enumerate(bodies)))

    async def read() -> None:
        for kb in size.pages_kb:
            await create(f"page {kb}", "'" * (kb * _KB))
        await create("told", "")
        for number in range(100):
            tags = tuple(f"{number} {tag} " + "t" * 200 for tag in range(100))
            fields = {"metadata.title": f"{number} " + "x" * 2000, "metadata.tags": tags}
            await tree.do(UpdateDocument(id=id_of("told"), fields=fields))

    async def asked() -> None:
        await asyncio.gather(*(create(f"asked {n}", f"{MODEL} {texts.kb(50)}") for n in range(size.tree // 20)))

    makes = {
        "comparing": [compared],
        "titles": [lambda: create("titled", texts.kb(size.text_kb))],
        "texts": [lambda: create("changed", "")],
        "deleting": [deleted],
        "readers": [read],
        "queries": [asked],
        MODEL: [asked],
    }
    for make in dict.fromkeys(make for load in prepared.loads for make in makes.get(load, ())):
        await make()
    await catch_up(storage.port(PassageIndex))


class _Texts:
    """Texts of a size, of words as unevenly common as those of a language."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._paragraphs = [self._texts.words(100) for _ in range(2_000)]

    def kb(self, kilobytes: int) -> str:
        return "\n\n".join(random.choices(self._paragraphs, k=max(1, int(kilobytes * _KB / _BYTES_OF_A_WORD / 100))))


class Client:
    """Makes signed requests of one key, under names in turn."""

    def __init__(self, signer: Signer, port: int) -> None:
        self.signer = signer
        self.port = port
        self._names = count()

    def act(self, action: str, args: dict[str, Any] | None = None, *, more: str = "", **fields: Any) -> bytes:
        """A request for an action."""
        self.signer.sub = f"svc:{next(self._names) % NAMES}"
        body = as_body(self.signer.envelope(f"knowledge.{action}", args or {}, **fields))
        return self._signed("POST", ACTIONS_PATH, body, more)

    def get(self, path: str, more: str = "") -> bytes:
        return self._signed("GET", path, b"", more)

    def put(self, path: str, body: bytes, more: str = "") -> bytes:
        return self._signed("PUT", path, body, more)

    def asks_page(self, what: str, more: str = "") -> bytes:
        """A request of the page, of a caller with a token."""
        token = TOKENS[f"reader-{next(self._names) % NAMES}"]["token"]
        return self._bytes("GET", f"/knowledge/api/{what}", b"", str(token), more)

    def _signed(self, method: str, path: str, body: bytes, more: str) -> bytes:
        token = self.signer.token(body, f"http://127.0.0.1:{self.port}{path}", method)
        return self._bytes(method, path, body, token, more)

    def _bytes(self, method: str, path: str, body: bytes, token: str, more: str) -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        return head.encode() + body


class Hostile:
    """The hostile tenant in one round: an owner's key, a viewer's key, and what its requests came to."""

    def __init__(self, port: int, signers: Sequence[Signer], prepared: Prepared, turn: int) -> None:
        self.owner, self.viewer = (Client(each, port) for each in signers)
        self.size = prepared.size
        self.turn = turn
        self.every = len(prepared.loads) / RATE
        """Seconds between the requests of a load: all of them share the rate."""
        self.seen: Counter[str] = Counter()
        self._unread: list[socket.socket] = []

    async def ask(self, request: bytes, stays: float | None = None) -> bytes:
        """The answer; none for a client that stays for so many seconds only."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.owner.port)
        try:
            async with asyncio.timeout(stays):
                writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                answer = await reader.read()
            self.seen[answer[9:12].decode()] += 1
            return answer
        except TimeoutError:
            self.seen["left"] += 1
        except ConnectionError:
            self.seen["cut off"] += 1
        except asyncio.CancelledError:
            self.seen["under way"] += 1
            raise
        finally:
            writer.close()
        return b""

    async def leave_unread(self, request: bytes) -> None:
        """Send something, and neither read nor send more until the end of the round."""
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        self._unread.append(line)
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            await loop.sock_connect(line, ("127.0.0.1", self.owner.port))
            await loop.sock_sendall(line, request)
            self.seen["unread"] += 1

    async def keep_asking(self, make: Callable[[], bytes], stays: float | None = None, at_first: int = 1) -> None:
        """Ask at the rate, whether there are answers or not; so many requests at first."""
        async with asyncio.TaskGroup() as group:
            while True:
                for _ in range(at_first):
                    group.create_task(self.ask(make(), stays))
                at_first = 1
                await asyncio.sleep(self.every)

    async def one_by_one(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do a step when the last one has ended, at the rate at most."""
        while True:
            due = time.monotonic() + self.every
            await step()
            await asyncio.sleep(due - time.monotonic())

    def close(self) -> None:
        for line in self._unread:
            line.close()


async def _compare(hostile: Hostile) -> None:
    what = f"difference?tenant={HOSTILE}&id={id_of('compared')}&from=1&to=2"
    await hostile.keep_asking(lambda: hostile.owner.asks_page(what), stays=_LEAVES_AFTER)


async def _title(hostile: Hostile) -> None:
    numbers = count()

    def update() -> bytes:
        patch = {"metadata": {"title": f"Title {next(numbers)} of round {hostile.turn}"}}
        args = {"document_id": id_of("titled"), "patch": patch, "update_mask": ["metadata.title"]}
        return hostile.owner.act("update_document", args)

    await hostile.one_by_one(lambda: hostile.ask(update()))


async def _change_texts(hostile: Hostile) -> None:
    texts = _Texts()

    async def change() -> None:
        patch = {"content": {"body": texts.kb(hostile.size.text_kb)}}
        args = {"document_id": id_of("changed"), "patch": patch, "update_mask": ["content.body"]}
        sent = Answer.read(await hostile.ask(hostile.owner.put(_ARTIFACTS, json.dumps(args).encode())))
        if sent.status == 201:
            data = json.loads(sent.body)["data"]
            payload = {"schema_version": "1.0", **{name: data[name] for name in ("artifact_uri", "artifact_hash")}}
            await hostile.ask(hostile.owner.act("update_document", payload=payload))

    await hostile.one_by_one(change)


async def _delete(hostile: Hostile) -> None:
    soon = datetime.fromtimestamp(time.time() + 2 * _BEGINS, UTC).isoformat()
    for name, more in (("due", {"delete_at": soon}), ("many", {}), ("large", {})):
        args = {"document_id": id_of(f"{name} {hostile.turn}"), **more}
        await hostile.ask(hostile.owner.act("delete_document", args))
        await asyncio.sleep(hostile.every)


async def _read_nothing(hostile: Hostile) -> None:
    pages = [f"/knowledge/documents/{HOSTILE}/{id_of(f'page {kb}')}" for kb in hostile.size.pages_kb]
    for turn in count():
        request = hostile.owner.get(pages[turn % len(pages)])
        if turn % 2:
            request = hostile.owner.asks_page(f"history?tenant={HOSTILE}&id={id_of('told')}")
        await hostile.leave_unread(request)
        await asyncio.sleep(0 if turn < hostile.size.readers else hostile.every)


async def _query(hostile: Hostile) -> None:
    words, keyed = Texts(), count()

    def query() -> bytes:
        fields = {"idempotency_key": str(uuid.uuid4())} if next(keyed) % 2 else {}
        return hostile.viewer.act("query_knowledge", {"query": words.words(50), "top_k": 20}, **fields)

    await hostile.keep_asking(query, at_first=hostile.size.queries)


async def _hold_slots(hostile: Hostile) -> None:
    args = {"query": MODEL, "routing": {"max_latency_ms": 10_000}}
    await hostile.keep_asking(lambda: hostile.viewer.act("query_knowledge", args), at_first=20)


async def _send_half(hostile: Hostile) -> None:
    content = {"mime_type": "text/plain", "body": "x" * (hostile.size.body_kb * _KB)}
    for _ in range(hostile.size.bodies):
        await hostile.leave_unread(hostile.owner.act("create_document", create_args(content=content))[:-1])
        await asyncio.sleep(0.005)


Load: TypeAlias = Callable[[Hostile], Coroutine[Any, Any, None]]
LOADS: dict[str, Load] = {
    "comparing": _compare,
    "titles": _title,
    "texts": _change_texts,
    "deleting": _delete,
    "readers": _read_nothing,
    "queries": _query,
    MODEL: _hold_slots,
    "bodies": _send_half,
}


def attack(told: Connection, port: int, signers: Sequence[Signer], prepared: Prepared, turn: int) -> None:
    """Load a server from shortly before a message is sent until one comes, and send what came of it."""
    os.nice(5)  # The clients of others, on the same machine, are to be kept waiting by the server alone.
    hostile = Hostile(port, signers, prepared, turn)

    async def run() -> None:
        tasks = [asyncio.create_task(LOADS[load](hostile)) for load in prepared.loads]
        await asyncio.sleep(_BEGINS)
        told.send(None)
        await asyncio.to_thread(told.recv)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        hostile.close()

    asyncio.run(run())
    told.send(hostile.seen)
