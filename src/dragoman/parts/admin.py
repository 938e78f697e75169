"""The part that lets clients change which tools there are."""

from __future__ import annotations

from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.tools.builtin.admin import Admin
from dragoman.tools.builtin.echo import echo
from dragoman.tools.builtin.health import health_handler
from dragoman.tools.settings import AdminPolicy
from dragoman.tools.tool import Handler


def admin_part(policy: AdminPolicy, agent_proxy: Handler | None = None) -> Part:
    """The `admin/*` tools, whose use `policy` allows or not. With agents, `agent_proxy` sends them messages."""

    def build(given: Facilities) -> Contribution:
        handlers: dict[str, Handler] = {"echo": echo, "health": health_handler(given.health)}
        if agent_proxy is not None:
            handlers["agentProxy"] = agent_proxy
        admin = Admin(given.catalogue, policy, handlers, given.publish, given.logger)
        return Contribution(tools=admin.tools(), on_change=admin.on_change)

    return Part(name="admin", build=build)
