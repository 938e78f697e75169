"""What is asked of a server, and how its answer is judged."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from soak.ledger import ERROR, LATE, SUCCESS, Ledger, Outcomes
from tests.support.http_wire import LATEST, message, modern, request

_ids = count(1)
_PIECE = "0123456789" * 9_900  # Within the limit on a string's length.


@dataclass(frozen=True)
class Ask:
    """A call, and the answer to it: a value as JSON, or the code of an error."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    code: str | None = None
    outcomes: Outcomes = SUCCESS


MEGABYTE = Ask("repeat", {"text": "ten bytes ", "times": 100_000}, "ten bytes " * 100_000)
SMALL = (
    Ask("doze", {"seconds": 0.01}, 0.01),
    Ask("refuse", code="INVALID_ARGUMENT", outcomes=ERROR),
    Ask("crash", code="INTERNAL", outcomes=ERROR),
    Ask("overrun", code="TIMEOUT", outcomes=LATE),
    Ask("echo", {"text": 7}, code="INVALID_ARGUMENT", outcomes=ERROR),
    Ask("missing", code="NOT_FOUND", outcomes=ERROR),
)
LARGE = (
    Ask("echo", {"text": _PIECE}, _PIECE),
    Ask("count", {"texts": [_PIECE] * 10}, 10 * len(_PIECE)),
    Ask("count", {"texts": [_PIECE] * 11}, code="RESOURCE_EXHAUSTED", outcomes=ERROR),
    Ask("echo", {"text": _PIECE * 2}, code="INVALID_ARGUMENT", outcomes=ERROR),
    Ask("repeat", {"text": "ten bytes ", "times": 10_000}, "ten bytes " * 10_000),
    Ask("repeat", {"text": "ten bytes ", "times": 110_000}, code="INTERNAL", outcomes=ERROR),
    MEGABYTE,
)


def any_ask(chance: random.Random) -> Ask:
    """Mostly a small echo; one in five something else, one in fifty something large."""
    drawn = chance.random()
    if drawn < 0.02:
        return chance.choice(LARGE)
    return chance.choice(SMALL) if drawn < 0.2 else some_echo()


def some_echo() -> Ask:
    text = f"a text of its own: {next(_ids)}"
    return Ask("echo", {"text": text}, text)


class Asked:
    """A call under way: its ids, its params, and the judgement of its answer."""

    def __init__(self, ledger: Ledger, ask: Ask, due: Outcomes | None = None, *, has_progress: bool = False) -> None:
        self._ledger = ledger
        self._ask = ask
        self._due = due or ask.outcomes
        self.id = next(_ids)
        self.correlation_id = ledger.open(self._due)
        self._meta = {"correlationId": self.correlation_id, **({"progressToken": self.id} if has_progress else {})}
        self.params: dict[str, Any] = {"name": ask.tool, "arguments": ask.arguments}

    def modern(self) -> bytes:
        """The HTTP request of the modern era."""
        return modern("tools/call", self.params, id=self.id, meta=self._meta)

    def in_session(self, session: str) -> bytes:
        """The HTTP request in a session."""
        return request(self.body(), {"mcp-session-id": session, "mcp-protocol-version": LATEST})

    def body(self, envelope: Mapping[str, Any] | None = None) -> bytes:
        """The message alone, as stdio takes it but for the newline."""
        meta = {**(envelope or {}), **self._meta}
        return msgspec.json.encode(message("tools/call", {**self.params, "_meta": meta}, self.id))

    def check(self, answer: Mapping[str, Any]) -> None:
        """The answer must be the right one, under the id of this call, or say that every slot is taken."""
        result = answer.get("result", {})
        values = [msgspec.json.decode(block["text"]) for block in result.get("content", ())]
        is_error = result.get("isError", False)
        error = values[0] if is_error else {}
        ids = (answer.get("id"), result.get("_meta", {}).get("dragoman/correlationId"))
        if ids != (self.id, self.correlation_id):
            self._ledger.complain(f"{self.params['name']}: {self.id, self.correlation_id} is answered with {answer}")
        elif error.get("details", {}).get("reason") == "no_free_slot":
            self._ledger.refused_for_slots += 1
            self._ledger.settle(self.correlation_id, ERROR)
        elif error.get("code") != self._ask.code or (not is_error and values != [self._ask.value]):
            self._ledger.complain(f"{self.params['name']}: a wrong answer to {self.correlation_id}: {answer}")
