"""Old names of roles: they work for ever, and their use is noted in the audit."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from dragoman.clock import Clock
from dragoman.knowledge.events import told
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.knowledge.roles import ALIASES

_MOST_REMEMBERED: Final = 10_000


class AliasUse:
    """Notes the use of each name once in a quarter, for each tenant."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._noted: dict[str, None] = {}
        """The events that need not be noted again."""

    async def note(self, roles: Set[str], tenant: str, author: str) -> None:
        """Note the old names among `roles`, as somebody of a tenant has them. Raises `StorageError`."""
        for alias in ALIASES.keys() & roles:
            now = self._clock.now()
            once = f"role.deprecation {alias} {now.year}Q{(now.month + 2) // 3} {tenant}"
            if once in self._noted:
                continue
            event = AuditEvent(
                tenant=tenant,
                event="role.deprecation",
                principal=author,
                subject=alias,
                at=now.timestamp(),
                details={"alias": alias, "role": ALIASES[alias], "end_of_life": None},
                once=once,
            )
            await self._audit.note(event, told(event))
            self._noted[once] = None
            if len(self._noted) > _MOST_REMEMBERED:
                del self._noted[next(iter(self._noted))]
