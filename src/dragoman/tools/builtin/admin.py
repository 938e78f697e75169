"""Tools that change which tools there are. They exist only when both switches are on, and then a policy decides.

What can be registered is a closed set: a name of one's own for a handler that is built in, with the handler's schema.
Tools of the server itself cannot be removed, and their names cannot be taken, whether or not they are served now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.changes import Change, Publish, ToolRegistered, ToolRemoved
from dragoman.errors import DuplicateTool, InvalidArgument, NotFound, RegistrationError, Unauthorized
from dragoman.telemetry.log import Logger
from dragoman.tools.builtin.echo import ECHO_SCHEMA
from dragoman.tools.builtin.health import HEALTH_SCHEMA
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.context import ToolContext
from dragoman.tools.settings import AdminPolicy
from dragoman.tools.tool import MOST_NAME, Handler, Hints, Tool, ToolDefinition

AGENT_PROXY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"targetAgentId": {"type": "string"}, "message": {"type": "object"}},
    "required": ["targetAgentId", "message"],
}
CANONICAL_SCHEMAS: dict[str, dict[str, Any]] = {
    "echo": ECHO_SCHEMA,
    "health": HEALTH_SCHEMA,
    "agentProxy": AGENT_PROXY_SCHEMA,
}
"""The kinds of tools that can be registered, each with its schema."""

_REGISTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "toolType": {"type": "string", "enum": list(CANONICAL_SCHEMAS), "description": "Which handler answers."},
        "name": {"type": "string", "description": "What the tool will be called."},
        "description": {"type": "string"},
        "version": {"type": "string"},
        "inputSchema": {"type": "object", "description": "If given, the schema of the toolType, exactly."},
    },
    "required": ["toolType", "name"],
    "additionalProperties": False,
}
_UNREGISTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}

_RESERVED_NAMES = frozenset({"health", "result_continue"})
_RESERVED_BEGINNINGS = ("admin/", "agent/", "memory_")

_canonical = msgspec.json.Encoder(order="deterministic").encode


def check_admin_policy(policy: AdminPolicy, transport: str) -> None:
    """Raise `Unauthorized` unless the policy lets this transport administer."""
    match policy.mode:
        case "local_stdio_only":
            if transport != "stdio":
                raise Unauthorized("Admin operations only allowed via stdio")
        case "token":
            raise Unauthorized("Token mode not supported in v0.1")
        case _:
            raise Unauthorized("Admin operations are disabled")


def registered_tool(change: ToolRegistered, handlers: Mapping[str, Handler]) -> Tool:
    """The tool that somebody registered, here or in another process of the server."""
    definition = ToolDefinition(
        name=change.name,
        description=change.description,
        version=change.version,
        input_schema=CANONICAL_SCHEMAS[change.tool_type],
    )
    return Tool(definition, handlers[change.tool_type], wants_context=change.tool_type == "agentProxy")


class Admin:
    """The tools, and what they do in every process of the server; `handlers` are what a toolType is answered by."""

    def __init__(
        self,
        catalogue: Catalogue,
        policy: AdminPolicy,
        handlers: Mapping[str, Handler],
        publish: Publish,
        logger: Logger,
    ) -> None:
        self._catalogue = catalogue
        self._policy = policy
        self._handlers = handlers
        self._publish = publish
        self._logger = logger

    def tools(self) -> tuple[Tool, Tool]:
        """`admin/registerTool` and `admin/unregisterTool`."""
        return (
            Tool(
                ToolDefinition(
                    name="admin/registerTool",
                    description="Registers a tool, for every client, until the server stops.",
                    input_schema=_REGISTER_SCHEMA,
                    category="mutation",
                    hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
                ),
                self._register,
            ),
            Tool(
                ToolDefinition(
                    name="admin/unregisterTool",
                    description="Removes a tool, for every client, until the server starts again.",
                    input_schema=_UNREGISTER_SCHEMA,
                    category="mutation",
                    hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=False),
                ),
                self._unregister,
            ),
        )

    def on_change(self, change: Change) -> None:
        """Do as another process of the server has done; raises `RegistrationError` if that cannot be."""
        match change:
            case ToolRegistered():
                self._register_as_told(change)
            case ToolRemoved():
                known = self._catalogue.get(change.name)
                if known is not None and not known.is_builtin:
                    self._catalogue.unregister(change.name, is_dynamic=True, logger=self._logger_of(change))

    async def _register(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        check_admin_policy(self._policy, context.transport)
        kind, name = arguments["toolType"], arguments["name"]
        schema = CANONICAL_SCHEMAS[kind]
        if "inputSchema" in arguments and _canonical(arguments["inputSchema"]) != _canonical(schema):
            raise InvalidArgument(f"inputSchema is not the schema of {kind}", {"reason": "schema_not_canonical"})
        if kind not in self._handlers:
            raise InvalidArgument(f"This server has nothing that a {kind} could stand for", {"reason": "no_handler"})
        said = arguments.get("description", f"A tool of type {kind}, registered while the server runs.")
        change = ToolRegistered(kind, name, said, arguments.get("version"), context.correlation_id)
        if name in _RESERVED_NAMES or name.startswith(_RESERVED_BEGINNINGS):
            raise InvalidArgument(f"The name {name[:MOST_NAME]} is reserved", {"reason": "reserved_name"})
        try:
            tool = registered_tool(change, self._handlers)
            self._catalogue.register(tool, is_dynamic=True, tool_type=kind, logger=context.logger)
        except RegistrationError as error:
            raise InvalidArgument(str(error), {"reason": "not_registered"}) from error
        self._publish(change)
        return {"success": True, "name": name, "toolType": kind}

    async def _unregister(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        check_admin_policy(self._policy, context.transport)
        name = arguments["name"]
        known = self._catalogue.get(name)
        if known is not None and known.is_builtin:
            raise Unauthorized(f"{name} is a tool of the server and cannot be removed", {"reason": "builtin_tool"})
        if not self._catalogue.unregister(name, is_dynamic=True, logger=context.logger):
            raise NotFound(f"Unknown tool: {name[:200]}")
        self._publish(ToolRemoved(name, context.correlation_id))
        return {"success": True, "name": name}

    def _register_as_told(self, change: ToolRegistered) -> None:
        tool = registered_tool(change, self._handlers)
        known = self._catalogue.get(change.name)
        if known is not None and known.definition == tool.definition:
            return
        if known is not None and known.is_builtin:
            raise DuplicateTool(change.name)
        if known is not None:  # Registered here and there at the same time: the last word is the same for all.
            self._catalogue.unregister(change.name)
        logger = self._logger_of(change)
        self._catalogue.register(tool, is_dynamic=True, tool_type=change.tool_type, logger=logger)

    def _logger_of(self, change: ToolRegistered | ToolRemoved) -> Logger | None:
        """Logs under the id of the call that another process made the change for."""
        return None if change.correlation_id is None else self._logger.child({"correlationId": change.correlation_id})
