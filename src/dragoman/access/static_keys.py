"""Tokens that the settings name."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from dragoman.access.callers import Caller
from dragoman.access.settings import TOKEN_SHORTEST, CallerConfig, is_token
from dragoman.errors import ConfigError, Unauthenticated
from dragoman.sections import join


class StaticKeys:
    """Holds hashes, and compares a token with every one of them, so that time does not tell how near it came."""

    def __init__(self, callers: Mapping[str, CallerConfig], environ: Mapping[str, str]) -> None:
        self._known: list[tuple[bytes, Caller]] = []
        names: dict[bytes, str] = {}
        problems: list[tuple[str, str]] = []
        for name, given in callers.items():
            token = given.token if given.token is not None else environ.get(given.token_env_var or "", "")
            if not is_token(token):
                wanted = f"{TOKEN_SHORTEST} or more letters, digits and -._~+/"
                where = given.token_env_var or "token"
                problems.append((join("auth.callers", name), f"{where} does not hold a token: {wanted}"))
                continue
            digest = _digest(token)
            if names.setdefault(digest, name) != name:
                problems.append((join("auth.callers", name), f"has the same token as {names[digest]}"))
            scopes = None if given.scopes is None else frozenset(given.scopes)
            self._known.append((digest, Caller(name, frozenset(given.roles), scopes, tenants=frozenset(given.tenants))))
        if problems:
            raise ConfigError(problems)

    async def verify(self, token: str) -> Caller:
        presented = _digest(token)
        found = None
        for digest, caller in self._known:
            if hmac.compare_digest(presented, digest):
                found = caller
        if found is None:
            raise Unauthenticated("The token is not known here")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
