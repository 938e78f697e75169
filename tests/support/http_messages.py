"""HTTP messages that two parsers may understand differently, and the answers of this server to each of them.

`docs/generate.py` makes the tables of docs/http.md from this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from dragoman.testing.connection import ENVELOPE
from tests.support.http_wire import MODERN

NEXT = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
"""The request that follows each message on the same connection."""
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
"""Bytes that must never be read as a request: it would be answered 404."""
BODY = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {"message": "hi"}, "_meta": ENVELOPE},
    }
)


class Message(NamedTuple):
    """Bytes on a connection, and what becomes of them."""

    name: str
    data: bytes
    answers: tuple[int, ...]
    """The status of each answer, but for the request that follows."""
    why: str
    """The number of an RFC, the section, and the rule."""
    is_kept: bool = False
    """Whether the request that follows is answered; else the connection is closed."""

    @property
    def outcome(self) -> str:
        return ", then ".join(map(str, self.answers)) + ("" if self.is_kept else ", closed")


def refused(why: str, messages: Mapping[str, bytes], status: int = 400) -> list[Message]:
    return [Message(name, data, (status,), why) for name, data in messages.items()]


def served(why: str, messages: Mapping[str, bytes], status: int = 200) -> list[Message]:
    return [Message(name, data, (status,), why, is_kept=True) for name, data in messages.items()]


def closed(why: str, messages: Mapping[str, bytes], *answers: int) -> list[Message]:
    return [Message(name, data, answers or (200,), why) for name, data in messages.items()]


def get(*fields: bytes, line: bytes = b"GET /health HTTP/1.1", host: bytes = b"Host: 127.0.0.1") -> bytes:
    """A head; for a GET without a body, unless said otherwise."""
    return b"\r\n".join((line, *((host,) if host else ()), *fields, b"", b""))


def to(line: bytes, *fields: bytes) -> bytes:
    return get(*fields, line=line)


def with_body(method: bytes) -> bytes:
    """A request whose body looks like a request, at a path that takes no body."""
    return to(method + b" /health HTTP/1.1", b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED


def post(*fields: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    """The head of a call, with `fields` that say how long the body is."""
    usual = (
        b"Content-Type: application/json",
        b"Accept: application/json, text/event-stream",
        b"MCP-Protocol-Version: " + MODERN.encode(),
        b"Mcp-Method: tools/call",
        b"Mcp-Name: echo",
    )
    return to(b"POST /mcp " + version, *usual, *fields)


def sized(value: bytes, *fields: bytes, name: bytes = b"Content-Length", version: bytes = b"HTTP/1.1") -> bytes:
    """A call whose length is given as `value`, in which `N` stands for the right one."""
    return post(b"%b:%b" % (name, value.replace(b"N", b"%d" % len(BODY))), *fields, version=version) + BODY


def coded(*values: bytes, before: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    """A call in chunks, with a `Transfer-Encoding` for each value."""
    fields = [b"Transfer-Encoding:" + value for value in values]
    return post(*([before] if before else []), *fields, version=version) + chunked()


def chunked(
    size: bytes = b"N", *, end: bytes = b"\r\n", after: bytes = b"\r\n", last: bytes = b"0\r\n", trailers: bytes = b""
) -> bytes:
    """The body in one chunk; in `size`, `N` stands for the right one."""
    return size.replace(b"N", b"%x" % len(BODY)) + end + BODY + after + last + trailers + b"\r\n"


def chunks(size: bytes = b"N", **parts: bytes) -> bytes:
    """A call in chunks."""
    return post(b"Transfer-Encoding: chunked") + chunked(size, **parts)


TOKEN = "9110 5.1: a field name is a token"
COLON = "9112 5.1: no whitespace before the colon"
CONTROL = "9110 5.5: no control characters but tabs in a value"
CRLF = "9112 2.2: lines end with CR LF"
FOLDED = "9112 5.2: folded lines are refused"
SPACES = "9112 5: whitespace around a value is optional"
EMPTY = "9112 2.2: empty lines before a request are ignored"

REQUEST_LINES = (
    *refused(
        "9112 2.3: `HTTP/1.0` and `HTTP/1.1` are served, and written exactly so",
        {
            "no version (HTTP/0.9)": b"GET /health\r\n\r\n",
            "no version, and fields": to(b"GET /health"),
            "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "`HTTP/0.9`": to(b"GET /health HTTP/0.9"),
            "`HTTP/1.2`": to(b"GET /health HTTP/1.2"),
            "`HTTP/2.0`": to(b"GET /health HTTP/2.0"),
            "`HTTP/3.0`": to(b"GET /health HTTP/3.0"),
            "`HTTP/11.1`": to(b"GET /health HTTP/11.1"),
            "`HTTP/1.11`": to(b"GET /health HTTP/1.11"),
            "`HTTP/01.1`": to(b"GET /health HTTP/01.1"),
            "`HTTP/1`": to(b"GET /health HTTP/1"),
            "`HTTP/1,1`": to(b"GET /health HTTP/1,1"),
            "`http/1.1`": to(b"GET /health http/1.1"),
            "`RTSP/1.0`": to(b"GET /health RTSP/1.0"),
            "`RTSP/1.1`": to(b"GET /health RTSP/1.1"),
            "`ICE/1.0`": to(b"SOURCE /health ICE/1.0"),
        },
    ),
    *refused(
        "9112 3: a method, one space, a target, one space and a version",
        {
            "a space before the method": to(b" GET /health HTTP/1.1"),
            "a byte order mark before the method": b"\xef\xbb\xbf" + get(),
            "two spaces before the target": to(b"GET  /health HTTP/1.1"),
            "two spaces after the target": to(b"GET /health  HTTP/1.1"),
            "a tab before the target": to(b"GET\t/health HTTP/1.1"),
            "a tab after the target": to(b"GET /health\tHTTP/1.1"),
            "a vertical tab after the target": to(b"GET /health\x0bHTTP/1.1"),
            "a space after the version": to(b"GET /health HTTP/1.1 "),
            "a header of the PROXY protocol": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + get(),
        },
    ),
    *refused(
        "9110 9.1: a method that is not known is refused with 501",
        {
            "a method in lower case": to(b"get /health HTTP/1.1"),
            "an unknown method": to(b"SMUGGLE /health HTTP/1.1"),
        },
        501,
    ),
    *refused(
        "9110 9.1: a method is a token",
        {
            "an `@` in the method": to(b"G@T /health HTTP/1.1"),
            "a colon in the method": to(b"GET: /health HTTP/1.1"),
            "a NUL in the method": to(b"GET\x00 /health HTTP/1.1"),
        },
    ),
    *refused(
        CRLF,
        {
            "a bare LF after the request line": b"GET /health HTTP/1.1\nHost: 127.0.0.1\r\n\r\n",
            "a bare CR after the request line": b"GET /health HTTP/1.1\rHost: 127.0.0.1\r\n\r\n",
            "CR CR LF after the request line": b"GET /health HTTP/1.1\r\r\nHost: 127.0.0.1\r\n\r\n",
            "a bare LF after every line": b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
            "a bare LF before the request": b"\n" + get(),
            "a bare CR before the request": b"\r" + get(),
        },
    ),
    *served(EMPTY, {"an empty line before the request": b"\r\n" + get()}),
    *refused("6585 5: at most 64 KiB", {"100 KB of empty lines before the request": b"\r\n" * 50_000 + get()}, 431),
)
TARGETS = (
    *served(
        "9112 3.2.2: the absolute form is accepted", {"`http://host/path`": to(b"GET http://127.0.0.1/health HTTP/1.1")}
    ),
    *refused(
        "9112 3.2.2: the target has the same host and port as `Host`",
        {
            "a target at another host": to(b"GET http://example.org/health HTTP/1.1"),
            "a target with a port that `Host` lacks": to(b"GET http://127.0.0.1:81/health HTTP/1.1"),
            "a target with a user": to(b"GET http://x@127.0.0.1/health HTTP/1.1"),
            "a target with a host after an `@`": to(b"GET http://127.0.0.1@example.org/health HTTP/1.1"),
            "a target with a backslash after the host": to(rb"GET http://127.0.0.1\example.org/health HTTP/1.1"),
            "a target with an empty host": to(b"GET http:///health HTTP/1.1"),
            "a target with a host, and no `Host`": get(line=b"GET http://127.0.0.1/health HTTP/1.1", host=b""),
            "a target with another scheme": to(b"GET ftp://127.0.0.1/health HTTP/1.1"),
        },
    ),
    *refused(
        "9112 3.2.3: the authority form is for `CONNECT`, which is for proxies",
        {
            "`GET host:port`": to(b"GET 127.0.0.1:80 HTTP/1.1"),
            "`CONNECT host:port`": to(b"CONNECT 127.0.0.1:80 HTTP/1.1"),
            "`CONNECT /path`": to(b"CONNECT /health HTTP/1.1"),
        },
    ),
    *refused("9112 3.2.4: the asterisk form is for `OPTIONS`", {"`GET *`": to(b"GET * HTTP/1.1")}),
    *served("9112 3.2.4: nothing is served there", {"`OPTIONS *`": to(b"OPTIONS * HTTP/1.1")}, 404),
    *refused(
        "9112 3.2: a path and a query of visible ASCII, without a fragment",
        {
            "a target without a slash": to(b"GET health HTTP/1.1"),
            "a fragment": to(b"GET /health#x HTTP/1.1"),
            "a fragment after a query": to(b"GET /health?x#y HTTP/1.1"),
            "a space in the target": to(b"GET /health /x HTTP/1.1"),
            "a NUL in the target": to(b"GET /health\x00 HTTP/1.1"),
            "a control character in the target": to(b"GET /health\x01 HTTP/1.1"),
            "a tab in the target": to(b"GET /health?\tx HTTP/1.1"),
            "a form feed in the target": to(b"GET /health?\x0cx HTTP/1.1"),
            "a bare CR in the target": to(b"GET /hea\rlth HTTP/1.1"),
            "DEL in the target": to(b"GET /health\x7f HTTP/1.1"),
            "a byte beyond ASCII in the target": to(b"GET /health?\xc3\xa9 HTTP/1.1"),
        },
    ),
    *served("9112 3.2: one `Host`", {"two `Host` fields": get(b"Host: 127.0.0.1")}, 400),
    *served(
        "9110 7.4: a `Host` of this server; see `http.allowed_hosts`",
        {
            "no `Host`": get(host=b""),
            "an empty `Host`": get(host=b"Host:"),
            "two hosts in one `Host`": get(host=b"Host: 127.0.0.1, example.org"),
            "a path in `Host`": get(host=b"Host: 127.0.0.1/x"),
            "a user in `Host`": get(host=b"Host: x@127.0.0.1"),
        },
        421,
    ),
)
FIELDS = (
    *refused(COLON, {"a space before the colon": get(b"X-A : b"), "a tab before the colon": get(b"X-A\t: b")}),
    *refused(
        TOKEN,
        {
            "an empty name": get(b": b"),
            "a space in a name": get(b"X A: b"),
            "a parenthesis in a name": get(b"X(A: b"),
            "a NUL in a name": get(b"X\x00A: b"),
            "a byte beyond ASCII in a name": get(b"X\xe9A: b"),
            "a line without a colon": get(b"X-A"),
        },
    ),
    *refused(
        FOLDED,
        {
            "a line that begins with a space": get(b"X-A: b", b" c"),
            "a line that begins with a tab": get(b"X-A: b", b"\tc"),
            "a value on the next line": get(b"X-A:", b" b"),
            "a line of one space": get(b" "),
            "a space before the first field": b"GET /health HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n",
        },
    ),
    *refused(
        CONTROL,
        {
            "a bare LF in a value": get(b"X-A: b\nX-B: c"),
            "a bare CR in a value": get(b"X-A: b\rX-B: c"),
            "a NUL in a value": get(b"X-A: b\x00c"),
            "a control character in a value": get(b"X-A: b\x01c"),
            "a vertical tab in a value": get(b"X-A: b\x0bc"),
            "DEL in a value": get(b"X-A: b\x7fc"),
        },
    ),
    *refused(
        CRLF,
        {
            "CR CR LF after a field": get(host=b"Host: 127.0.0.1\r"),
            "a bare LF after the last field": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\n\r\n",
            "a bare LF as the empty line": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\n",
            "a bare CR as the empty line": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r" + SMUGGLED,
        },
    ),
    *served(
        "9110 5.5: part of the value",
        {"a tab in a value": get(b"X-A: b\tc"), "bytes beyond ASCII in a value": get(b"X-A: \xc3\xa9\xff")},
    ),
    *served(SPACES, {"an empty value": get(b"X-A:"), "no space after a colon": get(b"X-A:b")}),
    *refused(
        "6585 5: at most 64 KiB",
        {"20,000 fields": get(*[b"a: b"] * 20_000), "a field of 100 KB": get(b"X-A: " + b"b" * 100_000)},
        431,
    ),
)
LENGTHS = (
    *refused(
        "9110 8.6: a length is decimal digits",
        {
            "`Content-Length: +5`": sized(b" +N"),
            "`Content-Length: -5`": sized(b" -N"),
            "`Content-Length: 0x5`": sized(b" 0xN"),
            "`Content-Length: 5 5`": sized(b" N N"),
            "`Content-Length: 5_0`": sized(b" 1_0"),
            "`Content-Length: 5.0`": sized(b" N.0"),
            "`Content-Length: 5;x`": sized(b" N;x"),
            '`Content-Length: "5"`': sized(b' "N"'),
            "`Content-Length: five`": sized(b" five"),
            "a length in digits beyond ASCII": sized(" ５".encode()),
            "an empty length": post(b"Content-Length:"),
            "a length of spaces": post(b"Content-Length:  "),
            "a length of more than 64 bits": sized(b" %d" % (2**64 + len(BODY))),
        },
    ),
    *refused(
        "9112 6.3: one length",
        {
            "`Content-Length: 5, 5`": sized(b" N, N"),
            "`Content-Length: 5, 6`": sized(b" N, 6"),
            "two lengths that differ": sized(b" N", b"Content-Length: 6"),
            "two lengths, the first is 0": sized(b" 0", b"Content-Length: %d" % len(BODY)),
            "two lengths that are the same": sized(b" N", b"Content-Length: %d" % len(BODY)),
            "two lengths, one in lower case": sized(b" N", b"content-length: %d" % len(BODY)),
        },
    ),
    *refused(
        CONTROL,
        {"a vertical tab before the length": sized(b" \x0bN"), "a vertical tab after the length": sized(b" N\x0b")},
    ),
    *refused(FOLDED, {"a length on two lines": sized(b" 1\r\n 0")}),
    *refused(COLON, {"`Content-Length : 5`": sized(b" N", name=b"Content-Length ")}),
    *refused(TOKEN, {"a vertical tab after `Content-Length`": sized(b" N", name=b"Content-Length\x0b")}),
    *served("9110 8.6: leading zeros are digits", {"`Content-Length: 005`": sized(b" 00N")}),
    *served(SPACES, {"tabs around the length": sized(b"\tN \t")}),
    *served(
        "9110 5.1: an unknown field",
        {"`Content_Length: 5` without a body": get(b"Content_Length: %d" % len(SMUGGLED))},
    ),
    *served(
        "9112 6.3: the body is read, and ignored",
        {
            "a `GET` with a body": with_body(b"GET"),
            "a `HEAD` with a body": with_body(b"HEAD"),
            "a `GET` with chunks": get(b"Transfer-Encoding: chunked")
            + b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
        },
    ),
    *served(
        "9112 6.3: the body is read, and ignored",
        {
            "a `POST` with a body where none is taken (CL.0)": with_body(b"POST"),
            "a `DELETE` with a body": with_body(b"DELETE"),
        },
        405,
    ),
    *served("9112 6.3: no length, no body", {"a `POST` without a length": to(b"POST /health HTTP/1.1")}, 405),
)
CODINGS = (
    *refused(
        "9112 6.3: a length or a coding, not both",
        {
            "a length and chunks (CL.TE)": coded(b" chunked", before=b"Content-Length: 6"),
            "chunks and a length (TE.CL)": coded(b" chunked\r\nContent-Length: 6"),
            "a length of 0 and chunks": coded(b" chunked", before=b"Content-Length: 0"),
            "a length and `xchunked`": coded(b" xchunked", before=b"Content-Length: 6"),
            "a length and `identity`": sized(b" N", b"Transfer-Encoding: identity"),
            "a length and an empty coding": sized(b" N", b"Transfer-Encoding:"),
        },
    ),
    *refused(
        "9112 6.1: `chunked` is understood, and nothing else",
        {
            "`Transfer-Encoding: xchunked`": coded(b" xchunked"),
            "`Transfer-Encoding: chunkedx`": coded(b" chunkedx"),
            "`Transfer-Encoding: identity`": coded(b" identity"),
            "`Transfer-Encoding: gzip, chunked`": coded(b" gzip, chunked"),
            "`Transfer-Encoding: identity, chunked`": coded(b" identity, chunked"),
            "`identity` and `chunked` in two fields": coded(b" identity", b" chunked"),
        },
        501,
    ),
    *refused(
        "9112 6.1: `chunked` once, and last",
        {
            "`Transfer-Encoding: chunked, identity`": coded(b" chunked, identity"),
            "`chunked` and `identity` in two fields": coded(b" chunked", b" identity"),
            "`Transfer-Encoding: chunked, chunked`": coded(b" chunked, chunked"),
            "`chunked` in two fields": coded(b" chunked", b" chunked"),
        },
    ),
    *refused(
        "9112 7: a coding is a token; `chunked` has no parameters",
        {
            "`Transfer-Encoding: chunked;q=1`": coded(b" chunked;q=1"),
            '`Transfer-Encoding: "chunked"`': coded(b' "chunked"'),
            "`Transfer-Encoding: , chunked`": coded(b" , chunked"),
            "`Transfer-Encoding: chunked,`": coded(b" chunked,"),
            "`Transfer-Encoding: x chunked`": coded(b" x chunked"),
            "an empty coding": coded(b""),
            "a byte beyond ASCII before `chunked`": coded(b" \xffchunked"),
            "a no-break space before `chunked`": coded(b" \xa0chunked"),
            "a tab before `chunked`": coded(b"\tchunked"),
            "a tab after `chunked`": coded(b" chunked\t"),
        },
    ),
    *refused(
        CONTROL,
        {
            "a vertical tab before `chunked`": coded(b" \x0bchunked"),
            "a vertical tab after `chunked`": coded(b" chunked\x0b"),
            "a NUL after `chunked`": coded(b" chunked\x00"),
            "a bare CR after `chunked`": coded(b" chunked\rX: y"),
            "a bare LF before `Transfer-Encoding`": post(b"X-A: b\nTransfer-Encoding: chunked") + chunked(),
        },
    ),
    *refused(
        FOLDED,
        {
            "`chunked` on the next line": coded(b"\r\n chunked"),
            "a space before `Transfer-Encoding`": post(b"X-A: b", b" Transfer-Encoding: chunked") + chunked(),
        },
    ),
    *refused(COLON, {"`Transfer-Encoding : chunked`": post(b"Transfer-Encoding : chunked") + chunked()}),
    *refused(TOKEN, {"a vertical tab after `Transfer-Encoding`": post(b"Transfer-Encoding\x0b: chunked") + chunked()}),
    *refused("9112 6.1: HTTP/1.0 has no codings", {"chunks in HTTP/1.0": coded(b" chunked", version=b"HTTP/1.0")}),
    *served("9112 7: codings are case-insensitive", {"`Transfer-Encoding: Chunked`": coded(b" Chunked")}),
    *served(SPACES, {"a space after `chunked`": coded(b" chunked ")}),
    *served(
        "9110 5.1: an unknown field",
        {"a length and `Transfer_Encoding: chunked`": sized(b" N", b"Transfer_Encoding: chunked")},
    ),
    *served("9110 10.1.4: it is about the answer", {"a length and `TE: chunked`": sized(b" N", b"TE: chunked")}),
)
CHUNKS = (
    *refused(
        "9112 7.1: a size is hexadecimal digits, followed by CR LF or `;`",
        {
            "a size of `0x5`": chunks(b"0xN"),
            "a size of `+5`": chunks(b"+N"),
            "a size of `-5`": chunks(b"-N"),
            "a size of `5_0`": chunks(b"5_0"),
            "a size of `5g`": chunks(b"Ng"),
            "an empty size": chunks(b""),
            "an empty size and an extension": chunks(b";x"),
            "a size of more than 64 bits": chunks(b"%x" % (2**64 + len(BODY))),
            "a size of 65 digits": chunks(b"1" + b"0" * 63 + b"5"),
            "a space before a size": chunks(b" N"),
            "a tab before a size": chunks(b"\tN"),
            "a space after a size": chunks(b"N "),
            "a tab after a size": chunks(b"N\t"),
            "a vertical tab after a size": chunks(b"N\x0b"),
            "a space before an extension": chunks(b"N ;x"),
        },
    ),
    *refused(
        CRLF,
        {
            "a bare LF after a size": chunks(end=b"\n"),
            "a bare CR after a size": chunks(end=b"\r"),
            "CR CR LF after a size": chunks(end=b"\r\r\n"),
            "a bare LF after an extension": chunks(b"N;x", end=b"\n"),
            "a bare LF after `;`": chunks(b"N;", end=b"\n"),
            "a bare LF after the last size": chunks(last=b"0\n"),
            "a bare LF as the last line": chunks()[:-2] + b"\n",
        },
    ),
    *refused(
        "9112 7.1.1: an extension is tokens and quoted strings",
        {
            "a bare LF in an extension": chunks(b"N;x\ny"),
            "a bare CR in an extension": chunks(b"N;x\ry"),
            "a NUL in an extension": chunks(b"N;x\x00y"),
            "a bare LF in the quotes of an extension": chunks(b'N;x="\ny"'),
            "a bare CR in the quotes of an extension": chunks(b'N;x="\ry"'),
            "CR LF in the quotes of an extension": chunks(b'N;x="\r\ny"'),
        },
    ),
    *refused(
        "9112 7.1: a chunk ends with CR LF",
        {
            "nothing after a chunk": chunks(after=b""),
            "a bare LF after a chunk": chunks(after=b"\n"),
            "a bare CR after a chunk": chunks(after=b"\r"),
            "two bytes in place of CR LF": chunks(after=b"xx"),
            "two bytes before CR LF": chunks(after=b"xx\r\n"),
        },
    ),
    *refused("6585 5: at most 64 KiB", {"an extension of 100 KB": chunks(b"N;" + b"x" * 100_000)}, 431),
    *served(
        "9112 7.1: leading zeros are digits",
        {"a size of `00A`": chunks(b"00%X" % len(BODY)), "a last size of `000`": chunks(last=b"000\r\n")},
    ),
    *served(
        "9112 7.1.1: unknown extensions are ignored",
        {"an extension": chunks(b"N;x=y"), "an extension in quotes": chunks(b'N;x="y;z"')},
    ),
    *served(EMPTY, {"an empty line after the body": chunks() + b"\r\n"}),
)
TRAILERS = (
    *served(
        "9110 6.5.1: trailers are ignored",
        {
            "a trailer": chunks(trailers=b"X-A: b\r\n"),
            "`Host` in a trailer": chunks(trailers=b"Host: example.org\r\n"),
            "`Authorization` in a trailer": chunks(trailers=b"Authorization: Bearer x\r\n"),
        },
    ),
    *refused(
        "9110 6.5.1: no framing in trailers",
        {
            "`Content-Length` in a trailer": chunks(trailers=b"Content-Length: %d\r\n" % len(NEXT)),
            "`Transfer-Encoding` in a trailer": chunks(trailers=b"Transfer-Encoding: chunked\r\n"),
        },
    ),
    *refused(
        TOKEN,
        {
            "a trailer without a colon": chunks(trailers=b"X-A\r\n"),
            "a request in place of trailers": chunks(trailers=SMUGGLED),
        },
    ),
    *refused(COLON, {"a space before the colon of a trailer": chunks(trailers=b"X-A : b\r\n")}),
    *refused(FOLDED, {"a trailer on two lines": chunks(trailers=b"X-A: b\r\n c\r\n")}),
    *refused(
        CONTROL,
        {
            "a bare LF in a trailer": chunks(trailers=b"X-A: b\nX-B: c\r\n"),
            "a NUL in a trailer": chunks(trailers=b"X-A: b\x00\r\n"),
        },
    ),
    *refused("6585 5: at most 64 KiB", {"trailers of 100 KB": chunks(trailers=b"X-A: b\r\n" * 12_500)}, 431),
)
CONNECTIONS = (
    *closed(
        "9112 9.3: connections of HTTP/1.0 are not kept",
        {
            "`HTTP/1.0`": to(b"GET /health HTTP/1.0"),
            "`HTTP/1.0` with `Connection: keep-alive`": to(b"GET /health HTTP/1.0", b"Connection: keep-alive"),
        },
    ),
    *closed(
        "9112 6.3: no length, no body", {"`HTTP/1.0` with a body of no length": post(version=b"HTTP/1.0") + BODY}, 400
    ),
    *closed(
        "9112 9.6: the last request",
        {
            "`Connection: close`": get(b"Connection: close"),
            "`Connection: keep-alive, close`": get(b"Connection: keep-alive, close"),
        },
    ),
    *closed(
        "9110 7.8: no protocol is changed, and bytes after the request may be another protocol's",
        {
            "an upgrade to HTTP/2": get(
                b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"
            ),
            "an upgrade to WebSocket": get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
            "an upgrade of a call": sized(b" N", b"Connection: Upgrade", b"Upgrade: h2c"),
            "an upgrade of a call in chunks": coded(b" chunked\r\nConnection: Upgrade\r\nUpgrade: h2c"),
        },
    ),
    *served(
        "9110 7.8: nothing is asked for",
        {
            "`Upgrade` without `Connection`": get(b"Upgrade: h2c"),
            "`Connection: Upgrade` without `Upgrade`": get(b"Connection: Upgrade"),
        },
    ),
    *served(
        "9110 7.6.1: it is for proxies", {"`Connection: Content-Length`": sized(b" N", b"Connection: Content-Length")}
    ),
    *served(
        "9110 10.1.1: the client need not wait",
        {
            "`Expect: 100-continue` and the body": sized(b" N", b"Expect: 100-continue"),
            "`Expect: 100-Continue` and the body": sized(b" N", b"Expect: 100-Continue"),
        },
    ),
    *closed(
        "9110 10.1.1: ignored in HTTP/1.0",
        {"`Expect: 100-continue` in HTTP/1.0": sized(b" N", b"Expect: 100-continue", version=b"HTTP/1.0")},
    ),
    *refused(
        "9110 10.1.1: `100-continue` can be met, and nothing else",
        {
            "`Expect: 200-ok`": sized(b" N", b"Expect: 200-ok"),
            "`Expect: y 100-continue`": sized(b" N", b"Expect: y 100-continue"),
            "`Expect: 100-continue, x`": sized(b" N", b"Expect: 100-continue, x"),
        },
        417,
    ),
    *closed(
        "9112 9.3.2: requests before the malformed one are answered",
        {
            "a request, then a malformed one": get() + get(b"X A: b"),
            "a call, then a malformed one": sized(b" N") + sized(b" +N"),
            "chunks, then a malformed request": chunks() + get(b"X A: b"),
        },
        200,
        400,
    ),
    *closed(
        "9112 9.3.2: requests before the malformed one are answered",
        {"two requests, then no HTTP": get() + get() + b"hello\r\n\r\n"},
        200,
        200,
        400,
    ),
)
MESSAGES = {
    "Request lines": REQUEST_LINES,
    "Targets and hosts": TARGETS,
    "Header fields": FIELDS,
    "Lengths": LENGTHS,
    "Transfer codings": CODINGS,
    "Chunks": CHUNKS,
    "Trailers": TRAILERS,
    "Connections": CONNECTIONS,
}
"""By the parts of the page that they are in."""
