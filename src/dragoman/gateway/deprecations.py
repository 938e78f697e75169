"""Announces that versions of actions will end, to every tenant, at least 30 days before."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from dragoman.clock import Clock
from dragoman.gateway.port import SigningKeys
from dragoman.knowledge.events import told
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.telemetry.log import Logger

NOTICE_SECONDS: Final = 30 * 86_400.0


class Deprecations:
    """Publishes `<action>.deprecation` once for each tenant, and notes it in the audit."""

    def __init__(
        self,
        ends: Iterable[str],
        tenants: Iterable[str],
        keys: SigningKeys,
        audit: Audit,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`ends` are `gateway.deprecations`; `tenants` are those of internal callers, beside those with keys."""
        self._ends = tuple(ends)
        self._tenants = frozenset(tenants)
        self._keys = keys
        self._audit = audit
        self._clock = clock
        self._logger = logger

    async def announce(self) -> dict[str, int]:
        """Announce what is to be announced; how many events that were."""
        if not self._ends:
            return {"events": 0}
        tenants = self._tenants | {key.tenant for key in await self._keys.list()}
        now, count = self._clock.now().timestamp(), 0
        for each in self._ends:
            name, _, moment = each.partition(" ")
            action, _, version = name.partition("@")
            left = datetime.fromisoformat(moment).timestamp() - now
            if left <= 0:
                continue
            if left < NOTICE_SECONDS:
                facts = {"action": action, "version": version, "daysLeft": int(left // 86_400)}
                self._logger.warn("a version of an action ends in less than 30 days", facts)
            for tenant in sorted(tenants):
                event = AuditEvent(
                    tenant=tenant,
                    event=f"{action}.deprecation",
                    principal="dragoman",
                    subject=version,
                    at=now,
                    details={"action": action, "action_version": version, "end_of_life": moment},
                    once=f"{action}.deprecation {version} {moment} {tenant}",
                )
                count += await self._audit.note(event, told(event))
        return {"events": count}
