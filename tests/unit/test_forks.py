"""What a forked child does before it goes on, and what it lets go of."""

from __future__ import annotations

import os
import select
import sys

import pytest

from dragoman.forks import drop, in_forked_children

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")


def is_at_its_end(reading: int) -> bool:
    return bool(select.select([reading], [], [], 0)[0]) and os.read(reading, 1) == b""


def forked() -> int:
    """A child that waits to be ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"!")
        while True:
            select.select([], [], [], 60)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return child


def end(child: int) -> None:
    os.kill(child, 9)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_child_lets_go_of_what_is_dropped_and_keeps_the_rest() -> None:
    reading, writing = os.pipe()
    kept, keeping = os.pipe()
    undo = in_forked_children(lambda: drop(writing, -1))
    child = forked()
    try:
        os.close(writing)
        os.close(keeping)
        assert is_at_its_end(reading)
        assert not is_at_its_end(kept)
    finally:
        undo()
        end(child)
        os.close(reading)
        os.close(kept)


@pytest.mark.slow
def test_nothing_is_dropped_any_more_once_it_is_undone() -> None:
    reading, writing = os.pipe()
    in_forked_children(lambda: drop(writing))()
    child = forked()
    try:
        os.close(writing)
        assert not is_at_its_end(reading)
    finally:
        end(child)
        os.close(reading)


@pytest.mark.slow
def test_an_action_that_fails_keeps_no_other_from_running() -> None:
    reading, writing = os.pipe()
    undo = [in_forked_children(lambda: 1 // 0), in_forked_children(lambda: drop(writing))]
    child = forked()
    try:
        os.close(writing)
        assert is_at_its_end(reading)
    finally:
        for each in undo:
            each()
        end(child)
        os.close(reading)


def test_a_descriptor_that_was_dropped_keeps_its_number() -> None:
    reading, writing = os.pipe()
    drop(writing)
    assert is_at_its_end(reading)
    assert not os.get_inheritable(writing)
    os.write(writing, b"to nobody")
    os.close(reading)
    os.close(writing)
