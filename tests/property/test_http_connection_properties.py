"""Whatever bytes come, and however they are cut: the HTTP connection understands the same, and never too much."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.edge.http.connection import BadRequest, HttpConnection, HttpState, WholeRequest
from dragoman.edge.http.messages import MOST_HEAD_BYTES, AnswerHeads
from tests.support.cost import work_of
from tests.support.examples import examples
from tests.support.http_requests_in import cut, understood

LINES = [
    b"GET / HTTP/1.1", b"POST /mcp HTTP/1.1", b"POST http://localhost/mcp HTTP/1.1", b"HEAD / HTTP/1.0",
    b"PRI * HTTP/2.0", b"get /\x80 HTTP/1.1", b"GET /", b"", b"\x16\x03\x01",
]  # fmt: skip
FIELDS = [
    b"Host: localhost", b"host:localhost", b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 5, 5",
    b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Connection: close",
    b"Upgrade: h2c", b"Expect: 100-continue", b"Expect: x", b"Bad Name: x", b" folded", b"No-Colon", b"X: a\nb",
    b"X: a\rb",
]  # fmt: skip
BODIES = [
    b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n3\r\nabc\r\n0\r\nX: y\r\nConnection: close\r\n\r\n",
    b"5\r\nhelloX", b"zz\r\n", b"5\nhello", b"0\r\nbad\r\n\r\n", b"0\r\n\r\n" * 3,
]  # fmt: skip


def requests() -> st.SearchStrategy[bytes]:
    """Requests that are right, nearly right, or nothing of the kind."""
    head = st.tuples(st.sampled_from(LINES), st.lists(st.sampled_from(FIELDS), max_size=4))
    good = st.sampled_from(
        [
            b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ]
    )
    made = st.builds(
        lambda head, body: b"\r\n".join((head[0], *head[1], b"", b"")) + body, head, st.sampled_from(BODIES)
    )
    return st.one_of(good, good, made, st.binary(max_size=40))


STREAMS = st.lists(requests(), max_size=5).map(b"".join)


@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=8))
@settings(max_examples=examples(3), deadline=None)
def test_it_makes_no_difference_where_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    assert understood(cut(data, cuts)) == understood([data])
    assert understood(data[index : index + 1] for index in range(len(data))) == understood([data])


@given(st.lists(requests(), max_size=5))
@settings(max_examples=examples(2), deadline=None)
def test_requests_that_are_sent_ahead_are_answered_as_one_by_one(asked: list[bytes]) -> None:
    """Sent together, or each after the answer to the one before: a connection answers at once here, so `asked` one at a
    time is the latter."""
    assert understood([b"".join(asked)]) == understood(asked)


@given(st.lists(requests(), max_size=4), st.lists(st.integers(0, 3), max_size=12))
@settings(max_examples=examples(3), deadline=None)
def test_a_request_like_the_one_before_is_understood_as_any_other(asked: list[bytes], order: list[int]) -> None:
    parts = [asked[place % len(asked)] for place in order] if asked else []
    assert understood(parts, again=True) == understood(parts)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 10_000), max_size=5))
@settings(max_examples=examples(2), deadline=None)
def test_no_bytes_make_it_raise(data: bytes, cuts: list[int]) -> None:
    understood(cut(data, cuts))


@given(STREAMS)
@settings(max_examples=examples(2), deadline=None)
def test_nothing_is_understood_after_an_error(data: bytes) -> None:
    found = understood([data, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
    bad = [index for index, each in enumerate(found) if isinstance(each, BadRequest)]
    assert not bad or bad == [len(found) - 2]


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
DEAR = {
    "a long head": lambda size: [b"GET / HTTP/1.1\r\nX: " + b"a" * size],
    "many headers": lambda size: [b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (size // 4) + b"\r\n"],
    "a head in bytes": lambda size: [b"GET / HTTP/1.1\r\nX: "] + [b"a"] * size,
    "headers in bytes": lambda size: [bytes([each]) for each in b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (size // 4)],
    "empty lines": lambda size: [b"\r\n" * (size // 2)],
    "empty lines in bytes": lambda size: [b"\r", b"\n"] * (size // 2),
    "small chunks": lambda size: [HEAD + b"1\r\na\r\n" * (size // 6)],
    "small chunks in bytes": lambda size: [HEAD, *(bytes([each]) for each in b"1\r\na\r\n" * (size // 6))],
    "long extensions": lambda size: [HEAD, *([b"1;" + b"x" * 900 + b"\r\na\r\n"] * (size // 900))],
    "an extension in bytes": lambda size: [HEAD, b"1;", *([b"x"] * min(size, 4000))],
    "trailers in bytes": lambda size: [HEAD, b"0\r\n", *(bytes([each]) for each in b"a:b\r\n" * (size // 5))],
    "requests that wait": lambda size: [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] * (size // 30),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.slow if each.endswith("in bytes") else ()) for each in DEAR]
)
def test_no_bytes_cost_more_than_a_bound_for_each(kind: str) -> None:
    """Four times as many bytes cost about four times as much, and not sixteen times."""
    small, large = (DEAR[kind](size) for size in (500, 2_000))
    few, many = (work_of(lambda parts=parts: understood(parts, ends=False)) for parts in (small, large))
    times = sum(map(len, large)) / sum(map(len, small))
    assert many.lines <= 1.25 * times * few.lines
    assert many.allocated <= 1.25 * times * few.allocated


@pytest.mark.parametrize("found", [b"\r\n\r\n", b"\n"], ids=["the end of a head", "a lone LF"])
def test_bytes_of_a_head_are_searched_only_once(found: bytes) -> None:
    made = HttpConnection(AnswerHeads())
    for part in (b"GET / HTTP/1.1\r\n", b"X: ", b"aaaaaaaaaaaaaaaa"):
        made.receive(part)
        assert made.next_event() is None
    (kept,) = (each for each in vars(made).values() if isinstance(each, bytearray))
    kept[20 : 20 + len(found)] = found  # A second search of these bytes would find it.
    made.receive(b"a")
    assert made.next_event() is None


@pytest.mark.slow
def test_what_is_kept_of_a_request_that_goes_on_is_bounded() -> None:
    for kind in DEAR.values():
        made = HttpConnection(AnswerHeads())
        for part in kind(300_000):
            made.receive(part)
            while made.next_event() is not None:
                if made.state is HttpState.WHOLE:
                    made.answer(200, (), b"x")
            assert made.ahead <= MOST_HEAD_BYTES


@pytest.mark.slow
def test_what_is_kept_of_the_heads_of_many_requests_is_bounded() -> None:
    made = HttpConnection(AnswerHeads())
    tracemalloc.start()
    try:
        for number in range(2000):
            fields = b"".join(b"%x:\r\n" % each for each in range(number, number + 90))
            made.receive(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (number, fields))
            assert isinstance(made.next_event(), WholeRequest)
            made.answer(200, (), b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
