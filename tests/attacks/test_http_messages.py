"""Each HTTP message that two parsers may understand differently has one answer, and nothing after a refusal is read."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.support.http_messages import MESSAGES, NEXT, Message
from tests.support.http_process import HttpProcess
from tests.support.http_wire import Response, Wire

pytestmark = pytest.mark.slow

ALL = [message for part in MESSAGES.values() for message in part]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpProcess]:
    with HttpProcess() as server:
        yield server
        server.check_health()
    errors = [entry for entry in server.log() if entry["level"] == "error"]
    assert errors == [], errors


def pieces(message: Message) -> tuple[bytes, bytes, bytes]:
    """A part of the first head, the rest of it, and all that follows."""
    end = message.data.find(b"\r\n\r\n") + 4
    cut = Random(zlib.crc32(message.data)).randrange(1, end)
    return message.data[:cut], message.data[cut:end], message.data[end:] + NEXT


def responses(wire: Wire, message: Message) -> Iterator[Response]:
    """All that come until the connection is closed."""
    is_head = message.data.startswith(b"HEAD ")
    try:
        while True:
            yield wire.read(is_head=is_head)
            is_head = False
    except ConnectionResetError:
        return


@pytest.mark.parametrize("in_pieces", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("message", ALL, ids=[message.name for message in ALL])
def test_a_message_has_the_answer_that_the_page_says(server: HttpProcess, message: Message, in_pieces: bool) -> None:
    with server.wire() as wire:
        try:
            if in_pieces:
                *first, last = pieces(message)
                for piece in first:
                    wire.send(piece)
                    wire.wait_until_read()
                wire.send(last)
            else:
                wire.send(message.data + NEXT)
        except (BrokenPipeError, ConnectionResetError):
            assert not message.is_kept
        answered = list(responses(wire, message))
    following = (200,) if message.is_kept else ()
    assert tuple(each.status for each in answered) == (*message.answers, *following)
    assert answered[-1].headers["connection"] == "close"
    if not message.is_kept and message.answers[-1] >= 400:
        assert answered[-1].error["message"]


def test_no_message_is_listed_twice() -> None:
    assert [name for name, count in Counter(message.name for message in ALL).items() if count > 1] == []
    assert [data for data, count in Counter(message.data for message in ALL).items() if count > 1] == []
