"""Where HTTP clients connect, and what they may take up."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated

from msgspec import Meta

from dragoman.sections import Count, Problem, Section, about


class HttpConfig(Section, frozen=True):
    """Where HTTP clients connect, and what they may take up."""

    host: Annotated[str, Meta(min_length=1), about("The address to listen on.")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=1, le=65_535)], about("The port to listen on.")] = 8000
    uds: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about("The path of a Unix socket to listen on instead, such as for a proxy on the same machine."),
    ] = None
    path: Annotated[Annotated[str, Meta(pattern="^/[^?#]*[^/?#]$")], about("Where MCP is served.")] = "/mcp"
    allowed_hosts: Annotated[
        tuple[str, ...],
        about("Names that the server is reached by, besides addresses and `localhost`; `*` allows any."),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], about("Pages that may call from a browser, as `https://example.org`; `*` allows any.")
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        about(
            "Addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed; `unix` is "
            "every client of a Unix socket."
        ),
    ] = ()
    max_connections: Annotated[Annotated[int, Meta(ge=1)], about("Connections at a time.", is_limit=True)] = 4096
    max_sessions: Annotated[
        Annotated[int, Meta(ge=1)], about("Sessions of the handshake era at a time.", is_limit=True)
    ] = 10_000
    max_sessions_per_caller: Annotated[
        Count | None,
        about("How many of them may be one caller's; unset, half of them. Without authentication, all of them."),
    ] = None
    session_idle_ms: Annotated[
        Annotated[int, Meta(ge=1000)], about("How long a session is kept that nobody uses.", is_limit=True)
    ] = 1_800_000
    read_timeout_ms: Annotated[
        Annotated[int, Meta(ge=100)], about("How long a client may take to send a whole request.", is_limit=True)
    ] = 30_000
    write_timeout_ms: Annotated[
        Annotated[int, Meta(ge=100)], about("How long a client may leave its answer unread.", is_limit=True)
    ] = 60_000
    keep_alive_ms: Annotated[
        Annotated[int, Meta(ge=1000)], about("How long a connection without requests is kept.", is_limit=True)
    ] = 75_000
    max_replay_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about("What is kept, for all sessions together, to resume broken streams.", is_limit=True),
    ] = 67_108_864
    metrics: Annotated[bool, about("Whether calls are counted, and `/metrics` is served.", is_harmless=True)] = True

    def conflicts(self) -> Iterator[Problem]:
        for name in self.trusted_proxies:
            try:
                if name != "unix":
                    ip_network(name)
            except ValueError as error:
                yield "trusted_proxies", str(error)
