"""Settings of tasks and of idempotency keys."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.sections import Count, Milliseconds, Section, about

_DAY_MS = 86_400_000
_YEAR_MS = 365 * _DAY_MS


class TasksConfig(Section, frozen=True):
    """Calls that outlive their client."""

    tools: Annotated[
        dict[str, Literal["optional", "required", "none"]],
        about("By tool, whether a call may or must become a task, in place of what the tool says."),
    ] = msgspec.field(default_factory=dict)
    max_concurrent: Annotated[Count, about("How many tasks may run at the same time; others wait.", is_limit=True)] = 32
    max_waiting: Annotated[
        Count, about("How many tasks may wait to run. Half of them may be one caller's.", is_limit=True)
    ] = 1_000
    ttl_ms: Annotated[
        Annotated[int, Meta(ge=1_000, le=_YEAR_MS)],
        about("How long the outcome of a task can be read; with an idempotency key, at least as long as the key."),
    ] = _DAY_MS
    poll_interval_ms: Annotated[Milliseconds, about("How often clients are asked to look at a task.")] = 1_000
    idempotency_ttl_ms: Annotated[
        Annotated[int, Meta(ge=_DAY_MS, le=_YEAR_MS)],
        about("How long a call that is repeated with the same idempotency key gets the first result."),
    ] = _DAY_MS

    def kept_seconds(self, *, has_key: bool) -> float:
        """How long a task is kept after it was created, and after it has ended: at least as long as its key."""
        return max(self.ttl_ms, self.idempotency_ttl_ms if has_key else 0) / 1000
