"""Descriptions of the gateway: its capabilities, and the document for OpenAPI's tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.gateway.envelope import LONGEST_KEY, LONGEST_URI, SCHEMA_VERSION, VERSIONS, Envelope22
from dragoman.gateway.links import ARTIFACTS
from dragoman.gateway.replying import ENVELOPE_TYPE
from dragoman.knowledge.actions import ACTIONS, Action
from dragoman.knowledge.arguments import LONGEST_IGNORED, MOST_IGNORED
from dragoman.knowledge.port import QUERY_STEPS
from dragoman.knowledge.roles import ALIASES, ROLES
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.replies.vocabulary import STATUSES, ContractCode
from dragoman.version import __version__

_ERRORS, _SUCCESSES = "#/components/schemas/Error", "#/components/schemas/Success"
_ENVELOPED = {ENVELOPE_TYPE: {"schema": {"$ref": "#/components/schemas/AnswerEnvelope"}}}
"""Answers to requests with this type in `Accept`, if their own envelope was read."""
_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeats `idempotency_key`, and is refused without that: it is not signed.",
    "schema": {"type": "string", "maxLength": LONGEST_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}


def capabilities(knowledge: KnowledgeConfig) -> dict[str, Any]:
    """What `GET /mcp/capabilities` answers. It lists what works, and nothing else."""
    return {
        "envelope_versions": list(VERSIONS),
        "actions": [
            {
                "action": action.name,
                "action_version": action.version,
                **({} if action.max_payload_bytes is None else {"max_payload_bytes": action.max_payload_bytes}),
                "max_concurrent": knowledge.max_concurrent,
            }
            for action in ACTIONS.values()
        ],
        "transports": ["http-sync", "pubsub-async"],
        "quotas": {
            "documents_per_tenant": knowledge.documents_per_tenant,
            "document_bytes_per_tenant": knowledge.document_bytes_per_tenant,
        },
    }


def openapi(
    public_url: str | None, mime_types: Iterable[str] = (), most_artifact_bytes: int = 67_108_864
) -> dict[str, Any]:
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
    schemas |= {"Success": _SUCCESS, "Error": _ERROR, "AnswerEnvelope": _ANSWER_ENVELOPE}
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
                        _KEY_HEADER,
                        {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "respond-async"},
                    ],
                    "requestBody": {"required": True, "content": _json("#/components/schemas/Envelope")},
                    "responses": {
                        status: {**said, "content": {**said["content"], **_ENVELOPED}}
                        for status, said in {
                            "200": _said("It was done.", _SUCCESSES),
                            "202": _said("It was accepted; its answer is going to be at `Location`.", _SUCCESSES),
                            **_refusals(),
                        }.items()
                    },
                }
            },
            **(_artifact_paths(mime_types, most_artifact_bytes) if mime_types else {}),
            "/mcp/requests/{request_id}": _request(),
            "/mcp/registry": _get("registry", "Processes and agents, and when each was last seen"),
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


def _request() -> dict[str, Any]:
    """The address of a request that is carried out later: its answer has the status that it would have had at once."""
    id = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
    done = _said("Its state, or its answer.", _SUCCESSES)
    return {
        "get": {
            "operationId": "request",
            "summary": "What became of a request that was accepted",
            "parameters": [id],
            "responses": {"200": done, **_refusals()},
        }
    }


def _args_name(action: Action) -> str:
    return action.name.rpartition(".")[2].title().replace("_", "") + "Args"


def _args_schema(action: Action) -> Any:
    """The schema of an action's arguments, with nothing outside of it that it refers to."""
    return {keyword: value for keyword, value in action.schema.items() if keyword != "$schema"}


def _envelope_of(action: Action, schemas: dict[str, Any]) -> dict[str, Any]:
    general = schemas["Envelope22"]
    version = {"schema_version": {"const": SCHEMA_VERSION}}
    args = {"args": {"$ref": f"#/components/schemas/{_args_name(action)}"}}
    payload = {"oneOf": [_closed({**version, **args}), _closed({**version, **_ARTIFACT})]}
    particular = {
        "envelope_version": {"enum": list(VERSIONS)},
        "timestamp": {"type": "string", "format": "date-time", "pattern": "^[0-9-]{10}T[0-9:.]+(Z|[+-]00:00)$"},
        "action": {"const": action.name},
        "action_version": {"const": action.version},
        "payload": payload,
    }
    return {**general, "title": action.name, "properties": {**general["properties"], **particular}}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with these properties, all of them, and no others."""
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def _artifact_paths(mime_types: Iterable[str], most_bytes: int) -> dict[str, Any]:
    """The addresses of artifacts. How a link is made is nobody's business: clients use it as it is."""
    tenant = {"name": "Dragoman-Tenant", "in": "header", "schema": {"type": "string", "maxLength": 128}}
    content = {mime: {"schema": {"type": "string", "maxLength": most_bytes}} for mime in mime_types}
    stored = {**_SUCCESS, "properties": {**_SUCCESS["properties"], "data": _closed(_STORED)}}
    created = {"description": "It is kept.", "content": {"application/json": {"schema": stored}}}
    codes = (code for code in STATUSES if code not in (ContractCode.NOT_FOUND, ContractCode.CONFLICT))
    return {
        ARTIFACTS: {
            "put": {
                "operationId": "sendArtifact",
                "summary": "Send what is too large for an envelope",
                "parameters": [tenant],
                "requestBody": {"required": True, "content": content},
                "responses": {"201": created, **_refusals(codes)},
            }
        }
    }


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


_STORED: dict[str, Any] = {
    "artifact_uri": {"type": "string", "maxLength": LONGEST_URI},
    "artifact_hash": {"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"},
    "expires_at": {"type": "string", "format": "date-time"},
}
_ARTIFACT = {name: _STORED[name] for name in ("artifact_uri", "artifact_hash")}
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
                "took_part": {"type": "array", "items": {"enum": list(QUERY_STEPS)}},
                "ignored": {
                    "type": "array",
                    "maxItems": MOST_IGNORED,
                    "items": {"type": "string", "maxLength": LONGEST_IGNORED},
                },
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
_ANSWER_ENVELOPE: dict[str, Any] = {
    "type": "object",
    "description": "An envelope with the ids of the request, and the answer as its payload.",
    "required": ["envelope_version", "request_id", "correlation_id", "trace_id", "tenant_id", "principal", "payload"],
    "properties": {
        "envelope_version": {"enum": list(VERSIONS)},
        "request_id": {"type": "string", "format": "uuid"},
        "payload": {"oneOf": [{"$ref": _SUCCESSES}, {"$ref": _ERRORS}]},
    },
}
