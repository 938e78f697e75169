"""Outcomes of tasks, in the words of the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.agents.ledger import EntryStatus
from dragoman.agents.stored_errors import error_in
from dragoman.calls.call import Outcome
from dragoman.cli.calling import error_lines
from dragoman.errors import ProtocolError
from dragoman.schemas.returns import AS_JSON, Returns
from dragoman.tasks.port import Run
from dragoman.tasks.stored import UNKNOWN_OUTCOME, JsonRpcError
from dragoman.telemetry.clean import sanitize


def result_in(run: Run) -> dict[str, Any] | None:
    """The `tools/call` result of a task that has one."""
    return None if run.result is None else msgspec.json.decode(run.result)


def error_of(run: Run) -> JsonRpcError:
    """The error of a task that failed."""
    return UNKNOWN_OUTCOME if run.error is None else msgspec.json.decode(run.error, type=JsonRpcError)


def value_in(result: dict[str, Any], returns: Returns = AS_JSON) -> Any:
    """The structured content of a result, or else its content blocks.

    With what the tool returns, the value itself, as `dragoman call` prints it.
    """
    if "structuredContent" in result:
        structured = result["structuredContent"]
        return structured["result"] if returns.is_wrapped else structured
    return result["content"]


def problem_lines(run: Run) -> list[str]:
    """Why a task that has ended has no result to print; empty for one that has."""
    if run.status is EntryStatus.CANCELLED:
        return [f"task {run.task_id} was cancelled"]
    result = result_in(run)
    if result is None:
        told = error_of(run)
        return error_lines(Outcome(error=ProtocolError(told.message, told.data, code=told.code)), "")
    return _error_lines_in(result) if result["isError"] else []


def _error_lines_in(result: dict[str, Any]) -> list[str]:
    """The error that a result is, which is text in the words of the server's dialect."""
    texts = [each.get("text", "") for each in result["content"]]
    try:
        return error_lines(Outcome(error=error_in("".join(texts).encode())), "")
    except msgspec.MsgspecError:
        return [sanitize(line) for text in texts for line in text.splitlines()]
