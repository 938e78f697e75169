"""The catalogue: what it takes, what it turns away, and what it tells."""

from __future__ import annotations

import threading
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from dragoman import ServerOptions, ToolContext, ToolDefinition, create_server, define_tool, tool
from dragoman.access.callers import Caller
from dragoman.errors import DuplicateTool, ErrorCode, InvalidArgument, InvalidTool, NotFound
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock, SequentialIds, open_server
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.settings import AdminPolicy, TimeoutsConfig, ToolsConfig
from dragoman.tools.tool import Tool
from tests.support.answers import error_in

OBJECT: dict[str, Any] = {"type": "object"}


async def answer(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return arguments


def definition(name: str = "a", **facts: Any) -> ToolDefinition:
    return ToolDefinition(**{"name": name, "description": "", "input_schema": OBJECT, **facts})


def a_tool(name: str = "a", **facts: Any) -> Tool:
    return define_tool(definition(name, **facts), answer)


def logger(entries: list[Entry] | None = None) -> StructuredLogger:
    return StructuredLogger([].append if entries is None else entries.append, ManualClock())


def catalogue(*tools: Tool, **settings: Any) -> Catalogue:
    made = Catalogue(ToolsConfig(**settings), logger())
    for each in tools:
        made.register(each)
    return made


@pytest.mark.requirement("FND-REG-01")
async def test_a_tool_is_a_name_a_description_a_schema_an_optional_version_and_a_handler() -> None:
    given = ToolDefinition(
        name="greet",
        description="Greets.",
        input_schema={"type": "object", "required": ["who"]},
        version="1.2.0",
    )

    async def greet(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"{arguments['who']} {context.run_id}"

    async with open_server([define_tool(given, greet)], ids=SequentialIds()) as server:
        outcome = await server.runtime.call("greet", {"who": "Ada"})
        assert server.runtime.catalogue.get("greet").definition == given
    assert outcome.unwrap() == "Ada run-1"


def test_a_tool_without_a_handler_is_refused() -> None:
    with pytest.raises(InvalidTool) as refused:
        define_tool(definition("greet"), "not callable")
    assert refused.value.problems == (("handler", "must be callable"),)


@pytest.mark.requirement("FND-REG-02")
def test_a_name_that_is_taken_is_refused_and_the_first_tool_stays() -> None:
    tools = catalogue(a_tool(version="1"))
    with pytest.raises(DuplicateTool, match="'a' is registered already; the first registration stays") as refused:
        tools.register(a_tool(version="2"))
    assert (refused.value.name, refused.value.code) == ("a", ErrorCode.INVALID_ARGUMENT)
    assert tools.list() == [definition(version="1")]


@pytest.mark.requirement("FND-REG-02")
def test_of_many_threads_that_register_one_name_exactly_one_succeeds() -> None:
    tools = catalogue()
    candidates = [a_tool(version=str(number)) for number in range(16)]
    together = threading.Barrier(len(candidates))
    kept: list[Tool] = []
    refused: list[DuplicateTool] = []

    def register(candidate: Tool) -> None:
        together.wait()
        try:
            tools.register(candidate)
            kept.append(candidate)
        except DuplicateTool as error:
            refused.append(error)

    threads = [threading.Thread(target=register, args=(candidate,)) for candidate in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(kept), len(refused)) == (1, 15)
    assert tools.list() == [kept[0].definition]


@pytest.mark.requirement("FND-REG-03")
def test_get_gives_definition_handler_and_validator_or_nothing() -> None:
    tools = catalogue(a_tool())
    found = tools.get("a")
    assert found is not None
    assert (found.definition, found.handler, found.is_async) == (definition(), answer, True)
    found.validator.check({})
    assert tools.get("b") is None


@pytest.mark.requirement("FND-REG-03")
def test_unregister_says_whether_there_was_anything_to_remove() -> None:
    tools = catalogue(a_tool("a"), a_tool("b"))
    assert tools.unregister("a") is True
    assert tools.unregister("a") is False
    assert tools.list() == [definition("b")]


def test_a_name_that_was_removed_can_be_used_again() -> None:
    tools = catalogue(a_tool(version="1"))
    tools.unregister("a")
    tools.register(a_tool(version="2"))
    assert tools.list() == [definition(version="2")]


@pytest.mark.requirement("FND-REG-04")
async def test_lists_are_sorted_by_name_whatever_the_order_of_registration() -> None:
    names = ["b", "a", "B", "a/b", "a.b", "_", "10", "9"]
    tools = catalogue(*map(a_tool, names))
    assert [each.name for each in tools.list()] == sorted(names)
    async with open_server(map(a_tool, names)) as server:
        listed = await (await server.client()).list_tools()
    assert [each["name"] for each in listed] == sorted([*names, "health"])


@pytest.mark.requirement("FND-REG-04")
def test_an_empty_catalogue_lists_nothing() -> None:
    assert (catalogue().list(), len(catalogue())) == ([], 0)


@pytest.mark.requirement("FND-REG-05")
async def test_a_version_is_listed_when_there_is_one_and_the_key_is_absent_otherwise() -> None:
    async with open_server([a_tool("old"), a_tool("new", version="2.0")]) as server:
        _, new, old = sorted(await (await server.client()).list_tools(), key=lambda each: each["name"])
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    assert old == {"name": "old", "description": "", "inputSchema": schema}
    assert new == {"name": "new", "description": "", "inputSchema": schema, "version": "2.0"}


@pytest.mark.requirement("FND-REG-06", "FND-REG-08")
async def test_schemas_are_compiled_at_registration_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def count(name: str) -> None:
        compiler = getattr(jsonschema_rs, name)

        def compile(schema: Any, **options: Any) -> Any:
            compiled.append(name)
            return compiler(schema, **options)

        monkeypatch.setattr(jsonschema_rs, name, compile)

    for name in ("validator_for", "Draft7Validator", "Draft202012Validator", "is_valid", "validate", "iter_errors"):
        count(name)
    typed = tool(name="typed")(_double)
    async with open_server([a_tool(input_schema={"type": "object", "required": ["x"]}), typed]) as server:
        assert sorted(compiled) == ["Draft7Validator", "Draft7Validator", "validator_for", "validator_for"]
        validator = server.runtime.catalogue.get("a").validator
        compiled.clear()
        client = await server.client()
        for _ in range(3):
            await client.call_tool("a", {"x": 1})
            await client.call_tool("a", {})
            await client.call_tool("typed", {"x": 1})
            await client.call_tool("typed", {"x": "no"})
            await client.list_tools()
        assert compiled == []
        assert server.runtime.catalogue.get("a").validator is validator


def _double(x: int) -> dict[str, int]:
    return {"double": 2 * x}


@pytest.mark.parametrize("place", ["title", "description", "version"])
def test_text_that_no_client_could_be_sent_is_refused_before_it_spoils_the_list(place: str) -> None:
    tools = catalogue(a_tool("first"))
    with pytest.raises(InvalidTool) as refused:
        tools.register(a_tool("second", **{place: "half \ud83d"}))
    assert refused.value.problems == ((place, "has half of a surrogate pair, which cannot be sent"),)
    assert [each.name for each in tools.list()] == ["first"]


@pytest.mark.requirement("FND-REG-07")
@pytest.mark.parametrize(
    ("broken", "place"),
    [
        ({"type": "object", "properties": {"a": {"type": "strnig"}}}, "properties/a/type"),
        ({"type": "object", "required": "a"}, "required"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "properties/a/pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/definitions/gone"}}}, "/definitions/gone"),
        ({"type": "object", "x": object()}, "object"),
        ({"type": "object", 1: 2}, "int"),
    ],
)
def test_a_schema_that_does_not_compile_is_refused_with_the_place_and_nothing_is_added(
    broken: dict[Any, Any], place: str
) -> None:
    tools = catalogue(a_tool("first"))
    with pytest.raises(InvalidTool, match="tool 'second' cannot be registered: inputSchema: ") as refused:
        tools.register(a_tool("second", input_schema=broken))
    ((path, message),) = refused.value.problems
    assert path == "inputSchema"
    assert place in message
    assert [each.name for each in tools.list()] == ["first"]


@pytest.mark.requirement("FND-REG-07")
def test_an_output_schema_that_does_not_compile_is_refused_too() -> None:
    with pytest.raises(InvalidTool, match="outputSchema"):
        catalogue(a_tool(output_schema={"type": "object", "required": "a"}))


@pytest.mark.requirement("FND-REG-09")
@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object"]}, {"type": None}, [], None, True])
def test_a_schema_whose_root_is_not_an_object_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidTool, match=r"inputSchema: .*must be an object.*INVALID_ARGUMENT") as refused:
        catalogue(a_tool(input_schema=schema))
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.requirement("FND-REG-11")
def test_a_dynamic_registration_is_marked_and_leaves_a_warning() -> None:
    entries: list[Entry] = []
    tools = Catalogue(ToolsConfig(), logger(entries), ids=SequentialIds())
    tools.register(a_tool("still"))
    assert entries == []
    tools.register(a_tool("moving"), is_dynamic=True)
    assert [tools.get(name).is_dynamic for name in ("still", "moving")] == [False, True]
    assert entries == [
        {
            "timestamp": "2024-01-15T10:30:00.000Z",
            "level": "warn",
            "message": "Dynamic tool registered: moving",
            "correlationId": "corr-1",
            "toolName": "moving",
        }
    ]


@pytest.mark.requirement("FND-REG-12")
@pytest.mark.parametrize("mode", ["deny_all", "local_stdio_only", "token"])
def test_the_admin_policy_is_not_the_catalogues_business(mode: str) -> None:
    tools = catalogue(admin_registration_enabled=False, admin_policy=AdminPolicy(mode=mode))
    tools.register(a_tool(), is_dynamic=True)
    assert tools.unregister("a")


@pytest.mark.requirement("FND-REG-12")
def test_each_catalogue_follows_the_settings_that_it_was_given() -> None:
    quick = Catalogue(ToolsConfig(default_timeout_ms=1), logger(), TimeoutsConfig(tool_overrides={"overridden": 3}))
    slow = Catalogue(ToolsConfig(default_timeout_ms=1000), logger())
    for tools in (quick, slow):
        for each in (a_tool("own", timeout_ms=20), a_tool("default"), a_tool("overridden", timeout_ms=20)):
            tools.register(each)
    assert {each.definition.name: each.timeout_ms for each in quick} == {"own": 20, "default": 1, "overridden": 3}
    assert {each.definition.name: each.timeout_ms for each in slow} == {"own": 20, "default": 1000, "overridden": 20}


@pytest.mark.requirement("FND-REG-12")
def test_a_server_uses_the_catalogue_that_it_is_given_empty_or_not() -> None:
    given = catalogue()
    server = create_server(ServerOptions(catalogue=given, tools=[a_tool()]))
    assert server.catalogue is given
    assert [each.name for each in given.list()] == ["a", "health"]


def test_tools_are_replaced_all_at_once_and_listeners_are_told_once() -> None:
    tools = catalogue(a_tool("a"), a_tool("b"), a_tool("stays"))
    told: list[list[str]] = []
    tools.on_change(lambda: told.append([each.name for each in tools.list()]))
    version = tools.version
    tools.replace({"a", "b", "not there"}, [a_tool("b"), a_tool("c")])
    assert told == [["b", "c", "stays"]]
    assert tools.version > version


def test_a_replacement_that_fails_changes_nothing_and_nobody_is_told() -> None:
    tools = catalogue(a_tool("a"), a_tool("stays"))
    told: list[None] = []
    tools.on_change(lambda: told.append(None))
    with pytest.raises(DuplicateTool):
        tools.replace({"a"}, [a_tool("b"), a_tool("stays")])
    assert [each.name for each in tools.list()] == ["a", "stays"]
    assert told == []
    assert tools.unregister("a")
    assert told == [None]


@pytest.mark.requirement("FND-REG-13")
def test_a_definition_can_be_examined_without_being_registered() -> None:
    tools = catalogue(a_tool("taken"))
    assert msgspec.to_builtins(tools.validate_definition(definition("free"))) == {"valid": True}
    assert msgspec.to_builtins(tools.validate_definition(definition("taken"))) == {
        "valid": False,
        "errors": [{"path": "name", "message": "is registered already"}],
    }
    hopeless = definition("no spaces", input_schema={"type": "array"}, output_schema={}, timeout_ms=0)
    result = tools.validate_definition(hopeless)
    assert result.valid is False
    assert [error["path"] for error in result.errors] == ["name", "timeoutMs", "inputSchema", "outputSchema"]
    assert all(error.keys() == {"path", "message"} and error["message"] for error in result.errors)
    assert [each.name for each in tools.list()] == ["taken"]


@pytest.mark.requirement("FND-REG-13")
@pytest.mark.parametrize("schema", [None, {"type": "array"}, {"type": "object", "required": "a"}])
def test_what_is_said_to_be_invalid_is_what_register_refuses(schema: Any) -> None:
    tools = catalogue()
    assert tools.validate_definition(definition(input_schema=schema)).valid is False
    with pytest.raises(InvalidTool):
        tools.register(a_tool(input_schema=schema))


@pytest.mark.parametrize("name", ["a", "A9", "a" * 128, "agent/sendMessage", "knowledge.create_document", "-", "_x"])
def test_names_of_letters_digits_and_a_few_marks_are_taken(name: str) -> None:
    assert catalogue(a_tool(name)).list() == [definition(name)]


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\n", "é", "１", "a:b", "a\\b", "a\x00"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTool) as refused:
        catalogue(a_tool(name))
    assert refused.value.problems == (("name", "must be 1 to 128 letters, digits, or any of _ . / -"),)


def test_listeners_hear_of_every_change_until_they_stop_listening() -> None:
    tools = catalogue()
    heard: list[int] = []
    stop = tools.on_change(lambda: heard.append(len(tools)))
    tools.register(a_tool("a"))
    tools.register(a_tool("b"))
    tools.unregister("a")
    tools.unregister("a")
    stop()
    tools.unregister("b")
    assert heard == [1, 2, 1]


@pytest.mark.requirement("FND-REG-14")
async def test_arbitrary_code_tools_is_a_setting_that_changes_nothing() -> None:
    async def conversation(config: dict[str, Any]) -> tuple[list[bytes], bytes]:
        async with open_server([a_tool()], config, clock=ManualClock(), ids=SequentialIds()) as server:
            client = await server.client()
            await client.list_tools()
            await client.call_tool("a", {"code": "import os"})
            await client.call_tool("admin/registerTool", {"name": "x", "code": "import os"})
            return client.wire.lines, server.stderr

    default = await conversation({})
    assert await conversation({"security": {"allowArbitraryCodeTools": True}}) == default
    assert await conversation({"security": {"allowArbitraryCodeTools": False}}) == default


async def test_a_handler_that_checks_for_itself_is_given_any_object_and_believed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    described = definition(input_schema=schema, output_schema=schema)
    async with open_server([Tool(described, answer, checks_arguments=True, checks_results=True)]) as server:
        client = await server.client()
        (listed,) = [each for each in await client.list_tools() if each["name"] == "a"]
        assert listed["inputSchema"]["required"] == listed["outputSchema"]["required"] == ["a"]
        result = await client.call_tool("a", {"a": "one"})
        assert (result["isError"], result["structuredContent"]) == (False, {"a": "one"})


def test_the_schemas_of_a_handler_that_checks_for_itself_still_have_to_be_schemas() -> None:
    broken = definition(input_schema={"type": "object", "properties": {"a": {"type": "strong"}}})
    with pytest.raises(InvalidTool):
        catalogue(Tool(broken, answer, checks_arguments=True))


def test_tools_that_exist_for_some_callers_follow_every_change_of_the_catalogue() -> None:
    member, stranger = Caller("member", tenants=frozenset(("acme",))), Caller("stranger")
    definition = ToolDefinition(name="particular", description="", input_schema={"type": "object"})
    particular = Tool(definition, lambda arguments, _: None, is_for=lambda caller: bool(caller.tenants))
    made = catalogue()
    assert made.hidden_from(stranger) == frozenset()
    made.replace((), [particular])
    assert (made.hidden_from(stranger), made.hidden_from(member)) == ({"particular"}, frozenset())
    assert [each.may_be_called_by(stranger) for each in made] == [False]
    made.unregister("particular")
    assert made.hidden_from(stranger) == frozenset()
    made.register(particular)
    assert made.hidden_from(stranger) == {"particular"}


async def test_a_tool_that_exists_for_some_callers_is_unknown_to_the_others() -> None:
    member, stranger = Caller("member", tenants=frozenset(("acme",))), Caller("stranger")
    particular = Tool(definition("particular"), answer, is_async=True, is_for=lambda caller: bool(caller.tenants))
    async with open_server([particular]) as server:
        for caller, is_known in ((member, True), (stranger, False)):
            client = await server.client(caller)
            assert ("particular" in [each["name"] for each in await client.list_tools()]) is is_known
            called, other = [await client.call_tool(name, {"a": 1}) for name in ("particular", "particula")]
            assert called["isError"] is not is_known
            if not is_known:
                unknown = error_in(other)
                assert error_in(called)["message"] == unknown["message"].replace("particula", "particular")
            wanted = InvalidArgument if is_known else NotFound  # It is no task, and the stranger is not told that.
            with pytest.raises(wanted):
                await server.runtime.create_task("particular", caller=caller)
    codes = [record.get("errorCode") for record in server.records if record["toolName"] == "particular"]
    assert codes == [None, "NOT_FOUND", "NOT_FOUND"]
