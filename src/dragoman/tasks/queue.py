"""Which tasks may begin in this process, and which have to wait: by the room there is, and by the shares of callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from dragoman.access.callers import Caller, is_known
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.errors import NoFreeSlot
from dragoman.tasks.settings import TasksConfig


class QueuedTask(Struct, frozen=True):
    """A task as the queue knows it."""

    tool: str
    principal: str | None
    """None for callers that are not told from others."""
    number: int = 0
    """0 until it is stored."""

    @staticmethod
    def of(tool: str, caller: Caller, number: int = 0) -> QueuedTask:
        return QueuedTask(tool, caller.principal if is_known(caller) else None, number)


class TaskQueue:
    """Counts the tasks that run, and orders those that wait. Does no I/O."""

    def __init__(self, config: TasksConfig, resources: ResourcesConfig, limits: LimitsConfig) -> None:
        self._most = config.max_concurrent
        self._most_waiting = config.max_waiting
        self._per_caller = resources.max_concurrent_per_caller
        self._per_tool = {name: own.max_concurrent for name, own in limits.tools.items()}
        self._waiting: dict[int, QueuedTask] = {}
        self._waiting_of: Counter[str | None] = Counter()
        """By principal, those that wait to begin, are about to be stored as waiting, or wait for answers."""
        self._running_of: Counter[str] = Counter()
        self._running_by_tool: Counter[str] = Counter()
        self.running = 0
        """Tasks that hold a slot, or are about to."""
        self.is_open = False

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    @property
    def room(self) -> int:
        """How many more tasks could begin."""
        return self._most - self.running if self.is_open else 0

    @property
    def reach(self) -> int:
        """How many of the stored tasks to look at: those of a caller or tool beyond its share may come first."""
        has_shares = self._per_caller is not None or any(most is not None for most in self._per_tool.values())
        return 0 if self.room <= 0 else self._most_waiting if has_shares else self.room

    def may_begin(self, task: QueuedTask) -> bool:
        """Whether a new task begins at once: nobody waits before it, and there is room."""
        return not self._waiting and self._fits(task) and self._too_many(task) is None

    def begun(self, task: QueuedTask) -> None:
        """A task takes a place among those that run."""
        self._count(task, 1)

    def ended(self, task: QueuedTask) -> None:
        """A task gives its place back."""
        self._count(task, -1)

    def rested(self, task: QueuedTask) -> None:
        """A task that asks its client something gives its place to another, and is one of those that wait."""
        self._count(task, -1)
        self._waiting_of[task.principal] += 1

    def gone_on(self, task: QueuedTask) -> None:
        """It waits no longer, and takes a place, though there may be no room for it."""
        self._leave(task)
        self._count(task, 1)

    @contextmanager
    def about_to_wait(self, task: QueuedTask) -> Iterator[None]:
        """Keep a place in the queue while a task is stored. Raises `NoFreeSlot` when too many wait."""
        if (refusal := self._too_many(task)) is not None:
            raise refusal
        self._waiting_of[task.principal] += 1
        try:
            yield
        finally:
            self._leave(task)

    def add(self, task: QueuedTask) -> None:
        """A stored task waits, behind the others."""
        if task.number not in self._waiting:
            self._waiting[task.number] = task
            self._waiting_of[task.principal] += 1

    def remove(self, number: int) -> None:
        """A task that may wait here has ended, or another process has begun it."""
        task = self._waiting.pop(number, None)
        if task is not None:
            self._leave(task)

    def take_next(self) -> list[QueuedTask]:
        """The tasks that can begin now, in their order. They have their places already."""
        chosen: list[QueuedTask] = []
        for task in self._waiting.values():
            if self.room <= 0:
                break
            if self._fits(task):
                self.begun(task)
                chosen.append(task)
        for task in chosen:
            del self._waiting[task.number]
            self._leave(task)
        return chosen

    def _too_many(self, task: QueuedTask) -> NoFreeSlot | None:
        """The refusal of a new task when too many wait."""
        if self._waiting_of.total() >= self._most_waiting:
            return NoFreeSlot(self._most_waiting, " for tasks that wait", "tasks.max_waiting")
        share = max(1, self._most_waiting // 2)
        if task.principal is not None and self._waiting_of[task.principal] >= share:
            return NoFreeSlot(share, " of this caller for tasks that wait", "tasks.max_waiting")
        return None

    def _fits(self, task: QueuedTask) -> bool:
        most = self._per_tool.get(task.tool)
        if most is not None and self._running_by_tool[task.tool] >= most:
            return False
        if task.principal is not None and self._per_caller is not None:
            return self.room > 0 and self._running_of[task.principal] < self._per_caller
        return self.room > 0

    def _leave(self, task: QueuedTask) -> None:
        self._waiting_of[task.principal] -= 1
        if not self._waiting_of[task.principal]:
            del self._waiting_of[task.principal]

    def _count(self, task: QueuedTask, more: int) -> None:
        self.running += more
        self._running_by_tool[task.tool] += more
        if not self._running_by_tool[task.tool]:
            del self._running_by_tool[task.tool]
        if task.principal is not None:
            self._running_of[task.principal] += more
            if not self._running_of[task.principal]:
                del self._running_of[task.principal]
