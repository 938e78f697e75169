"""The clients of requests that are carried out later: they hand them in over HTTP and on the bus, and read answers."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from bench.http_load import Answer
from chaos.actions import PUBLIC_URL, TOKEN_SECONDS
from chaos.http_served import HttpServed
from chaos.publishing import Publisher, publishing
from chaos.servers import Gone, Place, Served
from dragoman.messaging.bus import BusMessage
from dragoman.messaging.subjects import actions_subject
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args

CREATE, UPDATE = "knowledge.create_document", "knowledge.update_document"
GOOD, ORPHAN, FORBIDDEN, FORGED = "good", "orphan", "forbidden", "forged"
"""An orphan's parent does not exist, and a forged one is signed for another body."""
NEVER_ACCEPTED = frozenset((FORBIDDEN, FORGED))
_REQUESTS_PATH = "/mcp/requests"
_NOT_YET = frozenset((429, 500, 503))
"""Statuses of refusals that say nothing about the request itself."""
_PAUSE = 0.02
_LIMIT = 120.0


@dataclass
class Handed:
    """A request, how often a client knows that it was handed in, and each answer that was read."""

    kind: str
    action: str
    args: dict[str, Any]
    request_id: str
    correlation_id: str
    accepted: int = 0
    """How often 202 was read."""
    published: int = 0
    """How often it was published."""
    answers: list[bytes] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.action.partition('.')[2]} {self.request_id}"


@dataclass
class _Lane:
    """One client: its documents, with their revisions."""

    documents: dict[str, int] = field(default_factory=dict)


class DeliveryLoad:
    """Lanes that hand requests in, each one after the other is answered."""

    def __init__(self, live: Sequence[Served | None], chance: random.Random, place: Place) -> None:
        self._live = live
        self._chance = chance
        self._place = place
        self._is_over = False
        self._last: Any = None
        self.signer = Signer()
        self.reader = Signer(self.signer.tenant, "viewer", sub="svc:reader")
        self.handed: list[Handed] = []
        self.problems: list[str] = []
        self.unsettled = 0

    async def run(self, lanes: int) -> None:
        async with publishing(self._place) as publisher:
            await asyncio.gather(*(self._lane(publisher) for _ in range(lanes)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self, publisher: Publisher) -> None:
        lane = _Lane()
        while not self._is_over:
            handed = self._next(lane)
            self.handed.append(handed)
            try:
                async with asyncio.timeout(_LIMIT):
                    await self._settle(handed, publisher)
            except TimeoutError:
                self.problems.append(f"{handed.name} has no answer after {_LIMIT:.0f} s; the last one: {self._last}")
            _apply(handed, lane)
            await asyncio.sleep(_PAUSE * self._chance.random())

    def _next(self, lane: _Lane) -> Handed:
        share = self._chance.random()
        kind = ORPHAN if share < 0.1 else FORBIDDEN if share < 0.15 else FORGED if share < 0.2 else GOOD
        if kind == GOOD and lane.documents and self._chance.random() < 0.4:
            id = self._chance.choice(list(lane.documents))
            known = lane.documents[id]
            args: dict[str, Any] = {"document_id": id, "patch": {"metadata": {"title": f"Revision {known + 1}"}}}
            args |= {"update_mask": ["metadata.title"], "last_known_revision": known}
            return Handed(kind, UPDATE, args, self._id(), self._id())
        parent = self._id() if kind == ORPHAN else "root"
        return Handed(kind, CREATE, create_args(self._id(), parent), self._id(), self._id())

    def _id(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    async def _settle(self, handed: Handed, publisher: Publisher) -> None:
        """Hand a request in, some of them twice and in both ways, and wait for the answer if it may be accepted."""
        if handed.kind in NEVER_ACCEPTED:
            await self.publish(handed, publisher)
            return
        for _ in range(2 if self._chance.random() < 0.25 else 1):
            if self._chance.random() < 0.5:
                await self.publish(handed, publisher)
            else:
                await self._until(self.hand_in_once, handed)
        await self._until(self.look_once, handed)

    async def _until(self, attempt: Any, handed: Handed) -> None:
        while not await attempt(handed):
            self.unsettled += 1
            await asyncio.sleep(_PAUSE)

    async def publish(self, handed: Handed, publisher: Publisher) -> None:
        """Publish a request as a new message, signed for it."""
        body = self._body(handed)
        signer, subject = self._signer_of(handed), actions_subject(self.signer.tenant)
        token = self._token(signer, b"another body" if handed.kind == FORGED else body, subject, "PUBLISH")
        message = BusMessage(subject=subject, id=self._id(), body=body, headers={"authorization": f"Bearer {token}"})
        while not await publisher.publish(message):
            self.unsettled += 1
        handed.published += 1

    async def hand_in_once(self, handed: Handed) -> bool:
        """Ask for a request to be carried out later; whether it was accepted, or refused for good."""
        body = self._body(handed)
        answer = await self._exchange("POST", ACTIONS_PATH, body, "Prefer: respond-async\r\n")
        if answer is None or answer.status in _NOT_YET:
            return False
        if answer.status != 202:
            self.problems.append(f"{handed.name} was not accepted: {answer.status}, {answer.body!r}")
        else:
            handed.accepted += 1
        return True

    async def look_once(self, handed: Handed) -> bool:
        """Ask for the answer to a request; whether there is one."""
        answer = await self._exchange("GET", f"{_REQUESTS_PATH}/{handed.request_id}", b"")
        if answer is None or answer.status in _NOT_YET:
            return False
        told = msgspec.json.decode(answer.body)
        if told["ok"] and "status" in told["data"]:
            return False
        is_unknown = not told["ok"] and told["error"]["details"].get("reason") == "unknown_request"
        if is_unknown:
            if handed.accepted:
                self.problems.append(f"{handed.name} was accepted, and is not known")
            return False
        handed.answers.append(answer.body)
        return True

    async def _exchange(self, method: str, path: str, body: bytes, headers: str = "") -> Answer | None:
        """The answer to a newly signed request; None if no server has answered."""
        server = self._chance.choice(self._live)
        if server is None:
            return None
        token = self._token(self.signer, body, f"{PUBLIC_URL}{path}", method)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:9\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"{headers}Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            answer = self._last = await cast(HttpServed, server).exchange(head.encode() + body)
        except Gone:
            return None
        return answer

    def _signer_of(self, handed: Handed) -> Signer:
        return self.reader if handed.kind == FORBIDDEN else self.signer

    def _body(self, handed: Handed) -> bytes:
        ids = {"request_id": handed.request_id, "correlation_id": handed.correlation_id}
        return as_body(self._signer_of(handed).envelope(handed.action, handed.args, ttl_sec=3600, **ids))

    def _token(self, signer: Signer, body: bytes, address: str, method: str) -> str:
        now = int(time.time())
        return signer.token(body, address, method, iat=now, exp=now + TOKEN_SECONDS)


def _apply(handed: Handed, lane: _Lane) -> None:
    """Note what a request has changed."""
    if handed.kind == GOOD and handed.answers:
        data = msgspec.json.decode(handed.answers[0]).get("data") or {}
        lane.documents[handed.args["document_id"]] = data.get("revision", 0)
