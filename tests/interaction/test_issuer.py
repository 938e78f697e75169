"""Tokens of a real issuer, whose keys come over HTTP."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from dragoman.access.authenticator import DISTRUST_SECONDS, TRUST_SECONDS, Authenticator, make_authenticator
from dragoman.access.callers import Caller
from dragoman.access.keys import FRESH_SECONDS, REFRESH_SECONDS, RETRY_SECONDS
from dragoman.adapters.web_documents import MOST_BYTES, WebDocuments
from dragoman.config import make_config
from dragoman.errors import Unauthenticated, VerifierUnavailable
from dragoman.testing import ManualClock
from tests.support.issuer import KEYS, OAUTH, OPENID, Issuer, serve_issuer
from tests.support.tokens import AUDIENCE, EC, ED, NOW, OTHER, RSA, mint, public
from tests.support.waiting import until


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serve_issuer() as issuer:
        issuer.publish(EC, RSA)
        yield issuer


class Door:
    """An endpoint's authenticator, and its clock."""

    def __init__(self, issuer: Issuer, timeout: float = 5.0, **settings: Any) -> None:
        self.issuer = issuer
        self.clock = ManualClock()
        config = make_config({"auth": {"issuer": issuer.url, "resource": AUDIENCE, **settings}}).auth
        made = make_authenticator(config, self.clock, WebDocuments(timeout), {})
        assert made is not None
        self.authenticator: Authenticator = made

    async def enter(self, key: Any = EC, alg: str = "ES256", **claims: Any) -> Caller:
        token = mint({"iss": self.issuer.url, "exp": NOW + 10_000, **claims}, key, alg)
        return await self.authenticator.authenticate(b"Bearer " + token.encode())


@pytest.mark.parametrize(("key", "alg"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")])
async def test_a_token_of_the_issuer_opens_the_door(issuer: Issuer, key: Any, alg: str) -> None:
    issuer.publish(EC, RSA, ED)
    door = Door(issuer)
    caller = await door.enter(key, alg)
    assert (caller.name, caller.issuer, caller.scopes) == ("ada", issuer.url, {"tool:echo", "openid"})
    assert issuer.asked == [OPENID, KEYS]


async def test_an_issuer_without_openid_is_found_by_its_oauth_metadata(issuer: Issuer) -> None:
    issuer.documents[OAUTH] = issuer.documents.pop(OPENID)
    assert (await Door(issuer).enter()).name == "ada"
    assert issuer.asked == [OPENID, OAUTH, KEYS]


async def test_keys_can_be_named_outright_as_a_url_or_a_file(issuer: Issuer, tmp_path: Path) -> None:
    assert (await Door(issuer, jwks=issuer.url + KEYS).enter()).name == "ada"
    assert issuer.asked == [KEYS]
    file = tmp_path / "keys.json"
    file.write_bytes(public(EC))
    door = Door(issuer, jwks=str(file))
    assert (await door.enter()).name == "ada"
    file.write_bytes(public(ED))
    door.clock.advance(REFRESH_SECONDS)
    assert (await door.enter(ED, "Ed25519")).name == "ada"
    assert issuer.asked == [KEYS]


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "https://elsewhere.example"}, "another server"),
        ({"iss": "https://elsewhere.example"}, "another issuer"),
        ({"exp": NOW - 60}, "expired"),
        ({"nbf": NOW + 60}, "not valid yet"),
    ],
)
async def test_a_token_for_another_door_stays_outside(issuer: Issuer, claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unauthenticated, match=reason):
        await Door(issuer).enter(**claims)


async def test_keys_are_rotated_without_a_restart(issuer: Issuer) -> None:
    door = Door(issuer)
    await door.enter()
    issuer.publish(ED)
    door.clock.advance(REFRESH_SECONDS)
    await door.enter(ED, "EdDSA")
    assert issuer.asked == [OPENID, KEYS] * 2
    door.clock.advance(TRUST_SECONDS)  # A token of the old key that was seen before is good for this long.
    with pytest.raises(Unauthenticated, match="unknown key"):
        await door.enter()


async def test_a_flood_of_unknown_keys_does_not_reach_the_issuer(issuer: Issuer) -> None:
    door = Door(issuer)
    await door.enter()
    door.clock.advance(REFRESH_SECONDS)
    floods = [door.authenticator.authenticate(b"Bearer " + mint(kid=f"k{n}").encode()) for n in range(200)]
    results = await asyncio.gather(*floods, return_exceptions=True)
    assert {type(result) for result in results} == {Unauthenticated}
    assert issuer.asked == [OPENID, KEYS] * 2


async def test_an_issuer_that_is_down_turns_nobody_away_whose_key_is_known(issuer: Issuer) -> None:
    door = Door(issuer)
    await door.enter()
    issuer.documents.clear()
    door.clock.advance(FRESH_SECONDS)
    assert (await door.enter(sub="ben")).name == "ben"
    with pytest.raises(VerifierUnavailable, match="status 404"):
        await door.enter(OTHER)


async def test_an_issuer_that_was_down_at_first_is_asked_again(issuer: Issuer) -> None:
    held = dict(issuer.documents)
    issuer.documents = {OPENID: 503, OAUTH: 500}
    door = Door(issuer)
    with pytest.raises(VerifierUnavailable, match="status 503"):
        await door.enter()
    issuer.documents = held
    door.clock.advance(RETRY_SECONDS)
    assert (await door.enter()).name == "ada"


async def test_nobody_listening_is_unavailable_too() -> None:
    with serve_issuer() as issuer:
        door = Door(issuer)
    with pytest.raises(VerifierUnavailable, match="cannot be fetched"):
        await door.enter()


async def test_no_certificates_are_loaded_to_fetch_keys_from_this_machine(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("loading certificates blocks the event loop")

    monkeypatch.setattr(httpcore2, "default_ssl_context", fail)
    await Door(issuer, jwks=issuer.url + KEYS).enter()
    assert issuer.asked == [KEYS]


async def test_a_slow_issuer_is_given_up_and_asked_once_by_all(issuer: Issuer) -> None:
    issuer.ready.clear()
    door = Door(issuer, 0.5, jwks=issuer.url + KEYS)
    results = await asyncio.gather(*(door.enter(sub=f"s{n}") for n in range(10)), return_exceptions=True)
    assert {type(result) for result in results} == {VerifierUnavailable}
    await until(lambda: issuer.asked)
    assert issuer.asked == [KEYS]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b" " * (MOST_BYTES + 1), f"more than {MOST_BYTES} bytes"),
        (b" " * 50_000_000, f"more than {MOST_BYTES} bytes"),
        (gzip.compress(b" " * 50_000_000), "not a JSON object"),
        (b"<html>", "not a JSON object"),
        (302, "status 302"),
    ],
)
async def test_a_document_that_is_too_large_or_elsewhere_or_none_is_not_used(
    issuer: Issuer, document: bytes | int, reason: str
) -> None:
    issuer.documents[KEYS] = document
    with pytest.raises(VerifierUnavailable, match=reason):
        await Door(issuer).enter()
    assert "/elsewhere" not in issuer.asked


async def test_a_bad_token_is_looked_at_again_when_the_keys_may_have_changed(issuer: Issuer) -> None:
    door = Door(issuer)
    with pytest.raises(Unauthenticated):
        await door.enter(ED, "EdDSA")
    issuer.publish(ED)
    door.clock.advance(max(DISTRUST_SECONDS, REFRESH_SECONDS))
    assert (await door.enter(ED, "EdDSA")).name == "ada"
