"""Slots that several processes share: how many there are together, and what is left of a process that was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.calls.places import Full, Holder
from dragoman.workers.folder import private_folder, remove_if_unused
from dragoman.workers.slot_files import SlotFiles

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@contextmanager
def another(folder: Path, name: str, wanted: int, holder: Holder | None = None) -> Iterator[int]:
    """A process that takes slots, as many as it gets of ten; how many those are. It is killed at the end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            slots = SlotFiles(folder)
            taken = [slots.take(name, 10, holder) for _ in range(wanted)]
            os.write(writing, bytes([sum(not isinstance(each, Full) for each in taken)]))
            signal.pause()
        finally:
            os._exit(1)
    try:
        yield os.read(reading, 1)[0]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def taken(slots: SlotFiles, name: str = "a") -> int:
    """How many slots can be taken, and are."""
    count = 0
    while not isinstance(slots.take(name, 10), Full):
        count += 1
    return count


@pytest.mark.requirement("MC-CAP-04")
def test_all_processes_together_have_the_slots_and_a_killed_one_gives_its_part_back(tmp_path: Path) -> None:
    slots = SlotFiles(tmp_path)
    with another(tmp_path, "a", 4) as first, another(tmp_path, "a", 10) as second:
        assert (first, second, slots.take("a", 10)) == (4, 6, Full(10))
        assert taken(slots, "b") == 10
    assert taken(slots) == 10
    with another(tmp_path, "a", 1) as third:
        assert third == 0


def test_a_tenant_has_its_share_of_the_slots_of_all_processes(tmp_path: Path) -> None:
    slots, one, other = SlotFiles(tmp_path), Holder("acme", "k1"), Holder("acme", "k2")
    with another(tmp_path, "a", 5, one) as theirs:
        assert theirs == 5
        mine = [slots.take("a", 10, one) for _ in range(5)]
        assert [isinstance(each, Full) for each in mine] == [False, False, True, True, True]
        assert mine[-1] == Full(7, " of this caller")
        assert not isinstance(slots.take("a", 10, other), Full)
        assert slots.take("a", 10, other) == Full(8, " of this tenant")
        with another(tmp_path, "a", 10, Holder("globex")) as globex:
            assert globex == 2
    assert not isinstance(slots.take("a", 10, one), Full)


def test_a_slot_that_was_given_back_can_be_taken_by_others(tmp_path: Path) -> None:
    slots = SlotFiles(tmp_path)
    releases = [slots.take("a", 10) for _ in range(10)]
    release = releases[3]
    assert not isinstance(release, Full)
    release()
    with another(tmp_path, "a", 10) as theirs:
        assert theirs == 1
        release()  # Nobody's slot any more.
        assert slots.take("a", 10) == Full(10)
    slots.close()
    with another(tmp_path, "a", 10) as theirs:
        assert theirs == 10


def test_the_folder_of_workers_is_removed_with_the_files_of_slots() -> None:
    with private_folder() as folder:
        SlotFiles(folder).take("knowledge.query_knowledge", 10)
        left = folder.parent / f"{folder.name}-left"
        left.mkdir()
        for each in folder.iterdir():
            (left / each.name).touch()
        remove_if_unused(left)
        assert not left.exists()
    assert not folder.exists()
