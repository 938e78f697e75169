"""The arguments of the actions: what their schemas take, and what else is refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from dragoman.errors import InvalidArgument
from dragoman.knowledge.actions import ACTIONS, CHANGES, QUERY
from dragoman.knowledge.changing import check_content
from dragoman.knowledge.port import CreateDocument, DeleteDocument, DocumentChange, MoveDocument, UpdateDocument
from dragoman.schemas.schema import compile_schema
from tests.support.document_entries import asked, draft
from tests.support.gateway import create_args

ID, OTHER = "11111111-aaaa-4bbb-8ccc-dddddddddddd", "22222222-aaaa-4bbb-8ccc-dddddddddddd"
NOW = 1000.0
NO_UUIDS = [
    "",
    "root",
    ID[:-1],
    f"{ID}0",
    f" {ID}",
    f"{ID}\n",
    ID.replace("-", ""),
    f"{{{ID}}}",
    f"urn:uuid:{ID}",
    ID.replace("1", "g"),
    ID.replace("1", "\uff11"),  # A digit to Python, and to no one else.
]
NO_MOMENTS = [
    "",
    "now",
    "2026-01-31",
    "12:00:00Z",
    "2026-01-31T12:00:00",
    "2026-01-31 12:00:00Z",
    "2026-02-30T12:00:00Z",
    "2026-01-31T25:00:00Z",
    "1767225600",
    "0001-01-01T00:00:00+10:00",
    "10000-01-01T00:00:00Z",
    "2026-01-31T12:00:00Z\n",
]


def make(name: str, arguments: dict[str, Any], *roles: str) -> DocumentChange:
    """The change that arguments ask for, after the tool's schema has seen them."""
    action = ACTIONS[f"knowledge.{name}_document"]
    compile_schema(action.tool(lambda caller: True).definition.input_schema).check(arguments)
    return CHANGES[action.name](arguments, asked(name, roles=frozenset(roles or ("owner",))), NOW)


def update_args(patch: dict[str, Any], *mask: str, **fields: Any) -> dict[str, Any]:
    return {"document_id": ID, "patch": patch, "update_mask": list(mask), **fields}


def updated(patch: dict[str, Any], *mask: str) -> dict[str, Any]:
    change = make("update", update_args(patch, *mask))
    assert isinstance(change, UpdateDocument)
    return dict(change.fields)


def refused(name: str, arguments: dict[str, Any]) -> list[str]:
    """The paths that a refusal of arguments names."""
    with pytest.raises(InvalidArgument) as error:
        make(name, arguments)
    assert error.value.details is not None
    return [each["path"] for each in error.value.details["errors"]]


# Creating.


@pytest.mark.requirement("MC-CREATE-01", "MC-RBAC-07")
def test_arguments_of_a_creation_become_a_document() -> None:
    content = {"mime_type": "application/json", "body": "[1]"}
    metadata = {"title": "T", "tags": ["x", "y"], "source": "s"}
    given = create_args(
        ID.upper(),
        OTHER.upper(),
        content=content,
        metadata=metadata,
        is_human_readable=False,
        created_at="1970-01-01T01:00:30+01:00",
    )
    document = draft(
        ID,
        OTHER,
        title="T",
        mime_type="application/json",
        body="[1]",
        tags=("x", "y"),
        source="s",
        is_human_readable=False,
        created_at=30.0,
        updated_at=NOW,
    )
    assert make("create", given) == CreateDocument(document=document)


@pytest.mark.requirement("MC-CREATE-01")
def test_what_is_optional_in_a_creation_has_defaults() -> None:
    document = draft(ID, title="A document", body="Some text", created_at=NOW, updated_at=NOW)
    assert make("create", create_args(ID)) == CreateDocument(document=document)


@pytest.mark.requirement("MC-RBAC-02")
@pytest.mark.parametrize(
    ("roles", "only"), [("agent", True), ("agent viewer", True), ("agent editor", False), ("owner", False)]
)
def test_an_agent_that_is_nothing_else_creates_into_an_inbox_only(roles: str, only: bool) -> None:
    change = make("create", create_args(ID), *roles.split())
    assert isinstance(change, CreateDocument)
    assert change.into_inbox_only is only


@pytest.mark.requirement("MC-CREATE-01")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"document_id": 5}, "/document_id"),
        ({"parent_id": None}, "/parent_id"),
        ({"content": {"mime_type": "text/plain"}}, "/content/body"),
        ({"content": {"mime_type": "text/html", "body": ""}}, "/content/mime_type"),
        ({"content": {"mime_type": "text/plain", "body": "", "x": 1}}, "/content/x"),
        ({"content": {"mime_type": "application/json", "body": "{"}}, "content.body"),
        ({"content": {"mime_type": "application/json", "body": ""}}, "content.body"),
        ({"content": {"mime_type": "application/json", "body": "[" * 100_000}}, "content.body"),
        ({"metadata": {}}, "/metadata/title"),
        ({"metadata": {"title": None}}, "/metadata/title"),
        ({"metadata": {"title": "T", "tags": "x"}}, "/metadata/tags"),
        ({"metadata": {"title": "T", "tags": ["x", 1]}}, "/metadata/tags/1"),
        ({"metadata": {"title": "T", "last_editor": "x"}}, "/metadata/last_editor"),
        ({"is_human_readable": "yes"}, "/is_human_readable"),
        ({"created_at": 5}, "/created_at"),
        ({"unknown": 1}, "/unknown"),
    ],
    ids=str,
)
def test_a_creation_that_does_not_fit_is_refused_by_the_path(fields: dict[str, Any], path: str) -> None:
    assert refused("create", {**create_args(ID), **fields}) == [path]


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01")
@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("create", {"document_id", "parent_id", "content", "metadata"}),
        ("update", {"document_id", "patch", "update_mask"}),
        ("delete", {"document_id"}),
        ("move", {"document_id", "new_parent_id"}),
    ],
)
def test_each_action_has_a_version_and_arguments_that_it_cannot_do_without(name: str, required: set[str]) -> None:
    action = ACTIONS[f"knowledge.{name}_document"]
    assert action.version == "1.0.0"
    every = {**create_args(ID), "patch": {}, "update_mask": [], "new_parent_id": "root"}
    given = {key: every[key] for key in required}
    make(name, given)
    for missing in required:
        assert refused(name, {key: value for key, value in given.items() if key != missing}) == [f"/{missing}"]


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01")
@pytest.mark.parametrize("text", NO_UUIDS)
def test_an_id_is_a_uuid_as_the_standard_writes_it(text: str) -> None:
    given = {**create_args(ID), "patch": {}, "update_mask": [], "new_parent_id": "root"}
    names = {
        "create": ("parent_id", "content", "metadata"),
        "update": ("patch", "update_mask"),
        "delete": (),
        "move": ("new_parent_id",),
    }
    for name, others in names.items():
        assert refused(name, {"document_id": text, **{key: given[key] for key in others}}) == ["document_id"]


@pytest.mark.requirement("MC-CREATE-01", "MC-DELETE-01")
@pytest.mark.parametrize("text", NO_MOMENTS)
def test_a_moment_is_a_date_and_a_time_with_an_offset(text: str) -> None:
    for name, path, given in (("create", "created_at", create_args(ID)), ("delete", "delete_at", {"document_id": ID})):
        action = ACTIONS[f"knowledge.{name}_document"]
        with pytest.raises(InvalidArgument) as error:  # Whatever the library that reads the schema takes for a date.
            CHANGES[action.name]({**given, path: text}, asked(name), NOW)
        assert error.value.details is not None
        assert [each["path"] for each in error.value.details["errors"]] == [path]
        assert refused(name, {**given, path: text}) in ([path], [f"/{path}"])


# Updating.


@pytest.mark.requirement("MC-UPDATE-01", "MC-UPDATE-02")
def test_the_mask_says_which_fields_of_the_patch_count() -> None:
    patch = {
        "content": {"mime_type": "text/plain", "body": "B"},
        "metadata": {"title": "T", "tags": ["x"], "last_editor": None},
        "is_human_readable": False,
    }
    assert updated(patch) == {}
    assert updated(patch, "metadata.title") == {"metadata.title": "T"}
    assert updated(patch, "is_human_readable", "content.body") == {"is_human_readable": False, "content.body": "B"}
    assert updated(patch, "content") == {"content.mime_type": "text/plain", "content.body": "B"}
    assert updated(patch, "metadata", "metadata.tags") == {
        "metadata.title": "T",
        "metadata.tags": ("x",),
        "metadata.last_editor": None,
    }


@pytest.mark.requirement("MC-UPDATE-02")
def test_a_field_in_the_mask_that_the_patch_does_not_have_stays() -> None:
    assert updated({}, "metadata", "metadata.tags", "content.body", "is_human_readable") == {}
    assert updated({"metadata": {"tags": None}}, "metadata", "content") == {"metadata.tags": None}


@pytest.mark.requirement("MC-UPDATE-01")
def test_a_revision_that_is_known_goes_along() -> None:
    for known in (0, 7, 2**53):
        change = make("update", update_args({}, last_known_revision=known))
        assert change == UpdateDocument(id=ID, fields={}, last_known_revision=known)


@pytest.mark.requirement("MC-UPDATE-02")
@pytest.mark.parametrize(
    "path", ["", "title", "metadata.source", "metadata.", "Metadata.title", "content.body.x", "parent_id", "*", "."]
)
def test_a_path_in_the_mask_that_no_document_has_is_refused(path: str) -> None:
    assert refused("update", update_args({"metadata": {"title": "T"}}, "metadata.title", path)) == ["update_mask"]


@pytest.mark.requirement("MC-UPDATE-01")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"patch": None}, "/patch"),
        ({"patch": {"metadata": None}}, "/patch/metadata"),
        ({"patch": {"metadata": {"source": "s"}}}, "/patch/metadata/source"),
        ({"patch": {"content": {"body": 5}}}, "/patch/content/body"),
        ({"patch": {"parent_id": "root"}}, "/patch/parent_id"),
        ({"patch": {"is_human_readable": 1}}, "/patch/is_human_readable"),
        ({"update_mask": "metadata"}, "/update_mask"),
        ({"update_mask": [1]}, "/update_mask/0"),
        ({"last_known_revision": -1}, "/last_known_revision"),
        ({"last_known_revision": 1.5}, "/last_known_revision"),
        ({"last_known_revision": "1"}, "/last_known_revision"),
        ({"unknown": 1}, "/unknown"),
    ],
    ids=str,
)
def test_an_update_that_does_not_fit_is_refused_by_the_path(fields: dict[str, Any], path: str) -> None:
    assert refused("update", {**update_args({}), **fields}) == [path]


# Deleting and moving.


@pytest.mark.requirement("MC-DELETE-01")
def test_arguments_of_a_deletion() -> None:
    assert make("delete", {"document_id": ID}) == DeleteDocument(id=ID)
    given = {"document_id": ID.upper(), "reason": "Old", "delete_at": "1970-01-02T00:00:00.5Z"}
    assert make("delete", given) == DeleteDocument(id=ID, reason="Old", delete_at=86_400.5)
    assert refused("delete", {"document_id": ID, "reason": None}) == ["/reason"]
    assert make("delete", {"document_id": ID, "reason": "x" * 4000}) == DeleteDocument(id=ID, reason="x" * 4000)
    assert refused("delete", {"document_id": ID, "reason": "x" * 4001}) == ["reason"]
    assert refused("delete", {"document_id": ID, "unknown": 1}) == ["/unknown"]


@pytest.mark.requirement("MC-MOVE-01")
def test_arguments_of_a_move() -> None:
    assert make("move", {"document_id": ID, "new_parent_id": "root"}) == MoveDocument(id=ID, parent="root")
    given = {"document_id": ID, "new_parent_id": OTHER.upper(), "position": {"ordering": 3, "before": ID.upper()}}
    assert make("move", given) == MoveDocument(id=ID, parent=OTHER, before=ID)
    for position, path in (
        ({"ordering": 1.5}, "/position/ordering"),
        ({"before": None}, "/position/before"),
        ({"after": ID}, "/position/after"),
        (3, "/position"),
    ):
        assert refused("move", {"document_id": ID, "new_parent_id": "root", "position": position}) == [path]


@pytest.mark.requirement("MC-IDEM-01")
def test_the_subject_of_a_request_is_its_document_and_of_a_query_the_principal() -> None:
    for name in CHANGES:
        subject = ACTIONS[name].subject
        assert subject({"document_id": ID.upper()}, "ada") == ID
        for arguments in ({}, {"document_id": None}, {"document_id": [ID]}):
            assert subject(arguments, "ada") == ""
    assert ACTIONS[QUERY].subject({"query": "?", "document_id": ID}, "ada") == "ada"


@pytest.mark.requirement("MC-QUERY-01")
def test_a_query_needs_its_text_and_takes_what_the_contract_lists() -> None:
    schema = compile_schema(ACTIONS[QUERY].tool(lambda caller: True).definition.input_schema)
    full = {
        "query": "x" * 2048,
        "filters": {"tags": ["a", "b"], "tenant_id": "acme"},
        "top_k": 20,
        "context_hints": {"preferred_format": "plain", "language": "de"},
        "routing": {"allow_external_search": True, "max_latency_ms": 1000, "noop_qdrant": False},
    }
    for good in (
        {"query": ""},
        {"query": "?", "top_k": 1},
        {"query": "?", "routing": {"max_latency_ms": 10_000}},
        full,
    ):
        schema.check(good)
    for wrong in (
        {},
        {"query": "x" * 2049},
        {"query": 1},
        *({**full, "top_k": count} for count in (0, 21, 1.5)),
        *({**full, "routing": {"max_latency_ms": count}} for count in (999, 10_001)),
        {**full, "routing": {"noop_qdrant": "yes"}},
        {**full, "filters": {"tags": "a"}},
        {**full, "context_hints": {"preferred_format": "html"}},
        {**full, "other": 1},
    ):
        with pytest.raises(InvalidArgument):
            schema.check(wrong)
    described = json.loads(ACTIONS[QUERY].schema_bytes)["properties"]
    routing = described["routing"]["properties"]
    defaults = [routing[name]["default"] for name in ("allow_external_search", "max_latency_ms", "noop_qdrant")]
    assert (described["top_k"]["default"], defaults, ACTIONS[QUERY].version) == (5, [False, 4000, False], "1.0.0")


def test_content_is_found_to_be_json_without_making_anything_of_it() -> None:
    body = f"[{'[],' * 300_000}[]]"
    tracemalloc.start()
    check_content("application/json", body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * len(body), "lists take sixty times as much"
