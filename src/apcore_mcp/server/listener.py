"""A registry's modules as they come and go."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from dragoman.errors import RegistrationError
from dragoman.offers.catalogue import replace_offered

if TYPE_CHECKING:
    from apcore import Registry

    from apcore_mcp.server.factory import MCPServerFactory, ModuleTool
    from dragoman.parts.part import Facilities

logger = logging.getLogger(__name__)

_EVENTS = ("register", "unregister")


class RegistryListener:
    """Keeps the tools of a registry's modules, and those of a server if one is given, as the registry has them.

    Events come from any thread and not always in the order of what happened, so each one only says where to look: what
    counts is what the registry has when it is looked at.
    """

    def __init__(
        self,
        registry: Registry,
        factory: MCPServerFactory,
        *,
        tags: list[str] | None = None,
        prefix: str | None = None,
        given: Facilities | None = None,
    ) -> None:
        self._registry = registry
        self._factory = factory
        self._filters: Any = {"tags": tags, "prefix": prefix}
        self._given = given
        self._tools: dict[str, ModuleTool] = {}
        self._lock = threading.Lock()
        self._follows = False

    @property
    def tools(self) -> dict[str, ModuleTool]:
        """The tools that there are now, by module id."""
        with self._lock:
            return dict(self._tools)

    def start(self, *, follow: bool = True) -> None:
        """Take up the modules that there are, and `follow` the registry from now on."""
        self.stop()
        self._follows = follow
        for event in _EVENTS if follow else ():
            self._registry.on(event, self._changed)
        # After that: whatever changes in between is looked at twice, and not missed.
        for module_id in self._registry.list(**self._filters):
            self._look_at(module_id, is_there=True)

    def stop(self) -> None:
        """Let the registry change without following it."""
        was_following, self._follows = self._follows, False
        if was_following and hasattr(self._registry, "off"):
            for event in _EVENTS:
                self._registry.off(event, self._changed)

    def _changed(self, module_id: str, module: Any = None) -> None:
        if self._follows:
            self._look_at(module_id)

    def _look_at(self, module_id: str, *, is_there: bool = False) -> None:
        with self._lock:
            is_there = is_there or module_id in self._registry.list(**self._filters)
            coming = self._factory.build_from(self._registry, module_id) if is_there else None
            leaving = self._tools.pop(module_id, None)
            if coming is not None and self._replace(leaving, coming):
                self._tools[module_id] = coming
            elif leaving is not None:
                self._replace(leaving, None)

    def _replace(self, leaving: ModuleTool | None, coming: ModuleTool | None) -> bool:
        """Put one tool in the place of another; False if the new one cannot be served."""
        given = self._given
        if given is None:
            return True
        try:
            replace_offered(given.catalogue, given.offers, _offered(leaving), _offered(coming))
        except RegistrationError as error:
            logger.warning("Module skipped: %s", error)
            return False
        if leaving is not None and coming is not None and leaving.documentation and coming.documentation:
            given.resource_updated(coming.documentation.key)
        return True


def _offered(tool: ModuleTool | None) -> list[Any]:
    return [each for each in (tool, tool and tool.documentation) if each is not None]
