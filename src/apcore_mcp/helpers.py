"""What a module can do over MCP while it runs: say how far it is, and ask the person behind the client.

Outside of MCP, both do nothing, so that a module need not know who called it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

MCP_PROGRESS_KEY: str = "_mcp_progress"
"""Where `context.data` has how progress is reported: `await report(progress, total, message)`."""
MCP_ELICIT_KEY: str = "_mcp_elicit"
"""Where `context.data` has how the person is asked: `await ask(message, requested_schema)`."""


async def report_progress(
    context: Any, progress: float, total: float | None = None, message: str | None = None
) -> None:
    """Tell the client how far the work is, if it wants to know."""
    report = _found(context, MCP_PROGRESS_KEY)
    if report is not None:
        reported = report(progress, total, message)
        if inspect.isawaitable(reported):
            await reported


async def elicit(context: Any, message: str, requested_schema: dict[str, Any] | None = None) -> Any | None:
    """Have the person fill in a form, and give what they filled in; without a schema, a line of text as `response`.

    None when they decline, or when nobody can be asked. In the 2026-07-28 protocol nobody can while a module runs.
    """
    ask = _found(context, MCP_ELICIT_KEY)
    if ask is None:
        return None
    answer = ask(message, requested_schema)
    return await answer if inspect.isawaitable(answer) else answer


def _found(context: Any, key: str) -> Callable[..., Any] | None:
    data = getattr(context, "data", None)
    found = data.get(key) if isinstance(data, dict) else None
    return found if callable(found) else None
