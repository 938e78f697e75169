"""Settings of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from dragoman.access.settings import is_secure_url
from dragoman.sections import Count, Problem, Section, about


class GatewayConfig(Section, frozen=True):
    """Signed actions on documents, beside MCP over HTTP; see the guide to the gateway."""

    enabled: Annotated[bool, about("Whether actions are served, and are there as tools.")] = False
    audience: Annotated[Annotated[str, Meta(min_length=1)], about("What signed requests must name as `aud`.")] = (
        "dragoman"
    )
    public_url: Annotated[
        str | None,
        about(
            "How clients reach the server, without a path: signed requests name it in `htu`, and documents have their "
            "pages there. Unset, what the `Host` header says."
        ),
    ] = None
    tenant_claim: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("The claim of an issuer's token that holds the tenant, or a list of them; `a.b` is b within a."),
    ] = "tenant"
    requests_per_minute_per_tenant: Annotated[
        Count, about("How many requests a minute one tenant may send.", is_limit=True)
    ] = 600
    requests_per_minute_per_principal: Annotated[
        Count, about("How many of them may be one principal's.", is_limit=True)
    ] = 120

    def conflicts(self) -> Iterator[Problem]:
        url = self.public_url
        if url is not None and (not is_secure_url(url) or url.count("/") != 2 or "?" in url or "#" in url):
            yield "public_url", "must be a URL without a path, with https, or with http on this machine"
