"""Who sent a request, and for how long that is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.access.authenticator import (
    DISTRUST_SECONDS,
    MOST_DISTRUSTED,
    MOST_TRUSTED,
    TRUST_SECONDS,
    Authenticator,
    make_authenticator,
)
from dragoman.access.callers import Caller
from dragoman.access.settings import AuthConfig
from dragoman.config import make_config
from dragoman.errors import ConfigError, Unauthenticated, VerifierUnavailable
from dragoman.testing import ManualClock
from tests.support.tokens import AUDIENCE, EC, ISSUER, NOW, MemoryDocuments, issuer_documents, mint

TOKEN = "0123456789abcdef"
GOOD = b"Bearer " + TOKEN.encode()


class Judge:
    """A verifier that says what it is told to, and counts."""

    def __init__(self, judge: Callable[[str], Caller]) -> None:
        self.judge = judge
        self.asked = 0

    async def verify(self, token: str) -> Caller:
        self.asked += 1
        await asyncio.sleep(0)
        return self.judge(token)


def refuse(token: str) -> Caller:
    raise Unauthenticated("No good")


def unavailable(token: str) -> Caller:
    raise VerifierUnavailable("nobody home")


def trusting(*judges: Judge) -> tuple[Authenticator, ManualClock]:
    clock = ManualClock()
    return Authenticator(judges, clock), clock


async def test_a_token_is_judged_once_a_minute() -> None:
    judge = Judge(Caller)
    authenticator, clock = trusting(judge)
    assert authenticator.known(GOOD) is None
    caller = await authenticator.authenticate(GOOD)
    assert caller.name == TOKEN
    clock.advance(TRUST_SECONDS - 0.001)
    assert authenticator.known(GOOD) is await authenticator.authenticate(GOOD) is caller
    clock.advance(0.001)
    assert authenticator.known(GOOD) is None
    await authenticator.authenticate(GOOD)
    assert judge.asked == 2


async def test_a_revoked_token_is_refused_after_a_minute() -> None:
    judge = Judge(Caller)
    authenticator, clock = trusting(judge)
    await authenticator.authenticate(GOOD)
    judge.judge = refuse
    await authenticator.authenticate(GOOD)
    clock.advance(TRUST_SECONDS)
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(GOOD)


@pytest.mark.parametrize("left", [10.0, 0.0, -5.0])
async def test_a_token_is_not_trusted_beyond_its_own_end(left: float) -> None:
    authenticator, clock = trusting(Judge(lambda token: Caller(token, expires_at=NOW + left)))
    await authenticator.authenticate(GOOD)
    assert (authenticator.known(GOOD) is not None) is (left > 0)
    clock.advance(max(left, 0))
    assert authenticator.known(GOOD) is None


async def test_a_bad_token_is_judged_again_after_a_few_seconds() -> None:
    judge = Judge(refuse)
    authenticator, clock = trusting(judge)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="No good"):
            await authenticator.authenticate(GOOD)
    assert judge.asked == 1
    judge.judge = Caller
    clock.advance(DISTRUST_SECONDS)
    assert (await authenticator.authenticate(GOOD)).name == TOKEN


async def test_that_nobody_could_judge_is_not_remembered() -> None:
    judge = Judge(unavailable)
    authenticator, _ = trusting(judge)
    with pytest.raises(VerifierUnavailable):
        await authenticator.authenticate(GOOD)
    judge.judge = Caller
    assert (await authenticator.authenticate(GOOD)).name == TOKEN


async def test_memories_are_bounded_and_hold_no_tokens() -> None:
    judge = Judge(lambda token: Caller("x"))
    authenticator, _ = trusting(judge)
    headers = [b"Bearer %024d" % number for number in range(MOST_TRUSTED + 10)]
    for header in headers:
        await authenticator.authenticate(header)
    assert authenticator.known(headers[9]) is None
    assert authenticator.known(headers[10]) is not None
    judge.judge = refuse
    for number in range(MOST_DISTRUSTED + 10):
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(b"Bearer bad-%d" % number)
    assert (len(authenticator._trusted), len(authenticator._distrusted)) == (MOST_TRUSTED, MOST_DISTRUSTED)
    assert b"000000000000000000004100" not in b"".join(authenticator._trusted)
    assert authenticator.known(headers[10]) is not None  # Bad tokens do not push out good ones.


async def test_the_first_verifier_that_knows_a_token_decides() -> None:
    first, second, third = Judge(refuse), Judge(Caller), Judge(unavailable)
    authenticator, _ = trusting(first, second, third)
    assert (await authenticator.authenticate(GOOD)).name == TOKEN
    assert (first.asked, second.asked, third.asked) == (1, 1, 0)


@pytest.mark.parametrize("header", [b"bearer " + TOKEN.encode(), b"BEARER   " + TOKEN.encode() + b"  "])
async def test_the_scheme_may_be_spelled_in_any_case(header: bytes) -> None:
    assert (await trusting(Judge(Caller))[0].authenticate(header)).name == TOKEN


@pytest.mark.parametrize(
    ("header", "reason", "error"),
    [
        (None, "A bearer token is needed", None),
        (b"", "A bearer token is needed", None),
        (b"Basic YTpi", "A bearer token is needed", None),
        (b"Bearertoken", "A bearer token is needed", None),
        (b" Bearer x", "A bearer token is needed", None),
        (b"Bearer", "The token is malformed", "invalid_token"),
        (b"Bearer ", "The token is malformed", "invalid_token"),
        (b"Bearer two words", "The token is malformed", "invalid_token"),
        (b"Bearer a,b", "The token is malformed", "invalid_token"),
        (b"Bearer \xff\xfe", "The token is malformed", "invalid_token"),
        (b"Bearer token\n", "The token is malformed", "invalid_token"),
        (b"Bearer ==", "The token is malformed", "invalid_token"),
        (b"Bearer " + b"x" * 16_385, "The token is malformed", "invalid_token"),
    ],
)
async def test_what_is_no_bearer_token_reaches_no_verifier(
    header: bytes | None, reason: str, error: str | None
) -> None:
    judge = Judge(Caller)
    with pytest.raises(Unauthenticated) as refused:
        await trusting(judge)[0].authenticate(header)
    assert (refused.value.reason, refused.value.error, judge.asked) == (reason, error, 0)


METADATA = b'resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp"'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, b"Bearer " + METADATA),
        ({"error": None, "reason": "A bearer token is needed"}, b"Bearer " + METADATA),
        ({"error": "invalid_token"}, b'Bearer error="invalid_token", ' + METADATA),
        (
            {"error": "invalid_token", "reason": "The token has expired"},
            b'Bearer error="invalid_token", error_description="The token has expired", ' + METADATA,
        ),
        (
            {"error": "insufficient_scope", "scope": "tool:echo"},
            b'Bearer error="insufficient_scope", scope="tool:echo", ' + METADATA,
        ),
        (
            {"error": "invalid_token", "reason": 'a"b\\c\r\nX: ü'},
            b'Bearer error="invalid_token", error_description="a?b?c??X: ?", ' + METADATA,
        ),
    ],
)
def test_a_challenge_says_what_is_wrong_and_where_a_token_is_had(given: dict[str, Any], said: bytes) -> None:
    assert Authenticator((), ManualClock(), AUDIENCE).challenge(**given) == said


def test_a_server_that_is_no_known_resource_challenges_all_the_same() -> None:
    authenticator = Authenticator((), ManualClock())
    assert authenticator.challenge() == b"Bearer"
    assert authenticator.challenge("invalid_token") == b'Bearer error="invalid_token"'


# From settings


def made(settings: dict[str, Any], documents: MemoryDocuments | None = None, **environ: str) -> Authenticator | None:
    config = make_config({"auth": settings}).auth
    return make_authenticator(config, ManualClock(), documents or MemoryDocuments({}), environ)


def test_where_nobody_is_named_there_is_no_authenticator() -> None:
    assert make_authenticator(AuthConfig(), ManualClock(), MemoryDocuments({}), {}) is None
    assert made({"resource": AUDIENCE, "allow_unauthenticated": True}) is None


async def test_static_tokens_and_an_issuer_can_stand_side_by_side() -> None:
    documents = issuer_documents(EC)
    both = made({"callers": {"ben": {"token": TOKEN}}, "issuer": ISSUER, "resource": AUDIENCE}, documents)
    assert both is not None
    ben = await both.authenticate(GOOD)
    assert (ben.principal, ben.scopes, documents.asked) == ("ben", None, [])
    ada = await both.authenticate(b"Bearer " + mint().encode())
    assert (ada.name, ada.issuer, ada.scopes) == ("ada", ISSUER, {"tool:echo", "openid"})
    with pytest.raises(Unauthenticated, match="malformed"):
        await both.authenticate(b"Bearer neither-of-the-two")


async def test_an_audience_of_its_own_wins_over_the_resource() -> None:
    special = made({"issuer": ISSUER, "resource": AUDIENCE, "audience": "api://tools"}, issuer_documents(EC))
    assert special is not None
    assert (await special.authenticate(b"Bearer " + mint({"aud": "api://tools"}).encode())).name == "ada"
    with pytest.raises(Unauthenticated, match="another server"):
        await special.authenticate(b"Bearer " + mint().encode())


def test_a_token_that_is_in_no_variable_is_a_problem_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="MISSING does not hold a token"):
        made({"callers": {"ben": {"tokenEnvVar": "MISSING"}}})
    assert made({"callers": {"ben": {"tokenEnvVar": "HELD"}}}, HELD=TOKEN) is not None
