"""An outcome as the union of the optimisation document."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.calls.call import Outcome
from dragoman.errors import InternalError, NotFound, TimedOut
from dragoman.replies.timeout_result import timeout_result
from tests.unit.replies import Desk


@pytest.mark.requirement("PRD-TIME-04", "INV-MCP-TIMEOUT-004")
@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome({"a": 1}), {"status": "completed", "result": {"a": 1}, "durationMs": 12}),
        (Outcome(), {"status": "completed", "result": None, "durationMs": 12}),
        (Outcome(error=TimedOut("m")), {"status": "timeout", "timeoutMs": 5000}),
        (
            Outcome(error=NotFound("m")),
            {"status": "error", "error": {"code": "NOT_FOUND", "message": "m"}, "durationMs": 12},
        ),
        (
            Outcome(error=InternalError("m")),
            {"status": "error", "error": {"code": "INTERNAL_ERROR", "message": "m"}, "durationMs": 12},
        ),
    ],
)
def test_status_says_which_it_is(outcome: Outcome, told: dict[str, Any]) -> None:
    assert msgspec.to_builtins(timeout_result(Desk().call(), outcome)) == told
