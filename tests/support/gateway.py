"""A client of the gateway: it makes envelopes, signs them and posts them, as an external caller does."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from joserfc.jwk import OKPKey

from dragoman.access.callers import Caller
from dragoman.gateway.credentials import issuer_of
from dragoman.gateway.port import SigningKey
from dragoman.gateway.signatures import sign

ACTIONS_PATH = "/mcp/actions"


class Signer:
    """The private half of a key, and what it signs."""

    def __init__(
        self,
        tenant: str = "acme",
        *roles: str,
        sub: str = "svc:writer",
        kid: str | None = None,
        line: str | None = None,
    ) -> None:
        self.private = OKPKey.generate_key("Ed25519").as_dict(private=True)
        self.tenant = tenant
        self.roles = roles or ("owner",)
        self.sub = sub
        self.kid = kid or f"test-{uuid.uuid4()}"
        self.line = line or self.kid

    def key(self, created_at: float | None = None, revoked_at: float | None = None) -> SigningKey:
        """The public half, as the server keeps it."""
        return SigningKey(
            kid=self.kid,
            public=str(self.private["x"]),
            tenant=self.tenant,
            roles=self.roles,
            created_at=time.time() if created_at is None else created_at,
            revoked_at=revoked_at,
            line=self.line,
        )

    @property
    def principal(self) -> str:
        """The caller that it is to the server."""
        return Caller(self.sub, issuer=issuer_of(self.line, self.tenant)).principal

    def envelope(self, action: str, args: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """An envelope that is accepted, but for what `fields` say otherwise."""
        return {
            "envelope_version": "2.2",
            "request_id": str(uuid.uuid4()),
            "correlation_id": str(uuid.uuid4()),
            "trace_id": f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01",
            "tenant_id": self.tenant,
            "principal": {"sub": self.sub, "roles": list(self.roles)},
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "ttl_sec": 300,
            "action": action,
            "action_version": "1.0.0",
            "payload": {"schema_version": "1.0", "args": args},
            **fields,
        }

    def claims(self, body: bytes, url: str, method: str = "POST", **fields: Any) -> dict[str, Any]:
        """The claims of a token for one request."""
        now = int(time.time())
        return {
            "sub": self.sub,
            "aud": "dragoman",
            "iat": now,
            "exp": now + 60,
            "nonce": uuid.uuid4().hex,
            "htm": method,
            "htu": url,
            "body_sha256": hashlib.sha256(body).hexdigest(),
            **fields,
        }

    def token(self, body: bytes, url: str, method: str = "POST", **fields: Any) -> str:
        """A token for one request."""
        return sign(self.claims(body, url, method, **fields), self.private, self.kid)


def create_args(document_id: str | None = None, parent_id: str = "root", **fields: Any) -> dict[str, Any]:
    """Arguments of `knowledge.create_document`."""
    return {
        "document_id": document_id or str(uuid.uuid4()),
        "parent_id": parent_id,
        "content": {"mime_type": "text/plain", "body": "Some text"},
        "metadata": {"title": "A document"},
        **fields,
    }


def as_body(envelope: dict[str, Any]) -> bytes:
    """The bytes of an envelope."""
    return json.dumps(envelope).encode()
