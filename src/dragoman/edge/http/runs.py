"""A call that somebody makes from the explorer's page, while it runs: how far it is, what it says, what it asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

import msgspec

from dragoman.access.callers import Caller
from dragoman.errors import ClientCannotBeAsked

MOST_SAID = 50
LONGEST_SAID = 500
MOST_ASKED = 8


class Run:
    """The client of one call: the person before the page, who can be asked as long as the page waits."""

    capabilities: ClassVar[Mapping[str, Any]] = {"elicitation": {"form": {}}}
    log_level = "info"

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.can_be_asked = True
        self._progress: dict[str, Any] | None = None
        self._said: deque[dict[str, str]] = deque(maxlen=MOST_SAID)
        self._ids = count(1)
        self._asked: dict[int, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """The tool says how far it is; from any thread."""
        said = message[:LONGEST_SAID] if message is not None else None
        self._progress = {"progress": done, "total": total, "message": said}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """The tool says something; from any thread."""
        if method == "notifications/message":
            data = params["data"]
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._said.append({"level": params["level"], "text": text[:LONGEST_SAID]})

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the page ask the person, and wait for the answer."""
        if not self.can_be_asked or len(self._asked) >= MOST_ASKED:
            raise ClientCannotBeAsked(method)
        number = next(self._ids)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = (params, answered)
        try:
            return await answered
        finally:
            del self._asked[number]

    def answer(self, number: int, result: dict[str, Any]) -> bool:
        """The person has answered; False when that is not asked, or not any longer."""
        _, answered = self._asked.get(number, (None, None))
        if answered is None or answered.done():
            return False
        answered.set_result(result)
        return True

    def report(self) -> dict[str, Any]:
        """What the page shows while it waits."""
        questions = [
            {"id": number, "message": params.get("message"), "schema": params.get("requestedSchema")}
            for number, (params, answered) in self._asked.items()
            if not answered.done()
        ]
        return {"progress": self._progress, "said": list(self._said), "questions": questions}

    def close(self) -> None:
        """Nobody waits any longer, so nobody answers."""
        self.can_be_asked = False
        for _, answered in self._asked.values():
            if not answered.done():
                answered.set_exception(ClientCannotBeAsked("a question"))
