"""This server understands the same bytes as others do, or refuses them, or the difference is in a table."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tests.support.http_messages import MESSAGES, NEXT, SMUGGLED, Message
from tests.support.http_understanding import Understood, all_servers

pytestmark = pytest.mark.slow

OURS, HTTPTOOLS, H11, PARSER = "dragoman", "uvicorn with httptools", "uvicorn with h11", "h11"
MIXTURES = 300
IGNORED = "h11 refuses an empty line before a request, which RFC 9112, 2.2 says to ignore"
TRAILERS = "uvicorn takes trailers for header fields"
SPACES = "uvicorn leaves the whitespace after a value"
BODIES = "httptools skips the body of a request that asks for an upgrade"
DIFFERENCES = {
    "an empty line before the request": ({H11, PARSER}, IGNORED),
    "an empty line after the body": ({H11, PARSER}, IGNORED),
    "no `Host`": ({H11, PARSER}, "our application refuses it, with 421"),
    "two `Host` fields": ({H11, PARSER}, "our application refuses it, with 400"),
    "tabs around the length": ({HTTPTOOLS}, SPACES),
    "a space after `chunked`": ({HTTPTOOLS}, SPACES),
    "a trailer": ({HTTPTOOLS}, TRAILERS),
    "`Host` in a trailer": ({HTTPTOOLS}, TRAILERS),
    "`Authorization` in a trailer": ({HTTPTOOLS}, TRAILERS),
    "an upgrade of a call": ({HTTPTOOLS}, BODIES),
    "an upgrade of a call in chunks": ({HTTPTOOLS}, BODIES),
    "two requests, then no HTTP": ({HTTPTOOLS}, "uvicorn drops requests that wait when a later one is malformed"),
}
"""Messages of which this server understands more than others do, or something else, and why."""


def is_refusal(ours: Understood, theirs: Understood) -> bool:
    """Whether this server understood as much as others did, and the same, before it read no further."""
    return theirs[: len(ours)] == ours


def in_pieces(data: bytes, random: Random) -> list[bytes]:
    cuts = sorted({0, len(data), *(random.randrange(len(data)) for _ in range(random.randrange(6)))})
    return [data[start:end] for start, end in pairwise(cuts)]


async def test_a_message_is_understood_as_by_others_or_the_difference_is_known() -> None:
    found: dict[str, set[str]] = {}
    async with all_servers() as servers:
        for message in (each for part in MESSAGES.values() for each in part):
            understood = {name: await server([message.data + NEXT]) for name, server in servers.items()}
            ours = understood.pop(OURS)
            others = {name for name, theirs in understood.items() if not is_same(message, ours, theirs)}
            if others:
                found[message.name] = others
    assert found == {name: others for name, (others, _) in DIFFERENCES.items()}


def is_same(message: Message, ours: Understood, theirs: Understood) -> bool:
    """Also if they understand more of a message that this server refuses, for the reason that the list gives."""
    return theirs == ours or (not message.is_kept and is_refusal(ours, theirs))


async def test_a_message_is_understood_the_same_however_it_is_cut() -> None:
    async with all_servers() as servers:
        for seed, message in enumerate(each for part in MESSAGES.values() for each in part):
            data = message.data + NEXT
            whole = await servers[OURS]([data])
            cut = await servers[OURS](in_pieces(data, Random(seed)))
            assert (message.name, cut) == (message.name, whole)


METHODS = [b"GET", b"POST", b"DELETE", b"HEAD", b"OPTIONS"]
TARGETS = [b"/mcp", b"/health?x=1", b"/a/../b", b"/%2e%2e/", b"//x", b"http://127.0.0.1/health"]
FIELDS = [b"X-A: b", b"X-A:", b"x-a:\tb \t", b"X-A: \xff", b"Accept: */*", b"TE: trailers", b"Connection: keep-alive"]
CODINGS = [b"Transfer-Encoding: chunked", b"transfer-encoding:CHUNKED", b"Transfer-Encoding: chunked "]
EXTENSIONS = [b"", b"", b";x", b';x="y"', b";x=y;z"]
NOISE = [
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b":",
    b";",
    b",",
    b"0",
    b"A",
    b"\r\n ",
    b"#",
]


def mixture(random: Random) -> bytes:
    """Up to three requests, of which one may be damaged somewhere."""
    requests = [make_request(random) for _ in range(random.randint(1, 3))]
    if random.random() < 0.7:
        number = random.randrange(len(requests))
        requests[number] = damage(requests[number], random)
    return b"".join(requests)


def make_request(random: Random) -> bytes:
    fields = [b"Host: 127.0.0.1", *random.sample(FIELDS, random.randrange(4))]
    line = b"%b %b HTTP/1.1" % (random.choice(METHODS), random.choice(TARGETS))
    body = random.choice((b"", b"x", b"0\r\n\r\nx", SMUGGLED + b"x"))
    kind = random.randrange(3)
    if kind == 0:
        return b"\r\n".join((line, *fields, b"", b""))
    if kind == 1:
        return b"\r\n".join((line, *fields, b"Content-Length: %d" % len(body), b"", body))
    sent = b"".join(make_chunk(random, part) for part in in_pieces(body, random) if part) if body else b""
    return b"\r\n".join((line, *fields, random.choice(CODINGS), b"", sent + b"0", b"", b""))


def make_chunk(random: Random, data: bytes) -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), random.choice(EXTENSIONS), data)


def damage(data: bytes, random: Random) -> bytes:
    place = random.randrange(1, len(data))
    left_out = random.choice((0, 0, 1, 2))
    return data[:place] + random.choice(NOISE) + data[place + left_out :]


def is_explained(name: str, data: bytes, ours: Understood, theirs: Understood) -> bool:
    """Whether others stop earlier, as in `DIFFERENCES`."""
    if name == HTTPTOOLS:
        return is_refusal(theirs, ours)
    hosts = [[field for field, _ in request.fields].count(b"host") for request in ours]
    return is_refusal(theirs, ours) and (b"\r\n" * 3 in data or hosts != [1] * len(ours))


def stripped(requests: Understood) -> Understood:
    fields = [tuple((name, value.strip(b" \t")) for name, value in each.fields) for each in requests]
    return tuple(each._replace(fields=own) for each, own in zip(requests, fields, strict=True))


async def test_nothing_is_understood_that_others_do_not_understand_the_same() -> None:
    requests = 0
    async with all_servers() as servers:
        for seed in range(MIXTURES):
            random = Random(seed)
            data = mixture(random) + NEXT
            understood = {name: await server([data]) for name, server in servers.items()}
            ours = understood.pop(OURS)
            assert await servers[OURS](in_pieces(data, random)) == ours, data
            for name, theirs in understood.items():
                same = stripped(theirs) if name == HTTPTOOLS else theirs
                assert is_refusal(ours, same) or is_explained(name, data, ours, same), (name, data, ours, theirs)
            requests += len(ours)
    assert requests > MIXTURES
