"""The actions on documents: their schemas, who may do them, and the changes that their arguments ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.access.callers import Caller
from dragoman.clock import Clock
from dragoman.knowledge.arguments import closed, known_part, removable
from dragoman.knowledge.changing import FIELDS, check_content, unfit
from dragoman.knowledge.port import (
    ROOT,
    ActionRequest,
    Applied,
    CreateDocument,
    DeleteDocument,
    Document,
    DocumentChange,
    DocumentQuota,
    Documents,
    MoveDocument,
    UpdateDocument,
)
from dragoman.knowledge.roles import AGENT, EDITOR, OWNER, VIEWER
from dragoman.schemas.references import PlainSchema, inline_references
from dragoman.tools.context import ToolContext
from dragoman.tools.tool import Hints, Tool, ToolDefinition

VERSION = "1.0.0"
QUERY: Final = "knowledge.query_knowledge"
LONGEST_REASON: Final = 4000
"""Characters of the reason of a deletion, which the audit keeps."""
_FOLDER = Path(__file__).with_name("schemas") / "mcp"
_GROUPS = {group: [path for path in FIELDS if path.startswith(f"{group}.")] for group in ("content", "metadata")}
"""What a path in an update mask stands for that is no field itself."""

MakeChange: TypeAlias = Callable[[dict[str, Any], ActionRequest, float], DocumentChange]
Perform: TypeAlias = Callable[[dict[str, Any], ActionRequest, ToolContext], Awaitable[Applied]]
"""Carries an action out, with arguments that fit its schema. Raises `ToolError`s."""


def _about_document(arguments: Mapping[str, Any], principal: str) -> str:
    id = arguments.get("document_id")
    return id.lower() if isinstance(id, str) else ""


def _about_principal(arguments: Mapping[str, Any], principal: str) -> str:
    return principal


class Action(Struct, frozen=True, kw_only=True):
    """Something that can be asked of the knowledge service."""

    name: str
    description: str
    roles: frozenset[str]
    """Any of these may."""
    hints: Hints
    subject: Callable[[Mapping[str, Any], str], str] = _about_document
    """The subject of an idempotency key; empty for a document's id that is none."""
    version: str = VERSION
    max_payload_bytes: int | None = None
    """Of the arguments; None: as for other tools."""
    wants_context: bool = False
    """Whether it tells how far it is, and stops when nobody waits any longer."""
    merge_patch: str | None = None
    """The argument that is a JSON Merge Patch, in which null removes a field."""

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that a client that asks anew loses nothing."""
        return self.hints.read_only is True

    @property
    def schema_bytes(self) -> bytes:
        """The schema of the arguments, as it is published."""
        return (_FOLDER / f"{self.name}.json").read_bytes()

    @property
    def schema(self) -> PlainSchema:
        """The schema of the arguments as they are taken, without references."""
        return _schema_of(self.name)

    def known_part(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The members of arguments that the published schema names, and paths of the others."""
        return known_part(self.schema, arguments)

    def tool(self, is_for: Callable[[Caller], bool]) -> Tool:
        """The tool of the same name, for the callers that `is_for` names."""
        definition = ToolDefinition(
            name=self.name,
            description=self.description,
            version=self.version,
            input_schema=closed(self.schema),
            hints=self.hints,
        )
        return Tool(
            definition,
            _not_authorized,
            is_async=True,
            wants_context=self.wants_context,
            speaks=False,
            is_for=is_for,
        )


@cache
def _schema_of(action: str) -> PlainSchema:
    published = inline_references(msgspec.json.decode(ACTIONS[action].schema_bytes))
    return removable(published, ACTIONS[action].merge_patch)


def _not_authorized(arguments: dict[str, Any], context: ToolContext) -> NoReturn:
    """Runs only if no stage has found out on whose behalf it would."""
    raise LookupError("the action was not authorized")


def _make_create(arguments: dict[str, Any], request: ActionRequest, now: float) -> CreateDocument:
    content, metadata = arguments["content"], arguments["metadata"]
    check_content(content["mime_type"], content["body"])
    created_at = arguments.get("created_at")
    document = Document(
        tenant=request.tenant,
        id=_uuid(arguments, "document_id"),
        parent=_parent(arguments["parent_id"]),
        place=0,
        title=metadata["title"],
        mime_type=content["mime_type"],
        body=content["body"],
        tags=tuple(metadata.get("tags", ())),
        source=metadata.get("source"),
        is_human_readable=arguments.get("is_human_readable", True),
        created_at=now if created_at is None else _moment(created_at, "created_at"),
        updated_at=now,
    )
    return CreateDocument(document=document, into_inbox_only=not request.roles & {OWNER, EDITOR})


def _make_update(arguments: dict[str, Any], request: ActionRequest, now: float) -> UpdateDocument:
    patch, fields = arguments["patch"], {}
    for path in arguments["update_mask"]:
        if path not in FIELDS and path not in _GROUPS:
            raise unfit("update_mask", f"has a path that is none of a document's: {path[:100]!r}")
        for each in _GROUPS.get(path, (path,)):
            group, _, name = each.rpartition(".")
            held = patch.get(group, {}) if group else patch
            if name in held:
                value = held[name]
                fields[each] = tuple(value) if isinstance(value, list) else value
    return UpdateDocument(
        id=_uuid(arguments, "document_id"), fields=fields, last_known_revision=arguments.get("last_known_revision")
    )


def _make_delete(arguments: dict[str, Any], request: ActionRequest, now: float) -> DeleteDocument:
    moment, reason = arguments.get("delete_at"), arguments.get("reason")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise unfit("reason", f"has more than {LONGEST_REASON} characters")
    return DeleteDocument(
        id=_uuid(arguments, "document_id"),
        reason=reason,
        delete_at=None if moment is None else _moment(moment, "delete_at"),
    )


def _make_move(arguments: dict[str, Any], request: ActionRequest, now: float) -> MoveDocument:
    before = arguments.get("position", {}).get("before")
    return MoveDocument(
        id=_uuid(arguments, "document_id"),
        parent=_parent(arguments["new_parent_id"]),
        before=None if before is None else before.lower(),
    )


_SMALL = 131_072
ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            name="knowledge.create_document",
            description="Adds a document to the tree, below another one or at the top (`root`).",
            roles=frozenset((OWNER, EDITOR, AGENT)),
            hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
            max_payload_bytes=_SMALL,
        ),
        Action(
            name="knowledge.update_document",
            description="Changes the fields of a document that `update_mask` names; the earlier revision is kept.",
            roles=frozenset((OWNER, EDITOR)),
            hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
            max_payload_bytes=_SMALL,
            merge_patch="patch",
        ),
        Action(
            name="knowledge.delete_document",
            description="Deletes a document and all below it, now or at a time. It is purged after 90 days.",
            roles=frozenset((OWNER, EDITOR)),
            hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=False),
        ),
        Action(
            name="knowledge.move_document",
            description="Moves a document, with all below it, below another one, or to another place there.",
            roles=frozenset((OWNER,)),
            hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
        ),
        Action(
            name=QUERY,
            description="Searches the documents, and answers with the passages that fit best and their sources.",
            roles=frozenset((OWNER, EDITOR, VIEWER, AGENT)),
            hints=Hints(read_only=True, destructive=False, idempotent=True, open_world=False),
            subject=_about_principal,
            max_payload_bytes=65_536,
            wants_context=True,
        ),
    )
}
CHANGES: Mapping[str, MakeChange] = {
    "knowledge.create_document": _make_create,
    "knowledge.update_document": _make_update,
    "knowledge.delete_document": _make_delete,
    "knowledge.move_document": _make_move,
}
"""By action, the change for arguments that fit the schema. Each raises `InvalidArgument`. Other actions only read."""


def changing(make: MakeChange, documents: Documents, clock: Clock, quota: DocumentQuota) -> Perform:
    """Carries out an action by changing documents."""

    async def perform(arguments: dict[str, Any], request: ActionRequest, _: ToolContext) -> Applied:
        change = make(arguments, request, clock.now().timestamp())
        return await documents.carry_out(change, replace(request, quota=quota))

    return perform


def _uuid(arguments: dict[str, Any], name: str) -> str:
    text: str = arguments[name]
    try:
        if str(UUID(text)) == text.lower():  # Python takes more spellings than the standard has.
            return text.lower()
    except ValueError:
        pass
    raise unfit(name, "is no UUID")


def _parent(text: str) -> str:
    lowered = text.lower()
    return text if lowered == ROOT else lowered  # `root` is no id, and has one spelling.


def _moment(text: str, name: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        if "T" not in text.upper() or moment.tzinfo is None:
            raise ValueError
        seconds = moment.astimezone(UTC).timestamp()
        datetime.fromtimestamp(seconds, UTC)  # The last microseconds of the year 9999 are rounded to a year too many.
        return seconds
    except (ValueError, OverflowError):
        raise unfit(name, "is no date and time with an offset, such as 2026-01-31T12:00:00Z") from None
