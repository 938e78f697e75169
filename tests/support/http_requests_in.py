"""What an HTTP connection without I/O makes of bytes, when each request is answered as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from dragoman.edge.http.connection import (
    BadRequest,
    BodyEnd,
    BodyPart,
    ClientLeft,
    HttpConnection,
    HttpState,
    RequestBegun,
    WholeRequest,
)
from dragoman.edge.http.messages import AnswerHeads


def understood(parts: Iterable[bytes], *, ends: bool = True, again: bool = False) -> list[object]:
    """Requests as they were completed with their answers, and how it ended. With `again`, each part is first taken for
    a request like the one before."""
    made = HttpConnection(AnswerHeads())
    found: list[object] = []
    begun: tuple[object, list[bytes]] | None = None

    def act() -> None:
        nonlocal begun
        while (event := made.next_event()) is not None:
            if isinstance(event, RequestBegun):
                begun = (event.head, [])
            elif isinstance(event, BodyPart):
                assert begun is not None
                begun[1].append(event.data)
            elif isinstance(event, WholeRequest | BodyEnd):
                if isinstance(event, WholeRequest):
                    begun = (event.head, [event.body])
                assert begun is not None
                found.append((begun[0], b"".join(begun[1])))
                begun = None
                found.append(made.answer(200, (), b"x"))
            else:
                assert isinstance(event, BadRequest | ClientLeft)
                found.append(event)
                if isinstance(event, BadRequest):
                    found.append(made.refuse(event.status, (), b"x"))

    for part in parts:
        body = made.receive_again(part) if again else None
        if body is None:
            made.receive(part)
        else:
            found += [(made.head, body), made.answer(200, (), b"x")]
        act()
    if ends:
        made.end()
        act()
    assert not ends or made.state is HttpState.CLOSED
    return found


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces. Places beyond its end count from its beginning again."""
    cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in pairwise(cuts)]
