"""An error as the explorer's page shows it: what any client would be told, where it is, and what to do about it."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from dragoman import errors
from dragoman.calls.call import Call
from dragoman.errors import ProtocolError, ToolError
from dragoman.replies.encoding import clean_details, clean_message
from dragoman.replies.failures import code_of, details_of, may_repeat
from dragoman.tools.content import encode_json

MOST_DETAILS = 65_536
"""Bytes of an error's details that the page shows."""


def explain(call: Call, error: ToolError | ProtocolError) -> dict[str, Any]:
    """What the page shows about an error: whatever a client would be told, and what to do about it."""
    explained: dict[str, Any] = {"code": error.code, "message": clean_message(error.message)}
    if isinstance(error, ToolError):
        ours = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        explained |= {
            "details": _plain(details_of(error, call)),
            "retryable": may_repeat(error, code_of(error), call),
            "hint": first_words(ours),
            "fields": fields_of(error),
        }
    return explained


def fields_of(error: ToolError) -> list[dict[str, str]]:
    """Which arguments an error is about, as JSON pointers: those that the validator or the tool named."""
    details = _plain(error.details)
    if not isinstance(details, dict):
        return []
    found: list[dict[str, str]] = []
    named = details.get("field")
    if isinstance(named, str):
        found.append({"path": f"/{named.lstrip('/')}", "message": clean_message(error.message)})
    problems = details.get("errors")
    for each in problems if isinstance(problems, list) else ():
        if isinstance(each, dict) and isinstance(path := each.get("path"), str):
            message = clean_message(str(each.get("message", error.message)))
            found.append({"path": path, "message": message})
    return found


def _plain(details: Any) -> Any:
    """Details that a handler may have made up, in JSON's own types, or a word about why they are missing."""
    return msgspec.json.decode(encode_json(clean_details(details, MOST_DETAILS)))


def first_words(described: object) -> str:
    """What the docstring of a class, an instance or a function begins with: the hint that docs/errors.md gives, too."""
    return (inspect.getdoc(described) or "").partition("\n\n")[0].replace("\n", " ")
