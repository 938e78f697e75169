"""How the results of actions are worded: a result that is too large for an answer is an artifact in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.gateway.keeping import Objects
from dragoman.replies.contract import word_success
from dragoman.tools.content import encode_json


class ActionAnswers:
    """Words results as `{ok, data, usage}` of at most `most_bytes`."""

    def __init__(self, objects: Objects, most_bytes: int, most_kept: int) -> None:
        """At most `most_kept` bytes of answers are kept for a tenant."""
        self._objects = objects
        self._most_bytes = most_bytes
        self._most_kept = most_kept

    async def word(self, tenant: str, value: Any, latency_ms: int, base: str, usage: Mapping[str, Any]) -> bytes:
        """The body of an answer. Raises `REFUSALS` for a result that is too large and cannot be kept."""
        body = word_success(value, latency_ms, usage)
        if len(body) <= self._most_bytes:
            return body
        stored = await self._objects.keep_answer(tenant, encode_json(value), base, self._most_kept)
        return word_success(stored.data, latency_ms, usage)
