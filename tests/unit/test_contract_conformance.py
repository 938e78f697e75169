"""The conformance list of the action contract: each of its points, and the tests that would catch a breach of it."""

from __future__ import annotations

import ast

import pytest

from tests import requirements

FOLDERS = ("tests/interaction", "tests/langroid")
POINTS = {
    "envelope validation": ["test_gateway_envelopes.py::test_an_envelope_is_refused_by_the_path_of_what_is_wrong"],
    "idempotency, TTL and ordering": [
        "test_gateway_scenarios.py::test_a_saga_with_a_failing_step_ends_consistently_and_replays_change_nothing",
        "test_knowledge_queries.py::test_a_repeat_gets_the_first_answer_with_its_hits",
        "test_gateway_envelopes.py::test_a_request_has_an_effect_until_its_ttl_is_over_and_none_later",
        "test_gateway_envelopes.py::test_a_lower_seq_has_no_effect_and_is_told_so",
        "test_gateway_later.py::test_the_rules_of_the_protocol_hold_over_every_transport",
    ],
    "error handling": ["test_gateway_limits.py::test_an_error_has_its_code_and_its_status"],
    "security (JWS)": [
        "test_gateway_scenarios.py::test_an_external_caller_with_a_valid_signature_passes",
        "test_gateway_scenarios.py::test_an_external_caller_whose_signature_is_none_is_refused",
    ],
    "large artifact": [
        "test_gateway_artifacts.py::test_arguments_that_are_too_large_for_a_message_travel_as_an_artifact",
        "test_gateway_artifacts.py::test_an_expired_link_another_hash_and_another_tenants_link_are_refused",
    ],
    "version negotiation": [
        "test_gateway_envelopes.py::test_an_unsupported_version_of_an_action_names_the_supported_ones",
        "test_gateway_envelopes.py::test_an_unsupported_version_of_the_envelope_names_the_supported_ones",
    ],
    "noop routing": ["test_knowledge_queries.py::test_noop_is_for_test_mode_and_never_finds_anything"],
    "RBAC": ["test_gateway_roles.py::test_a_role_may_do_what_it_may_and_nothing_else"],
    "ToolMessage wrapping": [
        "test_messages.py::test_wrapped_arguments_are_read_again_from_what_langroid_writes",
        "test_messages.py::test_arguments_that_do_not_fit_are_refused_as_the_gateway_refuses_them",
    ],
}


def names_in(file: str) -> set[str]:
    (path,) = (path for folder in FOLDERS if (path := requirements.ROOT / folder / file).is_file())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in ast.parse(path.read_text("utf-8")).body if isinstance(each, functions)}


@pytest.mark.requirement("MC-TEST-01")
@pytest.mark.parametrize("point", POINTS)
def test_each_point_of_the_conformance_list_has_tests(point: str) -> None:
    for each in POINTS[point]:
        file, _, name = each.partition("::")
        assert name in names_in(file)


def test_the_list_is_that_of_the_contract() -> None:
    assert len(POINTS) == 9
