"""Signed requests that are forged, old, changed, or sent more than once, against a gateway in a process of its own."""

from __future__ import annotations

import base64
import hmac
import json
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey

from dragoman.adapters.sqlite_database import FILE_NAME
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.gateway_process import CREATE, GatewayProcess, add_keys, code_of
from tests.support.http_wire import Response, Wire
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DAY = 86_400
TOKEN = "an-internal-token-of-acme"
ACME, BETA = Signer("acme"), Signer("beta")
OLD, GONE = Signer("acme"), Signer("acme")
Claims = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, ACME, BETA)
    add_keys(folder, OLD, created_at=time.time() - 91 * DAY)
    add_keys(folder, GONE, revoked_at=time.time())
    callers = {"svc:in": {"token": TOKEN, "roles": ["owner"], "tenants": ["acme"]}}
    with GatewayProcess(folder, callers=callers) as server:
        yield server


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def joined(header: bytes, claims: bytes, sign: Callable[[bytes], bytes]) -> str:
    """A token made by hand: those of libraries are too good."""
    signed = f"{base64url(header)}.{base64url(claims)}"
    return f"{signed}.{base64url(sign(signed.encode()))}"


def by(signer: Signer) -> Callable[[bytes], bytes]:
    key = OKPKey.import_key(signer.private)
    return lambda data: bytes(jws.JWSRegistry.algorithms["Ed25519"].sign(data, key))


def signed_by(key: Any, alg: str) -> Callable[[bytes], bytes]:
    return lambda data: bytes(jws.JWSRegistry.algorithms[alg].sign(data, key))


def public_as_secret(form: str) -> Callable[[bytes], bytes]:
    """HMAC with something that everybody knows."""
    key = OKPKey.import_key({each: ACME.private[each] for each in ("kty", "crv", "x")})
    known = {
        "raw": base64.urlsafe_b64decode(str(ACME.private["x"]) + "="),
        "text": str(ACME.private["x"]).encode(),
        "pem": key.as_pem(private=False),
        "jwk": json.dumps(key.as_dict(private=False)).encode(),
    }[form]
    return lambda data: hmac.digest(known, data, "sha256")


def no_signature(_: bytes) -> bytes:
    return b""


def header(**fields: Any) -> bytes:
    whole = {"alg": "Ed25519", "kid": ACME.kid, "typ": "JWT", **fields}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def refused(server: GatewayProcess, body: bytes, token: str) -> str:
    """The reason that a request without any effect was refused for."""
    before = server.rows()
    answered = server.post(body, token)
    assert (answered.status, code_of(answered)) == (401, "UNAUTHORIZED"), answered
    assert server.rows() == before
    reason: str = answered.json["error"]["message"]
    return reason


ALGORITHMS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    **{f"alg {name!r}, unsigned": (header(alg=name), no_signature) for name in ("none", "None", "NONE", "nOnE", "")},
    **{f"alg {name!r}, signed": (header(alg=name), by(ACME)) for name in ("none", "ed25519", "eddsa", "Ed25519ph")},
    "alg missing": (header(alg=...), by(ACME)),
    "alg null": (header(alg=None), by(ACME)),
    "alg a list": (header(alg=["Ed25519"]), by(ACME)),
    **{
        f"HS256 with the public key as {form}": (header(alg="HS256"), public_as_secret(form))
        for form in ("raw", "text", "pem", "jwk")
    },
    "HMAC said to be Ed25519": (header(), public_as_secret("raw")),
    "ES256": (header(alg="ES256"), signed_by(ECKey.generate_key("P-256"), "ES256")),
    "Ed448": (header(alg="Ed448"), signed_by(OKPKey.generate_key("Ed448"), "Ed448")),
    "Ed448 said to be EdDSA": (header(alg="EdDSA"), signed_by(OKPKey.generate_key("Ed448"), "Ed448")),
    "an empty signature": (header(), no_signature),
    "a signature of zeros": (header(), lambda _: bytes(64)),
    "another key's signature": (header(), by(Signer())),
    "the key of another tenant": (header(), by(BETA)),
    "kid of another tenant's key": (header(kid=BETA.kid), by(ACME)),
}
HEADERS: dict[str, bytes] = {
    **{
        f"{name} in the header": header(**{name: value})
        for name, value in {
            "jku": "http://127.0.0.1:1/keys",
            "x5u": "http://127.0.0.1:1/cert",
            "jwk": {each: ACME.private[each] for each in ("kty", "crv", "x")},
            "x5c": ["MIIB"],
            "x5t": "abc",
            "crit": ["exp"],
            "b64": False,
            "zip": "DEF",
            "cty": "JWT",
            "enc": "A256GCM",
            "p2c": 10**9,
        }.items()
    },
    "kid missing": header(kid=...),
    "kid null": header(kid=None),
    "kid a list": header(kid=[ACME.kid]),
    "kid a number": header(kid=1),
    "kid empty": header(kid=""),
    "kid of SQL": header(kid=f"{ACME.kid}' OR '1'='1"),
    "kid of more SQL": header(kid="' UNION SELECT kid, public, tenant, roles, created_at, NULL FROM signing_key --"),
    "kid with a wildcard": header(kid=ACME.kid[:-1] + "%"),
    "kid a path": header(kid="../../../../etc/passwd"),
    "kid a URL": header(kid="file:///etc/passwd"),
    "kid with NUL": header(kid=f"{ACME.kid}\0"),
    "kid with a space": header(kid=f" {ACME.kid}"),
    "kid in another case": header(kid=ACME.kid.upper()),
    "kid half a surrogate": header().replace(ACME.kid.encode(), rb"\ud800"),
    "kid of 700 characters": header(kid="k" * 700),
    "kid of 9,000 characters": header(kid="k" * 9_000),
    "kid of an old key": header(kid=OLD.kid),
    "kid twice, the last unknown": header()[:-1] + b', "kid": "other"}',
    "alg twice, the last none": header()[:-1] + b', "alg": "none"}',
    "typ of another kind": header(typ="at+jwt"),
    "typ a number": header(typ=1),
    "a list": b"[]",
    "no JSON": b"kid",
    "nested": b"[" * 500,
    "not UTF-8": header() + b"\xff",
    "UTF-16": header().decode().encode("utf-16"),
    "with a BOM": b"\xef\xbb\xbf" + header(),
    "nothing": b"",
}
TIMES: dict[str, Callable[[int], Claims]] = {
    "expired": lambda now: {"iat": now - 60, "exp": now - 1},
    "expired now": lambda now: {"iat": now - 60, "exp": now},
    "not valid yet": lambda now: {"iat": now + 60, "exp": now + 120},
    "lives for too long": lambda now: {"iat": now, "exp": now + 601},
    "lives for too long, and began long ago": lambda now: {"iat": now - 10_000, "exp": now + 1},
    "ends before it begins": lambda now: {"iat": now + 20, "exp": now + 10},
    "lives for ever": lambda now: {"iat": now, "exp": 10**18},
    "huge numbers": lambda now: {"iat": 10**300, "exp": 10**300 + 1},
    "negative numbers": lambda now: {"iat": -(10**300), "exp": -(10**300) + 1},
    "nbf is no way around iat": lambda now: {"iat": ..., "nbf": now},
}
WRONG: tuple[Any, ...] = (..., None, True, [], {}, 1.5, "")
CLAIMS: dict[str, Claims] = {
    **{
        f"{name} is {'missing' if value is ... else json.dumps(value)}": {name: value}
        for name in ("sub", "aud", "iat", "exp", "nonce", "htm", "htu", "body_sha256")
        for value in WRONG
    },
    **{f"iat is {value!r}": {"iat": value} for value in ("1", "now", 1e9)},
    "aud of another server": {"aud": "another"},
    "aud in another case": {"aud": "Dragoman"},
    "aud with a space": {"aud": "dragoman "},
    "aud a list without us": {"aud": ["another", "more"]},
    "aud a list with a number": {"aud": ["dragoman", 1]},
    "aud a list in a list": {"aud": [["dragoman"]]},
    "sub of 257 characters": {"sub": "s" * 257},
    "nonce of 15 characters": {"nonce": "n" * 15},
    "nonce of 129 characters": {"nonce": "n" * 129},
    "nonce with a space": {"nonce": "n" * 16 + " "},
    "nonce with a quote": {"nonce": "n" * 16 + "'"},
    "nonce with NUL": {"nonce": "n" * 16 + "\0"},
    "nonce with a line's end": {"nonce": "n" * 16 + "\n"},
    "nonce of Unicode": {"nonce": "\u00e9" * 16},
    "nonce a number": {"nonce": 10**20},
    "body_sha256 of nothing": {"body_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    "body_sha256 of Unicode": {"body_sha256": "\u00e9" * 64},
}


def a_body(signer: Signer = ACME, **fields: Any) -> bytes:
    return as_body(signer.envelope(CREATE, create_args(), **fields))


def test_the_token_that_the_others_are_made_of_is_taken(server: GatewayProcess) -> None:
    body = a_body()
    claims = json.dumps(ACME.claims(body, server.url())).encode()
    assert server.post(body, joined(header(), claims, by(ACME))).status == 200
    for alg in ("Ed25519", "EdDSA"):
        body = a_body()
        claims = json.dumps(ACME.claims(body, server.url(), aud=["x", "dragoman"])).encode()
        assert server.post(body, joined(header(alg=alg), claims, by(ACME))).status == 200


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("case", ALGORITHMS)
def test_no_other_algorithm_and_no_other_key_is_taken(server: GatewayProcess, case: str) -> None:
    head, sign = ALGORITHMS[case]
    body = a_body()
    refused(server, body, joined(head, json.dumps(ACME.claims(body, server.url())).encode(), sign))


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_leads_elsewhere_is_refused(server: GatewayProcess, case: str) -> None:
    body = a_body()
    refused(server, body, joined(HEADERS[case], json.dumps(ACME.claims(body, server.url())).encode(), by(ACME)))


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("case", TIMES)
def test_a_token_counts_for_its_time_only(server: GatewayProcess, case: str) -> None:
    body = a_body()
    claims = {**ACME.claims(body, server.url()), **TIMES[case](int(time.time()))}
    refused(server, body, joined(header(), worded(claims), by(ACME)))


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("case", CLAIMS)
def test_a_claim_that_is_missing_or_odd_is_refused(server: GatewayProcess, case: str) -> None:
    body = a_body()
    refused(server, body, joined(header(), worded({**ACME.claims(body, server.url()), **CLAIMS[case]}), by(ACME)))


def worded(claims: Claims) -> bytes:
    return json.dumps({name: value for name, value in claims.items() if value is not ...}).encode()


@pytest.mark.parametrize("claims", [b"", b"[]", b"NaN", b"{", b"[" * 2000, b'{"exp": NaN}', b'{"exp": 1e999}', b"\xff"])
def test_claims_that_are_no_object_are_refused(server: GatewayProcess, claims: bytes) -> None:
    refused(server, a_body(), joined(header(), claims, by(ACME)))


def test_of_claims_that_are_there_twice_the_last_counts_for_every_check(server: GatewayProcess) -> None:
    """One parser reads them, once: there is no second one that could see the first."""
    body = a_body()
    good = worded(ACME.claims(body, server.url()))
    for name, value in {"exp": 1, "htm": "GET", "aud": "another", "body_sha256": "0" * 64}.items():
        twice = good[:-1] + f', "{name}": {json.dumps(value)}}}'.encode()
        refused(server, body, joined(header(), twice, by(ACME)))


@pytest.mark.parametrize(
    "change",
    {
        "padding": lambda token: token + "=",
        "a fourth part": lambda token: token + ".",
        "two parts": lambda token: token.rpartition(".")[0],
        "a line's end in it": lambda token: token[:20] + "\t" + token[20:],
        "signature cut": lambda token: token[:-1],
        "claims cut": lambda token: token.replace(".", ".A", 1),
        "other alphabet": lambda token: token[:-2] + "+/",
        "unicode": lambda token: token + "\xe9",
        "a comma": lambda token: f"{token}, {token}",
        "very long": lambda token: token + "A" * 20_000,
    }.items(),
    ids=lambda each: each[0],
)
def test_a_token_of_another_form_is_refused(server: GatewayProcess, change: tuple[str, Callable[[str], str]]) -> None:
    body = a_body()
    refused(server, body, change[1](ACME.token(body, server.url())))


@pytest.mark.parametrize("scheme", ["", "Basic", "DPoP", "bearer:", "Bearer\t"])
def test_no_other_scheme_is_taken(server: GatewayProcess, scheme: str) -> None:
    body = a_body()
    token = ACME.token(body, server.url())
    answered = server.post(body, None, {"authorization": f"{scheme} {token}".strip()})
    assert (answered.status, code_of(answered)) == (401, "UNAUTHORIZED")
    assert answered.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.requirement("MC-SEC-02")
def test_a_body_changed_by_one_byte_is_refused(server: GatewayProcess) -> None:
    body = a_body()
    for place in range(0, len(body), 37):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert refused(server, changed, ACME.token(body, server.url())) == "The token was signed for another body"
    for changed in (body + b" ", body[:-1], b"", b"\xef\xbb\xbf" + body):
        refused(server, changed, ACME.token(body, server.url()))


@pytest.mark.requirement("MC-SEC-04")
def test_only_the_holder_of_a_key_hears_what_has_become_of_it(server: GatewayProcess) -> None:
    for key, told in ((OLD, "The key is older than 90 days"), (GONE, "The key has been revoked")):
        body = a_body(key)
        claims = worded(key.claims(body, server.url()))
        assert refused(server, body, key.token(body, server.url())) == told
        forged = joined(header(kid=key.kid), claims, by(Signer()))
        assert refused(server, body, forged) == "The token's signature is wrong"


@pytest.mark.requirement("MC-SEC-04")
def test_a_key_that_another_process_revokes_is_refused_from_then_on(server: GatewayProcess) -> None:
    signer = Signer("acme")
    add_keys(server.folder, signer)
    assert server.submit(signer, a_body(signer)).status == 200
    before = server.count("document")
    with closing(sqlite3.connect(server.folder / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE signing_key SET revoked_at = ? WHERE kid = ?", (time.time(), signer.kid))
    assert [server.submit(signer, a_body(signer)).status for _ in range(3)] == [401] * 3
    assert server.count("document") == before


# Replays.


def replay(server: GatewayProcess, data: bytes, times: int) -> Counter[int]:
    with ThreadPoolExecutor(times) as pool:
        return Counter(pool.map(lambda _: server.ask(data).status, range(times)))


@pytest.mark.requirement("MC-SEC-02")
def test_of_fifty_requests_with_one_token_at_once_one_is_accepted(server: GatewayProcess) -> None:
    body = a_body()
    before = server.count("document")
    data = server.data_of(body, ACME.token(body, server.url()))
    assert replay(server, data, 50) == {200: 1, 401: 49}
    assert server.count("document") == before + 1


@pytest.mark.requirement("MC-SEC-02")
def test_another_spelling_of_a_token_is_the_same_token(server: GatewayProcess) -> None:
    """The last character of 64 bytes in base64 has bits that mean nothing: the nonce counts, and not the text."""
    body = a_body()
    token = ACME.token(body, server.url())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]
    assert server.post(body, token).status == 200
    for each in (other, f"{token}   "):
        assert server.post(body, each).status == 401


@pytest.mark.requirement("MC-SEC-02")
def test_a_nonce_is_good_once_for_each_key(server: GatewayProcess) -> None:
    nonce = uuid.uuid4().hex
    assert server.submit(ACME, a_body(), nonce=nonce).status == 200
    assert server.submit(BETA, a_body(BETA), nonce=nonce).status == 200
    again = server.submit(ACME, a_body(), nonce=nonce)
    assert (again.status, code_of(again)) == (401, "UNAUTHORIZED")
    assert server.submit(ACME, a_body(), nonce=nonce.upper()).status == 200  # Another one, and nobody is hurt by it.


@pytest.mark.requirement("MC-SEC-02")
def test_a_nonce_is_used_up_by_a_request_that_is_refused_later(server: GatewayProcess) -> None:
    body = a_body(tenant_id="beta")
    token = ACME.token(body, server.url())
    assert [server.post(body, token).status for _ in range(2)] == [403, 401]


def test_requests_signed_anew_with_one_idempotency_key_have_one_effect(server: GatewayProcess) -> None:
    before = server.rows()
    body = a_body(idempotency_key="once")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: server.submit(ACME, body), range(20)))
    assert {each.status for each in answers} == {200}
    assert len({json.dumps(each.json["data"]) for each in answers}) == 1
    after = server.rows()
    assert [after[each] - before[each] for each in ("document", "document_revision", "audit_event")] == [1, 1, 1]


@pytest.mark.requirement("MC-SEC-02")
def test_a_body_that_arrives_after_its_token_has_expired_is_refused(server: GatewayProcess) -> None:
    """Otherwise a replay could wait in front of the last byte until the nonce is forgotten."""
    body = a_body()
    now = int(time.time())
    data = server.data_of(body, ACME.token(body, server.url(), iat=now, exp=now + 3))
    assert server.ask(data).status == 200
    with Wire(server.port) as wire:
        wire.send(data[:-1])
        wire.wait_until_read()
        wait_until(lambda: time.time() > now + 3)
        assert server.submit(ACME, a_body()).status == 200  # Whoever spends a nonce forgets old ones.
        wire.send(data[-1:])
        answered = wire.read()
    assert (answered.status, code_of(answered)) == (401, "UNAUTHORIZED")


def test_a_token_for_one_resource_reads_no_other(server: GatewayProcess) -> None:
    def get(signed: str, path: str, method: str = "GET") -> Response:
        token = ACME.token(b"", server.url(signed), method)
        head = f"GET {path} HTTP/1.1\r\nhost: {server.host}\r\nauthorization: Bearer {token}\r\n\r\n"
        return server.ask(head.encode())

    paths = "/mcp/capabilities", "/mcp/openapi.json", "/schemas/mcp/knowledge.create_document.json"
    for path in paths:
        assert get(path, path).status == 200
        assert {get(other, path).status for other in (*paths, ACTIONS_PATH) if other != path} == {401}
        assert get(path, path, "POST").status == 401


@pytest.mark.requirement("MC-SEC-02")
def test_a_token_is_good_once_for_all_workers_and_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("workers")
    add_keys(folder, ACME)
    settings = {"gateway.public_url": "https://gateway.example"}
    bodies = [a_body() for _ in range(12)]
    pairs = [(body, ACME.token(body, f"https://gateway.example{ACTIONS_PATH}", "POST")) for body in bodies]
    with GatewayProcess(folder, "--workers", "2", settings=settings) as server:
        for body, token in pairs:  # Each is a connection of its own: some meet the other worker.
            assert replay(server, server.data_of(body, token), 8) == {200: 1, 401: 7}
        assert server.count("document") == len(pairs)
    with GatewayProcess(folder, settings=settings) as server:
        assert {server.post(body, token).status for body, token in pairs} == {401}
        assert server.count("document") == len(pairs)


# Internal callers.


def test_an_internal_token_with_the_claims_of_an_external_one_is_nothing_more(server: GatewayProcess) -> None:
    body = as_body({**ACME.envelope(CREATE, create_args()), "principal": {"sub": "svc:in", "roles": ["owner"]}})
    assert server.post(body, TOKEN).status == 200
    claims = worded(ACME.claims(body, server.url(), sub="svc:in"))
    for token in (f"{TOKEN}.{base64url(claims)}.x", f"{base64url(header())}.{base64url(claims)}.{TOKEN}"):
        refused(server, body, token)


def test_a_key_that_signs_with_the_name_of_an_internal_caller_has_only_its_own_roles(
    server: GatewayProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    viewer = Signer("acme", "viewer", sub="svc:in")
    add_keys(server.folder, viewer)  # It counts at once.
    answered = server.act(viewer, CREATE, create_args(), principal={"sub": "svc:in", "roles": ["owner"]})
    assert (answered.status, code_of(answered)) == (403, "FORBIDDEN")


def test_a_token_is_refused_where_the_endpoint_of_mcp_asks_for_one(server: GatewayProcess) -> None:
    body = a_body()
    for path in ("/mcp", f"/knowledge/documents/acme/{uuid.uuid4()}"):
        token = ACME.token(body, server.url(path))
        assert server.post(body, token, path=path).status in (401, 405)
