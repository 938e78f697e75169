"""The HTTP connection without a connection: what bytes mean, and how answers are put on the wire."""

from __future__ import annotations

import pytest

from dragoman.edge.http.connection import (
    TRANSITIONS,
    BadRequest,
    BodyEnd,
    BodyPart,
    ClientLeft,
    ConnectionEvent,
    HttpConnection,
    HttpMove,
    HttpState,
    RequestBegun,
    WholeRequest,
)
from dragoman.edge.http.messages import MOST_HEAD_BYTES, AnswerError, AnswerHeads

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = ((b"content-type", b"text/plain"),)


def connection(data: bytes = b"") -> HttpConnection:
    made = HttpConnection(AnswerHeads())
    made.receive(data)
    return made


def events(asked: HttpConnection) -> list[ConnectionEvent]:
    """All that come before an answer is needed, or more bytes are."""
    return list(iter(asked.next_event, None))


def refusal(data: bytes) -> tuple[int, str]:
    *_, last = events(connection(data))
    assert isinstance(last, BadRequest), last
    return last.status, last.reason


def whole(data: bytes) -> WholeRequest:
    (only,) = events(connection(data))
    assert isinstance(only, WholeRequest), only
    return only


def test_a_request_that_comes_at_once_is_one_event() -> None:
    asked = whole(POST)
    assert (asked.head.method, asked.head.target, asked.head.version) == ("POST", b"/mcp", "1.1")
    assert (asked.head.headers, asked.body) == ([(b"host", b"localhost"), (b"content-length", b"5")], b"hello")
    assert asked.head.keep_alive


def test_a_body_that_comes_later_is_given_in_parts() -> None:
    asked = connection(POST[:-3])
    assert [type(each) for each in events(asked)] == [RequestBegun, BodyPart]
    asked.receive(POST[-3:] + GET)
    assert events(asked) == [BodyPart(b"llo"), BodyEnd()]
    assert asked.ahead == len(GET)


def test_chunks_are_joined_and_what_is_beside_them_is_dropped() -> None:
    body = b"5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nX-Checksum: 1\r\n\r\n"
    assert whole(CHUNKED + body).body == b"hello world"


def test_what_follows_on_a_request_waits_until_that_is_answered() -> None:
    asked = connection(POST + GET + GET)
    assert [type(each) for each in events(asked)] == [WholeRequest]
    for _ in range(2):
        asked.answer(200, (), b"")
        (following,) = events(asked)
        assert isinstance(following, WholeRequest)
        assert following.head.target == b"/health"
    asked.answer(200, (), b"")
    assert (events(asked), asked.state, asked.ahead) == ([], HttpState.IDLE, 0)


def test_a_head_is_understood_anew_unless_every_byte_of_it_comes_again() -> None:
    longer = POST.replace(b": 5", b": 7") + b"!!"
    asked = connection(POST + POST + longer + GET + GET + POST)
    bodies = []
    for _ in range(6):
        (request,) = events(asked)
        assert isinstance(request, WholeRequest)
        bodies.append((request.head.method, request.body))
        asked.answer(200, PLAIN, b"x")
    hello, nothing = ("POST", b"hello"), ("GET", b"")
    assert bodies == [hello, hello, ("POST", b"hello!!"), nothing, nothing, hello]


def test_a_whole_request_with_the_same_head_again_is_taken_at_once() -> None:
    asked = connection(POST)
    assert asked.receive_again(POST) is None, "The one before is not even read"
    (first,) = events(asked)
    assert asked.receive_again(POST) is None, "The one before is not answered"
    asked.answer(200, (), b"")
    for other in (b"", POST[:-1], POST + GET, GET, b"\r\n" + POST):
        assert asked.receive_again(other) is None
    assert asked.receive_again(POST.replace(b"hello", b"world")) == b"world"
    assert isinstance(first, WholeRequest)
    assert asked.head is first.head
    assert (asked.state, asked.ahead, events(asked)) == (HttpState.WHOLE, 0, [])
    asked.answer(200, (), b"")
    asked.receive(b"\r\n")
    assert events(asked) == []
    assert asked.receive_again(POST) is None, "There are empty lines before it"


@pytest.mark.parametrize("data", [b"", CHUNKED, CHUNKED + b"0\r\n\r\n", b"x" * 5000])
def test_nothing_is_taken_for_a_request_like_the_one_before_when_there_is_none(data: bytes) -> None:
    asked = connection(CHUNKED + b"0\r\n\r\n")
    events(asked)
    asked.answer(200, (), b"")
    assert asked.receive_again(data) is None
    assert connection().receive_again(data) is None


def test_empty_lines_before_a_request_mean_nothing() -> None:
    assert whole(b"\r\n\r\n" + GET).head.target == b"/health"
    asked = connection(b"\r\n\r")
    assert (events(asked), asked.state) == ([], HttpState.IDLE)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Keep-Alive\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: x-close\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: x, Close\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: x\r\nConnection: close\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_a_request_says_whether_another_may_follow(head: bytes, keeps: bool) -> None:
    asked = connection(head + b"Host: localhost\r\n\r\n" + GET)
    (request,) = events(asked)
    assert isinstance(request, WholeRequest)
    assert request.head.keep_alive is keeps
    said = asked.answer(200, PLAIN, b"x")
    assert (b"connection: close\r\n" not in said) is keeps
    assert (asked.state is HttpState.CLOSED) is not keeps
    assert [type(each) for each in events(asked)] == ([WholeRequest] if keeps else [])


def test_a_trailer_can_say_that_no_other_request_follows() -> None:
    asked = connection(CHUNKED + b"0\r\n\r\n" + CHUNKED + b"0\r\nConnection: close\r\n\r\n")
    for is_last in (False, True):  # The same head comes twice, and only once with that trailer.
        assert [type(each) for each in events(asked)] == [WholeRequest]
        assert (b"connection: close\r\n" in asked.answer(200, PLAIN, b"x")) is is_last


@pytest.mark.parametrize("trailer", [b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Bad Name: x", b" folded"])
def test_a_trailer_says_nothing_about_the_body_and_is_a_header(trailer: bytes) -> None:
    assert refusal(CHUNKED + b"0\r\n" + trailer + b"\r\n\r\n")[0] == 400


def test_lines_are_remembered_up_to_a_number_and_a_length() -> None:
    asked = connection()
    for number in range(200):
        asked.receive(b"GET /%d HTTP/1.1\r\nHost: x\r\nX-%d: 1\r\nX-Long: %b\r\n\r\n" % (number, number, b"x" * 300))
        assert len(events(asked)) == 1
        asked.answer(200, PLAIN, b"")
    for known in (asked._lines._starts, asked._lines._fields):
        assert 0 < len(known) <= 32
        assert max(map(len, known)) <= 256


def test_heads_of_answers_are_remembered_up_to_a_number_and_a_length() -> None:
    heads = AnswerHeads()
    for number in range(2000):
        heads.get(200, ((b"x-number", b"%d" % number),))
        heads.get(200, ((b"x-number", b"%d" % number + b"x" * 300),))
    assert 0 < len(heads._lines) <= 1024
    assert max(map(len, heads._lines.values())) <= 256


@pytest.mark.parametrize(("value", "status"), [(b"100-Continue", None), (b"200-ok", 417)])
def test_only_one_expectation_is_understood(value: bytes, status: int | None) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: %b\r\nContent-Length: 1\r\n\r\n" % value
    if status is None:
        (begun,) = events(connection(head))
        assert isinstance(begun, RequestBegun)
        assert begun.head.expects
    else:
        assert refusal(head)[0] == status


def test_after_a_refusal_nothing_more_is_read_or_kept() -> None:
    asked = connection(b"GET / HTTP/3.0\r\n\r\n" + GET)
    assert [type(each) for each in events(asked)] == [BadRequest]
    asked.receive(GET)
    assert (events(asked), asked.ahead, asked.state) == ([], 0, HttpState.REFUSED)
    assert asked.refuse(505, PLAIN, b"no").endswith(b"content-length: 2\r\nconnection: close\r\n\r\nno")
    asked.receive(GET)
    assert (events(asked), asked.ahead, asked.refuse(505, PLAIN, b"no")) == ([], 0, b"")


@pytest.mark.parametrize("size", [MOST_HEAD_BYTES, MOST_HEAD_BYTES + 1])
def test_a_head_has_at_most_its_bytes(size: int) -> None:
    start, end = b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: ", b"\r\n\r\n"
    head = start + b"a" * (size - len(start) - len(end)) + end
    if size == MOST_HEAD_BYTES:
        assert len(whole(head).head.headers) == 2
    else:
        assert refusal(head)[0] == refusal(head[:MOST_HEAD_BYTES])[0] == 431
        assert events(connection(head[: MOST_HEAD_BYTES - 1])) == []


@pytest.mark.parametrize("data", [b"1;" + b"x" * 4096, b"0\r\nX: " + b"x" * 4096])
def test_a_line_within_a_body_has_at_most_its_bytes_before_its_end_comes(data: bytes) -> None:
    assert refusal(CHUNKED + data)[0] == 431


@pytest.mark.parametrize("beside", [b"1;" + b"x" * 3000 + b"\r\na\r\n", b"0\r\n" + b"x-a: b\r\n" * 12_000])
def test_what_is_beside_a_body_is_bounded(beside: bytes) -> None:
    assert refusal(CHUNKED + beside * 30)[0] == 431


def test_a_client_that_ends_in_the_middle_of_a_request_is_told_so_and_any_other_just_leaves() -> None:
    for data, expected in (
        (b"", ClientLeft()),
        (b"\r", ClientLeft()),
        (GET[:5], BadRequest(400, "The request has no end")),
        (POST[:-1], BadRequest(400, "The request has no end")),
    ):
        asked = connection(data)
        asked.end()
        assert events(asked)[-1] == expected


def test_requests_that_came_before_the_end_are_answered_and_half_a_request_after_them_is_not() -> None:
    asked = connection(POST + GET + POST[:10])
    assert len(events(asked)) == 1
    asked.end()
    assert b"connection: close" not in asked.answer(200, (), b"")
    assert [type(each) for each in events(asked)] == [WholeRequest]
    asked.answer(200, (), b"")
    assert (events(asked), asked.state) == ([ClientLeft()], HttpState.CLOSED)


def test_half_a_request_after_an_answer_that_has_begun_is_not_told_so_either() -> None:
    asked = connection(POST + POST[:10])
    events(asked)
    asked.begin_answer(200, [])
    asked.end()
    asked.continue_answer(b"", more=False)
    assert events(asked) == [ClientLeft()]


def test_the_last_of_the_requests_that_came_before_the_end_is_told_that_it_is_the_last() -> None:
    asked = connection(POST + GET)
    events(asked)
    asked.end()
    assert b"connection: close" not in asked.answer(200, (), b"")
    events(asked)
    assert b"connection: close" in asked.answer(200, (), b"")
    assert asked.state is HttpState.CLOSED


def test_a_connection_that_finishes_answers_what_it_has_read() -> None:
    asked = connection(POST + GET)
    events(asked)
    asked.is_finishing = True
    assert b"connection: close" not in asked.answer(200, (), b"")
    events(asked)
    assert b"connection: close" in asked.answer(200, (), b"")


def test_the_rest_of_a_body_is_dropped_after_the_answer() -> None:
    asked = connection(POST[:-3])
    assert len(events(asked)) == 2
    asked.answer(404, PLAIN, b"x")
    assert asked.state is HttpState.BODY_ANSWERED
    asked.receive(POST[-3:] + GET)
    assert [type(each) for each in events(asked)] == [WholeRequest]


def test_an_answer_before_any_of_the_body_is_looked_at_leaves_nothing_unread() -> None:
    asked = connection(POST[:-3])
    assert isinstance(asked.next_event(), RequestBegun)
    asked.answer(404, PLAIN, b"x")
    asked.receive(POST[-3:] + GET)
    assert [type(each) for each in events(asked)] == [WholeRequest]


@pytest.mark.parametrize("cut", [None, 100_000])
def test_nothing_is_kept_of_a_request_that_was_read(cut: int | None) -> None:
    request = POST.replace(b"5\r\n\r\nhello", b"200000\r\n\r\n" + b"x" * 200_000)
    asked = connection(request[:cut])
    if cut is not None:
        assert len(events(asked)) == 2
        asked.receive(request[cut:])
    while not isinstance(asked.next_event(), WholeRequest | BodyEnd):
        pass
    assert len(asked._data) == 0


@pytest.mark.parametrize(
    ("asked", "status", "headers", "sent"),
    [
        (GET, 200, [(b"Content-Length", b"5")], b"content-length: 5\r\n\r\nhello"),
        (GET, 200, [], b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        (GET, 200, [(b"connection", b"close"), (b"content-length", b"5")], b"connection: close\r\n\r\nhello"),
        (GET, 204, [], b"204 No Content\r\n\r\n"),
        (GET.replace(b"GET", b"HEAD"), 200, [(b"content-length", b"5")], b"content-length: 5\r\n\r\n"),
        (GET.replace(b"GET", b"HEAD"), 200, [], b"200 OK\r\n\r\n"),
        (GET.replace(b"1.1", b"1.0"), 200, [], b"200 OK\r\nconnection: close\r\n\r\nhello"),
        (GET.replace(b"1.1", b"1.0"), 200, [(b"content-length", b"5")], b"connection: close\r\n\r\nhello"),
    ],
)
def test_an_answer_in_parts_has_an_end_that_its_client_can_see(
    asked: bytes, status: int, headers: list[tuple[bytes, bytes]], sent: bytes
) -> None:
    made = connection(asked)
    assert len(events(made)) == 1
    said = made.begin_answer(status, headers)
    said += made.continue_answer(b"he", more=True) + made.continue_answer(b"llo", more=False)
    assert said.endswith(sent)
    assert (made.state is HttpState.CLOSED) == (b"connection: close" in said)


def test_an_answer_says_once_how_it_is_sent_whatever_the_application_says() -> None:
    made = connection(GET)
    events(made)
    said = made.begin_answer(200, [(b"Transfer-Encoding", b"chunked"), (b"Connection", b"keep-alive")])
    said += made.continue_answer(b"", more=False)
    assert (said.count(b"transfer-encoding: chunked\r\n"), b"connection:" in said) == (1, False)


def test_the_head_of_an_answer_of_known_length_waits_for_its_body() -> None:
    made = connection(GET)
    events(made)
    assert made.begin_answer(200, [(b"content-length", b"2")]) == b""
    assert made.continue_answer(b"hi", more=False).endswith(b"\r\n\r\nhi")


@pytest.mark.parametrize(
    ("status", "lengths"),
    [
        (200, [b""]),
        (200, [b"many"]),
        (200, [b"-1"]),
        (200, [b"1_0"]),
        (200, [b"1", b"2"]),
        (101, []),
        (103, []),
        (99, []),
    ],
)
def test_an_answer_that_has_no_end_is_refused_and_leaves_room_for_another(status: int, lengths: list[bytes]) -> None:
    made = connection(GET)
    events(made)
    with pytest.raises(AnswerError):
        made.begin_answer(status, [(b"content-length", length) for length in lengths])
    assert b" 500 " in made.answer(500, PLAIN, b"")


@pytest.mark.parametrize("header", [(b"x\r\ny", b"1"), (b"x", b"1\r\ny: 2"), (b"", b"1"), (b"x", b"\x00")])
def test_a_header_that_is_none_is_refused_and_leaves_room_for_another_answer(header: tuple[bytes, bytes]) -> None:
    made = connection(GET)
    events(made)
    for answer in (lambda: made.answer(200, (header,), b""), lambda: made.begin_answer(200, [header])):
        with pytest.raises(AnswerError):
            answer()
    assert b" 500 " in made.answer(500, PLAIN, b"")


def test_an_answer_without_a_request_and_one_of_another_length_are_errors() -> None:
    made = connection(GET)
    with pytest.raises(AnswerError):
        made.answer(200, (), b"")
    events(made)
    with pytest.raises(AnswerError):
        made.continue_answer(b"", more=False)
    made.begin_answer(200, [(b"content-length", b"2")])
    for data, more in ((b"x", False), (b"xx", True)):
        with pytest.raises(AnswerError):
            made.continue_answer(data, more=more)


def test_a_refusal_is_not_sent_into_an_answer() -> None:
    made = connection(POST[:-1])
    events(made)
    made.begin_answer(200, [])
    assert (made.refuse(408, PLAIN, b"late"), made.state) == (b"", HttpState.CLOSED)


def test_the_date_is_that_of_the_last_look_at_the_clock() -> None:
    heads = AnswerHeads()
    for date in ("Tue, 17 Nov 2026 18:00:00 GMT", "Tue, 17 Nov 2026 18:00:01 GMT"):
        heads.set_date(date)
        assert heads.get(200, PLAIN) == f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: text/plain\r\n".encode()


def test_every_state_can_be_reached_and_left_and_closed_is_final() -> None:
    reached = {target for _, target in ((key, target) for key, target in TRANSITIONS.items())}
    left = {state for state, _ in TRANSITIONS}
    assert reached == set(HttpState)
    assert left == set(HttpState) - {HttpState.CLOSED}
    assert {move for _, move in TRANSITIONS} == set(HttpMove)
