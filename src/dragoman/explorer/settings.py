"""The explorer's page."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dragoman.sections import Section, about


class ExplorerConfig(Section, frozen=True):
    """The page that shows the tools, beside MCP over HTTP."""

    enabled: Annotated[bool, about("Whether the page is served.")] = False
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^(/[\w~-][\w.~-]*)+/?$")], about("Where it is served; `/` at the end is ignored.")
    ] = "/explorer"
    allow_execute: Annotated[bool, about("Whether tools can be run from it.")] = False
