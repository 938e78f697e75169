"""An agent: an id, and the function or class that handles its messages one at a time."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Never, TypeAlias, TypeVar

from msgspec import Struct

from dragoman.errors import InvalidAgent
from dragoman.tools.attached import attach, check_options, made_of

AgentFunction: TypeAlias = Callable[..., Awaitable[Any]]
Effects: TypeAlias = Literal["outside", "ledger"]
F = TypeVar("F", bound=Callable[..., Any])

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_agent_id(text: str) -> bool:
    """Whether an agent can have this id."""
    return _ID.fullmatch(text) is not None


class Agent(Struct, frozen=True, kw_only=True, eq=False):
    """The definition of an agent."""

    id: str
    handler: Any
    """An async function that takes a message and a context, or a class with `handle` and perhaps `start`."""
    effects: Effects = "outside"
    """`ledger`: all that a handling does is in its state, its messages and its response, so it can be run again."""
    idempotent: bool = False
    """Whether a handling that may have run can be repeated without harm."""
    timeout_ms: int | None = None
    max_restarts: int = 5
    """How often it may be restarted within a minute, after exceptions."""

    @property
    def may_repeat(self) -> bool:
        """Whether a handling is run again after it failed, or after its process ended."""
        return self.idempotent or self.effects == "ledger"

    def make(self) -> tuple[AgentFunction, AgentFunction | None]:
        """A new instance's `handle` and `start`."""
        if not inspect.isclass(self.handler):
            return self.handler, None
        made: Any = self.handler()
        return made.handle, getattr(made, "start", None)


def make_agent(
    agent_id: str,
    handler: Any,
    *,
    effects: Effects = "outside",
    idempotent: bool = False,
    timeout_ms: int | None = None,
    max_restarts: int = 5,
) -> Agent:
    """An agent; raises `InvalidAgent` with everything that is wrong."""
    problems: list[tuple[str, str]] = []
    if not isinstance(agent_id, str) or not is_agent_id(agent_id):
        problems.append(("id", "must be 1 to 128 letters, digits, or any of _ . -"))
    if effects not in ("outside", "ledger"):
        problems.append(("effects", "must be 'outside' or 'ledger'"))
    if timeout_ms is not None and timeout_ms < 1:
        problems.append(("timeout_ms", "must be at least 1"))
    if max_restarts < 0:
        problems.append(("max_restarts", "must be at least 0"))
    problems += _problems_of(handler)
    if problems:
        raise InvalidAgent(str(agent_id), problems)
    return Agent(
        id=agent_id,
        handler=handler,
        effects=effects,
        idempotent=idempotent,
        timeout_ms=timeout_ms,
        max_restarts=max_restarts,
    )


def agent(
    agent_id: str,
    *,
    effects: Effects = "outside",
    idempotent: bool = False,
    timeout_ms: int | None = None,
    max_restarts: int = 5,
    **unknown: Never,
) -> Callable[[F], F]:
    """Make an agent of an async function that takes a message and a context, or of a class with `handle`.

    Declare `effects="ledger"` if everything that the handler does is in `ctx.state`, `ctx.send`, `ctx.request` and its
    result: it is then run again after a crash, and its effects happen exactly once. Otherwise a message whose handling
    was interrupted is not run again, unless the agent is `idempotent`.
    """

    check_options(agent, unknown, agent)

    def decorate(handler: F) -> F:
        made = make_agent(
            agent_id,
            handler,
            effects=effects,
            idempotent=idempotent,
            timeout_ms=timeout_ms,
            max_restarts=max_restarts,
        )
        return attach(handler, made)

    return decorate


def agents_apart(offered: Iterable[Any]) -> tuple[list[Any], list[Agent]]:
    """Separate agents from the tools, resources and prompts that a server is given."""
    rest: list[Any] = []
    agents: list[Agent] = []
    for value in offered:
        made = (value,) if isinstance(value, Agent) else made_of(value)
        found = [each for each in made if isinstance(each, Agent)]
        agents += found
        if not found or len(found) < len(made):
            rest += [value] if not found else [each for each in made if not isinstance(each, Agent)]
    return rest, agents


def _problems_of(handler: Any) -> list[tuple[str, str]]:
    handle = getattr(handler, "handle", None) if inspect.isclass(handler) else handler
    if not _is_async(handle):
        return [("", "must be an async function (message, ctx), or a class with an async method `handle`")]
    taken = (None, None, None) if inspect.isclass(handler) else (None, None)  # The first of a method is `self`.
    if inspect.isclass(handler) and not _takes(handler, ()):
        return [("", "the class must be made without arguments")]
    if not _takes(handle, taken):
        return [("", "must take a message and a context")]
    start = getattr(handler, "start", None) if inspect.isclass(handler) else None
    if start is not None and not (_is_async(start) and _takes(start, (None, None))):
        return [("start", "must be an async method that takes a context")]
    return []


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _takes(function: Any, arguments: tuple[None, ...]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True
