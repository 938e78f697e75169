"""An issuer's keys: how often they are asked for, and what they are worth while nobody answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from joserfc.jwk import OctKey

from dragoman.access.keys import FRESH_SECONDS, REFRESH_SECONDS, RETRY_SECONDS, KeySource
from dragoman.errors import Unauthenticated, VerifierUnavailable
from dragoman.testing import ManualClock
from tests.support.tokens import EC, ED, ISSUER, JWKS, METADATA, MemoryDocuments, issuer_documents, public


class Source:
    """A key source, what it asks, and its clock."""

    def __init__(self, documents: MemoryDocuments | None = None, *, jwks: str | None = JWKS) -> None:
        self.clock = ManualClock()
        self.documents = documents or MemoryDocuments({JWKS: public(EC)})
        self.keys = KeySource(self.documents, self.clock, issuer=ISSUER, jwks=jwks)

    async def find(self, kid: str | None) -> list[Any]:
        return [key.get("kid") for key in await self.keys.find(kid)]

    async def settle(self) -> None:
        """Let what goes on in the background end."""
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def times_asked(self) -> int:
        return len(self.documents.asked)


async def test_keys_are_asked_for_when_the_first_is_needed_and_then_kept() -> None:
    source = Source()
    assert source.times_asked == 0
    assert [await source.find("ec") for _ in range(3)] == [["ec"]] * 3
    assert source.times_asked == 1


async def test_many_at_once_share_one_request() -> None:
    source = Source()
    source.documents.gate.clear()
    waiting = [asyncio.create_task(source.find("ec")) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # The one that began it leaves, and the others are answered all the same.
    source.documents.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [["ec"]] * 49
    assert source.times_asked == 1


async def test_a_new_key_is_found_once_the_issuer_may_be_asked_again() -> None:
    source = Source()
    await source.find("ec")
    source.documents.documents[JWKS] = public(ED)
    with pytest.raises(Unauthenticated, match="unknown key"):
        await source.find("ed")
    assert source.times_asked == 1
    source.clock.advance(REFRESH_SECONDS)
    assert await source.find("ed") == ["ed"]
    with pytest.raises(Unauthenticated):
        await source.find("ec")  # It has been withdrawn.
    assert source.times_asked == 2


async def test_a_flood_of_unknown_keys_is_not_a_flood_of_requests() -> None:
    source = Source()
    for second in range(100):
        for number in range(20):
            with pytest.raises(Unauthenticated):
                await source.find(f"unknown-{second}-{number}")
        source.clock.advance(1)
    assert source.times_asked == 4


async def test_an_issuer_that_is_down_is_not_asked_by_every_client() -> None:
    source = Source(MemoryDocuments({}))
    for _ in range(20):
        for _ in range(10):
            with pytest.raises(VerifierUnavailable, match="cannot be had"):
                await source.find("ec")
        source.clock.advance(RETRY_SECONDS / 10)
    assert source.times_asked == 2
    source.documents.documents[JWKS] = public(EC)
    source.clock.advance(RETRY_SECONDS)
    assert await source.find("ec") == ["ec"]


async def test_known_keys_stay_good_while_the_issuer_is_down() -> None:
    source = Source()
    await source.find("ec")
    source.documents.documents.clear()
    for _ in range(3):
        source.clock.advance(FRESH_SECONDS)
        assert await source.find("ec") == ["ec"]
        await source.settle()
    with pytest.raises(VerifierUnavailable):  # Whether there is such a key by now, nobody can tell.
        await source.find("new")
    assert await source.find("ec") == ["ec"]


async def test_old_keys_are_looked_at_again_without_anybody_waiting_for_it() -> None:
    source = Source()
    await source.find("ec")
    source.documents.documents[JWKS] = public(ED)
    source.documents.gate.clear()
    source.clock.advance(FRESH_SECONDS)
    assert await source.find("ec") == ["ec"]
    source.documents.gate.set()
    await source.settle()
    assert source.times_asked == 2
    assert await source.find("ed") == ["ed"]
    with pytest.raises(Unauthenticated):
        await source.find("ec")


async def test_where_the_keys_are_is_asked_of_the_issuer() -> None:
    source = Source(issuer_documents(EC, ED), jwks=None)
    assert await source.find("ed") == ["ed"]
    assert source.documents.asked == [METADATA, JWKS]


async def test_an_issuer_that_only_speaks_oauth_is_found_too() -> None:
    documents = issuer_documents(EC)
    oauth = "https://issuer.example/.well-known/oauth-authorization-server/tenant"
    documents.documents[oauth] = documents.documents.pop(METADATA)
    source = Source(documents, jwks=None)
    assert await source.find("ec") == ["ec"]
    assert documents.asked == [METADATA, oauth, JWKS]


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"issuer": "https://evil.example", "jwks_uri": JWKS}, "calls itself 'https://evil.example'"),
        ({"issuer": ISSUER + "/", "jwks_uri": JWKS}, "calls itself"),
        ({"jwks_uri": JWKS}, "calls itself 'None'"),
        ({"issuer": ISSUER}, "does not say where its keys are"),
        ({"issuer": ISSUER, "jwks_uri": 7}, "does not say where its keys are"),
        ({"issuer": ISSUER, "jwks_uri": "/etc/keys.json"}, "does not say where its keys are"),
        ([], "not a JSON object"),
    ],
)
async def test_an_issuer_that_describes_itself_wrongly_is_not_believed(about: Any, reason: str) -> None:
    documents = issuer_documents(EC)
    documents.documents[METADATA] = json.dumps(about).encode()
    with pytest.raises(VerifierUnavailable, match=reason):
        await Source(documents, jwks=None).find("ec")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"keys": 5}',
        b'{"keys": []}',
        b'{"keys": [5, {}, {"kty": "EC"}]}',
        b"[" * 9000,
        b"\xff",
    ],
)
async def test_a_document_without_keys_costs_none_that_are_known(content: bytes) -> None:
    source = Source()
    await source.find("ec")
    source.documents.documents[JWKS] = content
    source.clock.advance(REFRESH_SECONDS)
    with pytest.raises(VerifierUnavailable):
        await source.find("new")
    assert await source.find("ec") == ["ec"]


async def test_keys_that_cannot_be_used_are_passed_over() -> None:
    good = EC.as_dict(private=False)
    listed = [
        {"kty": "AKP", "kid": "from the future"},
        {"kty": "RSA", "kid": "short", "n": "AQAB" * 40, "e": "AQAB"},
        {"kty": "RSA", "kid": "odd", "n": 5, "e": "AQAB"},
        {"kty": "EC", "kid": "no such curve", "crv": "P-1", "x": "AA", "y": "AA"},
        {**good, "kid": "not on the curve", "y": good["x"]},
        {**good, "kid": "for encryption", "use": "enc"},
        OctKey.generate_key(256, {"kid": "shared"}).as_dict(private=True),
        "text",
        good,
    ]
    source = Source(MemoryDocuments({JWKS: json.dumps({"keys": listed}).encode()}))
    assert await source.find(None) == ["ec"]


async def test_a_token_without_a_key_id_is_not_tried_with_any_number_of_keys() -> None:
    many = [{**EC.as_dict(private=False), "kid": f"k{number}"} for number in range(200)]
    source = Source(MemoryDocuments({JWKS: json.dumps({"keys": many}).encode()}))
    assert len(await source.find(None)) == 8
    assert await source.find("k99") == ["k99"]
    with pytest.raises(Unauthenticated):
        await source.find("k100")
