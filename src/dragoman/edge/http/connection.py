"""One client's HTTP/1.1 connection, without the connection: bytes in, events out; answers in, bytes out.

There is no clock and no socket here, and no input makes it raise. The rules:

1. Requests are answered one at a time, in their order. Bytes that follow on a request are kept until it is answered, so
   that requests which are sent ahead are understood and answered as if each had waited for the one before.
2. A head is looked at when it is there as a whole: how its bytes were cut makes no difference. It has at most
   `MOST_HEAD_BYTES`; so have the trailers and the extensions of the chunks of a request together.
3. The grammar is RFC 9112's, and what it lets a recipient tolerate is refused, but for empty lines before a request. So
   is a request that others on the way may have understood differently: one with two lengths, with a length and chunks,
   in another coding than `chunked`, or whose target names another host than `Host` does.
4. After a refusal, after the last answer and after an upgrade that was asked for, nothing more is read.
5. Only the moves in `TRANSITIONS` change the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from dragoman.edge.http.messages import (
    MOST_HEAD_BYTES,
    AnswerError,
    AnswerHeads,
    ChunkedBody,
    KnownLines,
    MessageRefused,
    RequestHead,
    SizedBody,
    check_beginning,
)

if TYPE_CHECKING:
    from dragoman.edge.asgi import Header

_LONGEST_SAME = 2048
"""Bytes of a head that is compared with the next one."""
_CR = ord("\r")


class HttpState(IntEnum):
    """The states of a connection."""

    IDLE = 0
    """Nothing of a request has been read."""
    HEAD = 1
    """A head has begun."""
    BODY = 2
    """A head was read, and its body has not ended."""
    BODY_ANSWERING = 3
    """The answer has begun before the body has ended."""
    BODY_ANSWERED = 4
    """The request was answered; the rest of its body is read and dropped."""
    WHOLE = 5
    """A request was read to its end, and its answer has not begun."""
    WHOLE_ANSWERING = 6
    """A request was read to its end, and its answer has begun."""
    REFUSED = 7
    """The request is refused, and the refusal has not been sent."""
    CLOSED = 8
    """Nothing more is read or sent."""


class HttpMove(IntEnum):
    """The moves that change the state."""

    BEGIN = 0
    """The first byte of a head is read."""
    READ_HEAD = 1
    """The end of a head is read, and its body has not ended."""
    READ = 2
    """The end of a request is read."""
    ANSWER = 3
    """An answer begins."""
    ANSWERED = 4
    """An answer ends, and another request may follow."""
    REFUSE = 5
    """The request cannot be acted upon, or takes too long."""
    CLOSE = 6
    """The last answer or the refusal was sent, or the client has left."""


TRANSITIONS: Final[Mapping[tuple[HttpState, HttpMove], HttpState]] = {
    (HttpState.IDLE, HttpMove.BEGIN): HttpState.HEAD,
    (HttpState.IDLE, HttpMove.READ_HEAD): HttpState.BODY,
    (HttpState.IDLE, HttpMove.READ): HttpState.WHOLE,
    (HttpState.HEAD, HttpMove.READ_HEAD): HttpState.BODY,
    (HttpState.HEAD, HttpMove.READ): HttpState.WHOLE,
    (HttpState.BODY, HttpMove.READ): HttpState.WHOLE,
    (HttpState.BODY, HttpMove.ANSWER): HttpState.BODY_ANSWERING,
    (HttpState.BODY, HttpMove.ANSWERED): HttpState.BODY_ANSWERED,
    (HttpState.BODY_ANSWERING, HttpMove.READ): HttpState.WHOLE_ANSWERING,
    (HttpState.BODY_ANSWERING, HttpMove.ANSWERED): HttpState.BODY_ANSWERED,
    (HttpState.BODY_ANSWERED, HttpMove.READ): HttpState.IDLE,
    (HttpState.WHOLE, HttpMove.ANSWER): HttpState.WHOLE_ANSWERING,
    (HttpState.WHOLE, HttpMove.ANSWERED): HttpState.IDLE,
    (HttpState.WHOLE_ANSWERING, HttpMove.ANSWERED): HttpState.IDLE,
    (HttpState.IDLE, HttpMove.REFUSE): HttpState.REFUSED,
    (HttpState.HEAD, HttpMove.REFUSE): HttpState.REFUSED,
    (HttpState.BODY, HttpMove.REFUSE): HttpState.REFUSED,
    (HttpState.BODY_ANSWERING, HttpMove.REFUSE): HttpState.CLOSED,
    (HttpState.BODY_ANSWERED, HttpMove.REFUSE): HttpState.CLOSED,
    **{(state, HttpMove.CLOSE): HttpState.CLOSED for state in HttpState if state is not HttpState.CLOSED},
}


# Looking members up in their class costs more than what is done with them.
_IDLE, _HEAD, _BODY, _BODY_ANSWERING, _BODY_ANSWERED, _WHOLE, _WHOLE_ANSWERING, _REFUSED, _CLOSED = HttpState
_BEGIN, _READ_HEAD, _READ, _ANSWER, _ANSWERED, _REFUSE, _CLOSE = HttpMove


class WholeRequest(Struct, gc=False):
    """A request that came with all of its body."""

    head: RequestHead
    body: bytes


class RequestBegun(Struct, gc=False):
    """A request whose body is yet to come: any number of `BodyPart`, and then `BodyEnd`."""

    head: RequestHead


class BodyPart(Struct, gc=False):
    """More of a body."""

    data: bytes


class BodyEnd(Struct, gc=False):
    """The end of a body."""


class BadRequest(Struct, gc=False):
    """The server must not act upon these bytes. The connection reads nothing more: refuse the request, and close."""

    status: int
    reason: str


class ClientLeft(Struct, gc=False):
    """The client sends nothing more, and nothing is left to be answered."""


ConnectionEvent: TypeAlias = WholeRequest | RequestBegun | BodyPart | BodyEnd | BadRequest | ClientLeft


class HttpConnection:
    """Give it what was read, and take events until there are none; take events again after each answer."""

    def __init__(self, heads: AnswerHeads) -> None:
        self.state = _IDLE
        self.is_finishing = False
        """Whether the answer to the last request that was read so far is the last one on this connection."""
        self.has_unread = False
        """Whether it was closed before the body of a request had ended."""
        self._heads = heads
        self._data: bytes | bytearray = b""
        self._at = 0  # What comes before that was understood.
        self._searched = 0  # Up to there no end of a head was found.
        self._skipped = 0  # Bytes of empty lines before a head.
        self._lines = KnownLines()
        self.head = _NO_HEAD
        """Of the last request."""
        self._same = b""  # The bytes of that head, if the next one is compared with them.
        self._same_whole = -1  # How many there are with its body, if all are compared and its length is known.
        self._is_kept = False  # Whether another request may follow on this one.
        self._body: SizedBody | ChunkedBody = _NO_BODY
        self._unread = b""
        self._answer = _NO_ANSWER
        self._is_ended: Literal["no", "before a request", "after a request"] = "no"

    @property
    def ahead(self) -> int:
        """How many bytes wait for their turn."""
        return len(self._data) - self._at

    def receive(self, data: bytes) -> None:
        """More was read."""
        if self.state >= _REFUSED:
            return
        if self._at == len(self._data):
            self._data, self._at, self._searched = data, 0, 0
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data[self._at :] + data)
        else:
            del self._data[: self._at]
            self._data += data
        self._searched = max(0, self._searched - self._at)
        self._at = 0

    def receive_again(self, data: bytes) -> bytes | None:
        """The body, if `data` is one whole request with the same head as the one before, as nearly all are.

        None: nothing was done. Otherwise it is as if `receive` had taken it and `next_event` had given it.
        """
        if self.state is not _IDLE or len(data) != self._same_whole or self._data or not data.startswith(self._same):
            return None
        self._move(_READ)
        return data[len(self._same) :]

    def end(self) -> None:
        """The client sends nothing more. Whole requests that came before that are still answered."""
        is_answering = self.state in (_WHOLE, _WHOLE_ANSWERING)
        self._is_ended = "after a request" if is_answering else "before a request"

    def next_event(self) -> ConnectionEvent | None:
        """The next event in the bytes so far; None until more bytes come, or the request is answered."""
        try:
            if self.state <= _HEAD:
                return self._next_head()
            if self.state <= _BODY_ANSWERED:
                return self._next_part()
        except MessageRefused as refusal:
            self._move(_REFUSE)
            self._data, self._at = b"", 0
            return BadRequest(refusal.status, refusal.reason)
        return None

    # Requests.

    def _next_head(self) -> ConnectionEvent | None:
        if self._same and self._data.startswith(self._same, self._at):  # As most requests do that follow on another.
            return self._begin(self.head, self._at + len(self._same))
        if self.state is _IDLE and not self._has_begun():
            return self._at_end()
        data, at = self._data, self._at
        end = data.find(b"\r\n\r\n", max(at, self._searched - 3), at + MOST_HEAD_BYTES)
        if end < 0:
            return self._await_head()
        try:
            self.head = head = self._lines.read(bytes(data[at:end]))
        except MessageRefused:
            check_beginning(data[:end], at, at)  # Cut at other places, it would have been refused for that.
            raise
        self._same = bytes(data[at : end + 4]) if end - at < _LONGEST_SAME else b""
        self._same_whole = len(self._same) + head.size if self._same and head.size is not None else -1
        return self._begin(head, end + 4)

    def _begin(self, head: RequestHead, at: int) -> WholeRequest | RequestBegun:
        """A head was read, whose body begins at `at`."""
        data, size = self._data, head.size
        self._is_kept = head.keep_alive
        self._searched = self._skipped = 0
        if size is not None and size <= len(data) - at:
            self._at = at + size
            self._end_request()
            return WholeRequest(head, bytes(data[at : at + size]))
        body = self._body = ChunkedBody() if size is None else SizedBody(size)
        part, self._at = body.read(data, at)
        if body.is_done:
            self._is_kept = head.keep_alive and not body.says_close
            self._end_request()
            return WholeRequest(head, part)
        self._unread = part
        self._move(_READ_HEAD)
        return RequestBegun(head)

    def _has_begun(self) -> bool:
        """Whether there is a byte of a head, after empty lines."""
        data, at = self._data, self._at
        while data.startswith(b"\r\n", at):
            at += 2
        if at != self._at:
            self._skipped += at - self._at
            if self._skipped > MOST_HEAD_BYTES:
                raise MessageRefused(431, f"There are more than {MOST_HEAD_BYTES} bytes of empty lines")
            self._at = at
        left = len(data) - at
        return left > 1 or (left == 1 and data[at] != _CR)

    def _await_head(self) -> ClientLeft | None:
        data, at = self._data, self._at
        if self.state is _IDLE:
            self._move(_BEGIN)
        check_beginning(data, max(at, self._searched - 1), at)
        self._searched = len(data)
        if len(data) - at >= MOST_HEAD_BYTES:
            raise MessageRefused(431, f"The head is longer than {MOST_HEAD_BYTES} bytes")
        return self._at_end()

    def _next_part(self) -> ConnectionEvent | None:
        part, self._unread = self._unread, b""
        if not part or self.state is _BODY_ANSWERED:
            part, self._at = self._body.read(self._data, self._at)
        if self.state is _BODY_ANSWERED:
            if self._body.is_done:
                self._end_request()
                return self._next_head()
        elif part:
            return BodyPart(part)
        elif self._body.is_done:
            self._is_kept = self.head.keep_alive and not self._body.says_close
            self._end_request()
            return BodyEnd()
        if self._body.refusal is not None:
            raise MessageRefused(*self._body.refusal)
        return self._at_end()

    def _end_request(self) -> None:
        self._move(_READ)
        if self._at == len(self._data):
            self._data, self._at = b"", 0  # A client that asks no more is remembered for long.

    def _at_end(self) -> ClientLeft | None:
        """The event of a client that has ended, after its last byte; None if it has not ended."""
        if self._is_ended == "no":
            return None
        if self._is_ended == "before a request" and self.state in (_HEAD, _BODY):
            raise MessageRefused(400, "The request has no end")
        self.close()
        return ClientLeft()

    # Answers.

    def answer(self, status: int, headers: tuple[Header, ...], body: bytes) -> bytes:
        """A whole answer to a request that is not a HEAD, with a status that has a body. Raises `AnswerError`."""
        self._check_can_answer()
        lines = self._heads.get(status, headers)  # First: what cannot be sent leaves room for another answer.
        if self._is_last():
            self.close()
            return b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (lines, len(body), body)
        self._move(_ANSWERED)
        return b"%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body)

    def begin_answer(self, status: int, headers: Iterable[Header]) -> bytes:
        """The head of an answer whose body is sent later. It is held back where the body follows at once, so that both
        are one packet. Raises `AnswerError`."""
        fields = [(name.lower(), value) for name, value in headers]
        named = dict(fields)
        kept = tuple(field for field in fields if field[0] not in (b"connection", b"transfer-encoding"))
        lines = self._heads.get(status, kept)
        length = named.get(b"content-length")
        if length is not None and (not length.isdigit() or [name for name, _ in fields].count(b"content-length") > 1):
            raise AnswerError("Content-Length is malformed, or there is more than one")
        has_body = self.head.method != "HEAD" and status not in (204, 304)
        is_chunked = has_body and length is None and self.head.version == "1.1"
        says_close = b"close" in named.get(b"connection", b"").lower()
        self._check_can_answer()
        self._move(_ANSWER)
        is_last = self._is_last() or says_close or (has_body and length is None and not is_chunked)
        if is_chunked:
            lines += b"transfer-encoding: chunked\r\n"
        head = lines + (b"connection: close\r\n\r\n" if is_last else b"\r\n")
        left = int(length) if has_body and length is not None else None
        self._answer = _Answer(b"", has_body, is_chunked, is_last, left)
        if length is None:
            return head
        self._answer.head = head
        return b""

    def continue_answer(self, data: bytes, *, more: bool) -> bytes:
        """More of the body of the answer that was begun, or the rest of it. Raises `AnswerError`."""
        answer = self._answer
        if self.state not in (_BODY_ANSWERING, _WHOLE_ANSWERING):
            raise AnswerError("There is no answer that could go on")
        if answer.left is not None:
            answer.left -= len(data)
            if answer.left < 0 or (answer.left and not more):
                raise AnswerError("The body is not as long as Content-Length says")
        if not answer.has_body:
            data = b""
        elif answer.is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"" if more else b"0\r\n\r\n"
        data, answer.head = answer.head + data, b""
        if not more:
            if answer.is_last:
                self.close()
            else:
                self._move(_ANSWERED)
        return data

    def refuse(self, status: int, headers: tuple[Header, ...], body: bytes) -> bytes:
        """The last words on this connection; empty where they would be taken for a part of another answer."""
        if self.state is not _REFUSED and self.state is not _CLOSED:
            self._move(_REFUSE)
        if self.state is _CLOSED:
            return b""
        self.close()
        lines = self._heads.get(status, headers)
        return b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (lines, len(body), body)

    def close(self) -> None:
        """Nothing more is read or sent."""
        if self.state is not _CLOSED:
            self.has_unread = _BODY <= self.state <= _BODY_ANSWERED
            self._move(_CLOSE)
        self._data, self._at = b"", 0

    def _check_can_answer(self) -> None:
        if self.state is not _WHOLE and self.state is not _BODY:
            raise AnswerError("There is no request that could be answered")

    def _is_last(self) -> bool:
        """Whether no other answer follows on the one that begins."""
        if not self._is_kept:
            return True
        return (self.is_finishing or self._is_ended != "no") and self._at == len(self._data)

    def _move(self, move: HttpMove) -> None:
        self.state = TRANSITIONS[self.state, move]


class _Answer(Struct):
    """How an answer that has begun is to go on."""

    head: bytes
    """The bytes of its head that are not sent yet."""
    has_body: bool
    is_chunked: bool
    is_last: bool
    left: int | None
    """How much of the body is missing, where its length was said."""


_NO_HEAD = RequestHead("", b"", "1.1", [], {}, False, False, 0)
_NO_BODY = SizedBody(0)
_NO_ANSWER = _Answer(b"", False, False, False, None)
