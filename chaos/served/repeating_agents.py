"""The same agents, one of which wrongly claims that its work may be repeated."""

from __future__ import annotations

import agents  # type: ignore[import-not-found]
from agents import again, asker, flaky, relay, sink, tally

from dragoman.agents.agent import make_agent

__all__ = ["again", "asker", "flaky", "outside", "relay", "sink", "tally"]

outside = make_agent("outside", agents.outside, idempotent=True)
