"""The other workers of the same server, as one of them sees them.

1. The id of a session begins with the name of the worker that owns it: its index, and a word that is new each time a
   worker is started, so that no id of a worker that died is ever taken for one of its successor's.
2. Each worker listens, besides the port that they share, on a socket file that bears its name, in a folder that only
   this user can enter. Whoever has a session's id has its owner's address.
3. The only other thing that one worker has alone is the rest of a result that was cut: cursors begin with that word.
4. Who comes that way has to bring the server's secret. That says that it is a worker, and nothing about the caller: who
   that is, and what it may do, its own worker decides, from the headers as they came.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.edge.asgi import Application, Header, Receive, RequestRefused, Scope, Send, answer, unknown_refusal
from dragoman.edge.http.siblings import LOCAL_ONLY, OwnerLost
from dragoman.errors import InternalError, InvalidRequest
from dragoman.replies import result_continue
from dragoman.replies.artifacts import MARK_LENGTH
from dragoman.workers.forwarding import Head, Link, LinkBroken

SECRET = b"x-dragoman-worker"
_SESSION = re.compile(rb"([0-9]{1,3}-[0-9a-f]{8})-[0-9a-f]{32}")
_MOST_IDLE = 64
_MOST_ATTEMPTS = _MOST_IDLE + 3  # All the idle ones may have been closed at the other end.
_CONTINUE = result_continue.NAME.encode()


class _Arguments(Struct):
    cursor: str


class _Params(Struct):
    arguments: _Arguments


class _Continuation(Struct):
    """As much of a call of `result_continue` as says whose it is."""

    params: _Params


_decode_continuation = msgspec.json.Decoder(_Continuation).decode


class SocketSiblings:
    """Finds the worker that a request is for, and has it answer, over a socket file. Implements `Siblings`."""

    def __init__(self, name: str, folder: Path, secret: str) -> None:
        self.name = name
        index, _, self.mark = name.partition("-")
        self.index = int(index)
        self.prefix = f"{name}-"
        self._own = self.prefix.encode()
        self.folder = folder
        self._secret = secret.encode()
        self._idle: dict[str, list[Link]] = {}
        self._under_way = 0
        self._drained = asyncio.Event()

    def listen(self) -> socket.socket:
        """The socket for the others."""
        listening = socket.socket(socket.AF_UNIX)
        path = self.folder / self.name
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(2048)
        return listening

    def leave(self) -> None:
        """Take away the socket file: no other worker is to look here any more."""
        (self.folder / self.name).unlink(missing_ok=True)

    def entrance(self, app: Application) -> Application:
        """The application as the others reach it: it lets workers of this server in, and nobody else."""

        async def enter(scope: Scope, receive: Receive, send: Send) -> None:
            brought = [value for name, value in scope["headers"] if name == SECRET]
            if len(brought) != 1 or not compare_digest(brought[0], self._secret):
                await answer(send, 403, unknown_refusal(403, InvalidRequest("This entrance is for workers")))
                return
            # What a page may do was decided by the worker that it talks to, which adds the headers for it, too.
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in (SECRET, b"origin")]
            scope[LOCAL_ONLY] = True
            await app(scope, receive, send)

        return enter

    def is_for_other(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request may be for another worker; one that is not is answered here, whatever it is."""
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            return headers.get(b"mcp-name") == _CONTINUE
        return not session_id.startswith(self._own)

    def owner_of(self, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
        """The other worker that has what the request is about; None: none that is known by its name."""
        session_id = headers.get(b"mcp-session-id")
        if session_id is not None:
            named = _SESSION.fullmatch(session_id)
            return None if named is None else named[1].decode()
        try:
            mark = _decode_continuation(body).params.arguments.cursor[:MARK_LENGTH]
        except (msgspec.DecodeError, RecursionError):
            return None
        return self._others().get(mark)

    async def forward(self, owner: str, scope: Scope, receive: Receive, send: Send, body: bytes) -> bool:
        """Have the owner answer; False: it is gone, and the request with it has had no effect."""
        self._under_way += 1
        try:
            return await self._forward(owner, scope, receive, send, body)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._drained.set()

    async def drained(self, timeout: float) -> None:
        """Wait until nothing is being passed on any more, but not for longer than `timeout` seconds."""
        self._drained.clear()
        if self._under_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), timeout)

    async def get(self, path: str, headers: Iterable[Header] = ()) -> list[tuple[int, bytes]]:
        """Status and body of what every other worker that is there answers to `GET path`."""
        answers = await asyncio.gather(*(self._get(name, path, headers) for name in self._others().values()))
        return [each for each in answers if each is not None]

    def _others(self) -> dict[str, str]:
        """The names of the other workers, by their marks."""
        names = [each.name for each in self.folder.iterdir() if each.is_socket()]
        return {name.partition("-")[2]: name for name in sorted(names) if name != self.name}

    async def _get(self, name: str, path: str, headers: Iterable[Header]) -> tuple[int, bytes] | None:
        link = await Link.open(self.folder / name)
        if link is None:
            return None
        try:
            given = [(b"host", b"localhost"), *headers, (SECRET, self._secret)]
            head = await link.ask("GET", path.encode(), given, b"")
            return head.status, b"".join([piece async for piece in link.pieces()])
        except LinkBroken:
            return None
        finally:
            link.close()

    async def _forward(self, owner: str, scope: Scope, receive: Receive, send: Send, body: bytes) -> bool:
        for _ in range(_MOST_ATTEMPTS):
            link = self._taken(owner) or await Link.open(self.folder / owner)
            if link is None:
                return False
            is_gone = False

            async def watch(link: Link = link) -> None:
                nonlocal is_gone
                while (await receive())["type"] != "http.disconnect":
                    pass
                is_gone = True
                link.close()

            watching = asyncio.create_task(watch())
            try:
                head = await self._ask(link, scope, body)
                await _pass_on(head, link, send)
                return True
            except LinkBroken as broken:
                if is_gone:
                    return True
                if broken.was_answering:
                    raise OwnerLost from None
                if broken.was_heard:
                    break
            finally:
                watching.cancel()
                self._give_back(owner, link)
        raise RequestRefused(502, InternalError("The session ended before the request was answered"))

    async def _ask(self, link: Link, scope: Scope, body: bytes) -> Head:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        given = [pair for pair in scope["headers"] if pair[0] != SECRET]
        return await link.ask(scope["method"], target, [*given, (SECRET, self._secret)], body)

    def _taken(self, owner: str) -> Link | None:
        idle = self._idle.get(owner, [])
        while idle:
            link = idle.pop()
            if link.is_usable:
                return link
            link.close()
        return None

    def _give_back(self, owner: str, link: Link) -> None:
        idle = self._idle.setdefault(owner, [])
        if link.is_usable and len(idle) < _MOST_IDLE:
            idle.append(link)
        else:
            link.close()
            if not idle:
                del self._idle[owner]  # Names are not used twice: what is gone must not add up.


async def _pass_on(head: Head, link: Link, send: Send) -> None:
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    async for piece in link.pieces():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
