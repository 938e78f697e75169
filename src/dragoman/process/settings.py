"""Who the server says it is, and how it stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from dragoman.sections import Milliseconds, Problem, Section, about
from dragoman.version import __version__


class ServerConfig(Section, frozen=True):
    """Who the server says it is, how long its workers may be silent, and how it stops."""

    name: Annotated[str, Meta(min_length=1), about("The name that clients are told.")] = "dragoman"
    version: Annotated[str, about("The version that clients are told.")] = __version__
    instructions: Annotated[str | None, about("What clients may tell their model about this server.")] = None
    parts: Annotated[tuple[str, ...], about("Parts of installed packages that the server has, by name.")] = ()
    shutdown_timeout_ms: Annotated[
        Milliseconds, about("How long running calls may take to finish at the end.", is_limit=True)
    ] = 10_000
    worker_timeout_ms: Annotated[
        Annotated[int, Meta(ge=0)],
        about(
            "How long one of several workers may give no sign of life before it is replaced; 0: for ever.",
            is_limit=True,
        ),
    ] = 30_000

    def conflicts(self) -> Iterator[Problem]:
        if 0 < self.worker_timeout_ms < 2000:
            yield "worker_timeout_ms", "must be 0, or at least 2000: less may be no more than a busy machine"
