"""The subjects of messages: words with dots between them, of which the last may stand for any word.

A tenant's name is a word of its own in them, whatever it is: a name such as `*`, `>` or `a.b` becomes no wildcard and
no other tenant's subject.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode
from typing import Final

ANY: Final = "*"
"""As the last word of what is subscribed to: every subject that has another word there."""
_PREFIX: Final = "dragoman"
_ENCODED: Final = "B"
_PLAIN = re.compile(r"[a-z0-9_-]+")


def word_for(name: str) -> str:
    """A name as one word of a subject. Two names never become the same word: an encoded one begins with a capital."""
    return name if _PLAIN.fullmatch(name) else _ENCODED + b32encode(name.encode()).decode().rstrip("=")


def name_in(word: str) -> str | None:
    """The name that became a word of a subject; None if none did."""
    if not word.startswith(_ENCODED):
        return word
    text = word.removeprefix(_ENCODED)
    try:
        return b32decode(text + "=" * (-len(text) % 8)).decode()
    except ValueError:
        return None


def actions_subject(tenant: str) -> str:
    """The subject of requests for actions."""
    return f"{_PREFIX}.actions.{word_for(tenant)}"


def replies_subject(tenant: str, request_id: str) -> str:
    """The subject of the reply to one request."""
    return f"{_PREFIX}.replies.{word_for(tenant)}.{word_for(request_id.lower())}"


def events_subject(tenant: str) -> str:
    """The subject of a tenant's events."""
    return f"{_PREFIX}.events.{word_for(tenant)}"


def accepted_subject(tenant: str) -> str:
    """The subject of accepted requests: only the gateway publishes there, and its messages are trusted."""
    return f"{_PREFIX}.accepted.{word_for(tenant)}"


ALL_ACCEPTED: Final = f"{_PREFIX}.accepted.{ANY}"
ALL_ACTIONS: Final = f"{_PREFIX}.actions.{ANY}"


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one that `pattern` subscribes to."""
    if not pattern.endswith(f".{ANY}"):
        return pattern == subject
    first = pattern.removesuffix(ANY)
    return subject.startswith(first) and bool(rest := subject[len(first) :]) and "." not in rest
