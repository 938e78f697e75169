"""What one process of a server has to tell the others, so that it does not matter which of them a client meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct


class ToolRegistered(Struct, frozen=True, tag="toolRegistered", rename="camel"):
    """A tool was registered while the server runs."""

    tool_type: str
    name: str
    description: str
    version: str | None = None
    correlation_id: str | None = None
    """Of the call that asked for it."""


class ToolRemoved(Struct, frozen=True, tag="toolRemoved", rename="camel"):
    """A tool was removed while the server runs."""

    name: str
    correlation_id: str | None = None


class ResourceUpdated(Struct, frozen=True, tag="resourceUpdated"):
    """Something else is to be read at a URI."""

    uri: str


class ResultsOutdated(Struct, frozen=True, tag="resultsOutdated"):
    """Kept results with these tags are no longer true."""

    tags: tuple[str, ...]


class LedgerChanged(Struct, frozen=True, tag="ledgerChanged"):
    """There is something in the ledger that another process may wait for."""


class StorageDamaged(Struct, frozen=True, tag="storageDamaged"):
    """A statement has found damage in what all processes store."""


Change: TypeAlias = ToolRegistered | ToolRemoved | ResourceUpdated | ResultsOutdated | LedgerChanged | StorageDamaged
Publish: TypeAlias = Callable[[Change], None]
"""Tells the others. From any thread; never waits."""


def keep_to_itself(change: Change) -> None:
    """For a server of one process."""
