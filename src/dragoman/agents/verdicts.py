"""Decisions about messages whose handler failed, or must not run. No I/O.

1. A handling whose effects are all in the ledger, or that is idempotent, is run again until its attempts are used up.
2. Any other is not run again: if its handler was interrupted its outcome is unknown, and if it raised it is dead.
3. A `ToolError` is the agent's answer. It is final, unless the policy says that a retry may help.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from dragoman.agents.agent import Agent
from dragoman.agents.ledger import EntryStatus, LedgerEntry
from dragoman.errors import Aborted, InternalFailure, TimedOut, ToolError
from dragoman.messaging.retries import RetryPolicy
from dragoman.tools.storage_errors import is_uncertain

HandlingVerdict: TypeAlias = tuple[EntryStatus, ToolError]


def before_handling(
    agent: Agent, entry: LedgerEntry, attempts: int, policy: RetryPolicy, now: float
) -> HandlingVerdict | None:
    """The verdict on a message whose handler must not run; None if it may."""
    if entry.status is EntryStatus.RUNNING and not agent.may_repeat:
        facts = {"reason": "unknown_outcome", "outcome": "UNKNOWN", "retryable": False}
        return EntryStatus.UNKNOWN, TimedOut("The process ended while the message was handled", facts)
    if entry.expires_at <= now:
        return EntryStatus.EXPIRED, TimedOut("The message expired before it was handled", {"reason": "expired"})
    if attempts >= policy.max_attempts:
        return EntryStatus.DEAD, InternalFailure("The process ended too often while the message was handled")
    return None


def after_error(agent: Agent, error: BaseException, attempts: int, policy: RetryPolicy) -> HandlingVerdict:
    """The verdict on a message whose handler raised."""
    again = retried(attempts, policy)
    if isinstance(error, Aborted | asyncio.CancelledError):
        facts = {"reason": "interrupted"} if agent.may_repeat else {"reason": "interrupted", "outcome": "UNKNOWN"}
        interrupted = TimedOut("The handling was interrupted", facts)
        return (again if agent.may_repeat else EntryStatus.UNKNOWN), interrupted
    if isinstance(error, ToolError):
        # What a handler asks for has the same id when it is handled again: it is not asked for twice.
        may_help = agent.may_repeat and (policy.should_retry_error(error.structured()) or is_uncertain(error))
        return (again if may_help else EntryStatus.FAILED), error
    failure = InternalFailure("The agent failed", {"reason": "handler_exception"})
    failure.__cause__ = error
    return (again if agent.may_repeat else EntryStatus.DEAD), failure


def retried(attempts: int, policy: RetryPolicy) -> EntryStatus:
    """The status of a message that may be tried again."""
    return EntryStatus.RETRYING if attempts < policy.max_attempts else EntryStatus.DEAD
