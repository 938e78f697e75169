"""Whatever is presented: it is refused, or it is what was signed; and what is listed can be called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.access.authenticator import Authenticator
from dragoman.access.callers import Caller
from dragoman.errors import Unauthenticated
from dragoman.testing import ManualClock
from tests.support.examples import examples
from tests.support.json_values import json_values
from tests.support.tokens import EC, ED, RSA, issuer_documents, mint, verifier

GOOD = [mint(), mint(key=ED, alg="EdDSA"), mint(key=RSA, alg="RS256")]
values = json_values(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.text(max_size=5), max_leaves=5
)


def judged(token: str) -> Caller | None:
    async def judge() -> Caller | None:
        try:
            return await verifier(issuer_documents(EC, ED, RSA)).verify(token)
        except Unauthenticated:
            return None

    return asyncio.run(judge())


@pytest.mark.slow
@given(st.text() | st.lists(st.text(alphabet="eyJhbGciOiJub25lIn0_-", max_size=40), max_size=5).map(".".join))
def test_text_is_not_a_token(text: str) -> None:
    assert judged(text) is None


@given(st.sampled_from(GOOD), st.data())
def test_a_token_with_another_character_is_not_the_token(token: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.sampled_from("ABCXYZabcxyz0189-_."))
    changed = token[:place] + character + token[place + 1 :]
    part_end = place + 1 == len(token) or token[place + 1] == "."  # Its last bits may belong to no byte.
    if changed != token and not part_end:
        assert judged(changed) is None


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti", "scope", "scp", "roles", "azp"]), values
    )
)
def test_claims_of_any_kind_are_refused_or_understood(claims: dict[str, Any]) -> None:
    caller = judged(mint(claims))
    if caller is not None:
        assert caller.name == claims.get("sub", "ada")
        assert caller.scopes is not None
        assert all(isinstance(word, str) for word in caller.scopes | caller.roles)


@given(
    st.fixed_dictionaries(
        {},
        optional={"typ": values, "kid": values, "crit": values, "b64": values, "jwk": values},
    )
)
def test_headers_of_any_kind_are_refused_or_understood(header: dict[str, Any]) -> None:
    caller = judged(mint(**header))
    assert caller is None or caller.name == "ada"


@settings(max_examples=examples(2))
@given(st.binary() | st.binary().map(lambda token: b"Bearer " + token))
def test_a_header_of_any_bytes_is_refused(header: bytes) -> None:
    class Nobody:
        async def verify(self, token: str) -> Caller:
            raise Unauthenticated("Nobody is known")

    async def entered() -> bool:
        authenticator = Authenticator([Nobody()], ManualClock())
        try:
            await authenticator.authenticate(header)
        except Unauthenticated as error:
            authenticator.challenge(error.error, reason=error.reason).decode("ascii")
            return False
        return True

    assert not asyncio.run(entered())


@given(st.frozensets(st.text(alphabet="tol:*ab_", max_size=8)), st.text(alphabet="ab_", min_size=1, max_size=4))
def test_scopes_grant_a_tool_only_by_its_own_name_or_a_beginning_of_it(scopes: frozenset[str], tool: str) -> None:
    beginnings = {f"tool:{tool[:end]}*" for end in range(len(tool) + 1)}
    assert Caller("ada", scopes=scopes).may_call(tool) is bool(scopes & (beginnings | {f"tool:{tool}"}))


@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=4), st.text(max_size=4), st.none() | st.text(max_size=4)), unique=True
    )
)
def test_callers_are_told_apart_by_issuer_name_and_client(principals: list[tuple[str | None, str, str | None]]) -> None:
    callers = [Caller(name, issuer=issuer, client_id=client) for issuer, name, client in principals]
    assert len(set(callers)) == len(principals)
    assert len({caller.principal for caller in callers}) == len({(issuer, name) for issuer, name, _ in principals})
