"""Lines come out whole whatever the chunks, and one that is too long costs neither memory nor the next line."""

from __future__ import annotations

import tracemalloc

import pytest

from dragoman.protocol.framing import Line, LineBuffer, Oversized


def test_lines_come_without_their_ends() -> None:
    assert LineBuffer(10).feed(b"a\nbc\n\n") == [b"a", b"bc", b""]


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = LineBuffer(10)
    assert [lines.feed(b"ab"), lines.feed(b""), lines.feed(b"c"), lines.feed(b"\nd")] == [[], [], [], [b"abc"]]
    assert lines.feed(b"\n") == [b"d"]


def test_a_line_fed_byte_by_byte_is_the_same_line() -> None:
    lines = LineBuffer(10)
    fed = [line for byte in b"ab\r\n\ncd\n" for line in lines.feed(bytes([byte]))]
    assert fed == [b"ab\r", b"", b"cd"]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"12345\n"], [b"12345"]),
        ([b"123", b"45", b"\n"], [b"12345"]),
        ([b"1\n2345\n6\n"], [b"1", b"2345", b"6"]),
        ([b"123456\n"], [Oversized.LINE]),
        ([b"123", b"456", b"\n"], [Oversized.LINE]),
        ([b"1\n234567\n8\n"], [b"1", Oversized.LINE, b"8"]),
        ([b"1234567", b"89", b"0\n12345\n"], [Oversized.LINE, b"12345"]),
        ([b"12345", b"\n", b"12345", b"6\n", b"1\n"], [b"12345", Oversized.LINE, b"1"]),
    ],
)
def test_a_line_exactly_at_the_limit_passes_and_one_byte_more_is_dropped(
    chunks: list[bytes], expected: list[Line]
) -> None:
    lines = LineBuffer(5)
    assert [line for chunk in chunks for line in lines.feed(chunk)] == expected


def test_an_oversized_line_is_reported_once_and_before_its_end() -> None:
    lines = LineBuffer(3)
    assert [lines.feed(b"12"), lines.feed(b"34"), lines.feed(b"5" * 100), lines.feed(b"\nok\n")] == [
        [],
        [Oversized.LINE],
        [],
        [b"ok"],
    ]


@pytest.mark.requirement("FND-LIFE-10")
def test_an_endless_line_is_not_kept() -> None:
    lines = LineBuffer(1 << 20)
    tracemalloc.start()
    try:
        for _ in range(32):
            lines.feed(bytes(1 << 20))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 << 20
