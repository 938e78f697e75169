"""Every address with a caller that has every scope but the one it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dragoman.access.callers import METRICS_SCOPE, scope_of
from dragoman.knowledge.actions import ACTIONS
from dragoman.parts.route import Route
from tests.support.document_entries import Tree
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import GatewayApp, internal, open_gateway
from tests.support.http_wire import Response, request

OTHERS = ("operate", METRICS_SCOPE, "agent:*", "tool:health", "tool:echo", *map(scope_of, ACTIONS))
OPEN = {
    *("/health", "/healthz", "/ready", "/version"),
    *("/mcp/actions", "/mcp/capabilities", "/mcp/openapi.json", "/mcp/registry", "/schemas/mcp/*"),
    "/mcp/*",  # What there is not, in the contract's words.
    "/mcp/artifacts/*",  # With a signed link.
    *("/knowledge", "/knowledge/", "/knowledge/api/start"),
    *("/explorer", "/explorer/", "/explorer/*"),
}
"""The addresses that need no scope. Those that call tools leave the check to the calls."""
SETTINGS: dict[str, Any] = {"explorer": {"enabled": True, "allow_execute": True}}


def narrow(name: str, scopes: Iterable[str]) -> dict[str, Any]:
    """The settings of an owner with scopes."""
    return {**internal("owner", token=token_of(name)), "scopes": [*scopes]}


def token_of(name: str) -> str:
    return f"a-token-of-{name}-0123456789"


async def answers_to(gateway: GatewayApp, route: Route, token: str) -> list[Response]:
    """The answer of a route to each method that it takes."""
    headers = {"authorization": f"Bearer {token}", "content-type": "text/plain"}
    path = route.path.replace("*", "acme/x")
    asked = [request(b"x" if method != "GET" else None, headers, method=method, path=path) for method in methods(route)]
    return [await gateway.driver.ask(each) for each in asked]


def methods(route: Route) -> tuple[str, ...]:
    return route.methods or ("GET", "POST")


async def test_every_route_refuses_a_caller_that_has_all_scopes_but_its_own() -> None:
    async with open_gateway(SETTINGS) as gateway:
        routes = gateway.driver.app.routes
    asked = {f"caller-{number}": each for number, each in enumerate(routes) if not each.is_open}
    assert {each.path for each in routes if each.is_open} == OPEN
    callers = {name: narrow(name, set(OTHERS) - set(route.scopes)) for name, route in asked.items()}
    callers |= {f"{name}-too": narrow(f"{name}-too", route.scopes[:1]) for name, route in asked.items()}
    async with open_gateway({**SETTINGS, "auth": {"callers": callers}}) as gateway:
        for name, route in asked.items():
            refused = await answers_to(gateway, route, token_of(name))
            assert [each.status for each in refused] == [403] * len(methods(route)), route.path
            for each in await answers_to(gateway, route, token_of(f"{name}-too")):
                assert each.status not in (401, 403), route.path


async def test_a_request_is_not_accepted_for_later_without_the_scope_of_its_action() -> None:
    callers = {"svc": narrow("svc", set(OTHERS) - {scope_of("knowledge.create_document")})}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        signer = Signer(sub="svc")
        body = as_body(gateway.envelope(signer, "knowledge.create_document", create_args()))
        for headers in ({}, {"prefer": "respond-async"}):
            answer = await gateway.send(body, token_of("svc"), **headers)
            said = answer.json["error"]
            assert (answer.status, said["code"], said["details"]["reason"]) == (403, "FORBIDDEN", "insufficient_scope")
        assert await gateway.dead_letters(0) == []


@pytest.mark.parametrize("what", ["children", "document", "rendered", "history", "difference", "search"])
async def test_without_the_scope_of_the_query_nothing_of_a_document_is_read(what: str) -> None:
    callers = {
        name: narrow(name, scopes)
        for name, scopes in (("reader", OTHERS), ("other", set(OTHERS) - {scope_of("knowledge.query_knowledge")}))
    }
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a", title="Secret plans", body="secret words")
        for path in (f"/knowledge/api/{what}?id=a&from=0&to=1&q=secret", "/knowledge/documents/acme/a"):
            statuses = [(await gateway.get(path, token=token_of(name))).status for name in ("reader", "other")]
            assert statuses == [200, 403]
            assert b"ecret" not in (await gateway.get(path, token=token_of("other"))).body
