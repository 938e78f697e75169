"""Settings of agents and of the messages between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from dragoman.sections import Count, Milliseconds, Problem, Section, about


class AacpConfig(Section, frozen=True):
    """How agents handle messages, and how reliable messages are delivered."""

    max_concurrent: Annotated[
        Count, about("How many messages may be handled at the same time; others wait.", is_limit=True)
    ] = 64
    mailbox_size: Annotated[
        Count, about("How many messages may wait for an agent in memory. Reliable ones then wait in the ledger.")
    ] = 1_000
    lease_ms: Annotated[
        Annotated[int, Meta(ge=100, le=3_600_000)],
        about("How long a process may be silent before another takes its agents over."),
    ] = 10_000
    max_attempts: Annotated[Count, about("How often a message is tried before it is a dead letter.")] = 5
    base_delay_ms: Annotated[Milliseconds, about("How long to wait before the second attempt.")] = 200
    max_delay_ms: Annotated[Milliseconds, about("The longest wait between two attempts.")] = 30_000
    backoff_multiplier: Annotated[
        Annotated[float, Meta(ge=1.0, le=100.0)], about("By how much the wait grows with each attempt.")
    ] = 2.0
    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=1, le=31_536_000_000)],
        about("How long a message may wait to be handled, and how long its outcome is kept."),
    ] = 86_400_000

    @property
    def retry_seconds(self) -> float:
        """How long attempts may follow one another at most. A message is not forgotten before."""
        return self.max_attempts * self.max_delay_ms / 1000

    def conflicts(self) -> Iterator[Problem]:
        if self.base_delay_ms > self.max_delay_ms:
            yield "base_delay_ms", "must be at most max_delay_ms"
