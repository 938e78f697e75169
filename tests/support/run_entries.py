"""Runs, and what happens to them, for tests of the store of runs."""

from __future__ import annotations

from typing import Any

from dragoman.agents.ledger import EntryStatus
from dragoman.tasks.port import Ended, NewRun, QuestionAsked, Run, Runs

UNKNOWN = b'{"code":-32603}'
"""The error of runs that are unknown."""


def keyed(key: str = "k", **facts: Any) -> NewRun:
    """A run with an idempotency key that begins at once. Each key, tool and owner makes a message id of its own."""
    told: dict[str, Any] = {
        "owner": "ada",
        "tool": "pay",
        "request_id": key,
        "arguments": b'{"amount":1}',
        "at": 1.0,
        "expires_at": 101.0,
        "correlation_id": "c",
        "caller": b'{"name":"ada"}',
        "is_repeatable": False,
        **facts,
    }
    message_id = f"{told['owner']} {told['tool']} {told['request_id']} {told['at']}"
    return NewRun(**{"message_id": message_id, **told})


def task(task_id: str = "t", **facts: Any) -> NewRun:
    """A task without a key, which may be repeated and waits, unless it is told otherwise."""
    return keyed(facts.pop("key", task_id), **{"task_id": task_id, "is_repeatable": True, "begins": False, **facts})


def ended(run: Run, result: bytes | None = b"1", *, at: float = 5.0, **facts: Any) -> Ended:
    """The end of a run with a result, or with what it is told."""
    told = {"status": EntryStatus.COMPLETED, "fence": run.fence, "expires_at": at + 100.0, **facts}
    return Ended(number=run.number, at=at, result=result, message_id=f"answer to {run.number}", **told)


def question(run: Run, words: str = "name?", place: int = 0, at: float = 2.0) -> QuestionAsked:
    return QuestionAsked(run.number, run.fence, at, words, place, b'{"method":"elicitation/create"}')


async def stored(runs: Runs, run: Run) -> Run:
    """A run as it is in the store now."""
    found = await runs.find(owner=run.owner, request_id=run.request_id)
    assert found is not None
    return found
