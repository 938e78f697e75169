"""What a client carries for the server: it can neither read it nor change it, nor use it for anything else.

Sealed with AES-256-GCM under the server's key. What it was made for (caller, tool, arguments) is not in it, but is part
of what the seal is made over, so that it opens for exactly that and nothing else.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_NONCE = 12
_TIME = 8
_TAG = 16


class BrokenSeal(Exception):
    """It does not open. The reason is for the log, not for whoever brought it."""


class Seal:
    """Seals under `key`, which all processes share that serve the same clients; without one, under one of its own."""

    def __init__(self, key: str | None, audience: str) -> None:
        self._secret = os.urandom(32) if key is None else key.encode()
        self._audience = audience

    def close(self, content: bytes, bound_to: Sequence[str], until: float) -> str:
        """Seal `content` for what it is `bound_to`; it opens before `until`, in seconds since 1970."""
        nonce = os.urandom(_NONCE)
        plain = int(until * 1000).to_bytes(_TIME, "big") + content
        return _text(_VERSION + nonce + self._cipher.encrypt(nonce, plain, self._bound(bound_to)))

    def open(self, sealed: str, bound_to: Sequence[str], now: float) -> bytes:
        """What was sealed; raises `BrokenSeal`."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
        except ValueError:
            raise BrokenSeal("malformed") from None
        # Decoding skips what it does not know: only one text stands for these bytes.
        if _text(raw) != sealed or raw[:1] != _VERSION or len(raw) < 1 + _NONCE + _TIME + _TAG:
            raise BrokenSeal("malformed")
        nonce, rest = raw[1 : 1 + _NONCE], raw[1 + _NONCE :]
        try:
            plain = self._cipher.decrypt(nonce, rest, self._bound(bound_to))
        except InvalidTag:
            raise BrokenSeal("tampered with, or for another caller, tool or arguments, or of another key") from None
        if int.from_bytes(plain[:_TIME], "big") <= now * 1000:
            raise BrokenSeal("expired")
        return plain[_TIME:]

    @cached_property
    def _cipher(self) -> AESGCM:
        # Not before it is needed: most servers never are, and it takes longer to load than they take to start.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"dragoman request state").derive(self._secret))

    def _bound(self, bound_to: Sequence[str]) -> bytes:
        return _VERSION + msgspec.json.encode((self._audience, *bound_to))


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")
