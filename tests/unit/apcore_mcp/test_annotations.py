"""apcore's annotations as MCP's hints and as words."""

from __future__ import annotations

import sys
from subprocess import run

import pytest
from apcore import ModuleAnnotations
from mcp_types import ToolAnnotations

from apcore_mcp.adapters.annotations import AnnotationMapper
from dragoman.tools.tool import Hints

mapper = AnnotationMapper()


@pytest.mark.requirement("FR-ANNOT-001", "FR-ANNOT-002", "FR-ANNOT-003", "FR-ANNOT-004")
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("destructive", "destructive_hint"),
        ("readonly", "read_only_hint"),
        ("idempotent", "idempotent_hint"),
        ("open_world", "open_world_hint"),
    ],
)
def test_each_annotation_is_one_hint_and_changes_no_other(field: str, hint: str, value: bool) -> None:
    usual = mapper.to_mcp_annotations(ModuleAnnotations()).model_dump()
    mapped = mapper.to_mcp_annotations(ModuleAnnotations(**{field: value}))
    assert isinstance(mapped, ToolAnnotations)
    assert mapped.model_dump() == {**usual, hint: value}


@pytest.mark.requirement("FR-ANNOT-005")
@pytest.mark.parametrize("annotations", [None, ModuleAnnotations()])
def test_none_stands_for_the_defaults(annotations: ModuleAnnotations | None) -> None:
    assert mapper.to_mcp_annotations(annotations) == ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
    )
    assert mapper.to_hints(annotations) == Hints(False, False, False, True)


@pytest.mark.requirement("FR-ANNOT-006")
def test_approval_is_required_only_where_the_module_says_so() -> None:
    assert mapper.has_requires_approval(ModuleAnnotations(requires_approval=True)) is True
    assert mapper.has_requires_approval(ModuleAnnotations()) is False
    assert mapper.has_requires_approval(ModuleAnnotations(destructive=True)) is False
    assert mapper.has_requires_approval(None) is False


@pytest.mark.requirement("FR-ANNOT-007")
@pytest.mark.parametrize(
    ("annotations", "suffix"),
    [
        (None, ""),
        (ModuleAnnotations(), ""),
        (ModuleAnnotations(streaming=True, cacheable=True, cache_ttl=9), ""),
        (ModuleAnnotations(destructive=True), "\n\n[Annotations: destructive=true]"),
        (ModuleAnnotations(open_world=False), "\n\n[Annotations: open_world=false]"),
        (ModuleAnnotations(idempotent=True, readonly=True), "\n\n[Annotations: readonly=true, idempotent=true]"),
        (
            ModuleAnnotations(
                readonly=True, destructive=True, idempotent=True, requires_approval=True, open_world=False
            ),
            "\n\n[Annotations: readonly=true, destructive=true, idempotent=true, requires_approval=true, "
            "open_world=false]",
        ),
    ],
)
def test_a_description_is_told_what_is_unusual(annotations: ModuleAnnotations | None, suffix: str) -> None:
    assert mapper.to_description_suffix(annotations) == suffix


@pytest.mark.slow
def test_the_runtime_s_hints_need_neither_apcore_nor_the_sdk() -> None:
    program = (
        "import sys; from apcore_mcp.adapters.annotations import AnnotationMapper;"
        "AnnotationMapper().to_hints(None);"
        "print([name for name in ('apcore', 'mcp', 'mcp_types', 'pydantic') if name in sys.modules])"
    )
    assert run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
