"""apcore's errors in the words of the specification, which tell a client what it can do and nothing about the inside.

Errors are told apart by class: one class has several codes. What an exception says itself is shown for
`InvalidInputError` alone, which is written for the caller. Of arguments that do not fit, a client is told where and
which rule, in words made from the schema: messages of validators repeat what they were given, and that may be secret.
An exception that is not apcore's is unexpected, also where the executor has wrapped it in a `ModuleExecuteError`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from apcore_mcp.adapters.schema import ModuleSchema
from dragoman.schemas.rules import explain, rule_in_words
from dragoman.schemas.sensitive import Hide, hiding
from dragoman.telemetry.clean import one_line
from dragoman.telemetry.python_logging import log_failure

if TYPE_CHECKING:
    from apcore.errors import ModuleError, SchemaValidationError
    from mcp_types import CallToolResult

logger = logging.getLogger(__name__)

_MOST_FINDINGS = 20
_BY_CLASS = {
    "ACLDeniedError": "Access denied",
    "CallDepthExceededError": "Call depth limit exceeded",
    "CircularCallError": "Circular call detected",
    "CallFrequencyExceededError": "Call frequency limit exceeded",
}
UNEXPECTED = "Internal error occurred"
_QUOTATION = re.compile(r"['\"`]")


class ErrorMapper:
    """Turns what the executor raised into the answer to a call."""

    def to_mcp_error(
        self, error: Exception, schema: ModuleSchema | None = None, arguments: Mapping[str, Any] | None = None
    ) -> CallToolResult:
        """A result with `isError`. What nobody foresaw is logged as a whole.

        From `schema` and `arguments`, those of the call, comes what a rule asks for and which field is missing. No
        value is taken from the arguments.
        """
        from mcp_types import CallToolResult, TextContent

        hide = hiding(schema or {}, arguments)
        text = self.text(error, schema, arguments, hide)
        if text == UNEXPECTED:
            log_failure(logger, "A module call ended in an unexpected error", error, hide)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)

    def text(
        self, error: BaseException, schema: ModuleSchema | None = None, arguments: Any = None, hide: Hide | None = None
    ) -> str:
        """The text of `to_mcp_error`'s answer. `hide` removes sensitive values from it."""
        try:
            text = _worded(error, schema or {}, arguments)
        except Exception:  # A module may put anything into the attributes of an error, and their methods may raise.
            return UNEXPECTED
        return text if hide is None else hide(text)


def _worded(error: BaseException, schema: ModuleSchema, arguments: Any) -> str:
    from apcore import errors

    wrapped = error.cause if isinstance(error, errors.ModuleExecuteError) else None
    if not isinstance(error, errors.ModuleError) or not isinstance(wrapped, errors.ModuleError | None):
        return UNEXPECTED
    for name, text in _BY_CLASS.items():
        if isinstance(error, getattr(errors, name)):
            return text
    match error:
        case errors.ModuleNotFoundError():
            text = f"Module not found: {_details(error).get('module_id', '')}"
        case errors.ModuleTimeoutError():
            text = f"Module timed out after {_details(error).get('timeout_ms', 0)}ms"
        case errors.InvalidInputError():
            text = f"Invalid input: {error.message}"
        case errors.SchemaValidationError() if _is_about_the_arguments(error):
            findings = _findings(error, schema, arguments)
            return "\n- ".join(["Input validation failed:", *findings]).removesuffix(":")
        case _:
            text = f"Module error: {error.code}"
    return one_line(text)


def _details(error: ModuleError) -> Mapping[str, Any]:
    return error.details if isinstance(error.details, Mapping) else {}


def _is_about_the_arguments(error: ModuleError) -> bool:
    """Not so for a result, or for the arguments that a module has made up for another one."""
    chain = _details(error).get("call_chain")
    is_nested = isinstance(chain, list) and len(chain) > 1
    step = getattr(error.__context__, "step_name", "")  # The only difference, where a module has a plain schema.
    return (
        not is_nested and step != "output_validation" and not str(error.message).startswith("Output validation failed")
    )


def _findings(error: SchemaValidationError, schema: ModuleSchema, arguments: Any) -> list[str]:
    """A line for each rule that is not kept, as far as there is room. Names come from clients: none can add a line."""
    reported = _details(error).get("errors")
    entries = [each for each in reported if isinstance(each, Mapping)] if isinstance(reported, list) else []
    lines: dict[str, None] = {}
    for entry in entries:
        found = _as_written(entry) if "field" in entry else _as_validated(entry, schema, arguments)
        for field, message, code in islice(found, _MOST_FINDINGS + 1):
            lines[f"{one_line(field, 200)}: {one_line(message)} ({one_line(code)})"] = None
        if len(lines) > _MOST_FINDINGS:
            return [*list(lines)[:_MOST_FINDINGS], "and others"]
    return list(lines)


def _as_written(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """An entry of the specification's form, whose words are meant to be shown unless they quote something."""
    code, message = str(entry.get("code", "")), str(entry.get("message", ""))
    yield str(entry["field"]), rule_in_words(code, []) if not message or _QUOTATION.search(message) else message, code


def _as_validated(entry: Mapping[str, Any], schema: ModuleSchema, arguments: Any) -> Iterator[tuple[str, str, str]]:
    """An entry of apcore's. If it is about fields that are missing or too many, it does not say which: all are."""
    keyword, path = str(entry.get("keyword", "invalid")), str(entry.get("path", ""))
    try:
        yield from list(explain(schema, arguments, path, keyword))
    except (AttributeError, TypeError):  # It is no schema, as `{"required": [5]}`, but apcore's validator has used it.
        yield from explain({}, None, path, keyword)
