"""Tasks begin in their order, as far as there is room and their caller's share goes."""

from __future__ import annotations

import pytest

from dragoman.access.callers import LOCAL, Caller
from dragoman.calls.settings import LimitsConfig, ResourcesConfig, ToolLimits
from dragoman.errors import NoFreeSlot
from dragoman.tasks.queue import QueuedTask, TaskQueue
from dragoman.tasks.settings import TasksConfig

ADA, BEN = Caller("ada"), Caller("ben")


def queue_of(
    most: int = 2, waiting: int = 4, per_caller: int | None = None, per_tool: dict[str, int] | None = None
) -> TaskQueue:
    limits = LimitsConfig(tools={name: ToolLimits(max_concurrent=count) for name, count in (per_tool or {}).items()})
    resources = ResourcesConfig(max_concurrent_per_caller=per_caller)
    queue = TaskQueue(TasksConfig(max_concurrent=most, max_waiting=waiting), resources, limits)
    queue.is_open = True
    return queue


def task(number: int, caller: Caller = LOCAL, tool: str = "work") -> QueuedTask:
    return QueuedTask.of(tool, caller, number)


def test_task_begins_at_once_while_there_is_room_and_nobody_waits() -> None:
    queue = queue_of(most=1)
    assert queue.may_begin(task(1))
    queue.begun(task(1))
    assert not queue.may_begin(task(2))
    queue.add(task(2))
    queue.ended(task(1))
    assert not queue.may_begin(task(3))  # The second one is before it.
    assert queue.take_next() == [task(2)]


def test_tasks_that_wait_begin_in_their_order_and_each_once() -> None:
    queue = queue_of(most=2, waiting=10)
    for number in (1, 2, 3, 2):
        queue.add(task(number))
    assert queue.take_next() == [task(1), task(2)]
    assert queue.take_next() == []
    queue.ended(task(1))
    assert queue.take_next() == [task(3)]


def test_closed_queue_begins_nothing() -> None:
    queue = queue_of()
    queue.add(task(1))
    queue.is_open = False
    assert (queue.room, queue.take_next(), queue.may_begin(task(2))) == (0, [], False)


def test_caller_beyond_its_share_waits_and_others_pass_by() -> None:
    queue = queue_of(most=4, per_caller=1, waiting=10)
    for number, caller in ((1, ADA), (2, ADA), (3, BEN)):
        queue.add(task(number, caller))
    assert queue.take_next() == [task(1, ADA), task(3, BEN)]
    queue.ended(task(1, ADA))
    assert queue.take_next() == [task(2, ADA)]


def test_callers_that_are_not_told_from_others_have_no_share() -> None:
    queue = queue_of(most=4, per_caller=1, waiting=10)
    for number in (1, 2):
        queue.add(task(number))
    assert queue.take_next() == [task(1), task(2)]


def test_tool_beyond_its_share_waits_and_others_pass_by() -> None:
    queue = queue_of(most=4, per_tool={"heavy": 1}, waiting=10)
    for number, tool in ((1, "heavy"), (2, "heavy"), (3, "work")):
        queue.add(task(number, tool=tool))
    assert queue.take_next() == [task(1, tool="heavy"), task(3)]


def test_queue_that_is_full_refuses_and_places_that_were_kept_count() -> None:
    queue = queue_of(waiting=2)
    queue.add(task(1))
    full = pytest.raises(NoFreeSlot, match="All 2 slots for tasks that wait are taken")
    with queue.about_to_wait(task(0)), full as refused, queue.about_to_wait(task(0)):
        pass
    assert (refused.value.details or {})["setting"] == "tasks.max_waiting"
    with queue.about_to_wait(task(0)):
        pass


def test_one_caller_can_have_half_of_the_queue() -> None:
    queue = queue_of(waiting=4)
    queue.add(task(1, ADA))
    queue.add(task(2, ADA))
    with pytest.raises(NoFreeSlot, match="All 2 slots of this caller"), queue.about_to_wait(task(0, ADA)):
        pass
    with queue.about_to_wait(task(0, BEN)):
        pass


def test_task_that_ends_before_it_begins_leaves_the_queue() -> None:
    queue = queue_of(most=1, waiting=1)
    queue.begun(task(1))
    queue.add(task(2))
    queue.remove(2)
    queue.remove(2)
    with queue.about_to_wait(task(3)):
        pass
    queue.ended(task(1))
    assert queue.take_next() == []


def test_task_that_asks_gives_its_place_away_and_counts_among_those_that_wait() -> None:
    queue = queue_of(most=1, waiting=2)
    for number in (1, 2):
        assert queue.may_begin(task(number))
        queue.begun(task(number))
        queue.rested(task(number))
    assert queue.room == 1
    assert not queue.may_begin(task(3))
    with pytest.raises(NoFreeSlot), queue.about_to_wait(task(3)):
        pass
    queue.gone_on(task(1))
    queue.ended(task(1))
    assert queue.may_begin(task(3))
