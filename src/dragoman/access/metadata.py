"""What clients are told about how to get a token (RFC 9728)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from dragoman.access.callers import scope_of
from dragoman.access.settings import AuthConfig

METADATA_PATH = "/.well-known/oauth-protected-resource"


def metadata_url(resource: str) -> str:
    """Where the metadata of a resource is served: the well-known path goes in front of the resource's own."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{METADATA_PATH}{parts.path.rstrip('/')}"


def resource_metadata(config: AuthConfig) -> dict[str, Any] | None:
    """The document itself; None when the settings do not say what the resource is."""
    if config.resource is None:
        return None
    metadata: dict[str, Any] = {"resource": config.resource, "bearer_methods_supported": ["header"]}
    if config.issuer is not None:
        metadata["authorization_servers"] = [config.issuer]
    if config.takes_jwts and config.require_scopes:
        metadata["scopes_supported"] = [scope_of("*")]  # Not one for each tool: anybody can read this.
    return metadata
