"""Roles: who may do what, and the names that they had before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OWNER, EDITOR, VIEWER, AGENT = "owner", "editor", "viewer", "agent"
ROLES: Final = frozenset((OWNER, EDITOR, VIEWER, AGENT))
ALIASES: Final = {"cursor": AGENT, "codex": EDITOR}
"""Names that are taken for ever, and what they mean."""
INBOX_TAG: Final = "agent-inbox"
"""Under documents with this tag, and nowhere else, an `agent` may create documents."""


def canonical(roles: Iterable[str]) -> frozenset[str]:
    """The roles that these names stand for; names that stand for none are left out."""
    return frozenset(ALIASES.get(role, role) for role in roles) & ROLES
