"""Roles, and the names that they had before."""

from __future__ import annotations

import pytest

from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.roles import ALIASES, ROLES, canonical


@pytest.mark.requirement("MC-RBAC-01")
def test_there_are_four_roles_and_no_other_name_stands_for_one() -> None:
    assert {"owner", "editor", "viewer", "agent"} == ROLES
    assert canonical(("owner", "Owner", "admin", "", "owner ", "viewer")) == {"owner", "viewer"}
    assert canonical(()) == frozenset()


@pytest.mark.requirement("MC-RBAC-03", "MC-VER-02")
def test_old_names_stand_for_their_roles() -> None:
    assert ALIASES == {"cursor": "agent", "codex": "editor"}
    assert canonical(("cursor",)) == {"agent"}
    assert canonical(("codex", "editor", "viewer")) == {"editor", "viewer"}


@pytest.mark.requirement("MC-RBAC-02")
def test_each_action_is_for_some_roles() -> None:
    assert {name.removeprefix("knowledge."): set(action.roles) for name, action in ACTIONS.items()} == {
        "create_document": {"owner", "editor", "agent"},
        "update_document": {"owner", "editor"},
        "delete_document": {"owner", "editor"},
        "move_document": {"owner"},
        "query_knowledge": {"owner", "editor", "viewer", "agent"},
    }
