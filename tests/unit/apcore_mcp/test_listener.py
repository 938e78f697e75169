"""Modules that come and go while they are served."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, ClassVar

import pytest
from apcore import Executor, Registry

from apcore_mcp.server.factory import MCPServerFactory
from apcore_mcp.server.listener import RegistryListener
from dragoman import tool
from dragoman.testing import MemoryClient, open_server
from tests.support.modules import PLAIN, Does, Resize, registry_of, serving, text_of
from tests.support.waiting import PATIENCE, until

CHANGED = "notifications/tools/list_changed"


async def names(client: MemoryClient) -> list[str]:
    return [each["name"] for each in await client.list_tools()]


async def told(client: MemoryClient, method: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait until the client has been told something so often."""
    found: list[dict[str, Any]] = []

    def is_told() -> bool:
        found.extend(each for each in client.received() if each.get("method") == method)
        return len(found) >= count

    await until(is_told)
    return found


def elsewhere(change: Any, *arguments: Any) -> None:
    """Do it on another thread, as applications do."""
    thread = threading.Thread(target=change, args=arguments)
    thread.start()
    thread.join(PATIENCE)


@pytest.mark.requirement("FR-DYNAMIC-001", "FR-DYNAMIC-002", "FR-DYNAMIC-003", "UC-002", "UC-007", "SRS-API-03")
async def test_modules_come_and_go_for_every_client_and_from_any_thread() -> None:
    registry = registry_of(first=Resize())
    async with serving(registry, dynamic=True) as server:
        one, other = await server.client(), await server.client()
        modern = server.connect(modern=True)
        listening = modern.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await told(modern, "notifications/subscriptions/acknowledged")
        elsewhere(registry.register, "new.tool", Resize())
        for client in (one, other, modern):
            await told(client, CHANGED)
            assert await names(client) == ["first", "new.tool"]
            assert text_of(await client.call_tool("new.tool", {"width": 1})) == '{"width": 1, "height": 1}'
        elsewhere(registry.unregister, "new.tool")
        for client in (one, other, modern):
            await told(client, CHANGED)
            assert await names(client) == ["first"]
            assert text_of(await client.call_tool("new.tool", {})) == "Module not found: new.tool"
        modern.notify("notifications/cancelled", {"requestId": listening})


@pytest.mark.requirement("SRS-API-03")
async def test_without_dynamic_the_tools_stay_as_they_were() -> None:
    registry = registry_of(first=Resize())
    async with serving(registry) as server:
        client = await server.client()
        registry.register("second", Resize())
        registry.unregister("first")
        assert await names(client) == ["first"]
        assert text_of(await client.call_tool("first", {"width": 1})) == "Module not found: first"
        assert text_of(await client.call_tool("second", {"width": 1})) == "Module not found: second"


@pytest.mark.requirement("SRS-API-12")
async def test_a_module_that_is_registered_anew_is_served_as_it_is_now() -> None:
    registry = registry_of(a=Does(lambda inputs, context: {"old": True}, description="Old", documentation="Old words"))
    async with serving(registry, dynamic=True) as server:
        client = await server.client()
        await client.request("resources/subscribe", {"uri": "docs://a"})
        registry.unregister("a")
        assert (await client.request("resources/list"))["result"]["resources"] == []
        registry.register("a", Does(lambda inputs, context: {"new": 1}, description="New", documentation="New words"))
        (listed,) = await client.list_tools()
        assert listed["description"] == "New"
        assert text_of(await client.call_tool("a", {})) == '{"new": 1}'
        read = await client.request("resources/read", {"uri": "docs://a"})
        assert read["result"]["contents"][0]["text"] == "New words"
        newest = Does(lambda inputs, context: {}, description="Newest", documentation="The newest words")
        registry.register("a", newest, version="2.0.0")
        await told(client, "notifications/resources/updated")
        (listed,) = await client.list_tools()
        assert listed["description"] == "Newest"


@pytest.mark.requirement("FR-DYNAMIC-001", "FR-FILTER-001", "FR-FILTER-002")
async def test_a_filter_holds_for_those_that_come_later() -> None:
    registry = Registry()
    async with serving(registry, dynamic=True, tags=["public"], prefix="api.") as server:
        client = await server.client()
        for name, tags in (("api.a", ["public"]), ("api.b", []), ("web.a", ["public"])):
            registry.register(name, Does(lambda inputs, context: {}, tags=tags))
        assert await names(client) == ["api.a"]
        assert text_of(await client.call_tool("web.a", {})) == "Module not found: web.a"


class Forgetful(Registry):
    def get_definition(self, module_id: str, version_hint: str | None = None) -> Any:
        return None if module_id == "gone" else super().get_definition(module_id, version_hint)


@pytest.mark.requirement("FR-DYNAMIC-001", "UC-007")
async def test_a_module_that_cannot_be_a_tool_is_a_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    registry = Forgetful()
    async with serving(registry, dynamic=True) as server:
        client = await server.client()
        registry.register("gone", Resize())
        registry.register("bad", Does(None, input_schema={"type": "object", "properties": {"a": {"$ref": "#"}}}))
        registry.register("wrong", Does(None, input_schema={"type": "object", "required": "yes"}))
        registry.register("good", Resize())
        assert await names(client) == ["good"]
        registry.unregister("gone")
        registry.unregister("bad")
        assert await names(client) == ["good"]
    ours = [record for record in caplog.records if record.name.startswith("apcore_mcp")]
    assert [record.levelno for record in ours] == [logging.WARNING] * 3


@pytest.mark.requirement("FR-DYNAMIC-002")
def test_the_end_of_a_module_that_was_never_a_tool_is_ignored() -> None:
    listener = RegistryListener(Registry(), MCPServerFactory())
    listener.start()
    listener._changed("never.there", None)
    assert listener.tools == {}


@pytest.mark.requirement("FR-DYNAMIC-001", "FR-DYNAMIC-002", "FR-DYNAMIC-004", "SRS-API-13", "SRS-API-15")
def test_a_listener_has_the_tools_that_there_are_until_it_is_stopped() -> None:
    registry = registry_of(first=Resize())
    listener = RegistryListener(registry, MCPServerFactory())
    assert listener.tools == {}
    listener.start()
    registry.register("second", Resize())
    snapshot = listener.tools
    assert sorted(snapshot) == ["first", "second"]
    assert snapshot["second"].name == "second"
    registry.unregister("first")
    assert (sorted(listener.tools), sorted(snapshot)) == (["second"], ["first", "second"])
    listener.stop()
    listener.stop()
    registry.register("third", Resize())
    registry.unregister("second")
    assert sorted(listener.tools) == ["second"]


@pytest.mark.requirement("SRS-API-08", "SRS-API-13")
def test_a_registry_needs_only_what_the_specification_lists() -> None:
    class Double:
        count = 1
        told: ClassVar[list[Any]] = []

        def list(self, tags: Any = None, prefix: Any = None) -> Any:
            return ["a", *(["b"] if self.count > 1 else [])]

        def get_definition(self, module_id: str) -> Any:
            return registry_of(a=Resize()).get_definition("a")

        def on(self, event: str, callback: Any) -> None:
            self.told.append(callback)

    registry: Any = Double()
    listener = RegistryListener(registry, MCPServerFactory())
    listener.start()
    assert list(listener.tools) == ["a"]
    listener.stop()
    registry.count = 2
    for callback in registry.told:
        callback("b", None)
    assert list(listener.tools) == ["a"]


def test_starting_again_does_not_follow_twice() -> None:
    registry = Registry()
    listener = RegistryListener(registry, MCPServerFactory())
    listener.start()
    listener.start()
    listener.stop()
    assert registry._callbacks == {"register": [], "unregister": []}


@pytest.mark.requirement("FR-DYNAMIC-001")
async def test_many_in_quick_succession_are_all_there() -> None:
    registry = Registry()
    async with serving(registry, dynamic=True) as server:
        client = await server.client()
        for number in range(50):
            registry.register(f"m{number}", Resize())
        assert len(await names(client)) == 50


@pytest.mark.requirement("NFR-REL-003", "FR-DYNAMIC-004")
@pytest.mark.slow
async def test_registry_changes_from_threads_under_load_leave_what_the_registry_has() -> None:
    registry = registry_of(always=Resize())
    ids = [f"m{number}" for number in range(6)]
    failed: list[BaseException] = []

    def change(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(60):
                module_id = chance.choice(ids)
                if not registry.unregister(module_id):
                    try:
                        registry.register(module_id, Resize())
                    except Exception as error:  # Another thread was first.
                        assert "already" in str(error)  # noqa: PT017
        except BaseException as error:
            failed.append(error)

    async with serving(registry, dynamic=True) as server:
        clients = [await server.client() for _ in range(3)]
        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for client in clients:
                assert "always" in await names(client)
                assert text_of(await client.call_tool("always", {"width": 1})) == '{"width": 1, "height": 1}'
                result = await client.call_tool(random.choice(ids), {"width": 1})
                assert text_of(result) == '{"width": 1, "height": 1}' or text_of(result).startswith("Module not found")
        for thread in threads:
            thread.join(PATIENCE)
        assert failed == []
        assert await names(clients[0]) == registry.list()
        assert registry.get_callback_errors("register") == 0


async def test_a_module_that_has_the_name_of_a_native_tool_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def first() -> str:
        """Was here before."""
        return "native"

    from apcore_mcp import attach

    registry = registry_of(first=Resize(), second=Resize())
    async with open_server([first], PLAIN) as server:
        listener = attach(server.runtime, Executor(registry), dynamic=True)
        client = await server.client()
        assert await names(client) == ["first", "health", "second"]
        registry.unregister("first")
        assert text_of(await client.call_tool("first", {})) == "native"
        listener.stop()
    assert "Module skipped: a tool named 'first' is registered already" in caplog.text


async def test_modules_as_a_part_are_followed_until_the_server_stops(caplog: pytest.LogCaptureFixture) -> None:
    from apcore_mcp import modules_part

    caplog.set_level(logging.DEBUG, "apcore_mcp")
    registry = registry_of(first=Resize())
    async with open_server([], PLAIN, parts=[modules_part(registry, dynamic=True)]) as server:
        client = await server.client()
        registry.register("second", Resize())
        assert await names(client) == ["first", "health", "second"]
        await client.call_tool("second", {"width": 1})
    registry.register("third", Resize())
    assert [each.definition.name for each in server.runtime.catalogue] == ["first", "health", "second"]
    assert caplog.messages.count("Tool call: second") == 1
