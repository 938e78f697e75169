"""Admin tools against the server's own tools, on a real server."""

from __future__ import annotations

import pytest

from tests.support.processes import ServerProcess

pytestmark = pytest.mark.slow


def test_the_admin_tools_cannot_remove_health_or_themselves() -> None:
    settings = {
        "tools.admin_registration_enabled": "true",
        "tools.admin_policy": '{"mode": "local_stdio_only"}',
        "security.dynamic_registration_enabled": "true",
    }
    own = ["admin/registerTool", "admin/unregisterTool", "health"]
    with ServerProcess(settings=settings) as server:
        server.handshake()

        def is_refused(tool: str, **arguments: str) -> bool:
            answer = server.request("tools/call", {"name": tool, "arguments": arguments})
            return bool(answer["result"]["isError"])

        for name in own:
            assert is_refused("admin/unregisterTool", name=name)
            assert is_refused("admin/registerTool", toolType="echo", name=name)
        assert set(own) <= {each["name"] for each in server.list_tools()}
        assert not is_refused("admin/unregisterTool", name="echo")
        assert not is_refused("health")
