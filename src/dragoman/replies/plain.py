"""The `plain` dialect: the texts of the apcore-mcp specification, exactly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct, to_builtins

from dragoman.calls.call import Call, Outcome
from dragoman.errors import (
    Conflict,
    ErrorCode,
    InternalFailure,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    ResultTooLarge,
    TimedOut,
    ToolError,
    Unauthorized,
)
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

_REQUIRED = re.compile(r'"(.+)" is a required property', re.DOTALL)


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
            result.structured_content = structured_content(
                call, validator, outcome.value, encoded, is_content=is_content
            )
        if len(encoded) > self._size.small:
            self._size.check(result)
        return result

    def _failure(self, call: Call, error: ToolError) -> ToolResult:
        text = clean_message(text_of(error, call), self._size.most)
        lengths = (len(text), 10_000, 1000, 250, 60, len(CUT))
        forms = (ToolResult([TextBlock(clean_message(text, most))], True, meta_of(call)) for most in lengths)
        return self._size.first_that_fits(forms)


def text_of(error: ToolError, call: Call) -> str:
    """The specification's sentence for an error, or the nearest one that it has."""
    if error.plain is not None:
        return error.plain
    details: Any = error.details if isinstance(error.details, Mapping) else {}
    match error:
        case NotFound() if call.tool is None or "module_id" in details:
            return f"Module not found: {details.get('module_id', call.name)}"
        case InvalidArgument() if isinstance(details.get("errors"), list):
            return "\n- ".join(["Input validation failed:", *_findings(error, details["errors"])]).removesuffix(":")
        case InvalidArgument() | Conflict() | PayloadTooLarge():
            return f"Invalid input: {error.message}"
        case Unauthorized():
            return "Access denied"
        case TimedOut():
            return f"Module timed out after {_timeout(details, call)}ms"
        case RateLimited():
            return "Call frequency limit exceeded"
        case ResultTooLarge():
            return "Module error: RESULT_TOO_LARGE"
        case InternalFailure() if details.get("reason") == "result_not_serializable":
            return "Failed to serialize module output"
        case InternalFailure():
            return "Internal error occurred"
    return f"Module error: {error.code}"


def _findings(error: InvalidArgument, found: list[Any]) -> list[str]:
    """A line for each. Ours have a JSON pointer, and a code where it is a limit's; apcore's have a dotted field.

    A field that is missing is named in the message alone; whoever has to supply it looks for it in front.
    """
    keyword = next(iter(error.keywords)) if len(error.keywords) == 1 else ErrorCode.INVALID_ARGUMENT.lower()
    lines = []
    for each in found:
        written = to_builtins(each) if isinstance(each, Struct) else each
        facts = written if isinstance(written, Mapping) else {"message": written}
        missing = _REQUIRED.fullmatch(str(facts.get("message", "")))
        steps = [*str(facts.get("path", "")).strip("/").split("/"), missing[1] if missing is not None else ""]
        field = facts.get("field", ".".join(filter(None, steps)) or "arguments")
        lines.append(f"{field}: {facts.get('message', '')} ({facts.get('code', keyword)})")
    return lines


def _timeout(details: Mapping[str, Any], call: Call) -> Any:
    own = call.tool.timeout_ms if call.tool is not None else 0
    return details.get("timeoutMs", details.get("timeout_ms", own))
