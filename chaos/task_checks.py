"""The checks of tasks and of idempotency keys at the end.

1. Nothing is open, and the ledger contradicts none of its own rules.
2. A client never saw a task vanish, change after its end, or ask again what the server has taken an answer to. Every
   task that was accepted has ended, and all requests with its key have created one task.
3. All answers to a call with a key are the same.
4. A tool that must not be repeated has acted at most once, and exactly once if it completed. Only such a tool's outcome
   may be unknown, or that of a run with which too many processes have ended. An outcome is the token of a time that the
   tool has acted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.tasks import GONE, REPEATABLE, TERMINAL, KeyedCall, Sight, Watched
from dragoman.tasks.port import MOST_ATTEMPTS


@dataclass(frozen=True)
class TasksFound:
    """The state of everything at the end."""

    calls: Sequence[KeyedCall]
    tasks: Sequence[Watched]
    acted: Mapping[str, Sequence[str]]
    """By item, the token of each time that a tool has acted."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """By task id, and by the tool and the key of a call, how often it was begun."""
    still_open: Sequence[int] = ()
    contradictions: Sequence[str] = ()


def problems_with_tasks(found: TasksFound) -> list[str]:
    """Everything that is not as it must be, in words."""
    return [
        *found.contradictions,
        *(f"run {number} is still open" for number in found.still_open),
        *(problem for task in found.tasks for problem in _wrong_task(task, found)),
        *(problem for call in found.calls for problem in _wrong_call(call, found)),
        *_unasked(found),
    ]


def _wrong_task(task: Watched, found: TasksFound) -> Iterator[str]:
    name = f"task {task.item} of {task.tool}"
    if len(set(task.ids)) > 1:
        yield f"{name} was created {len(set(task.ids))} times"
    yield from (f"{name} {problem}" for problem in _wrong_sights(task.seen))
    last = next((each for each in reversed(task.seen) if isinstance(each, Sight)), None)
    if task.ids and (last is None or last.status not in TERMINAL):
        yield f"{name} has not ended"
    elif last is not None and last.status == "cancelled":
        yield f"{name} was cancelled by nobody"
    elif last is not None and last.status == "failed":
        is_spent = found.attempts.get(task.ids[0], 0) >= MOST_ATTEMPTS
        yield from _wrong_failure(name, task.tool, (last.outcome or {}).get("data"), is_spent=is_spent)
    token = last.outcome if last is not None and last.status == "completed" else None
    yield from _wrong_effects(name, task.tool, token, found.acted.get(task.item, ()))


def _wrong_sights(seen: Sequence[Sight | str]) -> Iterator[str]:
    end: Sight | None = None
    answered: set[str] = set()
    for each in seen:
        if isinstance(each, str):
            answered.add(each)
            continue
        if each.status == GONE:
            yield "has vanished"
        elif end is not None and each != end:
            yield f"was {end.status} ({end.outcome}), and then {each.status} ({each.outcome})"
        if each.status in TERMINAL:
            end = end or each
        for key in answered.intersection(each.asked):
            yield f"asks {key} again, which was answered"


def _wrong_call(call: KeyedCall, found: TasksFound) -> Iterator[str]:
    name = f"call {call.item} of {call.tool}"
    if not call.answers:
        yield f"{name} has no answer"
        return
    if any(answer != call.answers[0] for answer in call.answers):
        yield f"{name} has different answers: {call.answers}"
    token = call.answers[0]
    if not isinstance(token, str):
        is_spent = found.attempts.get(f"{call.tool} {call.key}", 0) >= MOST_ATTEMPTS
        yield from _wrong_failure(name, call.tool, token, is_spent=is_spent)
        token = None
    yield from _wrong_effects(name, call.tool, token, found.acted.get(call.item, ()))


def _wrong_failure(name: str, tool: str, details: Any, *, is_spent: bool) -> Iterator[str]:
    if not isinstance(details, dict) or details.get("outcome") != "UNKNOWN":
        yield f"{name} has failed: {details}"
    elif tool in REPEATABLE and not is_spent:
        yield f"{name} is unknown, though it may be repeated"


def _wrong_effects(name: str, tool: str, token: str | None, acted: Sequence[str]) -> Iterator[str]:
    if tool not in REPEATABLE and len(acted) > 1:
        yield f"{name} has acted {len(acted)} times"
    if token is not None and token not in acted:
        yield f"{name} came to {token}, and has not acted"


def _unasked(found: TasksFound) -> Iterator[str]:
    asked = {call.item for call in found.calls} | {task.item for task in found.tasks}
    yield from (f"nobody asked for {item}" for item in found.acted if item not in asked)
