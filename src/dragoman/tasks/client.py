"""The client of a task, as the tool that runs sees it: it is told nothing, and asked through the task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import msgspec

from dragoman.errors import ClientCannotBeAsked
from dragoman.protocol.versions import CAPABILITIES_KEY, TASKS_EXTENSION
from dragoman.tasks.port import QuestionAsked, Run, StoredQuestion, Unasked
from dragoman.tools.questions import digest

MOST_QUESTIONS = 256
"""Of one run: each of them is a row, and somebody's attention."""


class TaskClient:
    """Implements `Client`. A question is stored, and its answer comes from whichever request brings it."""

    log_level: str | None = None
    can_be_asked = True

    def __init__(
        self,
        run: Run,
        store: Callable[[QuestionAsked], Awaitable[Run | None]],
        withdraw: Callable[[Unasked], None],
        now: Callable[[], float],
    ) -> None:
        self.run = run
        """As it was last seen."""
        self.is_interrupted: Callable[[], bool] = lambda: False
        """Whether the run is about to end; what it asks then is asked again by the next one."""
        self.capabilities: Mapping[str, Any] = msgspec.json.decode(run.capabilities)
        self._store = store
        self._withdraw = withdraw
        self._now = now
        self._places: Counter[str] = Counter()
        self._waiting: dict[tuple[str, int], asyncio.Future[bytes]] = {}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Nobody is there who could be told."""

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, unless the answer is known from a run before; the place is the count of the same words so far."""
        words = digest(params)
        place = self._places[words]
        self._places[words] += 1
        answer = _answer_in(self.run, words, place)
        if answer is None:
            answer = await self._wait(method, params, words, place)
        result: dict[str, Any] = msgspec.json.decode(answer)
        return result

    def seen(self, run: Run) -> None:
        """The run has changed: there may be answers."""
        self.run = run
        for (words, place), arrival in tuple(self._waiting.items()):
            answer = _answer_in(run, words, place)
            if answer is not None and not arrival.done():
                arrival.set_result(answer)

    async def _wait(self, method: str, params: Mapping[str, Any], words: str, place: int) -> bytes:
        if sum(self._places.values()) > MOST_QUESTIONS:
            raise RuntimeError(f"a task asks at most {MOST_QUESTIONS} questions")
        arrival: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[words, place] = arrival
        try:
            request = msgspec.json.encode({"method": method, "params": params})
            run = await self._store(QuestionAsked(self.run.number, self.run.fence, self._now(), words, place, request))
            if run is not None:
                self.seen(run)
            return await arrival
        except asyncio.CancelledError:  # Not in time.
            if not self.is_interrupted():
                self._withdraw(Unasked(self.run.number, self.run.fence, self._now(), words, place))
            raise
        finally:
            del self._waiting[words, place]


def _answer_in(run: Run, words: str, place: int) -> bytes | None:
    found: list[StoredQuestion] = [each for each in run.questions if (each.digest, each.place) == (words, place)]
    return found[0].answer if found else None


class TaskMaker:
    """Python code that makes a task: the client of the call that stores it. Implements `Client`."""

    log_level: str | None = None
    can_be_asked = False
    capabilities: ClassVar[Mapping[str, Any]] = {
        "elicitation": {"form": {}},
        "extensions": {TASKS_EXTENSION: {}},
    }
    meta: ClassVar[Mapping[str, Any]] = {CAPABILITIES_KEY: capabilities}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """It waits for nothing but the task's id."""

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The task itself asks."""
        raise ClientCannotBeAsked(method)


TASK_MAKER = TaskMaker()
