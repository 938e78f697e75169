"""HTTP/1.1 messages as bytes: heads and bodies of requests, and heads of answers.

The grammar is RFC 9112's, and what it lets a recipient tolerate is refused with `MessageRefused`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from msgspec import Struct

from dragoman.protocol.headers import by_name

if TYPE_CHECKING:
    from dragoman.edge.asgi import Header, Headers

T = TypeVar("T")

MOST_HEAD_BYTES: Final = 64 * 1024
_LONGEST_LINE = 4096
"""Bytes of a line within a chunked body."""
_MOST_DIGITS = 18
_MOST_REMEMBERED = 32
_LONGEST_REMEMBERED = 256
_MOST_ANSWERS = 1024
_SLASH = ord("/")


class RequestHead(Struct, gc=False):
    """The head of a request. Requests that follow on each other with the same head share it."""

    method: str
    target: bytes
    version: str
    """`1.1` or `1.0`."""
    headers: list[Header]
    """In their order, names in lower case."""
    named: Headers
    """By name; values of the same name are joined."""
    keep_alive: bool
    """Whether another request may follow on this one, unless its trailers say otherwise."""
    expects: bool
    """Whether the client waits to be told to send the body."""
    size: int | None
    """Bytes of the body; None: it comes in chunks."""
    known: Any = None
    """Facts that the application derived from it."""


class AnswerError(RuntimeError):
    """An application answers in a way that cannot be put on the wire."""


class MessageRefused(Exception):
    """The request must not be acted upon; how it is refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"})
_REQUEST_LINE = re.compile(rb"(?!CONNECT )(%b) ([!\"$-~]+) HTTP/(1\.[01])" % _TOKEN)
_FIELD = re.compile(rb"(%b):([^\x00-\x08\x0a-\x1f\x7f]*)" % _TOKEN)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_CODING = re.compile(_TOKEN)
_FIRST_BYTE = re.compile(_TOKEN)
_LONE_LF = re.compile(rb"(?<!\r)\n")


class _Remembered(dict[bytes, T]):
    """Lines of heads as they were understood. A client sends most of its lines again with every request."""

    def __init__(self, understand: Callable[[bytes], T]) -> None:
        super().__init__()
        self._understand = understand

    def __missing__(self, line: bytes) -> T:
        found = self._understand(line)
        if len(line) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[line] = found
        return found


class KnownLines:
    """Reads the heads of one connection."""

    def __init__(self) -> None:
        self._starts = _Remembered(_start_in)
        self._fields = _Remembered(_field_in)

    def read(self, data: bytes) -> RequestHead:
        """A head without the empty line at its end. Raises `MessageRefused`."""
        first, *lines = data.split(b"\r\n")
        method, target, version = self._starts[first]
        fields = self._fields
        headers = [fields[line] for line in lines]
        named = by_name(headers)
        if target[0] != _SLASH:
            _check_target(method, target, [value for name, value in headers if name == b"host"])
        keep_alive = version == "1.1"
        if b"connection" in named:
            options = _options(named[b"connection"])
            keep_alive = keep_alive and b"close" not in options and not (b"upgrade" in options and b"upgrade" in named)
        expects = b"expect" in named and _expects(named[b"expect"], version)
        return RequestHead(method, target, version, headers, named, keep_alive, expects, _size_of_body(version, named))


def _start_in(line: bytes) -> tuple[str, bytes, str]:
    """The method, the target and the version in a request line."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise MessageRefused(400, "The request line is malformed")
    method, target, version = found[1].decode(), found[2], found[3].decode()
    if method not in _METHODS:
        raise MessageRefused(501, "This method is not known")
    return method, target, version


def _field_in(line: bytes) -> Header:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise MessageRefused(400, "A header is malformed")
    name, value = found[1].lower(), found[2]
    if name == b"transfer-encoding" and b"\t" in value:
        raise MessageRefused(400, "Transfer-Encoding is malformed")  # Not all who see it take a tab for a space.
    return name, value.strip(b" \t")


def check_beginning(data: bytes | bytearray, since: int, at: int) -> None:
    """Refuse what begins at `at` and cannot become a head, whatever follows. Up to `since` it was looked at before."""
    if _FIRST_BYTE.match(data, at, at + 1) is None or _LONE_LF.search(data, since, at + MOST_HEAD_BYTES):
        raise MessageRefused(400, "This is not HTTP/1.1")


def _line_at(data: bytes | bytearray, at: int) -> bytes | None:
    """The line that begins at `at`, without its end; None if that is yet to come."""
    end = data.find(b"\n", at, at + _LONGEST_LINE)
    if end < 0:
        if len(data) - at >= _LONGEST_LINE:
            raise MessageRefused(431, f"A line within the body is longer than {_LONGEST_LINE} bytes")
        return None
    line = bytes(data[at:end])
    if not line.endswith(b"\r"):
        raise MessageRefused(400, "A line does not end with CR LF")
    return line[:-1]


def _check_target(method: str, target: bytes, hosts: list[bytes]) -> None:
    """Refuse a target that is not a path, unless it is one at the host that `Host` names."""
    if target == b"*" and method == "OPTIONS":
        return
    # RFC 9112, 3.2.2: the authority in the target counts, and Host has to be the same.
    found = _ABSOLUTE.match(target)
    if found is None or [host.lower() for host in hosts] != [found[1].lower()]:
        raise MessageRefused(400, "The target of the request is not at the host that Host names")


def _size_of_body(version: str, named: Headers) -> int | None:
    """Bytes of the body; None: it comes in chunks."""
    coding, length = named.get(b"transfer-encoding"), named.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise MessageRefused(400, "Content-Length and Transfer-Encoding are there together")
        _check_codings(coding.lower(), version)
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _MOST_DIGITS:
        raise MessageRefused(400, "Content-Length is malformed")
    return int(length)


def _check_codings(codings: bytes, version: str) -> None:
    *before, last = [each.strip(b" \t") for each in codings.split(b",")]
    if version != "1.1" or b"chunked" in before or not all(map(_CODING.fullmatch, (*before, last))):
        raise MessageRefused(400, "Transfer-Encoding is malformed")
    if before or last != b"chunked":
        raise MessageRefused(501, "Of transfer codings only chunked is understood")


def _expects(value: bytes, version: str) -> bool:
    """Whether the client waits to be told to send its body."""
    if value.lower() != b"100-continue":
        raise MessageRefused(417, "Of expectations only 100-continue is understood")
    return version == "1.1"


def _options(connection: bytes) -> list[bytes]:
    """The options that a value of `Connection` lists."""
    return [each.strip(b" \t") for each in connection.lower().split(b",")]


class SizedBody:
    """A body whose length its head says."""

    says_close = False
    refusal = None

    def __init__(self, size: int) -> None:
        self._left = size
        self.is_done = not size

    def read(self, data: bytes | bytearray, at: int) -> tuple[bytes, int]:
        """As much of the body as begins at `at`, and where it ends."""
        part = bytes(data[at : at + self._left])
        self._left -= len(part)
        self.is_done = not self._left
        return part, at + len(part)


class ChunkedBody:
    """A body that comes in chunks."""

    is_done = False
    says_close = False
    """Whether a trailer says that the connection ends with the request."""
    refusal: tuple[int, str] | None = None
    """The status and the reason, for a fault in the bytes behind the parts that were read."""

    def __init__(self) -> None:
        self._left = 0
        self._in: Literal["size", "data", "end of data", "trailers"] = "size"
        self._beside = 0

    def read(self, data: bytes | bytearray, at: int) -> tuple[bytes, int]:
        """As much of the body as begins at `at`, and where it ends."""
        parts: list[bytes] = []
        try:
            while at < len(data) and not self.is_done and self.refusal is None:
                if self._in == "data":
                    parts.append(bytes(data[at : at + self._left]))
                    at += len(parts[-1])
                    self._left -= len(parts[-1])
                    if not self._left:
                        self._in = "end of data"
                else:
                    line = _line_at(data, at)
                    if line is None:
                        break
                    at += len(line) + 2
                    self._take(line)
        except MessageRefused as refusal:
            self.refusal = (refusal.status, refusal.reason)
        return b"".join(parts), at

    def _take(self, line: bytes) -> None:
        """Understand a line that is not data."""
        if self._in == "end of data":
            if line:
                raise MessageRefused(400, "A chunk is not as long as it says")
            self._in = "size"
        elif self._in == "size":
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise MessageRefused(400, "The size of a chunk is malformed")
            self._left = int(found[1], 16)
            self._in = "data" if self._left else "trailers"
            self._count(len(line) - len(found[1]))
        elif not line:
            self.is_done = True
        else:
            name, value = _field_in(line)
            if name in (b"content-length", b"transfer-encoding"):
                raise MessageRefused(400, "A trailer says how long the body is")
            self.says_close = self.says_close or (name == b"connection" and b"close" in _options(value))
            self._count(len(line))

    def _count(self, size: int) -> None:
        self._beside += size
        if self._beside > MOST_HEAD_BYTES:
            raise MessageRefused(431, f"What is beside the body is longer than {MOST_HEAD_BYTES} bytes")


class AnswerHeads:
    """Heads of answers as bytes. Most are like some before, which are kept."""

    def __init__(self) -> None:
        self._date = b""
        self._lines: dict[tuple[int, tuple[Header, ...]], bytes] = {}

    def set_date(self, date: str) -> None:
        """The `Date` of answers from now on."""
        self._date = b"date: %b\r\n" % date.encode()
        self._lines.clear()

    def get(self, status: int, headers: tuple[Header, ...]) -> bytes:
        """The lines of a head but for the last ones. Raises `AnswerError` for headers that are none."""
        lines = self._lines.get((status, headers))
        if lines is None:
            if not 200 <= status <= 599:
                raise AnswerError("An answer has another status than those that end a request")
            if any(_FIELD.fullmatch(b"%b:%b" % header) is None for header in headers):
                raise AnswerError("A header has a name or a value that none can have")
            start = b"HTTP/1.1 %d %b\r\n%b" % (status, _phrase(status), self._date)
            lines = start + b"".join([b"%b: %b\r\n" % header for header in headers])
            if len(lines) <= _LONGEST_REMEMBERED:
                if len(self._lines) >= _MOST_ANSWERS:
                    self._lines.clear()
                self._lines[status, headers] = lines
        return lines


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
