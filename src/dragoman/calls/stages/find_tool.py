"""Step 5: an unknown tool is the tool's error, not the protocol's."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.errors import NotFound
from dragoman.tools.catalogue import Catalogue


@dataclass(frozen=True)
class FindTool:
    """Looks the tool up by its exact name.

    A call for something else, such as to read a resource, has a name that no tool can have, and brings what it runs.
    """

    catalogue: Catalogue

    def __call__(self, proceed: Service, /) -> Service:
        get = self.catalogue.get

        def find(call: Call) -> Awaitable[Any]:
            tool = get(call.name)
            if tool is not None:
                call.tool = tool
            elif not call.is_found:
                raise NotFound(f"Unknown tool: {call.name[:200]}")
            return proceed(call)

        return find
