"""Who is calling, who is somebody else, and what each may call."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from dragoman.access.callers import ANONYMOUS, LOCAL, Caller

CALLERS = [
    Caller("ada"),
    Caller("ada", issuer=""),
    Caller("ada", issuer="https://a.example"),
    Caller("ada", issuer="https://b.example"),
    Caller("ada", issuer="https://a.example", client_id="cli"),
    Caller("ada", client_id="cli"),
    Caller("ben", issuer="https://a.example"),
    Caller('["https://a.example", "ada"]'),
    LOCAL,
    ANONYMOUS,
]


def test_a_name_is_one_caller_only_within_its_issuer_and_client() -> None:
    assert len(set(CALLERS)) == len(CALLERS)


def test_a_principal_is_a_name_within_its_issuer_through_whatever_client() -> None:
    principals = [caller.principal for caller in CALLERS]
    assert len(set(principals)) == len(CALLERS) - 2
    assert principals[2] == principals[4]
    assert principals[0] == principals[5]


def test_another_token_of_the_same_principal_is_the_same_caller() -> None:
    narrow = Caller("ada", frozenset({"reader"}), frozenset({"tool:echo"}), "https://a.example", None, 1.0)
    wide = Caller("ada", frozenset(), frozenset({"tool:*"}), "https://a.example", None, 2.0)
    assert narrow == wide
    assert hash(narrow) == hash(wide)


def test_a_name_that_this_server_vouches_for_is_the_principal() -> None:
    assert (LOCAL.principal, Caller("ada", frozenset({"admin"})).principal) == ("local", "ada")


def test_a_caller_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        LOCAL.scopes = frozenset()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("scopes", "tool", "may"),
    [
        (None, "echo", True),
        ((), "echo", False),
        (("tool:echo",), "echo", True),
        (("tool:echo",), "echo2", False),
        (("tool:Echo",), "echo", False),
        (("tool:*",), "admin/registerTool", True),
        (("tool:memory_*",), "memory_store", True),
        (("tool:memory_*",), "memory", False),
        (("tool:*_store",), "memory_store", False),
        (("*",), "echo", False),
        (("to*",), "echo", False),
        (("tool*",), "echo", False),
        (("echo",), "echo", False),
        (("openid", "tool:echo"), "echo", True),
    ],
)
def test_scopes_name_the_tools_that_may_be_called(scopes: tuple[str, ...] | None, tool: str, may: bool) -> None:
    assert Caller("ada", scopes=None if scopes is None else frozenset(scopes)).may_call(tool) is may
