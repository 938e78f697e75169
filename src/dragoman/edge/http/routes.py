"""The addresses that the application answers, as a table that the application and parts fill.

A path has one route. A route for one path wins over routes for everything below a path, and of those the longest wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.edge.asgi import RequestRefused
from dragoman.errors import ConfigError, InvalidRequest
from dragoman.parts.route import Route

SSE_PATH = "/sse"


@dataclass(frozen=True)
class Endpoint:
    """Where MCP is served."""

    path: str
    has_sse: bool = False
    """Whether the deprecated transport is served, too."""

    @property
    def for_clients(self) -> str:
        """The path that clients are told to connect to."""
        return SSE_PATH if self.has_sse else self.path


class Routes:
    """Finds the route of a request.

    Raises `ConfigError` for a path that has two, and for a route that neither names a scope nor says that it is open.
    """

    def __init__(self, endpoint: Endpoint, routes: Iterable[Route]) -> None:
        self.endpoint = endpoint
        self.all = tuple(routes)
        self._exact: dict[str, Route] = {}
        self._below: dict[str, Route] = {}
        for route in self.all:
            table, path = self._exact, route.path
            if not path.startswith("/"):
                raise ConfigError([("http", f"{path!r} is no path that a route can have: it has to begin with /")])
            if bool(route.scopes) is route.is_open:
                reason = "names a scope and is open" if route.is_open else "names no scope, and does not say is_open"
                raise ConfigError([("http", f"the route {path} {reason}")])
            if path.endswith("/*"):
                table, path = self._below, path[:-1]
            if path in table or path == endpoint.path:
                raise ConfigError([("http", f"{route.path} is served twice; move the endpoint or the other route")])
            table[path] = route

    def find(self, path: str, method: str) -> Route | None:
        """The route of a path; None if there is none. Raises `RequestRefused` for a method that it does not allow."""
        route = self.at(path)
        if route is not None and route.methods is not None and not route.allows(method):
            reason = f"Only {' and '.join(route.methods)} {'is' if len(route.methods) == 1 else 'are'} allowed here"
            raise RequestRefused(405, InvalidRequest(reason), ((b"allow", ", ".join(route.methods).encode()),))
        return route

    def at(self, path: str) -> Route | None:
        """The route of a path, whatever the method."""
        return self._exact.get(path) or self._longest_above(path)

    def _longest_above(self, path: str) -> Route | None:
        found = [beginning for beginning in self._below if path.startswith(beginning)]
        return self._below[max(found, key=len)] if found else None
