"""The order in which an agent handles its messages."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.agents import mailbox as mailboxes
from dragoman.agents.mailbox import Mailbox


class Item(NamedTuple):
    source: str | None
    number: int


def taken(mailbox: Mailbox[Item]) -> list[int]:
    numbers = []
    while mailbox.has_ready:
        numbers.append(mailbox.take().number)
    return numbers


@pytest.mark.requirement("FND-AGENT-02")
def test_messages_come_out_in_the_order_in_which_they_came() -> None:
    mailbox: Mailbox[Item] = Mailbox(3)
    for number in range(3):
        assert not mailbox.is_full
        mailbox.add(Item(None, number))
    assert mailbox.is_full
    assert len(mailbox) == 3
    assert taken(mailbox) == [0, 1, 2]


@pytest.mark.requirement("FND-AGENT-02")
def test_a_held_message_keeps_back_the_later_ones_of_its_source_only() -> None:
    mailbox: Mailbox[Item] = Mailbox(10)
    for number, source in enumerate(["y", "x", "y", None]):
        mailbox.add(Item(source, number))
    mailbox.hold(Item("x", 99))
    mailbox.add(Item("x", 4))
    mailbox.add(Item("y", 5))
    assert len(mailbox) == 7
    assert taken(mailbox) == [0, 2, 3, 5]
    mailbox.add(Item("y", 6))
    mailbox.let_go("x")
    assert taken(mailbox) == [99, 1, 4, 6]
    mailbox.let_go("x")
    assert len(mailbox) == 0


def test_each_sequence_number_is_known_once_it_was_queued() -> None:
    mailbox: Mailbox[Item] = Mailbox(10)
    assert mailbox.is_next("x", 1)
    assert not mailbox.is_next("x", 2)
    mailbox.note("x", 3)
    assert mailbox.is_known("x", 3)
    assert not mailbox.is_known("x", 4)
    assert mailbox.is_next("x", 4)
    assert not mailbox.is_known("y", 1)
    mailbox.clear()
    assert not mailbox.is_known("x", 1)


def test_of_many_sources_those_are_forgotten_that_were_not_heard_of_for_the_longest_and_wait_for_nothing() -> None:
    mailbox: Mailbox[Item] = Mailbox(1)
    mailbox.note("held", 1)
    mailbox.hold(Item("held", 1))
    mailbox.note("old", 1)
    mailbox.note("again", 1)
    mailbox.note("old2", 1)
    mailbox.note("again", 2)
    for number in range(mailboxes._MOST_SOURCES - 1):
        mailbox.note(f"s{number}", 1)
    assert [mailbox.is_known(source, 1) for source in ("held", "old", "old2", "again")] == [True, False, False, True]


def test_everything_is_given_out_when_it_is_cleared() -> None:
    mailbox: Mailbox[Item] = Mailbox(10)
    mailbox.add(Item("x", 1))
    mailbox.hold(Item("y", 2))
    assert [each.number for each in mailbox.clear()] == [1, 2]
    assert (len(mailbox), mailbox.has_ready) == (0, False)


@given(st.lists(st.sampled_from(["add x", "add y", "hold x", "go x", "take"]), max_size=40))
def test_the_messages_of_a_source_never_pass_each_other(steps: list[str]) -> None:
    mailbox: Mailbox[Item] = Mailbox(100)
    order: dict[str | None, list[int]] = {"x": [], "y": []}
    is_held, last = False, None
    for number, step in enumerate(steps):
        what, _, source = step.partition(" ")
        if what == "add":
            mailbox.add(Item(source, number))
        elif what == "take" and mailbox.has_ready:
            last = mailbox.take()
            order[last.source].append(last.number)
        elif what == "hold" and last is not None and last.source == "x" and not is_held:
            order["x"].pop()  # It has failed, and is tried again.
            mailbox.hold(last)
            is_held, last = True, None
        elif what == "go":
            mailbox.let_go("x")
            is_held = False
    mailbox.let_go("x")
    for item in iter(lambda: mailbox.take() if mailbox.has_ready else None, None):
        order[item.source].append(item.number)
    for source, numbers in order.items():
        assert numbers == [number for number, step in enumerate(steps) if step == f"add {source}"]
