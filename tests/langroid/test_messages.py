"""Actions as messages of the real Langroid: wrapped, shown to a model, sent by one, and carried out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langroid.agent.chat_agent import ChatAgent, ChatAgentConfig
from langroid.agent.task import Task
from langroid.agent.tool_message import ToolMessage
from langroid.language_models.base import LLMFunctionCall, OpenAIToolCall
from langroid.language_models.mock_lm import MockLMConfig
from pydantic import ValidationError

import dragoman
from dragoman import Caller, Runtime, ToolDefinition, define_tool
from dragoman.access.callers import LOCAL
from dragoman.errors import InvalidArgument, NotFound
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.arguments import closed
from dragoman.knowledge.port import Documents
from dragoman.knowledge.standing import LOCAL_TENANT
from dragoman.langroid import action_message, carry_out, message_class, tool_messages, wrap
from tests.support.gateway import create_args

CREATE = "knowledge.create_document"
NOBODY = Caller("nobody")
CLAIMED = ("request", "purpose", "id", "result", "args", "title", "recipient", "_handler", "properties")
"""Names that mean something to Langroid, as fields of a message."""
FREE = ToolDefinition(
    name="free.tool",
    description="Takes anything by these names.",
    input_schema={"type": "object", "additionalProperties": False, "properties": {each: {} for each in CLAIMED}},
)


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    config = {"gateway": {"enabled": True}, "storage": {"engine": "memory"}}
    async with dragoman.open(config=config) as runtime:
        yield runtime


def agent_that_says(*texts: str) -> ChatAgent:
    """An agent whose model says this, text by text."""
    left = iter(texts)
    model = MockLMConfig(response_fn=lambda _: next(left))
    return ChatAgent(ChatAgentConfig(llm=model, use_functions_api=False, use_tools=True))


def said(action: str, **fields: Any) -> str:
    """What a model writes to use a tool."""
    return f"I will use a tool.\n{json.dumps({'request': action.replace('.', '-'), **fields})}"


async def titles(runtime: Runtime, tenant: str = LOCAL_TENANT) -> list[str]:
    """Those of the documents at the top of the tree."""
    page = await runtime.facilities.storage.port(Documents).children(tenant, "root", limit=10)
    return [each.title for each in page]


@pytest.mark.requirement("MC-ACT-02")
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_each_action_has_a_message_that_shows_the_model_the_schema_of_the_action(action: str) -> None:
    made = action_message(action)
    assert issubclass(made, ToolMessage)
    assert made.name() == action.replace(".", "-")
    assert made.default_value("purpose") == ACTIONS[action].description
    shown = {name: each for name, each in closed(ACTIONS[action].schema).items() if name != "$schema"}
    spec = made.llm_function_schema()
    assert spec.name == action.replace(".", "-")
    assert spec.parameters["properties"] == {"args": shown}
    assert spec.parameters["required"] == ["args"]
    written = json.JSONDecoder().raw_decode(made.format_instructions().partition("JSON FORMAT: ")[2])[0]
    assert written["properties"]["args"] == shown


@pytest.mark.requirement("MC-ACT-02")
def test_wrapped_arguments_are_read_again_from_what_langroid_writes() -> None:
    args = create_args(metadata={"title": "A title", "tags": ["x", "ü"]})
    message = wrap(CREATE, args)
    assert isinstance(message, ToolMessage)
    assert json.loads(message.to_json()) == {"request": "knowledge-create_document", "args": args}
    again = action_message(CREATE).model_validate_json(message.to_json())
    assert again == message
    assert again.args == args


@pytest.mark.requirement("MC-ACT-02")
@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"parent_id": 1}, "/parent_id"),
        ({"metadata": {}}, "/metadata/title"),
        ({"request": "another"}, "/request"),
        ({"metadata": {"title": "x", "id": "y"}}, "/metadata/id"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_as_the_gateway_refuses_them(
    runtime: Runtime, wrong: dict[str, Any], path: str
) -> None:
    args = create_args() | wrong
    with pytest.raises(InvalidArgument) as refused:
        wrap(CREATE, args)
    assert [each["path"] for each in (refused.value.details or {})["errors"]] == [path]
    by_runtime = (await runtime.call(CREATE, args)).error
    assert isinstance(by_runtime, InvalidArgument)
    assert (refused.value.message, refused.value.details) == (by_runtime.message, by_runtime.details)


def test_no_message_can_be_made_or_changed_so_that_its_arguments_do_not_fit() -> None:
    made = action_message(CREATE)
    with pytest.raises(ValidationError, match=r"/metadata/title: .* is required"):
        made(args=create_args(metadata={}))
    with pytest.raises(ValidationError, match="do not match"):
        made(args="none")
    message = wrap(CREATE, create_args())
    with pytest.raises(ValidationError, match="/parent_id"):
        message.args = create_args() | {"parent_id": None}


@pytest.mark.parametrize("field", ["recipient", "_handler", "parent_id", "result"])
def test_fields_beside_the_arguments_are_refused(field: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        action_message(CREATE).model_validate({"args": create_args(), field: "x"})


async def test_names_that_langroid_claims_are_ordinary_names_of_arguments() -> None:
    args = {each: {"request": each} for each in CLAIMED}
    message = message_class(FREE)(args=args)
    assert message_class(FREE).model_validate_json(message.to_json()).args == args
    async with dragoman.open([define_tool(FREE, lambda arguments, context: arguments)]) as runtime:
        agent = agent_that_says(said("free.tool", args=args))
        agent.enable_message(tool_messages(runtime, prefix="free."))
        answer = await agent.agent_response_async(await agent.llm_response_async("Go"))
    assert json.loads(answer.content) == args


@pytest.mark.requirement("MC-ACT-02")
async def test_a_message_is_carried_out_as_a_call_of_its_caller(runtime: Runtime) -> None:
    args = create_args(metadata={"title": "Carried out"})
    outcome = await carry_out(runtime, wrap(CREATE, args), correlation_id="a-correlation")
    assert outcome.unwrap()["id"] == args["document_id"]
    assert await titles(runtime) == ["Carried out"]
    refused = await carry_out(runtime, wrap(CREATE, create_args()), caller=NOBODY)
    assert isinstance(refused.error, NotFound)


@pytest.mark.requirement("MC-ACT-02")
async def test_an_agent_uses_the_tree_and_its_model_reads_what_came_of_it(runtime: Runtime) -> None:
    args = create_args(metadata={"title": "By an agent"})
    agent = agent_that_says(
        said(CREATE, args=args), said("knowledge.delete_document", args={"document_id": "x"}), "DONE"
    )
    agent.enable_message(tool_messages(runtime, prefix="knowledge."))
    await Task(agent, interactive=False).run_async("Write it down.", turns=10)
    assert await titles(runtime) == ["By an agent"]
    read = [message.content for message in agent.message_history if message.role == "user"]
    assert read[0] == "Write it down."
    created = json.loads(read[1])
    assert (created["id"], created["revision"]) == (args["document_id"], 1)
    assert "INVALID_ARGUMENT" in read[2]
    assert "document_id" in read[2]


async def test_a_model_whose_arguments_do_not_fit_is_told_what_to_correct(runtime: Runtime) -> None:
    wrong = create_args(metadata={"name": "A name"})
    agent = agent_that_says(said(CREATE, args=wrong), said(CREATE, args=create_args()), "DONE")
    agent.enable_message(tool_messages(runtime, prefix="knowledge."))
    await Task(agent, interactive=False).run_async("Write it down.", turns=10)
    read = [message.content for message in agent.message_history if message.role == "user"]
    assert "/metadata/title: metadata.title is required" in read[1]
    assert await titles(runtime) == ["A document"]


async def test_an_agent_in_another_thread_can_use_both_kinds_of_methods(runtime: Runtime) -> None:
    tools = tool_messages(runtime, prefix="knowledge.")

    def run(is_async: bool, title: str) -> None:
        agent = agent_that_says(said(CREATE, args=create_args(metadata={"title": title})), "DONE")
        agent.enable_message(tools)
        task = Task(agent, interactive=False)
        if is_async:
            asyncio.run(task.run_async("Write it down.", turns=10))
        else:
            task.run("Write it down.", turns=10)

    await asyncio.to_thread(run, False, "First")
    await asyncio.to_thread(run, True, "Second")
    assert await titles(runtime) == ["First", "Second"]


async def test_a_message_can_have_a_handler_of_ones_own() -> None:
    class Sent(action_message(CREATE)):  # type: ignore[misc]
        async def handle_async(self) -> str:
            return f"sent {self.tool_name} {self.args['parent_id']}"

    agent = agent_that_says()
    agent.enable_message(Sent)
    assert (await agent.handle_message_async(said(CREATE, args=create_args()))).content == f"sent {CREATE} root"


async def test_an_agent_that_would_block_the_loop_of_its_tools_is_refused(runtime: Runtime) -> None:
    agent = agent_that_says()
    agent.enable_message(tool_messages(runtime, prefix="knowledge."))
    with pytest.raises(RuntimeError, match="use async methods"):
        agent.handle_message(said(CREATE, args=create_args()))
    assert await titles(runtime) == []


async def test_an_agent_acts_as_the_caller_that_its_tools_were_made_for(runtime: Runtime) -> None:
    editor = Caller("ed", roles=frozenset(("editor",)), tenants=frozenset(("acme",)))
    agent = agent_that_says()
    agent.enable_message(tool_messages(runtime, prefix="knowledge.", caller=editor))
    await agent.handle_message_async(said(CREATE, args=create_args()))
    assert (await titles(runtime, "acme"), await titles(runtime)) == (["A document"], [])


async def test_a_caller_is_given_the_tools_that_it_may_call(runtime: Runtime) -> None:
    def names(caller: Caller) -> set[str]:
        return {each.tool_name for each in tool_messages(runtime, caller=caller)}

    assert names(LOCAL) == {*ACTIONS, "health"}
    assert names(NOBODY) == {"health"}
    few = Caller("few", scopes=frozenset(("tool:knowledge.move_document",)), tenants=frozenset(("acme",)))
    assert names(few) == {"knowledge.move_document"}


def test_a_tool_is_never_strict_as_that_would_make_every_argument_required() -> None:
    agent = agent_that_says()
    agent.enable_message(action_message(CREATE), handle=False)
    agent._strict_tools_available = lambda: True
    assert agent._strict_mode_for_tool("knowledge-create_document") is False


@pytest.mark.requirement("MC-ACT-02")
async def test_a_function_call_of_a_model_is_handled_too(runtime: Runtime) -> None:
    args = create_args(metadata={"title": "By a function call"})
    agent = agent_that_says()
    agent.enable_message(tool_messages(runtime, prefix="knowledge."))
    function = LLMFunctionCall(name="knowledge-create_document", arguments={"args": args})
    call = OpenAIToolCall(id="call_1", type="function", function=function)
    response = agent.create_llm_response(oai_tool_calls=[call])
    await agent.agent_response_async(response)
    assert await titles(runtime) == ["By a function call"]
