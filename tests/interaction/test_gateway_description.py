"""What the gateway says about itself is true: its capabilities, its schemas, and its OpenAPI document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from requests.auth import AuthBase
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from dragoman.knowledge.roles import ALIASES, ROLES
from tests.support.examples import examples
from tests.support.gateway import Signer
from tests.support.gateway_process import GatewayProcess, add_keys
from tests.support.gateway_serving import TENANT, TOKEN, open_gateway

CHANGES = tuple(f"knowledge.{name}_document" for name in ("create", "update", "delete", "move"))
ACTIONS = (*CHANGES, "knowledge.query_knowledge")


@pytest.mark.requirement("MC-CAP-01", "MC-CAP-02", "MC-CAP-03", "MC-VER-01")
@pytest.mark.parametrize("max_concurrent", [None, 7])
async def test_capabilities_list_what_works_and_nothing_else(max_concurrent: int | None) -> None:
    async with open_gateway({"knowledge": {"max_concurrent": max_concurrent} if max_concurrent else {}}) as gateway:
        response = await gateway.get("/mcp/capabilities", token=TOKEN)
    sizes = (131_072, 131_072, None, None, 65_536)
    limits: list[dict[str, int]] = [{} if size is None else {"max_payload_bytes": size} for size in sizes]
    assert (response.status, response.json) == (
        200,
        {
            "envelope_versions": ["2.2"],
            "actions": [
                {"action": action, "action_version": "1.0.0", "max_concurrent": max_concurrent or 10, **limit}
                for action, limit in zip(ACTIONS, limits, strict=True)
            ],
            "transports": ["http-sync", "pubsub-async"],
            "quotas": {"documents_per_tenant": 100_000, "document_bytes_per_tenant": 1_073_741_824},
        },
    )


@pytest.mark.requirement("MC-ACT-01", "MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01", "MC-QUERY-01")
@pytest.mark.parametrize("action", ACTIONS)
async def test_the_schema_of_an_action_is_its_file_and_the_tool_takes_nothing_else(action: str) -> None:
    async with open_gateway() as gateway:
        response = await gateway.get(f"/schemas/mcp/{action}.json", token=TOKEN)
        tool = gateway.runtime.catalogue.get(action)
    assert tool is not None
    assert response.body == (files("dragoman.knowledge") / f"schemas/mcp/{action}.json").read_bytes()
    assert tool.definition.input_schema["additionalProperties"] is False
    assert tool.definition.input_schema["properties"].keys() == response.json["properties"].keys()
    assert response.json["title"] == f"{action} 1.0.0"


@pytest.mark.requirement("MC-ACT-01")
@pytest.mark.parametrize("action", ACTIONS)
async def test_arguments_are_held_to_the_schema(action: str) -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        schema = (await gateway.get(f"/schemas/mcp/{action}.json", signer)).json
        for args in ({"more": 1}, dict.fromkeys(schema["required"])):
            refused = await gateway.act(signer, action.partition(".")[2], args)
            named = {each["path"].strip("/").split("/")[0] for each in refused.json["error"]["details"]["errors"]}
            assert (refused.status, refused.json["error"]["code"]) == (422, "UNPROCESSABLE_ENTITY")
            assert {*schema["required"]} <= named


# OpenAPI.


class Sign(AuthBase):
    """Signs each request for its own body, as the last step before it is sent."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        token = self._signer.token(body, str(request.url).partition("?")[0], str(request.method))
        request.headers["Authorization"] = f"Bearer {token}"
        return request


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(TENANT, "owner")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, signer)
    with GatewayProcess(folder) as server:
        yield server


@pytest.fixture(scope="module")
def described(server: GatewayProcess, signer: Signer) -> Any:
    """The API as its own document has it."""
    url = server.url("/mcp/openapi.json")
    document = requests.get(url, auth=Sign(signer), timeout=60).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url(""))
    schema.config.generation.update(with_security_parameters=False)
    return schema


def make_fit(body: Any, signer: Signer) -> None:
    """Change what no schema can know, where it is well-formed: the tenant, the caller, and the time.

    JSON Schema has no word for printable characters, and takes 1.0 for an integer, which an envelope does not.
    """
    if not isinstance(body, dict):
        return
    if isinstance(tenant := body.get("tenant_id"), str) and 0 < len(tenant) <= 128:
        body["tenant_id"] = signer.tenant
    principal = body.get("principal")
    if isinstance(principal, dict):
        if isinstance(sub := principal.get("sub"), str) and 0 < len(sub) <= 256:
            principal["sub"] = signer.sub
        roles = principal.get("roles")
        if isinstance(roles, list) and len(roles) <= 16 and all(role in (*ROLES, *ALIASES) for role in roles):
            roles[15:] = []
            roles.append("owner")
    with suppress(KeyError, TypeError, ValueError):
        if datetime.fromisoformat(body["timestamp"]).tzinfo == UTC:
            body["timestamp"] = datetime.now(UTC).isoformat()
    for name in ("ttl_sec", "seq"):
        if isinstance(number := body.get(name), float) and number.is_integer():
            body[name] = int(number)
    for name in ("context_id", "idempotency_key"):
        if isinstance(text := body.get(name), str) and not text.isprintable():
            body[name] = "x" * len(text)
    # An order of its own: a request that comes after its successor is ignored, whatever its arguments are.
    if (
        isinstance(body.get("seq"), int)
        and isinstance(context := body.get("context_id", ""), str)
        and len(context) <= 128
    ):
        body["context_id"] = str(uuid4())


def try_out(operation: Any, mode: GenerationMode, signer: Signer, prepare: Callable[[Any], None]) -> Counter[int]:
    """Send requests that the document allows, or forbids, and hold the answers to it; how many had which status."""
    seen: Counter[int] = Counter()

    @seed(2_400)
    @settings(
        max_examples=examples(1),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        prepare(case)
        response = case.call(auth=Sign(signer))
        # Arguments have to fit rules that no schema has, so 422 is an answer to what the schema allows. `ignored_auth`
        # would take away the signature of a request, which it does not know of: the tests of tokens do that.
        case.validate_response(response, excluded_checks=[ignored_auth, positive_data_acceptance])
        seen[response.status_code] += 1

    send()
    return seen


@pytest.mark.slow
@pytest.mark.requirement("MC-ERR-01", "MC-RESP-01", "MC-RESP-02", "MC-TRANS-01")
def test_requests_that_the_document_allows_are_understood(described: Any, signer: Signer) -> None:
    def prepare(case: Any) -> None:
        assume("args" in case.body["payload"])  # A link that was made up is refused.
        make_fit(case.body, signer)
        args = case.body["payload"]["args"]
        if "parent_id" in args:
            args["parent_id"] = "root"
        if "tenant_id" in args.get("filters", {}):
            args["filters"]["tenant_id"] = signer.tenant
        args.get("routing", {}).pop("noop_qdrant", None)  # The server is not in test mode.
        if "seq" in case.body:
            case.headers = {**(case.headers or {}), "Prefer": "respond-async"}
        if "Idempotency-Key" in (case.headers or {}):
            case.body["idempotency_key"] = case.headers["Idempotency-Key"]  # It can only repeat it.

    seen = try_out(described["/mcp/actions"]["POST"], GenerationMode.POSITIVE, signer, prepare)
    assert seen.keys() <= {200, 202, 404, 409, 422}
    assert seen[200] > 0
    assert seen[202] > 0


@pytest.mark.slow
@pytest.mark.requirement("MC-ERR-01", "MC-RESP-02", "MC-ENV-01")
def test_requests_that_the_document_forbids_are_refused(described: Any, signer: Signer) -> None:
    def prepare(case: Any) -> None:
        make_fit(case.body, signer)
        (case.headers or {}).pop("Prefer", None)  # Arguments of a request that is accepted are checked later.

    seen = try_out(described["/mcp/actions"]["POST"], GenerationMode.NEGATIVE, signer, prepare)
    assert seen.keys() <= {400, 409, 422}  # A header may have the key of another request.


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/mcp/capabilities", "/mcp/openapi.json", "/mcp/registry", "/schemas/mcp/{action}.json"]
)
def test_what_there_is_to_read_is_as_the_document_says(described: Any, signer: Signer, path: str) -> None:
    assert try_out(described[path]["GET"], GenerationMode.POSITIVE, signer, lambda case: None).keys() == {200}


@pytest.mark.slow
def test_the_document_has_an_operation_for_each_route_and_a_schema_for_each_action(described: Any) -> None:
    document = described.raw_schema
    assert [*document["paths"]] == [
        "/mcp/actions",
        "/mcp/artifacts",
        "/mcp/requests/{request_id}",
        "/mcp/registry",
        "/mcp/capabilities",
        "/mcp/openapi.json",
        "/schemas/mcp/{action}.json",
    ]
    envelopes = document["components"]["schemas"]["Envelope"]["oneOf"]
    assert [each["properties"]["action"]["const"] for each in envelopes] == [*ACTIONS]
    statuses = {"200", "202", "400", "401", "403", "404", "409", "422", "429", "440", "500", "503"}
    assert document["paths"]["/mcp/actions"]["post"]["responses"].keys() == statuses
    assert msgspec.json.encode(document)
