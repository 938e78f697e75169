"""Signed requests: which are taken, and every reason to refuse one."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from msgspec.structs import replace

from dragoman.access.callers import LEEWAY_SECONDS
from dragoman.errors import Unauthenticated
from dragoman.gateway.port import LONGEST_KEY_SECONDS
from dragoman.gateway.signatures import LONGEST_LIFE, SignedClaims, check_age, kid_in, verify
from tests.support.gateway import Signer

SIGNER = Signer(kid="k1")
KEY = SIGNER.key(created_at=0.0)
NOW = 1_700_000_000
URL = "https://example.org/mcp/actions"
BODY = b'{"a": 1}'
MISSING: Any = Ellipsis


def claims(**fields: Any) -> dict[str, Any]:
    given = SIGNER.claims(BODY, URL, **{"iat": NOW, "exp": NOW + 60, "nonce": "n" * 16, **fields})
    return {name: value for name, value in given.items() if value is not MISSING}


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def made(header: dict[str, Any], content: dict[str, Any] | bytes, key: Any = None) -> str:
    """A token with any header at all, whose signature by Ed25519 is right for it unless there is a key."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    signing = f"{encoded(json.dumps(header).encode())}.{encoded(payload)}"
    private: Any = (key or OKPKey.import_key(SIGNER.private)).private_key
    signature = private.sign(signing.encode())
    return f"{signing}.{encoded(signature)}"


def token(header: dict[str, Any] | None = None, **fields: Any) -> str:
    given = {"alg": "Ed25519", "kid": "k1", "typ": "JWT", **(header or {})}
    return made({name: value for name, value in given.items() if value is not MISSING}, claims(**fields))


def check(token: str, now: float = NOW) -> SignedClaims:
    return verify(token, KEY, "dragoman", now)


def refusal(token: str, now: float = NOW) -> str:
    with pytest.raises(Unauthenticated) as refused:
        check(token, now)
    return refused.value.reason


@pytest.mark.requirement("MC-SEC-02")
def test_a_token_of_the_key_is_taken() -> None:
    signed = SIGNER.token(BODY, URL, iat=NOW, exp=NOW + 600, nonce="n" * 16)
    found = check(signed)
    assert (found.sub, found.nonce, found.exp) == ("svc:writer", "n" * 16, NOW + 600)
    found.check_request("POST", URL)
    found.check_body(BODY)
    assert kid_in(signed) == "k1"


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("header", [{}, {"alg": "EdDSA"}, {"typ": MISSING}, {"typ": "jwt"}, {"typ": "JOSE"}], ids=str)
def test_headers_that_libraries_make_are_taken(header: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert check(token(header)).sub == "svc:writer"
    assert caplog.records == []


@pytest.mark.requirement("MC-SEC-02", "MC-SEC-03")
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "None"},
        {"alg": ""},
        {"alg": "HS256"},
        {"alg": "RS256"},
        {"alg": "ES256"},
        {"alg": "Ed448"},
        {"alg": "ed25519"},
        {"alg": MISSING},
        {"alg": None},
        {"alg": ["Ed25519"]},
        {"kid": MISSING},
        {"kid": ""},
        {"kid": "k" * 129},
        {"kid": 5},
        {"typ": "at+jwt"},
        {"typ": 5},
        {"jku": "https://mallory.example/keys"},
        {"x5u": "https://mallory.example/chain"},
        {"jwk": {"kty": "OKP"}},
        {"x5c": ["MII"]},
        {"crit": ["b64"], "b64": False},
        {"b64": True},
        {"cty": "JWT"},
        {"zip": "DEF"},
        {"x": 1},
    ],
    ids=str,
)
def test_a_header_that_says_anything_else_is_refused(header: dict[str, Any]) -> None:
    assert refusal(token(header)).startswith(("The header of the token", "The token is signed with an algorithm"))


@pytest.mark.requirement("MC-SEC-03")
def test_no_other_kind_of_key_signs_a_token() -> None:
    public = urlsafe_b64decode(f"{KEY.public}=")
    payload = json.dumps(claims()).encode()
    for algorithm, key in (
        ("HS256", OctKey.import_key(public)),
        ("RS256", RSAKey.generate_key(2048)),
        ("ES256", ECKey.generate_key("P-256")),
    ):
        refusal(jws.serialize_compact({"alg": algorithm, "kid": "k1"}, payload, key, algorithms=[algorithm]))
    for secret in (public, KEY.public.encode()):
        head, content, _ = token({"alg": "HS256"}).split(".")
        mac = hmac.new(secret, f"{head}.{content}".encode(), hashlib.sha256).digest()
        refusal(f"{head}.{content}.{encoded(mac)}")
        head, content, _ = token().split(".")
        mac = hmac.new(secret, f"{head}.{content}".encode(), hashlib.sha256).digest()
        assert refusal(f"{head}.{content}.{encoded(mac)}") == "The token's signature is wrong"


@pytest.mark.requirement("MC-SEC-02")
def test_a_signature_of_another_key_or_of_something_else_is_refused() -> None:
    head, content, signature = token().split(".")
    other = OKPKey.import_key(Signer().private)
    changed = claims(sub="svc:mallory")
    wrong = [
        made({"alg": "Ed25519", "kid": "k1"}, claims(), other),
        f"{head}.{encoded(json.dumps(changed).encode())}.{signature}",
        f"{encoded(json.dumps({'alg': 'EdDSA', 'kid': 'k1'}).encode())}.{content}.{signature}",
        f"{head}.{content}.{encoded(bytes(64))}",
        f"{head}.{content}.{encoded(urlsafe_b64decode(signature + '==')[:-1])}",
        f"{head}.{content}.{signature[::-1]}",
        f"{head}.{content}.A",
    ]
    assert {refusal(each) for each in wrong} == {"The token's signature is wrong"}


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("changed", range(0, 64, 7))
def test_a_signature_that_differs_in_one_bit_is_refused(changed: int) -> None:
    head, content, signature = token().split(".")
    data = bytearray(urlsafe_b64decode(signature + "=="))
    data[changed] ^= 1
    assert refusal(f"{head}.{content}.{encoded(bytes(data))}") == "The token's signature is wrong"


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b", "a.b.c.d", "a.b.c\n", " a.b.c", "a=.b.c", "a.b.ç", "é.b.c", "a..c", "a" * 2000]
)
def test_what_is_no_compact_token_is_refused(text: str) -> None:
    assert refusal(text) == "The token is malformed"


def test_the_header_of_a_token_is_small() -> None:
    padded = f"{encoded(json.dumps({'alg': 'Ed25519', 'kid': 'k1'}).encode() + b' ' * 1000)}.e30.AA"
    assert refusal(padded) == "The header of the token is not one that is taken"
    assert kid_in(padded) is None


@pytest.mark.parametrize(
    "text", ["", "abc", "e30.e30.AA", f"{encoded(b'[]')}.a.b", f"{encoded(b'{')}.a.b", "A.b.c", "é.b.c", "\0.b.c"]
)
def test_a_token_that_names_no_key_has_none(text: str) -> None:
    assert kid_in(text) is None


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("name", ["sub", "aud", "iat", "exp", "nonce", "htm", "htu", "body_sha256"])
def test_no_claim_may_be_missing(name: str) -> None:
    assert refusal(token(**{name: MISSING})) == "A claim of the token is missing or wrong"
    assert refusal(token(**{name: None})) == "A claim of the token is missing or wrong"


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize(
    "fields",
    [
        {"sub": ""},
        {"sub": "s" * 257},
        {"iat": "now"},
        {"iat": NOW + 0.5},
        {"exp": str(NOW + 60)},
        {"nonce": "n" * 15},
        {"nonce": "n" * 129},
        {"nonce": "n" * 16 + "\n"},
        {"nonce": "n" * 16 + " "},
        {"nonce": "ñ" * 16},
        {"nonce": 10**16},
        {"htu": "u" * 2049},
        {"aud": 5},
        {"aud": [5]},
    ],
    ids=str,
)
def test_no_claim_may_be_malformed(fields: dict[str, Any]) -> None:
    assert refusal(token(**fields)) == "A claim of the token is missing or wrong"


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 10_000])
def test_claims_are_an_object_of_json(content: bytes) -> None:
    if not content:
        assert refusal(made({"alg": "Ed25519", "kid": "k1"}, content)) == "The token is malformed"
    else:
        reason = refusal(made({"alg": "Ed25519", "kid": "k1"}, content))
        assert reason == "A claim of the token is missing or wrong"


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("audience", ["", "other", "dragoman ", "Dragoman", [], ["other"], ["drago", "man"]])
def test_a_token_for_another_server_is_refused(audience: Any) -> None:
    assert refusal(token(aud=audience)) == "The token is meant for another server"
    assert check(token(aud=["other", "dragoman"])).sub == "svc:writer"


@pytest.mark.requirement("MC-SEC-02")
def test_a_token_is_valid_from_its_beginning_to_its_end() -> None:
    signed = token(iat=NOW, exp=NOW + 60)
    for now in (NOW - LEEWAY_SECONDS, NOW, NOW + 59.9):
        check(signed, now)
    assert refusal(signed, NOW - LEEWAY_SECONDS - 1) == "The token is not valid yet"
    for now in (NOW + 60, NOW + 1000):
        assert refusal(signed, now) == "The token has expired"


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("life", [0, -1, LONGEST_LIFE + 1, 10**20])
def test_a_token_lives_for_ten_minutes_at_most(life: int) -> None:
    assert refusal(token(exp=NOW + life)) == "The token may live for at most 600 seconds"
    check(token(exp=NOW + LONGEST_LIFE))


@pytest.mark.requirement("MC-SEC-02")
def test_a_token_is_good_for_one_method_address_and_body() -> None:
    found = check(token())
    for method, url in (
        ("GET", URL),
        ("post", URL),
        ("POST", f"{URL}/"),
        ("POST", f"{URL}?a=1"),
        ("POST", URL.replace("https", "http")),
        ("POST", URL.upper()),
    ):
        with pytest.raises(Unauthenticated):
            found.check_request(method, url)
    for body in (b"", BODY + b" ", b'{"a": 2}', BODY[:-1]):
        with pytest.raises(Unauthenticated):
            found.check_body(body)
    check(token(body_sha256=hashlib.sha256(BODY).hexdigest().upper())).check_body(BODY)
    for wrong in ("", "é" * 64, hashlib.sha256(BODY).hexdigest()[:-1]):
        with pytest.raises(Unauthenticated):
            check(token(body_sha256=wrong)).check_body(BODY)


@pytest.mark.requirement("MC-SEC-04")
def test_a_key_is_refused_when_it_is_revoked_or_older_than_ninety_days() -> None:
    check_age(SIGNER.key(created_at=0.0), LONGEST_KEY_SECONDS)
    with pytest.raises(Unauthenticated, match="older than 90 days"):
        check_age(SIGNER.key(created_at=0.0), LONGEST_KEY_SECONDS + 1)
    with pytest.raises(Unauthenticated, match="revoked"):
        check_age(SIGNER.key(created_at=0.0, revoked_at=5.0), 1.0)


def test_a_key_that_is_none_verifies_nothing() -> None:
    for public in ("", "x", "=", "A" * 42, "é"):
        with pytest.raises(Unauthenticated, match="signature is wrong"):
            verify(token(), replace(KEY, public=public), "dragoman", NOW)
