"""The clients of actions: each signs its requests, sends them again until it knows their result, and keeps a tree."""

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
from chaos.http_served import HttpServed
from chaos.servers import Gone, Served
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args

PUBLIC_URL = "http://127.0.0.1:9"
"""Where clients believe the servers are: what was signed for one of them is good for all."""
TOKEN_SECONDS = 600
_STILL_VALID = 540.0
_PAUSE = 0.02
_LIMIT = 120.0
_NOT_YET = frozenset((429, 500, 503))
"""Statuses of refusals that say nothing about the request itself."""


@dataclass
class Asked:
    """An action, and each result that its client was told."""

    action: str
    args: dict[str, Any]
    context_id: str
    seq: int
    key: str
    correlation_id: str
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Late:
    """A request with an old sequence number: what it was answered, and the newest number that its client had used."""

    context_id: str
    newest: int
    answer: dict[str, Any]


@dataclass(frozen=True)
class Used:
    """A request whose nonce was used."""

    data: bytes
    at: float


@dataclass
class _Lane:
    """One client: its stream, and its documents as they stand."""

    context_id: str
    folder: str
    seq: int = 0
    documents: dict[str, int] = field(default_factory=dict)
    """The revision of each document below the folder or at the top."""


class ActionLoad:
    """Lanes that change documents, each one thing after the other."""

    def __init__(self, live: Sequence[Served | None], chance: random.Random) -> None:
        self._live = live
        self._chance = chance
        self._is_over = False
        self._last: Any = None
        self.signer = Signer()
        self.asked: list[Asked] = []
        self.late: list[Late] = []
        self.used: list[Used] = []
        self.replays = 0
        self.problems: list[str] = []
        self.unsettled = 0

    async def run(self, lanes: int) -> None:
        await asyncio.gather(*(self._lane(f"lane {number}") for number in range(lanes)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self, name: str) -> None:
        lane = _Lane(name, self._id())
        await self._settle(self._asked(lane, "create", create_args(lane.folder)))
        while not self._is_over:
            asked = self._next(lane)
            doubles = 2 if self._chance.random() < 0.2 else 1
            await asyncio.gather(*(self._settle(asked) for _ in range(doubles)))
            if asked.answers:
                _apply(asked, lane)
            if self._chance.random() < 0.1:
                await self._send_late(lane)
            if self._chance.random() < 0.1:
                await self.replay(self._chance.choice(self.used))
            await asyncio.sleep(_PAUSE * self._chance.random())

    def _next(self, lane: _Lane) -> Asked:
        if len(lane.documents) < 3 or self._chance.random() < 0.3:
            return self._asked(lane, "create", create_args(self._id(), lane.folder))
        id = self._chance.choice(list(lane.documents))
        action = self._chance.choice(("update", "update", "move", "delete"))
        args: dict[str, Any] = {"document_id": id}
        if action == "update":
            revision = lane.documents[id]
            args["patch"] = {"metadata": {"title": f"Revision {revision + 1}"}, "content": {"body": self._body()}}
            mask = self._chance.choice((["metadata.title"], ["content.body"]))
            args |= {"update_mask": mask, "last_known_revision": revision}
        elif action == "move":
            args["new_parent_id"] = self._chance.choice(("root", lane.folder))
        return self._asked(lane, action, args)

    def _asked(self, lane: _Lane, action: str, args: dict[str, Any]) -> Asked:
        lane.seq += 1
        name = f"knowledge.{action}_document"
        asked = Asked(name, args, lane.context_id, lane.seq, f"key-{self._id()}", self._id())
        self.asked.append(asked)
        return asked

    def _body(self) -> str:
        """Some paragraphs, of which many are those of another text."""
        return "\n\n".join(f"Paragraph {self._chance.randrange(20)} " + "of words " * 50 for _ in range(5))

    def _id(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    async def _settle(self, asked: Asked) -> None:
        try:
            async with asyncio.timeout(_LIMIT):
                while not await self.ask_once(asked):
                    self.unsettled += 1
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            self.problems.append(f"{asked.key} has no result after {_LIMIT:.0f} s; the last answer: {self._last}")

    async def ask_once(self, asked: Asked) -> bool:
        """Ask with a newly signed token; whether there is a result, or a refusal that is none of the kill's doing."""
        posted = await self._post(asked)
        if posted is None:
            return False
        answer, used = posted
        told = msgspec.json.decode(answer.body)
        if answer.status == 200:
            asked.answers.append(told["data"])
            self.used.append(used)
            return True
        if answer.status not in _NOT_YET:
            self.problems.append(f"{asked.action} {asked.key} was refused: {answer.status}, {told}")
            return True
        return False

    async def _send_late(self, lane: _Lane) -> None:
        """Send something new with an old number, which must have no effect."""
        late = self._asked(lane, "create", create_args(self._id(), lane.folder))
        self.asked.remove(late)
        lane.seq -= 1
        late.seq = self._chance.randint(0, lane.seq - 1)
        posted = await self._post(late)
        if posted is not None and posted[0].status == 200:
            self.late.append(Late(lane.context_id, lane.seq, msgspec.json.decode(posted[0].body)["data"]))

    async def replay(self, used: Used) -> bool:
        """Send the same bytes again, which must be refused; whether the server has answered."""
        server = self._chance.choice(self._live)
        if server is None or time.monotonic() - used.at > _STILL_VALID:
            return False
        try:
            answer = await cast(HttpServed, server).exchange(used.data)
        except Gone:
            return False
        if answer.status != 401 and answer.status not in _NOT_YET:
            self.problems.append(f"a nonce was good twice: {answer.status}, {answer.body!r}")
        self.replays += answer.status == 401
        return True

    async def _post(self, asked: Asked) -> tuple[Answer, Used] | None:
        """The answer to a newly signed request, and its bytes; None if no server has answered."""
        server = self._chance.choice(self._live)
        if server is None:
            return None
        used = self._signed(asked)
        try:
            answer = self._last = await cast(HttpServed, server).exchange(used.data)
        except Gone:
            return None
        return answer, used

    def _signed(self, asked: Asked) -> Used:
        fields = {
            "idempotency_key": asked.key,
            "correlation_id": asked.correlation_id,
            "context_id": asked.context_id,
            "seq": asked.seq,
            "ttl_sec": 3600,
        }
        body = as_body(self.signer.envelope(asked.action, asked.args, **fields))
        until = int(time.time()) + TOKEN_SECONDS
        token = self.signer.token(body, f"{PUBLIC_URL}{ACTIONS_PATH}", iat=until - TOKEN_SECONDS, exp=until)
        head = (
            f"POST {ACTIONS_PATH} HTTP/1.1\r\nHost: 127.0.0.1:9\r\nConnection: close\r\nContent-Type: application/json"
            f"\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Used(head.encode() + body, time.monotonic())


def _apply(asked: Asked, lane: _Lane) -> None:
    """Note what an action has changed."""
    id = asked.args["document_id"]
    if asked.action == "knowledge.delete_document":
        lane.documents.pop(id, None)
    else:
        lane.documents[id] = asked.answers[0]["revision"]
