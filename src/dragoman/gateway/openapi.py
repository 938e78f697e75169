"""Descriptions of the gateway: its capabilities, and the document for OpenAPI's tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.gateway.envelope import LONGEST_KEY, SCHEMA_VERSION, VERSIONS, Envelope22
from dragoman.knowledge.actions import ACTIONS, Action
from dragoman.knowledge.roles import ALIASES, ROLES
from dragoman.replies.vocabulary import STATUSES, ContractCode
from dragoman.version import __version__

_ERRORS = "#/components/schemas/Error"


def capabilities(max_concurrent: int) -> dict[str, Any]:
    """What `GET /mcp/capabilities` answers. It lists what works, and nothing else."""
    return {
        "envelope_versions": list(VERSIONS),
        "actions": [
            {
                "action": action.name,
                "action_version": action.version,
                **({} if action.max_payload_bytes is None else {"max_payload_bytes": action.max_payload_bytes}),
                "max_concurrent": max_concurrent,
            }
            for action in ACTIONS.values()
        ],
        "transports": ["http-sync"],
    }


def openapi(public_url: str | None) -> dict[str, Any]:
    """What `GET /mcp/openapi.json` answers."""
    (_,), schemas = msgspec.json.schema_components([Envelope22], ref_template="#/components/schemas/{name}")
    for action in ACTIONS.values():
        schemas[_args_name(action)] = _args_schema(action)
    schemas["Principal"]["properties"]["roles"]["items"] = {"enum": sorted((*ROLES, *ALIASES))}
    schemas["Envelope"] = {
        "description": "Names consist of printable characters. Integers are written without a fraction: not as 1.0.",
        "oneOf": [_envelope_of(action, schemas) for action in ACTIONS.values()],
    }
    del schemas["Envelope22"], schemas["Payload"]
    schemas |= {"Success": _SUCCESS, "Error": _ERROR}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman's gateway", "version": __version__},
        "security": [{"bearer": []}],
        "paths": {
            "/mcp/actions": {
                "post": {
                    "operationId": "act",
                    "summary": "Ask for an action",
                    "parameters": [
                        {
                            "name": "Idempotency-Key",
                            "in": "header",
                            "schema": {"type": "string", "maxLength": LONGEST_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$"},
                        }
                    ],
                    "requestBody": {"required": True, "content": _json("#/components/schemas/Envelope")},
                    "responses": {"200": _said("It was done.", "#/components/schemas/Success"), **_refusals()},
                }
            },
            "/mcp/capabilities": _get("capabilities", "What the gateway can do"),
            "/mcp/openapi.json": _get("openapi", "This description"),
            "/schemas/mcp/{action}.json": _get(
                "schema",
                "The schema of an action's arguments",
                [{"name": "action", "in": "path", "required": True, "schema": {"enum": sorted(ACTIONS)}}],
            ),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWS"}},
        },
    }
    if public_url is not None:
        described["servers"] = [{"url": public_url}]
    return described


def _args_name(action: Action) -> str:
    return action.name.rpartition(".")[2].title().replace("_", "") + "Args"


def _args_schema(action: Action) -> Any:
    """The schema of an action's arguments, with nothing outside of it that it refers to."""
    schema = msgspec.json.decode(action.schema_bytes)
    definitions = schema.pop("definitions", {})
    schema.pop("$schema", None)
    return _resolved(schema, definitions)


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: _resolved(value, definitions) for key, value in schema.items()}
    return [_resolved(each, definitions) for each in schema] if isinstance(schema, list) else schema


def _envelope_of(action: Action, schemas: dict[str, Any]) -> dict[str, Any]:
    general = schemas["Envelope22"]
    payload = {
        "type": "object",
        "required": ["schema_version", "args"],
        "additionalProperties": False,
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "args": {"$ref": f"#/components/schemas/{_args_name(action)}"},
        },
    }
    particular = {
        "envelope_version": {"enum": list(VERSIONS)},
        "timestamp": {"type": "string", "format": "date-time", "pattern": "^[0-9-]{10}T[0-9:.]+(Z|[+-]00:00)$"},
        "action": {"const": action.name},
        "action_version": {"const": action.version},
        "payload": payload,
    }
    return {**general, "title": action.name, "properties": {**general["properties"], **particular}}


def _get(name: str, summary: str, parameters: Iterable[Any] = ()) -> dict[str, Any]:
    ok = {"description": "It.", "content": {"application/json": {"schema": {"type": "object"}}}}
    codes = (
        ContractCode.UNAUTHORIZED,
        ContractCode.NOT_FOUND,
        ContractCode.RATE_LIMIT_EXCEEDED,
        ContractCode.UNAVAILABLE,
    )
    answers = {"200": ok, **_refusals((ContractCode.INVALID_ARGUMENT, *codes))}
    return {"get": {"operationId": name, "summary": summary, "parameters": list(parameters), "responses": answers}}


def _refusals(codes: Iterable[ContractCode] = tuple(STATUSES)) -> dict[str, Any]:
    return {str(STATUSES[code]): _said(code.value, _ERRORS) for code in codes}


def _said(description: str, reference: str) -> dict[str, Any]:
    return {"description": description, "content": _json(reference)}


def _json(reference: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": reference}}}


_SUCCESS: dict[str, Any] = {
    "type": "object",
    "required": ["ok", "data", "usage"],
    "additionalProperties": False,
    "properties": {
        "ok": {"const": True},
        "data": {"type": "object"},
        "usage": {
            "type": "object",
            "required": ["latency_ms", "qdrant_hits"],
            "additionalProperties": False,
            "properties": {
                "latency_ms": {"type": "integer", "minimum": 0},
                "qdrant_hits": {"type": "integer", "minimum": 0},
            },
        },
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["ok", "error"],
    "additionalProperties": False,
    "properties": {
        "ok": {"const": False},
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "additionalProperties": False,
            "properties": {
                "code": {"enum": [code.value for code in ContractCode]},
                "message": {"type": "string"},
                "details": {
                    "type": "object",
                    "required": ["hint", "trace_id"],
                    "properties": {"hint": {"type": "string"}, "trace_id": {"type": "string"}},
                },
            },
        },
    },
}
