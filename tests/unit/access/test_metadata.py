"""What clients are told about how to get a token."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.access.metadata import metadata_url, resource_metadata
from dragoman.access.settings import AuthConfig

RESOURCE, ISSUER = "https://tools.example/mcp", "https://issuer.example"


@pytest.mark.parametrize(
    ("resource", "url"),
    [
        (RESOURCE, "https://tools.example/.well-known/oauth-protected-resource/mcp"),
        ("https://tools.example", "https://tools.example/.well-known/oauth-protected-resource"),
        ("https://tools.example/", "https://tools.example/.well-known/oauth-protected-resource"),
        ("http://localhost:8000/a/b/", "http://localhost:8000/.well-known/oauth-protected-resource/a/b"),
    ],
)
def test_the_well_known_path_goes_before_the_resources_own(resource: str, url: str) -> None:
    assert metadata_url(resource) == url


@pytest.mark.parametrize(
    ("config", "metadata"),
    [
        (AuthConfig(), None),
        (AuthConfig(issuer=ISSUER, audience="x"), None),
        (AuthConfig(resource=RESOURCE), {"resource": RESOURCE, "bearer_methods_supported": ["header"]}),
        (
            AuthConfig(resource=RESOURCE, issuer=ISSUER),
            {
                "resource": RESOURCE,
                "bearer_methods_supported": ["header"],
                "authorization_servers": [ISSUER],
                "scopes_supported": ["tool:*"],
            },
        ),
        (
            AuthConfig(resource=RESOURCE, issuer=ISSUER, require_scopes=False),
            {"resource": RESOURCE, "bearer_methods_supported": ["header"], "authorization_servers": [ISSUER]},
        ),
    ],
)
def test_the_metadata_say_who_gives_out_tokens_and_with_which_scopes(
    config: AuthConfig, metadata: dict[str, Any] | None
) -> None:
    assert resource_metadata(config) == metadata
