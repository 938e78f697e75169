"""The `plain` dialect: the texts of the apcore-mcp specification, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from msgspec import Raw, Struct, to_builtins

from dragoman.calls.call import Call, Outcome
from dragoman.errors import ErrorCode, InternalFailure, InvalidArgument, NotFound, ResultTooLarge, ToolError
from dragoman.protocol.results import TextBlock, ToolResult
from dragoman.replies.encoding import (
    CUT,
    SizeLimit,
    clean_message,
    encode_value,
    meta_of,
    structured_content,
    text_of_value,
)
from dragoman.replies.vocabulary import words_for


class Plain:
    """A result is its JSON text, an error a sentence."""

    def __init__(self, size: SizeLimit) -> None:
        self._size = size

    def render(self, call: Call, outcome: Outcome) -> ToolResult:
        """The `tools/call` result; raises `InternalFailure` when the value cannot be sent."""
        if outcome.error is not None:
            assert isinstance(outcome.error, ToolError)
            return self._failure(call, outcome.error)
        encoded, is_content = encode_value(outcome.value, self._size.most)
        if encoded is None:
            raise ResultTooLarge(None, self._size.limit)
        content = Raw(encoded) if is_content else [TextBlock(text_of_value(call, outcome.value, encoded))]
        result = ToolResult(content, False, meta_of(call))
        validator = call.tool.output_validator
        if validator is not None:
            result.structured_content = structured_content(call, validator, outcome.value, encoded)
        if len(encoded) > self._size.small:
            self._size.check(result)
        return result

    def _failure(self, call: Call, error: ToolError) -> ToolResult:
        text = clean_message(sentence_for(error, call), self._size.most)
        lengths = (len(text), 10_000, 1000, 250, 60, len(CUT))
        forms = (ToolResult([TextBlock(clean_message(text, most))], True, meta_of(call)) for most in lengths)
        return self._size.first_that_fits(forms)


def sentence_for(error: ToolError, call: Call) -> str:
    """The sentence for an error: its own, a more particular one where the error knows more, or that of its class."""
    if error.plain is not None:
        return error.plain
    details = error.details or {}
    match error:
        case NotFound() if not call.is_found or "module_id" in details:
            return f"Module not found: {details.get('module_id', call.name)}"
        case InvalidArgument() if isinstance(details.get("errors"), list):
            return "\n- ".join(["Input validation failed:", *_findings(error, details["errors"])]).removesuffix(":")
        case InternalFailure() if details.get("reason") == "result_not_serializable":
            return "Failed to serialize module output"
    return words_for(type(error)).plain.format(
        code=error.code,
        message=error.message,
        timeout=_timeout(details, call),
        whether_to_repeat="the call can be repeated" if details.get("retryable") else "its work may have been done",
    )


def _findings(error: InvalidArgument, found: list[Any]) -> list[str]:
    """A line for each. Ours have a JSON pointer, and a code where it is a limit's; apcore's have a dotted field."""
    lines = []
    for each, rule in zip_longest(found, error.rules[: len(found)], fillvalue=ErrorCode.INVALID_ARGUMENT.lower()):
        written = to_builtins(each) if isinstance(each, Struct) else each
        facts = written if isinstance(written, Mapping) else {"message": written}
        field = facts.get("field", str(facts.get("path", "")).strip("/").replace("/", ".") or "arguments")
        lines.append(f"{field}: {facts.get('message', '')} ({facts.get('code', rule)})")
    return lines


def _timeout(details: Mapping[str, Any], call: Call) -> Any:
    return details.get("timeoutMs", details.get("timeout_ms", call.tool.timeout_ms))
