"""A registry's modules as they come and go."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from dragoman.errors import RegistrationError

if TYPE_CHECKING:
    from apcore import Registry

    from apcore_mcp.server.factory import MCPServerFactory, ModuleTool
    from dragoman.app import Runtime

logger = logging.getLogger(__name__)


class RegistryListener:
    """Keeps the tools of a registry's modules, and a runtime's if there is one, as the registry has them.

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
        runtime: Runtime | None = None,
    ) -> None:
        self._registry = registry
        self._factory = factory
        self._filter: dict[str, Any] = {"tags": tags, "prefix": prefix}
        self._runtime = runtime
        self._tools: dict[str, ModuleTool] = {}
        self._lock = threading.Lock()
        self._is_listening = False

    @property
    def tools(self) -> dict[str, ModuleTool]:
        """The tools that there are now, by module id."""
        with self._lock:
            return dict(self._tools)

    def load(self) -> None:
        """Take up the modules that there are."""
        for module_id in self._registry.list(**self._filter):
            self._look_at(module_id, is_there=True)

    def start(self) -> None:
        """Follow the registry from now on."""
        if self._is_listening:
            return
        self._is_listening = True
        self._registry.on("register", self._registered)
        self._registry.on("unregister", self._unregistered)
        self.load()  # After that: whatever comes in between is looked at twice, and not missed.

    def stop(self) -> None:
        """Let the registry change without following it."""
        self._is_listening = False
        forget = getattr(self._registry, "off", None)
        if forget is not None:
            forget("register", self._registered)
            forget("unregister", self._unregistered)

    def _registered(self, module_id: str, module: Any = None) -> None:
        if self._is_listening:
            self._look_at(module_id, is_there=None)

    _unregistered = _registered

    def _look_at(self, module_id: str, *, is_there: bool | None) -> None:
        with self._lock:
            if is_there is None:
                is_there = module_id in self._registry.list(**self._filter)
            coming = self._factory.build_from(self._registry, module_id) if is_there else None
            leaving = self._tools.pop(module_id, None)
            if (leaving is None and coming is None) or not self._publish(leaving, coming):
                return
            if coming is not None:
                self._tools[module_id] = coming

    def _publish(self, leaving: ModuleTool | None, coming: ModuleTool | None) -> bool:
        """Put one tool in the place of another; whether the new one was taken."""
        if self._runtime is None:
            return True
        try:
            self._runtime.replace(_offered(leaving), _offered(coming))
        except RegistrationError as error:
            logger.warning("Module cannot be a tool; skipped: %s", error)
            self._runtime.replace(_offered(leaving), ())
            return False
        old, new = getattr(leaving, "documentation", None), getattr(coming, "documentation", None)
        if old is not None and new is not None:
            self._runtime.resource_updated(new.key)
        return True


def _offered(tool: ModuleTool | None) -> list[Any]:
    if tool is None:
        return []
    return [tool] if tool.documentation is None else [tool, tool.documentation]
