"""Step 5: what a call runs. An unknown tool is the tool's error, not the protocol's.

A tool that does not exist for the caller is unknown, however the call came here: `tools/list` asks the same question.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.errors import NotFound
from dragoman.tools.catalogue import Catalogue


@dataclass(frozen=True)
class FindTool:
    """Looks the tool up by its exact name."""

    catalogue: Catalogue

    def __call__(self, proceed: Service, /) -> Service:
        get = self.catalogue.get

        def find(call: Call) -> Awaitable[Any]:
            tool = get(call.name)
            # Asked here and not of `exists_for`: most tools are for everybody, and every call comes this way.
            if tool is None or not (tool.is_for is None or tool.is_for(call.origin.caller)):
                raise NotFound(f"Unknown tool: {call.name[:200]}")
            call.tool = tool
            return proceed(call)

        return find


@dataclass(frozen=True)
class FindOffer:
    """Refuses calls for what is not offered. A call for a resource, a prompt or a completion brings what it runs."""

    def __call__(self, proceed: Service, /) -> Service:
        def find(call: Call) -> Awaitable[Any]:
            if not (call.is_found and call.tool.exists_for(call.origin.caller)):
                raise NotFound(f"Not offered: {call.name[:200]}")
            return proceed(call)

        return find
