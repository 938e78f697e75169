"""The `SigningKeys` and `Quotas` of a process that keeps nothing."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from dragoman.adapters.dict_documents import DictAudit
from dragoman.gateway.port import Nonce, SigningKey
from dragoman.knowledge.port import AuditEvent


class DictSigningKeys:
    """Implements `SigningKeys`."""

    def __init__(self, audit: DictAudit | None = None) -> None:
        self._audit = audit or DictAudit()
        self._keys: dict[str, SigningKey] = {}
        self._nonces: dict[tuple[str, str], float] = {}

    async def add(self, key: SigningKey, event: AuditEvent | None = None) -> bool:
        is_new = key.kid not in self._keys
        if is_new:
            self._keys[key.kid] = key
            self._note(event)
        return is_new

    async def find(self, kid: str) -> SigningKey | None:
        return self._keys.get(kid)

    async def list(self) -> list[SigningKey]:
        return sorted(self._keys.values(), key=lambda key: (key.created_at, key.kid))

    async def revoke(self, kid: str, at: float, event: AuditEvent | None = None) -> bool:
        key = self._keys.get(kid)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[kid] = replace(key, revoked_at=at)
        self._note(event)
        return True

    async def spend(self, nonce: Nonce) -> bool:
        return self.spend_now(nonce)

    def spend_now(self, nonce: Nonce) -> bool:
        """The same at once."""
        for spent in tuple(islice(self._nonces, 2)):  # Two out for one in keeps up with any number of them.
            if self._nonces[spent] <= nonce.now:
                del self._nonces[spent]
        if not self.may_spend(nonce):
            return False
        self._nonces[nonce.kid, nonce.nonce] = nonce.until
        return True

    def may_spend(self, nonce: Nonce) -> bool:
        """Whether a nonce can be used."""
        key = self._keys.get(nonce.kid)
        return key is not None and key.revoked_at is None and (nonce.kid, nonce.nonce) not in self._nonces

    def _note(self, event: AuditEvent | None) -> None:
        if event is not None:
            self._audit.add(event)


class DictQuotas:
    """Implements `Quotas`."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], int] = {}

    async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
        for old in tuple(islice(self._taken, 2)):
            if old[1] < window:
                del self._taken[old]
        taken = self._taken.get((bucket, window), 0)
        granted = max(0, min(wanted, limit - taken))
        self._taken[bucket, window] = taken + granted
        return granted, taken + granted
