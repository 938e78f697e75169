"""JSON Web Tokens, good and bad."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey

from dragoman.access.callers import LEEWAY_SECONDS, LOCAL
from dragoman.errors import Unauthenticated
from tests.support.tokens import (
    AUDIENCE,
    EC,
    ED,
    ISSUER,
    JWKS,
    NOW,
    OTHER,
    RSA,
    MemoryDocuments,
    issuer_documents,
    mint,
    public,
    secret_from,
    verifier,
)


async def refusal(token: str, *keys: Any, **options: Any) -> str:
    """Why a token is refused where `keys` are the issuer's."""
    with pytest.raises(Unauthenticated) as refused:
        await verifier(issuer_documents(*(keys or (EC,))), **options).verify(token)
    assert refused.value.error == "invalid_token"
    assert len(token) < 16 or token not in str(refused.value)
    return refused.value.reason


P384, P521 = ECKey.generate_key("P-384", {"kid": "p384"}), ECKey.generate_key("P-521", {"kid": "p521"})


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        *((RSA, alg) for alg in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        *((EC, "ES256"), (P384, "ES384"), (P521, "ES512"), (ED, "EdDSA"), (ED, "Ed25519")),
    ],
)
async def test_every_signature_that_needs_a_private_key_is_taken(key: Any, alg: str) -> None:
    caller = await verifier(issuer_documents(RSA, EC, P384, P521, ED)).verify(mint(key=key, alg=alg))
    assert caller.name == "ada"


async def test_a_caller_is_what_the_claims_say() -> None:
    claims = {"client_id": "cli", "roles": ["reader", 7, "writer"]}
    caller = await verifier(issuer_documents(EC)).verify(mint(claims))
    assert (caller.name, caller.issuer, caller.client_id) == ("ada", ISSUER, "cli")
    assert (caller.roles, caller.scopes) == ({"reader", "writer"}, {"tool:echo", "openid"})
    assert caller.expires_at == NOW + 300


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "tool:a  tool:b"}, {"tool:a", "tool:b"}),
        ({"scope": None, "scp": ["tool:a"]}, {"tool:a"}),
        ({"scope": None, "scp": "tool:a tool:b"}, {"tool:a", "tool:b"}),
        ({"scope": None}, set()),
        ({"scope": 7}, set()),
        ({"scope": {"tool:a": True}}, set()),
    ],
)
async def test_scopes_are_words_and_what_is_not_understood_is_not_granted(
    claims: dict[str, Any], scopes: set[str]
) -> None:
    assert (await verifier(issuer_documents(EC)).verify(mint(claims))).scopes == scopes


async def test_scopes_count_for_nothing_where_they_are_not_required() -> None:
    assert (await verifier(issuer_documents(EC), require_scopes=False).verify(mint())).scopes is None


@pytest.mark.parametrize(
    ("claim", "claims", "roles"),
    [
        ("roles", {"roles": "reader writer"}, {"reader", "writer"}),
        ("groups", {"groups": ["a"], "roles": ["b"]}, {"a"}),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, {"a"}),
        ("https://x.example/roles", {"https://x.example/roles": ["a"]}, {"a"}),
        ("realm_access.roles", {"realm_access": ["roles"]}, set()),
        ("roles", {}, set()),
    ],
)
async def test_roles_are_in_the_claim_that_the_settings_name(
    claim: str, claims: dict[str, Any], roles: set[str]
) -> None:
    assert (await verifier(issuer_documents(EC), roles_claim=claim).verify(mint(claims))).roles == roles


@pytest.mark.requirement("MC-SEC-01")
@pytest.mark.parametrize(
    ("claim", "claims", "tenants"),
    [
        ("tenant", {"tenant": "acme"}, {"acme"}),
        ("tenant", {"tenant": "a name with spaces"}, {"a name with spaces"}),
        ("tenant", {"tenant": ["acme", "other", 5, "", "x" * 300]}, {"acme", "other"}),
        ("org.id", {"org": {"id": "acme"}, "tenant": "other"}, {"acme"}),
        ("tenant", {"tenant": {"acme": True}}, set()),
        ("tenant", {}, set()),
    ],
)
async def test_tenants_are_in_the_claim_that_the_settings_name(
    claim: str, claims: dict[str, Any], tenants: set[str]
) -> None:
    assert (await verifier(issuer_documents(EC), tenant_claim=claim).verify(mint(claims))).tenants == tenants


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "https://other.example"}, "The token is meant for another server"),
        ({"aud": ["https://other.example"]}, "The token is meant for another server"),
        ({"aud": AUDIENCE + "/"}, "The token is meant for another server"),
        ({"aud": {"any": AUDIENCE}}, "The token is meant for another server"),
        ({"aud": [AUDIENCE, 7]}, "The token is meant for another server"),
        ({"aud": ""}, "The token is meant for another server"),
        ({"aud": None}, "The token does not say aud"),
        ({"iss": "https://other.example"}, "The token is from another issuer"),
        ({"iss": ISSUER + "/"}, "The token is from another issuer"),
        ({"iss": [ISSUER]}, "The token is from another issuer"),
        ({"iss": None}, "The token does not say iss"),
        ({"exp": NOW - LEEWAY_SECONDS}, "The token has expired"),
        ({"exp": None}, "The token does not say exp"),
        ({"exp": "9999999999"}, "The token has expired"),
        ({"exp": True}, "The token has expired"),
        ({"nbf": NOW + LEEWAY_SECONDS + 1}, "The token is not valid yet"),
        ({"nbf": "0"}, "The token is not valid yet"),
        ({"sub": None, "exp": None}, "The token does not say exp,sub"),
        ({"iat": NOW + 3600}, "A claim of the token is wrong"),
        ({"sub": ""}, "The token does not say whose it is"),
        ({"sub": 7}, "The token does not say whose it is"),
        ({"sub": "a" * 257}, "The token does not say whose it is"),
        ({"client_id": ["cli"]}, "The token does not say whose it is"),
    ],
)
async def test_a_claim_that_is_wrong_or_missing_is_named(claims: dict[str, Any], reason: str) -> None:
    assert await refusal(mint(claims)) == reason


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["https://other.example", AUDIENCE]},
        {"exp": NOW - LEEWAY_SECONDS + 1},
        {"exp": NOW + 0.5},
        {"exp": 10**400},
        {"nbf": NOW + LEEWAY_SECONDS},
    ],
)
async def test_what_is_just_right_is_taken(claims: dict[str, Any]) -> None:
    assert (await verifier(issuer_documents(EC)).verify(mint(claims))).name == "ada"


async def test_without_an_issuer_in_the_settings_a_name_is_still_not_one_of_our_own() -> None:
    lax = verifier(MemoryDocuments({JWKS: public(EC)}), issuer=None, jwks=JWKS)
    assert (await lax.verify(mint({"iss": "https://any.example"}))).issuer == "https://any.example"
    nobody = await lax.verify(mint({"iss": None, "sub": "local"}))
    assert nobody.name == LOCAL.name
    assert nobody != LOCAL


def unsigned(alg: str) -> str:
    header, payload, _ = mint().split(".")
    forged = base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": "ec"}).encode()).decode().rstrip("=")
    del header
    return f"{forged}.{payload}."


NOT_TAKEN = "The token is signed with an algorithm that is not taken"
BAD_SIGNATURE = "The token's signature is wrong"


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "nOnE"])
async def test_a_token_that_nobody_signed_is_refused(alg: str) -> None:
    assert await refusal(unsigned(alg)) == NOT_TAKEN


async def test_a_public_key_is_not_taken_for_a_shared_secret() -> None:
    for text in (EC.as_pem(private=False), json.dumps(EC.as_dict(private=False)).encode()):
        assert await refusal(mint(key=_oct(text), alg="HS256")) == NOT_TAKEN


def _oct(text: bytes) -> Any:
    try:
        return secret_from(text)
    except ValueError:  # The library will not even sign with such a thing; any secret does for the test.
        return secret_from(b"public key, public key, public key")


async def test_a_shared_secret_that_an_issuer_publishes_is_not_used() -> None:
    secret = secret_from(b"everybody can read this very secret")
    documents = issuer_documents(EC)
    documents.documents[JWKS] = json.dumps({"keys": [secret.as_dict(private=True)]}).encode()
    with pytest.raises(Unauthenticated, match="algorithm"):
        await verifier(documents).verify(mint(key=secret, alg="HS256"))


async def test_a_key_for_one_algorithm_is_not_used_for_another() -> None:
    strict = RSAKey.import_key({**RSA.as_dict(private=True), "alg": "PS256"})
    assert await refusal(mint(key=RSA, alg="RS256"), strict) == BAD_SIGNATURE
    assert await refusal(mint(key=RSA, alg="RS256", kid="ec"), EC) == BAD_SIGNATURE


async def test_another_key_of_the_same_id_is_not_enough() -> None:
    assert await refusal(mint(key=OTHER, kid="ec")) == BAD_SIGNATURE
    stranger = OKPKey.generate_key("Ed25519", {"kid": "ed"})
    assert await refusal(mint(key=stranger, alg="EdDSA"), ED) == BAD_SIGNATURE


async def test_claims_cannot_be_changed_after_they_were_signed() -> None:
    header, _, signature = mint().split(".")
    _, payload, _ = mint({"sub": "root"}).split(".")
    assert await refusal(f"{header}.{payload}.{signature}") == BAD_SIGNATURE


async def test_without_a_key_id_every_key_is_tried() -> None:
    assert (await verifier(issuer_documents(RSA, OTHER, EC)).verify(mint(kid=None))).name == "ada"
    assert await refusal(mint(kid=None), RSA, OTHER) == BAD_SIGNATURE


@pytest.mark.parametrize(
    "header", [{"typ": "dpop+jwt"}, {"typ": "logout+jwt"}, {"crit": ["exp"]}, {"crit": ["b64"], "b64": False}]
)
async def test_tokens_of_another_kind_are_refused(header: dict[str, Any]) -> None:
    assert await refusal(mint(**header)) == "The token is not of a kind that is taken"


@pytest.mark.parametrize("header", [{"typ": "at+jwt"}, {"typ": "application/at+JWT"}, {"typ": None}, {"x": "y" * 2000}])
async def test_access_tokens_are_taken_whatever_else_their_header_says(header: dict[str, Any]) -> None:
    assert (await verifier(issuer_documents(EC)).verify(mint(**header))).name == "ada"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "e30.e30.e30",
        "bm90IGpzb24.e30.e30",
        "WyJhbGciXQ.e30.e30",
        "ImFsZyI.e30.e30",
        base64.urlsafe_b64encode(b"[" * 9000).decode() + ".e30.e30",
        base64.urlsafe_b64encode(b'{"alg":5}').decode().rstrip("=") + ".e30.e30",
        base64.urlsafe_b64encode(b'{"alg":"ES256","kid":{}}').decode().rstrip("=") + ".e30.e30",
        "ä.ö.ü",
        "\ud800.b.c",
    ],
)
async def test_what_is_no_token_is_malformed(token: str) -> None:
    assert await refusal(token) == "The token is malformed"


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b'"text"', b"{", b"\xff", b"[" * 5000, b'{"exp":NaN}'])
async def test_a_token_that_holds_no_claims_is_refused(payload: bytes) -> None:
    assert await refusal(mint(payload)) == "The token holds no claims"


@pytest.mark.parametrize(
    "change", [lambda token: token + ".x", lambda token: token.rpartition(".")[0], lambda token: token[:-6]]
)
async def test_a_token_in_too_many_parts_or_too_few_is_refused(change: Any) -> None:
    assert await refusal(change(mint())) == BAD_SIGNATURE
