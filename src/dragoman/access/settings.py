"""Who HTTP clients have to be, and what is off until somebody turns it on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, field

from dragoman.sections import Problem, Section, about

TOKEN_SHORTEST = 16


TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a bearer token."""


def is_token(text: str) -> bool:
    """Whether a text is long enough for a token, and can be sent as one."""
    return len(text) >= TOKEN_SHORTEST and TOKEN_PATTERN.fullmatch(text) is not None


def is_secure_url(url: str) -> bool:
    """Whether nobody on the way can change what is fetched: https, or http that does not leave the machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # Raises when it is none.
        if parts.scheme == "http":
            return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
    return parts.scheme == "https" and bool(host)


class CallerConfig(Section, frozen=True):
    """Somebody who is known by a token of its own."""

    token: Annotated[
        Annotated[str, Meta(min_length=TOKEN_SHORTEST, pattern=rf"^{TOKEN_PATTERN.pattern}$")] | None,
        about("The token, 16 characters or more.", is_secret=True),
    ] = None
    token_env_var: Annotated[str | None, about("The variable that holds the token, in place of `token`.")] = None
    roles: Annotated[tuple[str, ...], about("What tools are told that the caller is.")] = ()
    tenants: Annotated[tuple[str, ...], about("Whose documents it may use, with the gateway.")] = ()
    scopes: Annotated[
        tuple[str, ...] | None, about("What it may call: `tool:<name>`, `tool:<beginning>*`; unset, every tool.")
    ] = None

    def conflicts(self) -> Iterator[Problem]:
        if (self.token is None) == (self.token_env_var is None):
            yield "token", "there must be either this or token_env_var"

    def __repr__(self) -> str:  # Sections are printed by debuggers and in tracebacks.
        return f"CallerConfig(token=…, roles={self.roles}, scopes={self.scopes})"


class AuthConfig(Section, frozen=True):
    """Who HTTP clients have to be; see the guide to authentication."""

    allow_unauthenticated: Annotated[
        bool, about("Whether an address that others can reach may be served without authentication.")
    ] = False
    local_owner: Annotated[
        bool,
        about(
            "Whether everybody who reaches a loopback address owns the tenant `local`, without the secret of the data "
            "directory. Never behind a proxy: all its clients have an address of this machine."
        ),
    ] = False
    callers: Annotated[dict[str, CallerConfig], about("Who is known by a token of its own, by name.")] = field(
        default_factory=dict
    )
    issuer: Annotated[
        str | None,
        about("Whose JSON Web Tokens are taken: the URL that they name as `iss`, where its keys are found."),
    ] = None
    jwks: Annotated[str | None, about("Where the keys are, if the issuer does not say: a URL, or a file.")] = None
    resource: Annotated[
        str | None,
        about("The URL that clients know this endpoint by. Tokens must be meant for it, unless `audience` is set."),
    ] = None
    audience: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about("What tokens must name as `aud`, if it is not `resource`."),
    ] = None
    require_scopes: Annotated[
        bool, about("Whether an issuer's token needs the scope `tool:<name>` to call a tool.")
    ] = True
    roles_claim: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("The claim that holds the roles; `a.b` is b within a."),
    ] = "roles"

    @property
    def takes_jwts(self) -> bool:
        return self.issuer is not None or self.jwks is not None

    @property
    def is_set(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.callers) or self.takes_jwts

    def conflicts(self) -> Iterator[Problem]:
        if self.takes_jwts and self.resource is None and self.audience is None:
            yield "audience", "must be set, or resource: tokens that are meant for others must not be taken"
        if self.local_owner and self.is_set:
            yield "local_owner", "is for servers that authenticate nobody; callers and an issuer say who the others are"
        for name, url in (("issuer", self.issuer), ("resource", self.resource)):
            if url is not None and not is_secure_url(url):
                yield name, "must be a URL with https, or with http on this machine"
        if self.jwks is not None and "://" in self.jwks and not is_secure_url(self.jwks):
            yield "jwks", "must be a file, or a URL with https, or with http on this machine"


class SecurityConfig(Section, frozen=True):
    """Switches that are off until somebody turns them on."""

    dynamic_registration_enabled: Annotated[bool, about("The other switch for registering tools at run time.")] = False
    state_key: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        about(
            "What seals the state that clients carry from question to answer. Processes that serve the same clients "
            "share it; unset, each has one of its own.",
            is_secret=True,
        ),
    ] = None
    allow_arbitrary_code_tools: Annotated[bool, about("Reserved; changes nothing.")] = False
