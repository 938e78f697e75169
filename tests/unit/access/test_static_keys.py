"""Tokens that the settings name."""

from __future__ import annotations

import pytest

from dragoman.access.callers import Caller
from dragoman.access.settings import CallerConfig
from dragoman.access.static_keys import StaticKeys
from dragoman.errors import ConfigError, Unauthenticated

ADA, BEN = "ada-0123456789abcdef", "ben-0123456789abcdef"
CALLERS = {
    "ada": CallerConfig(token=ADA, roles=("admin",)),
    "ben": CallerConfig(token_env_var="BENS", scopes=("tool:echo",)),
}


def facts(caller: Caller) -> tuple[object, ...]:
    return caller.name, caller.roles, caller.scopes, caller.issuer, caller.expires_at


async def test_a_token_stands_for_its_caller_with_what_was_granted() -> None:
    keys = StaticKeys(CALLERS, {"BENS": BEN})
    assert facts(await keys.verify(ADA)) == ("ada", {"admin"}, None, None, None)
    assert facts(await keys.verify(BEN)) == ("ben", frozenset(), {"tool:echo"}, None, None)


@pytest.mark.parametrize("token", ["", "ada", ADA[:-1], ADA + "x", ADA.upper(), "\ud800" * 20, "ä" * 20])
async def test_any_other_token_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await StaticKeys(CALLERS, {"BENS": BEN}).verify(token)
    assert (refused.value.reason, refused.value.error) == ("The token is not known here", "invalid_token")


def test_tokens_are_not_kept() -> None:
    keys = StaticKeys(CALLERS, {"BENS": BEN})
    assert ADA not in repr(vars(keys))
    assert ADA.encode() not in [digest for digest, _ in keys._known]
    assert ADA not in repr(CALLERS)


@pytest.mark.parametrize("held", [{}, {"BENS": ""}, {"BENS": "short"}, {"BENS": "has a blank in it, alas"}])
def test_a_variable_without_a_token_is_a_problem_by_name(held: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        StaticKeys(CALLERS, held)
    reason = "BENS does not hold a token: 16 or more letters, digits and -._~+/"
    assert refused.value.problems == (("auth.callers.ben", reason),)


def test_one_token_cannot_stand_for_two() -> None:
    with pytest.raises(ConfigError) as refused:
        StaticKeys(CALLERS, {"BENS": ADA})
    assert refused.value.problems == (("auth.callers.ben", "has the same token as ada"),)
    assert ADA not in str(refused.value)
