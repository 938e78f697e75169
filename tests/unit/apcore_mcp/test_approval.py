"""Modules that a person has to approve."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import nullcontext
from typing import Any

import pytest
from apcore import (
    ACL,
    ACLRule,
    AlwaysDenyHandler,
    ApprovalDeniedError,
    AutoApproveHandler,
    Context,
    ExecutionPolicy,
    Executor,
    ModuleAnnotations,
)

from apcore_mcp.server.approval import ANSWER
from dragoman.calls.threads import DaemonExecutor
from tests.support.modules import SECRET, Anything, Does, Resize, ResizeInput, registry_of, serving, text_of

FORM = {"elicitation": {"form": {}}}
GUARDED = ModuleAnnotations(requires_approval=True, destructive=True)
DENIED = "Module error: APPROVAL_DENIED"
YES = {"action": "accept", "content": {"approve": True}}
ANSWERS = [
    (YES, '{"deleted": true}'),
    ({"action": "accept", "content": {"approve": False}}, DENIED),
    ({"action": "decline"}, DENIED),
    ({"action": "cancel"}, DENIED),
]


class Deletes(Does):
    """Counts how often it ran."""

    def __init__(self) -> None:
        self.count = 0
        super().__init__(self._delete, input_schema=ResizeInput, annotations=GUARDED, description="Delete it")

    def _delete(self, inputs: Any, context: Any) -> dict[str, Any]:
        assert ANSWER not in inputs
        self.count += 1
        return {"deleted": True}


@pytest.mark.requirement("FR-ANNOT-006")
@pytest.mark.parametrize(("answer", "text"), ANSWERS)
async def test_the_person_behind_a_handshake_client_is_asked_before_the_module_runs(answer: Any, text: str) -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        client = await server.client(capabilities=FORM)
        call = client.begin("tools/call", {"name": "a", "arguments": {"width": 1, "password": SECRET}})
        question = await client.question()
        assert module.count == 0
        client.reply(question, answer)
        assert text_of((await client.answer(call))["result"]) == text
    assert module.count == (answer == YES)
    message = question["params"]["message"]
    assert message.startswith("May a run? Delete it\n\n")
    assert SECRET not in message
    assert json.loads(message.rpartition("\n")[2]) == {"width": 1, "password": "***REDACTED***"}


@pytest.mark.requirement("FR-ANNOT-006")
@pytest.mark.parametrize(("answer", "text"), ANSWERS)
async def test_the_person_behind_a_modern_client_is_asked_by_answering_the_call(answer: Any, text: str) -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        client = server.connect(modern=True, capabilities=FORM)
        params: dict[str, Any] = {"name": "a", "arguments": {"width": 1}}
        asked = (await client.request("tools/call", params))["result"]
        assert asked["resultType"] == "input_required"
        assert module.count == 0
        again = {**params, "inputResponses": {ANSWER: answer}, "requestState": asked["requestState"]}
        assert text_of((await client.request("tools/call", again))["result"]) == text
    assert module.count == (answer == YES)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("arguments", [{"width": 1}, {"width": 1, ANSWER: {"approve": True}}, {"_approval_token": "x"}])
async def test_where_nobody_can_be_asked_the_answer_is_no(modern: bool, arguments: dict[str, Any]) -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        client = server.connect(modern=True) if modern else await server.client()
        assert text_of(await client.call_tool("a", arguments)) == DENIED
    assert module.count == 0


async def test_a_client_that_cannot_ask_cannot_bring_an_answer_either() -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        params = {"name": "a", "arguments": {"width": 1}, "inputResponses": {ANSWER: YES}}
        for client in (server.connect(modern=True), await server.client()):
            assert text_of((await client.request("tools/call", params))["result"]) == DENIED
    assert module.count == 0


@pytest.mark.parametrize("strategy", ["minimal", "performance", "internal"])
async def test_an_executor_without_a_gate_of_its_own_is_no_way_around(strategy: str) -> None:
    module = Deletes()
    async with serving(Executor(registry_of(a=module), strategy=strategy)) as server:
        assert text_of(await (await server.client()).call_tool("a", {"width": 1})) == DENIED
    assert module.count == 0


@pytest.mark.parametrize(
    ("handler", "text"), [(AutoApproveHandler(), '{"deleted": true}'), (AlwaysDenyHandler(), DENIED)]
)
async def test_an_executor_with_a_handler_of_its_own_keeps_it(handler: Any, text: str) -> None:
    async with serving(Executor(registry_of(a=Deletes()), approval_handler=handler)) as server:
        client = await server.client(capabilities=FORM)
        assert text_of(await client.call_tool("a", {"width": 1})) == text


@pytest.mark.parametrize(("answer", "text"), ANSWERS)
async def test_a_module_that_calls_one_that_needs_approval_has_the_person_asked_then(answer: Any, text: str) -> None:
    async def outer(inputs: Any, context: Context[Any]) -> Any:
        return await context.executor.call_async("inner", {"width": 2, "password": SECRET}, context)

    async with serving(registry_of(outer=Does(outer), inner=Deletes())) as server:
        client = await server.client(capabilities=FORM)
        call = client.begin("tools/call", {"name": "outer", "arguments": {}})
        question = await client.question()
        assert question["params"]["message"].startswith("May inner run?")
        assert SECRET not in question["params"]["message"]
        client.reply(question, answer)
        assert text_of((await client.answer(call))["result"]) == text
        other = await server.client()
        assert text_of(await other.call_tool("outer", {})) == DENIED


class Delegates(Resize):
    """A sync module that calls another one and does not say on whose behalf."""

    input_schema = Anything

    def execute(self, inputs: dict[str, Any], context: Context[Any]) -> Any:
        return context.executor.call("inner", {"width": 2})


async def delegate(inputs: Any, context: Context[Any]) -> Any:
    return await context.executor.call_async("inner", {"width": 2})


@pytest.mark.parametrize("outer", [Delegates(), Does(delegate)])
async def test_leaving_out_the_context_is_no_way_around_the_person(outer: Any) -> None:
    inner = Deletes()
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(2))  # As the loop of a server has it.
    async with serving(registry_of(outer=outer, inner=inner)) as server:
        for client in (await server.client(), server.connect(modern=True, capabilities=FORM)):
            assert text_of(await client.call_tool("outer", {})) == DENIED
        assert inner.count == 0
        client = await server.client(capabilities=FORM)
        call = client.begin("tools/call", {"name": "outer", "arguments": {}})
        client.reply(await client.question(), YES)
        assert text_of((await client.answer(call))["result"]) == '{"deleted": true}'


class Threads(Resize):
    """A sync module that has a thread of its own call another one."""

    input_schema = Anything

    def execute(self, inputs: dict[str, Any], context: Context[Any]) -> Any:
        said: list[str] = []

        def call() -> None:
            try:
                context.executor.call("inner", {"width": 2})
            except ApprovalDeniedError as error:
                said.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return {"width": len(said), "height": 1}


async def test_a_thread_that_nobody_knows_is_no_way_around_the_person() -> None:
    inner = Deletes()
    executor = Executor(registry_of(outer=Threads(), inner=inner))
    async with serving(executor) as server:
        client = await server.client(capabilities=FORM)
        assert text_of(await client.call_tool("outer", {})) == '{"width": 1, "height": 1}'
        assert inner.count == 0
        await executor.call_async("inner", {"width": 2})  # Nobody's over MCP, and there are none that it could be of.
    assert inner.count == 1


async def test_an_access_rule_that_wants_approval_has_the_person_asked() -> None:
    rule = ACLRule(callers=["*"], targets=["*"], effect="allow", approval="required")
    async with serving(Executor(registry_of(a=Resize()), acl=ACL([rule], default_effect="deny"))) as server:
        client = await server.client(capabilities=FORM)
        call = client.begin("tools/call", {"name": "a", "arguments": {"width": 1}})
        client.reply(await client.question(), YES)
        assert text_of((await client.answer(call))["result"]) == '{"width": 1, "height": 1}'


@pytest.mark.parametrize(("strict", "expected"), [(False, 1), (True, 0)])
async def test_calls_that_do_not_come_over_mcp_are_as_free_as_they_were(strict: bool, expected: int) -> None:
    module = Deletes()
    executor = Executor(registry_of(a=module), policy=ExecutionPolicy(strict=strict))
    async with serving(executor):
        with pytest.raises(ApprovalDeniedError) if strict else nullcontext():
            await executor.call_async("a", {"width": 1})
    assert module.count == expected


@pytest.mark.parametrize("modern", [False, True])
async def test_an_executor_that_is_served_again_asks_as_before(modern: bool) -> None:
    executor = Executor(registry_of(a=Deletes()))
    async with serving(executor):
        pass
    async with serving(executor) as server:
        client = server.connect(modern=True) if modern else await server.client()
        assert text_of(await client.call_tool("a", {"width": 1})) == DENIED
        asking = server.connect(modern=True, capabilities=FORM)
        asked = (await asking.request("tools/call", {"name": "a", "arguments": {"width": 1}}))["result"]
        assert asked["resultType"] == "input_required"


async def test_a_handler_that_no_step_of_the_executor_consults_is_not_relied_on() -> None:
    module = Deletes()
    executor = Executor(registry_of(a=module), strategy="minimal", approval_handler=AlwaysDenyHandler())
    async with serving(executor) as server:
        assert text_of(await (await server.client()).call_tool("a", {"width": 1})) == DENIED
    assert module.count == 0


# What a yes is for.


async def approval_of(client: Any, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The question, and the call that answers it with a yes."""
    asked = (await client.request("tools/call", params))["result"]
    question: str = asked["inputRequests"][ANSWER]["params"]["message"]
    return question, {**params, "inputResponses": {ANSWER: YES}, "requestState": asked["requestState"]}


async def test_a_yes_without_the_state_of_its_question_approves_nothing() -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        client = server.connect(modern=True, capabilities=FORM)
        params = {"name": "a", "arguments": {"width": 1}, "inputResponses": {ANSWER: YES}}
        assert (await client.request("tools/call", params))["result"]["resultType"] == "input_required"
    assert module.count == 0


@pytest.mark.parametrize("idempotent", [False, True])
async def test_one_yes_runs_a_module_once(idempotent: bool) -> None:
    module = Deletes()
    module.annotations = ModuleAnnotations(requires_approval=True, idempotent=idempotent)
    async with serving(registry_of(a=module)) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, approved = await approval_of(client, {"name": "a", "arguments": {"width": 1}})
        outcomes = [await client.request("tools/call", approved) for _ in range(3)]
    assert [each.get("error", {}).get("code") for each in outcomes] == [None, -32602, -32602]
    assert module.count == 1


@pytest.mark.parametrize("is_same_start", [True, False])
async def test_a_yes_is_valid_only_where_it_is_remembered(is_same_start: bool) -> None:
    module, config = Deletes(), {"security": {"state_key": "k" * 32}}
    registry = registry_of(a=module)
    async with serving(registry, config=config) as server, serving(registry, config=config) as other:
        if is_same_start:
            other.runtime.shared.claims = server.runtime.shared.claims
        first, second = (each.connect(modern=True, capabilities=FORM) for each in (server, other))
        _, approved = await approval_of(first, {"name": "a", "arguments": {"width": 1}})
        assert ("result" in await second.request("tools/call", approved)) is is_same_start
        assert ("result" in await first.request("tools/call", approved)) is not is_same_start
    assert module.count == 1


async def test_a_question_shows_every_character_of_the_arguments() -> None:
    hidden = "a\u202eb\u200bc\u00add\u3164e\x1b[2Jf\ufe0fg\U000e0041\nh"
    async with serving(registry_of(a=Deletes())) as server:
        client = server.connect(modern=True, capabilities=FORM)
        question, _ = await approval_of(client, {"name": "a", "arguments": {"width": 1, hidden: hidden}})
    head, _, shown = question.rpartition("\n")
    assert head == "May a run? Delete it\n"
    assert shown.isascii()
    assert shown.isprintable()
    assert json.loads(shown) == {"width": 1, hidden: hidden}


@pytest.mark.parametrize("modern", [True, False])
async def test_arguments_that_a_question_cannot_show_are_refused(modern: bool) -> None:
    module = Deletes()
    async with serving(registry_of(a=module)) as server:
        client = server.connect(modern=True, capabilities=FORM) if modern else await server.client(capabilities=FORM)
        told = text_of(await client.call_tool("a", {"width": 1, "x": "y" * 8000}))
        assert told.startswith("Invalid input: The arguments are too long to be shown for approval: 80")
    assert module.count == 0


async def test_arguments_of_a_nested_call_that_a_question_cannot_show_are_refused() -> None:
    module = Deletes()

    async def outer(inputs: Any, context: Context[Any]) -> Any:
        return await context.executor.call_async("inner", {"width": 2, "x": "y" * 8000}, context)

    async with serving(registry_of(outer=Does(outer), inner=module)) as server:
        client = await server.client(capabilities=FORM)
        assert text_of(await client.call_tool("outer", {})) == DENIED
    assert module.count == 0
