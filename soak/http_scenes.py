"""What clients do over HTTP. A scene raises, or complains to the ledger, when the server does something wrong."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from soak.asks import MEGABYTE, Ask, Asked, any_ask, some_echo
from soak.ledger import ABORTED, DISCONNECTED, ERROR, NO_RECORD, SUCCESS, Ledger, Outcomes
from soak.peer import Peer, connected
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, MODERN, message, modern, request

_MOST_LEFT = 20
_WAIT = Ask("wait")
_REPORT = Ask("report", {"steps": 3, "seconds": 0.05}, 3)
_STREAM = {"accept": "text/event-stream"}
BAD_REQUESTS: tuple[tuple[int, bytes], ...] = (
    (400, b"nonsense\r\n\r\n"),
    (400, b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
    (400, request(b"{", {"mcp-protocol-version": MODERN})),
    (400, request(b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', {"mcp-protocol-version": MODERN})),
    (403, request(INITIALIZE, {"origin": "https://elsewhere.example"})),
    (404, request(None, method="GET", path="/nowhere")),
    (404, request(INITIALIZED, {"mcp-session-id": "nobody's", "mcp-protocol-version": LATEST})),
    (413, request(None, {"content-type": "application/json", "content-length": "20000000"})),
    (415, request(b"text", {"content-type": "text/plain"})),
    (431, request(None, {"x-long": "x" * 70_000}, method="GET", path="/health")),
)


class HttpClients:
    """The clients of one server, and the sessions that they have left."""

    def __init__(self, port: int, ledger: Ledger, chance: random.Random) -> None:
        self.port = port
        self.ledger = ledger
        self.chance = chance
        self.left: deque[str] = deque()
        """Sessions whose client left without ending them. The oldest are ended when there are too many."""

    def ask(self, ask: Ask, due: Outcomes | None = None, *, has_progress: bool = False) -> Asked:
        return Asked(self.ledger, ask, due, has_progress=has_progress)

    async def open_session(self, peer: Peer) -> str:
        await peer.send(request(INITIALIZE))
        opened = await peer.read()
        session = opened.headers["mcp-session-id"]
        await self.post(peer, session, INITIALIZED)
        return session

    async def post(self, peer: Peer, session: str, body: dict[str, object]) -> None:
        """A notification."""
        await peer.send(request(body, {"mcp-session-id": session, "mcp-protocol-version": LATEST}))
        self.expect(202, (await peer.read()).status)

    async def listen(self, peer: Peer, session: str, after: str | None = None) -> None:
        """Open the stream of a session, or again the one that an event was on."""
        headers = {"mcp-session-id": session, "mcp-protocol-version": LATEST, "last-event-id": after, **_STREAM}
        await peer.send(request(None, headers, method="GET"))
        self.expect(200, (await peer.head())[0])

    async def end_session(self, peer: Peer, session: str) -> None:
        await peer.send(request(None, {"mcp-session-id": session, "mcp-protocol-version": LATEST}, method="DELETE"))
        self.expect(200, (await peer.read()).status)

    async def leave_session(self, peer: Peer, session: str) -> None:
        self.left.append(session)
        while len(self.left) > _MOST_LEFT:
            await self.end_session(peer, self.left.popleft())

    def leave(self, peer: Peer) -> None:
        """With a reset or, at the end of the block, with an end."""
        if self.chance.random() < 0.5:
            peer.reset()

    def expect(self, expected: object, found: object) -> None:
        assert found == expected, f"{found} instead of {expected}"


async def call_one_by_one(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        for _ in range(clients.chance.randint(1, 20)):
            asked = clients.ask(any_ask(clients.chance))
            await peer.send(asked.modern())
            asked.check((await peer.read()).message)


async def call_in_a_session(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        session = await clients.open_session(peer)
        for _ in range(clients.chance.randint(1, 20)):
            asked = clients.ask(any_ask(clients.chance))
            await peer.send(asked.in_session(session))
            asked.check((await peer.read()).message)
        if clients.chance.random() < 0.5:
            await clients.end_session(peer, session)
        else:
            await clients.leave_session(peer, session)


async def call_ahead(clients: HttpClients) -> None:
    """Pipelined requests, answered in order."""
    async with connected(clients.port) as peer:
        calls = [clients.ask(some_echo()) for _ in range(clients.chance.randint(2, 8))]
        await peer.send(b"".join(asked.modern() for asked in calls))
        for asked in calls:
            asked.check((await peer.read()).message)


async def follow_progress(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        asked = clients.ask(_REPORT, has_progress=True)
        await peer.send(asked.modern())
        response = await peer.read()
        asked.check(response.message)
        if not response.message["result"]["isError"]:
            clients.expect([1, 2, 3], [step["params"]["progress"] for step in response.messages[:-1]])


async def cancel_by_leaving(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        if await _begin(clients, peer, clients.ask(_WAIT, ABORTED, has_progress=True)) is not None:
            clients.leave(peer)


async def leave_a_tool_that_goes_on(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        asked = clients.ask(Ask("report", {"steps": 2, "seconds": 1.0}), DISCONNECTED, has_progress=True)
        if await _begin(clients, peer, asked) is not None:
            clients.leave(peer)


async def cancel_in_a_session(clients: HttpClients) -> None:
    async with connected(clients.port) as peer, connected(clients.port) as other:
        session = await clients.open_session(other)
        asked = clients.ask(_WAIT, ABORTED, has_progress=True)
        if await _begin(clients, peer, asked, session) is not None:
            await clients.post(other, session, message("notifications/cancelled", {"requestId": asked.id}))
            event = await peer.event()
            assert event is not None
            clients.expect((asked.id, -32800), (event[1]["id"], event[1]["error"]["code"]))
        await clients.end_session(other, session)


async def end_a_session_with_a_call(clients: HttpClients) -> None:
    async with connected(clients.port) as peer, connected(clients.port) as other:
        session = await clients.open_session(other)
        await _begin(clients, peer, clients.ask(_WAIT, ABORTED, has_progress=True), session)
        await clients.end_session(other, session)


async def resume_a_stream(clients: HttpClients) -> None:
    async with connected(clients.port) as other:
        session = await clients.open_session(other)
        asked = clients.ask(_REPORT, SUCCESS, has_progress=True)
        async with connected(clients.port) as peer:
            last = await _begin(clients, peer, asked, session)
            clients.leave(peer)
        if last is not None:
            async with connected(clients.port) as peer:
                await clients.listen(peer, session, last)
                found = []
                while event := await peer.event():
                    found.append(event[1])
                clients.expect([2, 3], [step["params"]["progress"] for step in found[:-1]])
                asked.check(found[-1])
        await clients.end_session(other, session)


async def _begin(clients: HttpClients, peer: Peer, asked: Asked, session: str | None = None) -> str | None:
    """Send a call of a tool that reports progress; returns the id of the first event, None if no slot was free."""
    await peer.send(asked.modern() if session is None else asked.in_session(session))
    _, headers = await peer.head()
    if headers["content-type"] == "application/json":
        asked.check(msgspec.json.decode(await peer.body(headers)))
        return None
    event = await peer.event()
    assert event is not None
    event_id, first = event
    if "method" in first:
        return event_id
    asked.check(first)
    return None


async def leave_within_the_request(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        data = clients.ask(some_echo(), NO_RECORD).modern()
        await peer.send(data[: clients.chance.randrange(1, len(data))])
        clients.leave(peer)


async def leave_within_the_answer(clients: HttpClients) -> None:
    async with connected(clients.port, buffer=4096) as peer:
        await _begin_a_megabyte(clients, peer)
        clients.leave(peer)


async def leave_after_the_request(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        await peer.send(clients.ask(some_echo(), SUCCESS | ERROR | DISCONNECTED | NO_RECORD).modern())
        peer.reset()


async def _begin_a_megabyte(clients: HttpClients, peer: Peer) -> None:
    """Ask for a megabyte, and read the head of the answer, which is whole if no slot was free."""
    asked = clients.ask(MEGABYTE)
    await peer.send(asked.modern())
    _, headers = await peer.head()
    if int(headers["content-length"]) < 10_000:
        asked.check(msgspec.json.decode(await peer.body(headers)))


async def half_close_after_the_request(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        asked = clients.ask(some_echo())
        await peer.send(asked.modern())
        peer.half_close()
        asked.check((await peer.read()).message)
        clients.expect(b"", await peer.wait_for_end())


async def send_something_bad(clients: HttpClients) -> None:
    status, data = clients.chance.choice(BAD_REQUESTS)
    async with connected(clients.port) as peer:
        await peer.send(data)
        clients.expect(status, (await peer.read()).status)


async def look_around(clients: HttpClients) -> None:
    async with connected(clients.port) as peer:
        for path in ("/health", "/ready", "/version", "/metrics"):
            await peer.send(request(None, method="GET", path=path))
            clients.expect(200, (await peer.read()).status)
        await peer.send(modern("tools/list"))
        assert "echo" in {tool["name"] for tool in (await peer.read()).message["result"]["tools"]}


# These take as long as they are told to, in seconds.


async def send_slowly(clients: HttpClients, seconds: float) -> None:
    async with connected(clients.port) as peer:
        asked = clients.ask(some_echo())
        await peer.send_slowly(asked.modern(), min(seconds, 20.0))
        asked.check((await peer.read()).message)


async def read_slowly(clients: HttpClients, seconds: float) -> None:
    async with connected(clients.port, buffer=1 << 16) as peer:
        asked = clients.ask(MEGABYTE)
        await peer.send(asked.modern())
        asked.check((await peer.read(pause=seconds / 64)).message)


async def never_read(clients: HttpClients, seconds: float) -> None:
    async with connected(clients.port, buffer=4096) as peer:
        await _begin_a_megabyte(clients, peer)
        await asyncio.sleep(seconds)
        clients.leave(peer)


async def never_finish(clients: HttpClients, seconds: float) -> None:
    """The server gives up after its time, before the client leaves or after."""
    async with connected(clients.port) as peer:
        await peer.send(clients.ask(some_echo(), NO_RECORD).modern()[:-1])
        await asyncio.sleep(seconds)
        clients.leave(peer)


async def stay_idle(clients: HttpClients, seconds: float) -> None:
    """The connection can be used again, until the server closes it after 75 s."""
    async with connected(clients.port) as peer:
        for pause in (seconds, 0.0):
            asked = clients.ask(some_echo())
            await peer.send(asked.modern())
            asked.check((await peer.read()).message)
            if pause > 60.0:
                clients.expect(b"", await peer.wait_for_end())
                break
            await asyncio.sleep(pause)


async def listen_to_changes(clients: HttpClients, seconds: float) -> None:
    async with connected(clients.port) as peer:
        await peer.send(modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        await peer.head()
        event = await peer.event()
        assert event is not None
        clients.expect("notifications/subscriptions/acknowledged", event[1]["method"])
        await asyncio.sleep(seconds)
        clients.leave(peer)


async def listen_in_a_session(clients: HttpClients, seconds: float) -> None:
    async with connected(clients.port) as peer, connected(clients.port) as other:
        session = await clients.open_session(other)
        await clients.listen(peer, session)
        await asyncio.sleep(seconds)
        asked = clients.ask(some_echo())
        async with connected(clients.port) as third:  # The other may have been idle for too long.
            await third.send(asked.in_session(session))
            asked.check((await third.read()).message)
            clients.leave(peer)
            await clients.leave_session(third, session)


QUICK: tuple[tuple[Callable[[HttpClients], Awaitable[None]], int], ...] = (
    (call_one_by_one, 20),
    (call_in_a_session, 10),
    (call_ahead, 5),
    (follow_progress, 2),
    (cancel_by_leaving, 3),
    (leave_a_tool_that_goes_on, 1),
    (cancel_in_a_session, 2),
    (end_a_session_with_a_call, 1),
    (resume_a_stream, 2),
    (leave_within_the_request, 4),
    (leave_within_the_answer, 2),
    (leave_after_the_request, 3),
    (half_close_after_the_request, 2),
    (send_something_bad, 8),
    (look_around, 1),
)
SLOW: tuple[Callable[[HttpClients, float], Awaitable[None]], ...] = (
    send_slowly,
    read_slowly,
    never_read,
    never_finish,
    stay_idle,
    listen_to_changes,
    listen_in_a_session,
)
