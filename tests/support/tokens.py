"""Keys, tokens signed with them, and an issuer in memory."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dragoman.access.jwt import JwtVerifier
from dragoman.access.keys import KeySource
from dragoman.errors import VerifierUnavailable
from dragoman.testing import ManualClock

ISSUER = "https://issuer.example/tenant"
JWKS = "https://issuer.example/keys"
METADATA = f"{ISSUER}/.well-known/openid-configuration"
AUDIENCE = "https://tools.example/mcp"
NOW = int(ManualClock().now().timestamp())
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 300, "scope": "tool:echo openid"}

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
OTHER = ECKey.generate_key("P-256", {"kid": "other"})


def mint(claims: dict[str, Any] | bytes | None = None, key: Any = EC, alg: str = "ES256", **header: Any) -> str:
    """A token, signed; claims and header fields of None are left out."""
    whole = {"alg": alg, "kid": key.get("kid"), "typ": "JWT", **header}
    if not isinstance(claims, bytes):
        wanted = {**CLAIMS, **(claims or {})}
        claims = json.dumps({name: value for name, value in wanted.items() if value is not None}).encode()
    kept = {name: value for name, value in whole.items() if value is not None}
    signed = (
        f"{_base64(json.dumps(kept).encode())}.{_base64(claims)}"  # By hand: bad tokens have to come from somewhere.
    )
    return f"{signed}.{_base64(jws.JWSRegistry.algorithms[alg].sign(signed.encode(), key))}"


def public(*keys: Any) -> bytes:
    """A key document."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def secret_from(text: bytes) -> OctKey:
    """A shared secret made of what is no secret at all."""
    return OctKey.import_key({"kty": "oct", "k": _base64(text), "kid": "ec"})


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class MemoryDocuments:
    """Documents by location; what is missing cannot be had. `gate` holds answers back."""

    def __init__(self, documents: dict[str, bytes]) -> None:
        self.documents = documents
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, location: str) -> bytes:
        self.asked.append(location)
        await self.gate.wait()
        if location not in self.documents:
            raise VerifierUnavailable(f"{location} cannot be had")
        return self.documents[location]


def issuer_documents(*keys: Any, issuer: str = ISSUER) -> MemoryDocuments:
    """What an issuer publishes."""
    about = json.dumps({"issuer": issuer, "jwks_uri": JWKS}).encode()
    return MemoryDocuments({METADATA: about, JWKS: public(*keys)})


def verifier(documents: MemoryDocuments, clock: ManualClock | None = None, **options: Any) -> JwtVerifier:
    clock = clock or ManualClock()
    issuer = options.pop("issuer", ISSUER)
    keys = KeySource(documents, clock, issuer=issuer, jwks=options.pop("jwks", None))
    return JwtVerifier(keys, clock, audience=AUDIENCE, issuer=issuer, **options)
