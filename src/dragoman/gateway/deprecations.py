"""Announces that versions of actions will end, to every tenant, at least 30 days before.

The audit decides whether an end was announced in time: for the server as a whole, as not all tenants may be known.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct

from dragoman.clock import Clock
from dragoman.errors import ConfigError
from dragoman.gateway.port import SigningKeys
from dragoman.knowledge.events import told
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.telemetry.log import Logger

NOTICE_SECONDS: Final = 30 * 86_400.0
_EVERYBODY = ""
"""The tenant of the event that stands for all of them, which is not published."""


class _End(Struct, frozen=True):
    """An entry of `gateway.deprecations`."""

    action: str
    version: str
    moment: str

    @classmethod
    def of(cls, text: str) -> _End:
        name, _, moment = text.partition(" ")
        action, _, version = name.partition("@")
        return cls(action, version, moment)

    @property
    def event(self) -> str:
        return f"{self.action}.deprecation"

    @property
    def at(self) -> float:
        return _seconds(self.moment)

    def once(self, tenant: str) -> str:
        return f"{self.event} {self.version} {self.moment} {tenant}"


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
        self._ends = tuple(map(_End.of, ends))
        self._tenants = frozenset(tenants)
        self._keys = keys
        self._audit = audit
        self._clock = clock
        self._logger = logger

    async def check(self) -> None:
        """Raise `ConfigError` for ends that come, or came, too soon after their announcement.

        Without one in the audit, the announcement is due now. That of an earlier end is as good.
        """
        now, problems = self._clock.now().timestamp(), []
        for end in self._ends:
            announced = await self._audit.noted_once(f"{end.event} {end.version} ")
            known = (each.at for each in announced if _seconds(each.details["end_of_life"]) <= end.at)
            if end.at < min(known, default=now) + NOTICE_SECONDS:
                said = f"{end.action}@{end.version} ends less than 30 days after its announcement"
                problems.append(("gateway.deprecations", f"{said}: {end.moment}"))
        if problems:
            raise ConfigError(problems)

    async def announce(self) -> dict[str, int]:
        """Announce what is to be announced; how many tenants were told."""
        if not self._ends:
            return {"events": 0}
        tenants = self._tenants | {key.tenant for key in await self._keys.list()}
        now, count = self._clock.now().timestamp(), 0
        for end in self._ends:
            left = end.at - now
            if left <= 0:
                continue
            if left < NOTICE_SECONDS:
                facts = {"action": end.action, "version": end.version, "daysLeft": int(left // 86_400)}
                self._logger.warn("a version of an action ends in less than 30 days", facts)
            await self._audit.note(self._event(end, _EVERYBODY, now))
            for tenant in sorted(tenants):
                event = self._event(end, tenant, now)
                count += await self._audit.note(event, told(event))
        return {"events": count}

    def _event(self, end: _End, tenant: str, now: float) -> AuditEvent:
        return AuditEvent(
            tenant=tenant,
            event=end.event,
            principal="dragoman",
            subject=end.version,
            at=now,
            details={"action": end.action, "action_version": end.version, "end_of_life": end.moment},
            once=end.once(tenant),
        )


def _seconds(moment: str) -> float:
    """Since 1970."""
    return datetime.fromisoformat(moment).timestamp()
