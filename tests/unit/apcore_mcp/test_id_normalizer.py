"""Module ids as names of functions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_mcp.adapters.id_normalizer import LONGEST_NAME, ModuleIDNormalizer

normalizer = ModuleIDNormalizer()
module_ids = st.from_regex(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*", fullmatch=True)


@pytest.mark.requirement("FR-OPENAI-002")
@pytest.mark.parametrize(
    ("module_id", "name"),
    [
        ("image.resize", "image-resize"),
        ("simple", "simple"),
        ("comfyui.workflow.execute", "comfyui-workflow-execute"),
        ("my_module.resize", "my_module-resize"),
        ("agent/sendMessage", "agent-sendMessage"),
    ],
)
def test_dots_become_hyphens(module_id: str, name: str) -> None:
    assert normalizer.normalize(module_id) == name


@pytest.mark.slow
@pytest.mark.requirement("FR-OPENAI-002")
@given(module_ids)
def test_every_id_has_a_name_and_gets_it_back(module_id: str) -> None:
    name = normalizer.normalize(module_id)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", name)
    assert normalizer.denormalize(name) == module_id


@pytest.mark.requirement("FR-OPENAI-002")
@pytest.mark.parametrize("module_id", ["my-module.resize", "-", "", "a b", "größe", "a\n", "a:b"])
def test_what_is_no_module_id_is_refused(module_id: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(module_id))):
        normalizer.normalize(module_id)


def test_a_long_id_has_a_short_name_that_no_other_has() -> None:
    stem = "a." * 40
    ids = [stem + "b", stem + "c", "x" * LONGEST_NAME]
    named, problems = normalizer.names(ids)
    assert list(named.values()) == ids
    assert problems == {}
    assert [len(name) for name in named] == [LONGEST_NAME] * 3
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in named)
    assert list(normalizer.names(reversed(ids))[0]) == list(reversed(named))


def test_the_second_id_with_a_name_is_reported_and_does_not_get_it() -> None:
    named, problems = normalizer.names(["a.b", "a/b", "a-b", "c"])
    assert named == {"a-b": "a.b", "c": "c"}
    assert problems == {
        "a/b": "its function name 'a-b' is that of 'a.b' already",
        "a-b": "the module id 'a-b' has a hyphen, and those stand for its dots",
    }
