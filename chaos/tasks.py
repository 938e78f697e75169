"""The clients of tasks and of calls with idempotency keys, and everything that they were told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from chaos.http_served import HttpServed
from chaos.servers import Gone, Served
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.protocol.versions import CAPABILITIES_KEY, TASKS_EXTENSION

CALLED = ("once", "again")
TASKS = ("once", "again", "asks", "asks_once")
REPEATABLE = frozenset(("again", "asks"))
TERMINAL = frozenset(("completed", "failed", "cancelled"))
GONE = "gone"
"""The status of a task that its client was told does not exist."""
_CAPABILITIES: dict[str, Any] = {CAPABILITIES_KEY: {"extensions": {TASKS_EXTENSION: {}}, "elicitation": {"form": {}}}}
_NO_SUCH_TASK = -32602
_PAUSE = 0.03
_THOUGHT = 0.2
"""Seconds that a client may take to answer a question."""
_LIMIT = 120.0


@dataclass
class KeyedCall:
    """A call with a key, and each final answer to it: the token, or the details of the error."""

    key: str
    tool: str
    item: str
    answers: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Sight:
    """A task as `tasks/get` showed it."""

    status: str
    outcome: Any = None
    """The token of a completed task, or the error of a failed one."""
    asked: tuple[str, ...] = ()
    """The keys of the questions that wait for an answer."""


@dataclass
class Watched:
    """A task, and everything that its one client was told about it, in order."""

    key: str | None
    tool: str
    item: str
    ids: list[str] = field(default_factory=list)
    """The task id, once for each answer to the request that creates it."""
    seen: list[Sight | str] = field(default_factory=list)
    """Sights, and keys of questions whose answer the server has acknowledged."""

    @property
    def has_ended(self) -> bool:
        last = next((each for each in reversed(self.seen) if isinstance(each, Sight)), None)
        return last is not None and last.status in (*TERMINAL, GONE)


def final_answer(told: dict[str, Any]) -> Any:
    """The outcome in an answer to a call: the token, or the details of an error; None if it is not known yet."""
    if "error" in told:
        return None
    said = told["result"]["content"][0]["text"]
    if not told["result"]["isError"]:
        return said
    details = msgspec.json.decode(said).get("details") or {}
    is_final = details.get("outcome") == "UNKNOWN" and details.get("retryable") is False
    return details if is_final and details.get("reason") != "storage_uncertain" else None


def sight_in(told: dict[str, Any]) -> Sight | None:
    """What an answer to `tasks/get` shows; None if the server could not look."""
    if "error" in told:
        return Sight(GONE) if told["error"]["code"] == _NO_SUCH_TASK else None
    task = told["result"]
    outcome = task.get("error")
    if task["status"] == "completed":
        outcome = final_answer(task)
    return Sight(task["status"], outcome, tuple(task.get("inputRequests", ())))


class TaskLoad:
    """Lanes that make keyed calls and tasks, each one thing after the other, until each has ended."""

    def __init__(self, live: Sequence[Served | None], chance: random.Random) -> None:
        self._live = live
        self._chance = chance
        self._is_over = False
        self._count = 0
        self._last: dict[str, Any] | None = None
        self.calls: list[KeyedCall] = []
        self.tasks: list[Watched] = []
        self.problems: list[str] = []
        self.unsettled = 0

    async def run(self, lanes: int) -> None:
        await asyncio.gather(*(self._lane() for _ in range(lanes)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self) -> None:
        while not self._is_over:
            key, item = self._new()
            work = self._call(key, item) if self._chance.random() < 0.35 else self._task(key, item)
            try:
                async with asyncio.timeout(_LIMIT):
                    await work
            except TimeoutError:
                self.problems.append(f"{item} has no outcome after {_LIMIT:.0f} s; the last answer: {self._last}")
            await asyncio.sleep(_PAUSE * self._chance.random())

    def _new(self) -> tuple[str, str]:
        """A key and an item."""
        self._count += 1
        return f"key-{self._chance.getrandbits(64):016x}", f"item {self._count}"

    async def _call(self, key: str, item: str) -> None:
        call = KeyedCall(key, self._chance.choice(CALLED), item)
        self.calls.append(call)
        doubles = 2 if self._chance.random() < 0.2 else 1
        await asyncio.gather(*(self._until_answered(call) for _ in range(doubles)))

    async def _until_answered(self, call: KeyedCall) -> None:
        while not await self.call_once(call):
            await self._wait_to_repeat()

    async def call_once(self, call: KeyedCall) -> bool:
        """Whether there is an outcome."""
        params = {"name": call.tool, "arguments": {"item": call.item}}
        told = await self._ask("tools/call", params, {IDEMPOTENCY_KEY: call.key})
        answer = None if told is None else final_answer(told)
        if answer is not None:
            call.answers.append(answer)
        return answer is not None

    async def _task(self, key: str, item: str) -> None:
        tool = self._chance.choice(TASKS)
        # Nobody would answer a task whose id was lost.
        is_keyed = tool not in CALLED or self._chance.random() < 0.7
        task = Watched(key if is_keyed else None, tool, item)
        self.tasks.append(task)
        while not await self.create_once(task) and is_keyed:
            await self._wait_to_repeat()
        while task.ids and not task.has_ended:
            await asyncio.sleep(_PAUSE)
            await self.look_once(task)
        if task.ids:
            await self.look_once(task)

    async def create_once(self, task: Watched) -> bool:
        """Whether the task was accepted."""
        params = {"name": task.tool, "arguments": {"item": task.item}}
        key = {} if task.key is None else {IDEMPOTENCY_KEY: task.key}
        told = await self._ask("tools/call", params, {**_CAPABILITIES, **key})
        if told is None or "result" not in told or told["result"]["resultType"] != "task":
            return False
        task.ids.append(told["result"]["taskId"])
        return True

    async def look_once(self, task: Watched) -> bool:
        """Look at a task, and answer what it asks; whether the server could say."""
        told = await self._ask("tasks/get", {"taskId": task.ids[0]}, _CAPABILITIES)
        sight = None if told is None else sight_in(told)
        if sight is None:
            return False
        task.seen.append(sight)
        for key in sight.asked:
            await asyncio.sleep(_THOUGHT * self._chance.random())
            answers = {key: {"action": "accept", "content": {"value": True}}}
            told = await self._ask("tasks/update", {"taskId": task.ids[0], "inputResponses": answers}, _CAPABILITIES)
            if told is not None and "result" in told:
                task.seen.append(key)
        return True

    async def _ask(self, method: str, params: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any] | None:
        server = self._chance.choice(self._live)
        if server is None:
            return None
        try:
            self._last = await cast(HttpServed, server).ask(method, params, meta)
        except Gone:
            return None
        return self._last

    async def _wait_to_repeat(self) -> None:
        self.unsettled += 1
        await asyncio.sleep(_PAUSE)
