"""The ports to what the gateway has to remember: signing keys, which nonces were used, and how much was asked for."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from dragoman.knowledge.port import AuditEvent

LONGEST_KEY_SECONDS: Final = 90 * 86_400
"""A key that is older is refused."""
OLD_KEY_SECONDS: Final = 75 * 86_400
"""A key that is older is warned about."""


class SigningKey(Struct, frozen=True, kw_only=True):
    """The public half of a key that external callers sign with."""

    kid: str
    public: str
    """32 bytes of Ed25519 as base64url, as a JSON Web Key has them in `x`."""
    tenant: str
    roles: tuple[str, ...]
    """The most that requests which it signed can have."""
    created_at: float
    """In seconds since 1970, as is the next."""
    revoked_at: float | None = None
    line: str = ""
    """The first of the keys that were rotated into this one, by its name; by default this one itself.

    A caller is a line and a `sub`: its order, its answers, its rate and its name in the registry outlive a rotation.
    """

    def __post_init__(self) -> None:
        if not self.line:
            force_setattr(self, "line", self.kid)

    def is_valid(self, now: float) -> bool:
        """Whether requests that it signs now are taken."""
        return self.revoked_at is None and now - self.created_at <= LONGEST_KEY_SECONDS


class Nonce(Struct, frozen=True):
    """Makes a signed request good for one time."""

    kid: str
    nonce: str
    until: float
    """How long it is remembered, in seconds since 1970, as is the next."""
    now: float


class SigningKeys(Protocol):
    """Keeps the keys, for all processes of a server. Every method raises `StorageError`s."""

    async def add(self, key: SigningKey, event: AuditEvent | None = None) -> bool:
        """False if there is a key of this name. Otherwise the event is noted in the same transaction."""
        ...

    async def find(self, kid: str) -> SigningKey | None: ...

    async def list(self) -> list[SigningKey]:
        """All of them, revoked ones too, the oldest first."""
        ...

    async def revoke(self, kid: str, at: float, event: AuditEvent | None = None) -> bool:
        """False if there is no such key, or it was revoked before. Otherwise the event is noted, as `add` does it."""
        ...

    async def spend(self, nonce: Nonce) -> bool:
        """Use a nonce, which is remembered until its token has expired.

        False if it was used before, or the key has been revoked. Of two requests at the same time, one is told True.
        """
        ...


class Quotas(Protocol):
    """Counts what was asked for, for all processes of a server."""

    async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
        """Take up to `wanted` out of what `limit` leaves in a window: how many that were, and how many are taken now.

        Older windows are forgotten.
        """
        ...
