"""Tools that ask: what is asked, when, how the answer gets in, and what happens without one; in both eras."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dragoman import Ask, Caller, Root, Roots, Sample, ToolContext, tool
from dragoman.adapters.dict_claims import DictClaims
from dragoman.calls.stages import ask_client
from dragoman.edge import clients
from dragoman.errors import ClientCannotBeAsked
from dragoman.testing import ManualClock, MemoryClient, TestServer, open_server
from tests.support.answers import error_in
from tests.support.calls import Held, begin
from tests.support.waiting import PATIENCE, until

FORM = {"elicitation": {"form": {}}}
ALL = {**FORM, "sampling": {}, "roots": {}}
YES = {"action": "accept", "content": {"sure": True}}
DECLINE = {"action": "decline"}
NO_KEY = "Invalid or expired requestState"

ran: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


class Choice(msgspec.Struct):
    size: Literal["S", "M", "L"]
    gift: bool = False


@tool
def delete(path: str, sure: Annotated[bool, Ask("Really delete {path}?")]) -> str:
    """Has one question that it cannot do without."""
    ran.append((path, sure))
    return f"{path} {sure}"


@tool
async def order(
    item: str,
    choice: Annotated[Choice, Ask("Which size of {item}?")],
    card: Annotated[str | None, Ask(lambda choice: "What is on the card?" if choice.gift else None)],
    colour: Annotated[str, Ask("Which colour?")] = "red",
) -> list[Any]:
    """Has one question that depends on another, and two that it can do without."""
    ran.append((item, choice, card, colour))
    return [item, choice.size, card, colour]


@tool
def everything(
    name: Annotated[str, Ask("What is your name?")],
    greeting: Annotated[str, Sample("Generate a greeting", max_tokens=50)],
    folders: Annotated[list[Root], Roots()],
) -> str:
    """Asks for one of each kind."""
    return f"{greeting} {name}, of {folders[0].uri}"


@tool
def capital(
    person: Annotated[str, Ask("Who are you?")] = "nobody",
    city: Annotated[str | None, Sample("What is the capital of France?")] = None,
) -> str:
    """Can do without any answer."""
    return f"{person} {city}"


TOOLS = [delete, order, everything, capital]


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "m"}


def text_in(result: dict[str, Any]) -> Any:
    assert result["isError"] is False, result
    content = result.get("structuredContent", {})
    return content["result"] if "result" in content else msgspec.json.decode(result["content"][0]["text"])


# The handshake era: while the call waits, the client is sent requests.


async def test_the_handler_runs_with_what_was_answered() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a.txt"})
        question = await client.question()
        assert question["method"] == "elicitation/create"
        assert question["params"] == {
            "message": "Really delete a.txt?",
            "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]},
        }
        assert ran == []
        client.reply(question, accept(sure=False))
        assert text_in((await client.answer(call))["result"]) == "a.txt False"
        (record,) = server.records
        assert (record["outcome"], record["asked"]) == ("success", 1)


async def test_a_question_may_depend_on_an_earlier_answer_and_need_not_be_asked() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        for gift, card in ((True, "Yours"), (False, None)):
            call = begin(client, "order", arguments={"item": "hat"})
            client.reply(await client.question(), accept(size="L", gift=gift))
            colour = await client.question()
            if colour["params"]["message"] == "What is on the card?":
                client.reply(colour, accept(card="Yours"))
                colour = await client.question()
            assert colour["params"]["message"] == "Which colour?"
            client.reply(colour, accept(colour="blue"))
            assert text_in((await client.answer(call))["result"]) == ["hat", "L", card, "blue"]


async def test_models_and_roots_are_asked_like_people() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=ALL)
        call = begin(client, "everything")
        results = {
            "elicitation/create": accept(name="Ada"),
            "sampling/createMessage": said("Hello"),
            "roots/list": {"roots": [{"uri": "file:///work"}]},
        }
        for method, result in results.items():
            question = await client.question()
            assert question["method"] == method
            client.reply(question, result)
        assert text_in((await client.answer(call))["result"]) == "Hello Ada, of file:///work"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_ends_the_call_before_its_handler_runs(action: str) -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a.txt"})
        client.reply(await client.question(), {"action": action})
        error = error_in((await client.answer(call))["result"])
        assert (error["code"], error["details"]) == ("UNAUTHORIZED", {"reason": "declined", "question": "sure"})
        assert ran == []
        assert [record["outcome"] for record in server.records] == ["tool_error"]


async def test_without_an_answer_a_parameter_has_its_default() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "order", arguments={"item": "hat"})
        client.reply(await client.question(), accept(size="S", gift=True))
        client.reply(await client.question(), DECLINE)
        client.reply(await client.question(), DECLINE)
        assert text_in((await client.answer(call))["result"]) == ["hat", "S", None, "red"]


async def test_who_cannot_be_asked_is_not_asked() -> None:
    async with open_server(TOOLS) as server:
        for client in (await server.client(), await server.client(capabilities={"elicitation": {"url": {}}})):
            error = error_in(await client.call_tool("delete", {"path": "a"}))
            assert error["details"] == {"reason": "unsupported", "question": "sure"}
            assert text_in(await client.call_tool("capital")) == "nobody None"
        outcome = await server.runtime.call("delete", {"path": "a"})
        assert outcome.error is not None
        assert (await server.runtime.call("capital")).value == "nobody None"
        assert ran == []


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"action": "accept"}},
        {"result": accept(sure="yes")},
        {"result": {"action": "perhaps"}},
        {"result": {}},
    ],
)
async def test_an_answer_that_does_not_fit_is_an_error_of_the_call(answer: dict[str, Any]) -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        client.reply(await client.question(), answer["result"])
        error = error_in((await client.answer(call))["result"])
        assert error["code"] == "INVALID_ARGUMENT"
        assert error["message"].startswith("'sure': The answer")
        assert ran == []


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32601, "message": "no such method"}},
        {"error": {}},
        {"result": [1, 2]},
        {"result": None},
    ],
)
async def test_a_client_that_answers_with_an_error_or_nonsense_has_refused(answer: dict[str, Any]) -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        client.send(msgspec.json.encode({"jsonrpc": "2.0", "id": question["id"], **answer}) + b"\n")
        assert error_in((await client.answer(call))["result"])["details"]["reason"] == "refused"
        call = begin(client, "capital")
        question = await client.question()
        client.send(msgspec.json.encode({"jsonrpc": "2.0", "id": question["id"], **answer}) + b"\n")
        assert text_in((await client.answer(call))["result"]) == "nobody None"


async def test_answers_that_nobody_waits_for_are_ignored() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        for stray in (99, "sure", question["id"] + 1):
            client.reply({"id": stray}, YES)
        await asyncio.sleep(0)
        assert ran == []
        client.reply(question, YES)
        client.reply(question, accept(sure=False))
        assert text_in((await client.answer(call))["result"]) == "a True"


async def test_waiting_has_a_limit_of_its_own_and_the_client_is_told_when_it_is_over() -> None:
    clock = ManualClock()
    async with open_server(TOOLS, {"timeouts": {"input_ms": 60_000}}, clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        clock.advance(60)
        error = error_in((await client.answer(call))["result"])
        assert error["details"] == {"reason": "timeout", "question": "sure"}
        (cancelled,) = [each for each in client.received() if each.get("method") == "notifications/cancelled"]
        assert cancelled["params"]["requestId"] == question["id"]
        (record,) = server.records
        assert (record["durationMs"], record["waitedMs"]) == (0.0, 60_000.0)


async def test_no_deadline_counts_the_time_that_a_person_takes() -> None:
    clock = ManualClock()

    @tool(timeout_ms=1000)
    async def slow(sure: Annotated[bool, Ask("Sure?")]) -> str:
        """Takes nearly as long as it may."""
        clock.advance(0.9)
        return "in time"

    async with open_server([slow], clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "slow")
        question = await client.question()
        clock.advance(200)
        client.reply(question, YES)
        assert text_in((await client.answer(call))["result"]) == "in time"
        (record,) = server.records
        assert (record["outcome"], record["durationMs"], record["waitedMs"]) == ("success", 900.0, 200_000.0)


async def test_the_deadline_counts_from_the_answer_on() -> None:
    clock = ManualClock()
    held = Held("hold")

    @tool(timeout_ms=1000)
    async def stuck(sure: Annotated[bool, Ask("Sure?")], ctx: ToolContext) -> None:
        """Does not end."""
        held.begun.set()
        await held.release.wait()

    async with open_server([stuck], clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "stuck")
        question = await client.question()
        clock.advance(200)
        client.reply(question, YES)
        await held.begun.wait()
        clock.advance(0.9)
        assert not [each for each in client.received() if each.get("id") == call and "result" in each]
        clock.advance(0.2)
        assert error_in((await client.answer(call))["result"])["code"] == "TIMEOUT"
        held.release.set()


async def test_who_waits_for_an_answer_holds_no_slot() -> None:
    held = Held()
    config = {
        "resources": {"max_concurrent_executions": 1, "max_concurrent_per_caller": 1},
        "limits": {"tools": {"delete": {"max_concurrent": 1}}},
    }
    async with open_server([*TOOLS, held.tool], config) as server:
        client = await server.client(capabilities=FORM)
        calls = [begin(client, "delete", arguments={"path": str(number)}) for number in range(3)]
        questions = [await client.question() for _ in calls]
        assert server.runtime.slots.in_use == 0
        other = begin(client, "hold")
        await held.begun.wait()
        assert server.runtime.slots.in_use == 1
        client.reply(questions[0], YES)
        await until(lambda: server.runtime.slots.waiting)
        assert ran == []  # It waits for its turn: whoever has answered is not turned away.
        held.release.set()
        assert text_in((await client.answer(calls[0]))["result"]) == "0 True"
        assert text_in((await client.answer(other))["result"]) == "done"
        assert server.runtime.slots.in_use == 0
        for call, question in zip(calls[1:], questions[1:], strict=True):
            client.reply(question, DECLINE)
            assert error_in((await client.answer(call))["result"])["code"] == "UNAUTHORIZED"
        assert server.runtime.slots.in_use == 0


async def test_who_finds_no_slot_for_all_the_time_there_is_may_come_again() -> None:
    clock = ManualClock()
    held = Held(timeout_ms=10_000_000)
    config = {"resources": {"max_concurrent_executions": 1}}
    async with open_server([*TOOLS, held.tool], config, clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        begin(client, "hold")
        await held.begun.wait()
        client.reply(question, YES)
        await until(lambda: server.runtime.slots.waiting)
        clock.advance(301)
        assert error_in((await client.answer(call))["result"])["details"]["reason"] == "no_free_slot"
        held.release.set()


async def test_a_call_that_is_withdrawn_takes_its_question_back() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        client.notify("notifications/cancelled", {"requestId": call})
        await server.runtime.runner.drain(PATIENCE)
        await asyncio.sleep(0)
        assert server.records[0]["outcome"] == "aborted"
        (cancelled,) = [each for each in client.received() if each.get("method") == "notifications/cancelled"]
        assert cancelled["params"]["requestId"] == question["id"]
        client.reply(question, YES)
        assert ran == []


async def test_a_client_that_leaves_while_it_is_asked_ends_the_call() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        begin(client, "delete", arguments={"path": "a"})
        await client.question()
        sent = len(client.wire.lines)
        client.disconnect()
        await server.runtime.runner.drain(PATIENCE)
        assert [record["outcome"] for record in server.records] == ["aborted"]
        assert len(client.wire.lines) == sent
        assert ran == []


async def test_a_server_that_stops_does_not_wait_for_a_person() -> None:
    async with open_server([*TOOLS, confer]) as server:
        client = await server.client(capabilities=FORM)
        calls = begin(client, "delete", arguments={"path": "a"}), begin(client, "confer")
        await client.question()
        await client.question()
        async with asyncio.timeout(PATIENCE):
            assert await server.runtime.stop(10 * PATIENCE) == 0
        assert error_in((await client.answer(calls[0]))["result"])["details"]["reason"] == "stopping"
        assert text_in((await client.answer(calls[1]))["result"]) == [None, None, None]
        assert sorted(record["outcome"] for record in server.records) == ["success", "tool_error"]


async def test_nobody_is_asked_anything_more_by_a_server_that_stops() -> None:
    held = Held()

    @tool
    async def late(ctx: ToolContext) -> Any:
        """Asks when it is too late for that."""
        held.begun.set()
        await held.release.wait()
        return await ctx.elicit("Sure?", bool)

    async with open_server([late]) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "late")
        await held.begun.wait()
        stopping = asyncio.create_task(server.runtime.stop(60))
        await asyncio.sleep(0)
        held.release.set()
        assert await stopping == 0
        assert text_in((await client.answer(call))["result"]) is None
        assert [each["method"] for each in client.received() if "method" in each] == []


async def test_the_questions_that_are_open_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        monkeypatch.setattr(clients, "MOST_QUESTIONS", 1)
        first = begin(client, "delete", arguments={"path": "a"})
        question = await client.question()
        error = error_in(await client.call_tool("delete", {"path": "b"}))
        assert error["details"]["reason"] == "unsupported"
        monkeypatch.setattr(ask_client, "MOST_WAITING", 1)
        error = error_in(await client.call_tool("delete", {"path": "b"}))
        assert (error["code"], error["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "no_free_slot")
        client.reply(question, YES)
        assert text_in((await client.answer(first))["result"]) == "a True"


async def test_one_caller_has_a_share_of_the_calls_that_wait_for_an_answer() -> None:
    async with open_server(TOOLS, {"resources": {"max_waiting_per_caller": 2}}) as server, asyncio.timeout(PATIENCE):
        ada, also_ada = [await server.client(Caller("ada"), FORM) for _ in range(2)]
        bob, owner = await server.client(Caller("bob"), FORM), await server.client(capabilities=FORM)

        async def asked(client: MemoryClient) -> tuple[int | str, dict[str, Any]]:
            return begin(client, "delete", arguments={"path": "a"}), await client.question()

        async def ended(calls: int) -> None:
            while len(server.records) < calls:  # noqa: ASYNC110 -- a record is nobody's event.
                await asyncio.sleep(0)

        (answered, question), (cancelled, _) = await asked(ada), await asked(ada)
        error = error_in(await also_ada.call_tool("delete", {"path": "a"}))
        assert error["message"] == "All 2 slots of this caller for calls that wait for an answer are taken"
        assert (error["code"], error["details"]["retryable"]) == ("RESOURCE_EXHAUSTED", True)
        for client in (bob, *[owner] * 3):  # Whoever owns the process is no caller among others.
            await asked(client)
        ada.reply(question, YES)
        assert text_in((await ada.answer(answered))["result"]) == "a True"
        await asked(also_ada)
        ada.notify("notifications/cancelled", {"requestId": cancelled})
        await ended(3)
        await asked(also_ada)
        also_ada.disconnect()
        await ended(5)
        await asked(ada)
        await asked(ada)


async def test_answers_are_weighed_like_arguments() -> None:
    config = {"tools": {"max_payload_bytes": 100}}
    async with open_server(TOOLS, config) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "capital")
        client.reply(await client.question(), accept(person="x" * 100))
        assert error_in((await client.answer(call))["result"])["details"]["reason"] == "payload_too_large"
        modern = server.connect(modern=True, capabilities=FORM)
        _, state = asked_in(await round_of(modern, "capital"))
        answer = await round_of(modern, "capital", answers={"person": accept(person="x" * 100)}, state=state)
        assert error_in(answer["result"])["details"]["reason"] == "payload_too_large"


async def test_bad_arguments_are_refused_before_anything_is_asked() -> None:
    async with open_server(TOOLS) as server:
        client = await server.client(capabilities=FORM)
        assert error_in(await client.call_tool("delete", {"path": 5}))["code"] == "INVALID_ARGUMENT"
        assert error_in(await client.call_tool("delete", {"path": "a", "sure": True}))["code"] == "INVALID_ARGUMENT"
        modern = server.connect(modern=True, capabilities=FORM)
        assert error_in((await round_of(modern, "delete", {"path": 5}))["result"])["code"] == "INVALID_ARGUMENT"


async def test_a_wording_that_fails_is_the_tools_failure() -> None:
    @tool
    def broken(x: Annotated[int, Ask(lambda: 1 / 0)]) -> None:
        """Cannot even ask."""

    @tool
    def undecided(x: Annotated[int, Ask(lambda: None)]) -> None:
        """Does not ask, and cannot do without."""

    async with open_server([broken, undecided]) as server:
        client = await server.client(capabilities=FORM)
        for name in ("broken", "undecided"):
            error = error_in(await client.call_tool(name))
            assert (error["code"], error["message"]) == ("INTERNAL", "The tool failed")
        assert "ZeroDivisionError" in server.stderr.decode()
        assert "has no default" in server.stderr.decode()


# The modern era: the questions are the answer, and the call is repeated.


async def round_of(
    client: MemoryClient,
    name: str,
    arguments: dict[str, Any] | None = None,
    answers: Any = ...,
    state: Any = ...,
) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
    if answers is not ...:
        params["inputResponses"] = answers
    if state is not ...:
        params["requestState"] = state
    return await client.request("tools/call", params)


def asked_in(answer: dict[str, Any]) -> tuple[dict[str, Any], str]:
    result = answer["result"]
    assert result["resultType"] == "input_required"
    assert "content" not in result
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "dragoman"
    requests: dict[str, Any] = result["inputRequests"]
    return requests, result["requestState"]


async def test_a_call_is_answered_with_its_question_and_repeated_with_the_answer() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        requests, state = asked_in(await round_of(client, "delete", {"path": "a"}))
        assert requests == {
            "sure": {
                "method": "elicitation/create",
                "params": {
                    "message": "Really delete a?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": {"sure": {"type": "boolean"}},
                        "required": ["sure"],
                    },
                },
            }
        }
        answer = await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state)
        assert answer["result"]["resultType"] == "complete"
        assert text_in(answer["result"]) == "a True"
        assert [(each["outcome"], each.get("asked")) for each in server.records] == [("success", 1), ("success", None)]


async def test_a_question_shows_what_an_argument_would_hide() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        requests, _ = asked_in(await round_of(client, "delete", {"path": "a\u202eb\u200b\nc"}))
        assert requests["sure"]["params"]["message"] == "Really delete a\\u202eb\\u200b\nc?"


async def test_all_that_can_be_asked_is_asked_at_once() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=ALL)
        requests, state = asked_in(await round_of(client, "everything"))
        assert {key: each["method"] for key, each in requests.items()} == {
            "name": "elicitation/create",
            "greeting": "sampling/createMessage",
            "folders": "roots/list",
        }
        answers = {"name": accept(name="Ada"), "greeting": said("Hello"), "folders": {"roots": [{"uri": "file:///w"}]}}
        answer = await round_of(client, "everything", answers=answers, state=state)
        assert text_in(answer["result"]) == "Hello Ada, of file:///w"


async def test_answers_of_earlier_rounds_are_in_the_state() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        requests, state = asked_in(await round_of(client, "order", {"item": "hat"}))
        assert list(requests) == ["choice", "colour"]
        answers = {"choice": accept(size="M", gift=True), "colour": DECLINE}
        requests, later = asked_in(await round_of(client, "order", {"item": "hat"}, answers, state))
        assert list(requests) == ["card"]
        assert later != state
        answer = await round_of(client, "order", {"item": "hat"}, {"card": accept(card="Yours")}, later)
        assert text_in(answer["result"]) == ["hat", "M", "Yours", "red"]


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"other": YES},
        {"sure": {}},
        {"sure": accept()},
        {"sure": accept(sure="yes")},
        {"sure": {"action": "perhaps"}},
        {"sure": said("yes")},
    ],
)
async def test_what_is_missing_or_does_not_fit_is_asked_again(answers: dict[str, Any]) -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        requests, state = asked_in(await round_of(client, "delete", {"path": "a"}))
        again, state = asked_in(await round_of(client, "delete", {"path": "a"}, answers, state))
        assert again == requests
        assert text_in((await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state))["result"]) == "a True"


async def test_strange_answers_are_ignored() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        answers = {"sure": YES, "strange": {"action": "accept", "content": {"a": 1}}}
        assert text_in((await round_of(client, "delete", {"path": "a"}, answers, state))["result"]) == "a True"


async def test_an_answer_without_the_state_of_its_question_is_asked_for() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        requests, state = asked_in(await round_of(client, "delete", {"path": "a"}, {"sure": YES}))
        assert list(requests) == ["sure"]
        assert ran == []
        assert text_in((await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state))["result"]) == "a True"


async def test_an_answer_to_a_question_that_its_state_did_not_ask_does_not_count() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, state = asked_in(await round_of(client, "order", {"item": "hat"}))
        answers = {"choice": accept(size="M", gift=True), "colour": DECLINE, "card": accept(card="Not asked yet")}
        requests, _ = asked_in(await round_of(client, "order", {"item": "hat"}, answers, state))
        assert list(requests) == ["card"]
        assert ran == []


@pytest.mark.parametrize(("answers", "state"), [(5, ...), (None, ...), ({"sure": 12345}, ...), ([], ...), (..., 5)])
async def test_answers_and_state_of_the_wrong_shape_are_refused(answers: Any, state: Any) -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        assert (await round_of(client, "delete", {"path": "a"}, answers, state))["error"]["code"] == -32602


async def test_a_no_ends_a_modern_call_too() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, state = asked_in(await round_of(client, "delete", {"path": "a"}))
        answer = await round_of(client, "delete", {"path": "a"}, {"sure": DECLINE}, state)
        assert error_in(answer["result"])["details"] == {"reason": "declined", "question": "sure"}
        assert ran == []


async def test_a_modern_client_is_asked_only_what_it_declared() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities={"sampling": {}})
        error = (await round_of(client, "delete", {"path": "a"}))["error"]
        assert error["code"] == -32021
        assert error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
        requests, _ = asked_in(await round_of(client, "capital"))
        assert [each["method"] for each in requests.values()] == ["sampling/createMessage"]
        assert server.records[0]["outcome"] == "protocol_error"


# The state that goes with it.


async def state_of(server: TestServer, caller: Caller | None = None) -> tuple[MemoryClient, str]:
    client = server.connect(modern=True, capabilities=FORM, **({"caller": caller} if caller else {}))
    _, state = asked_in(await round_of(client, "delete", {"path": "a"}))
    return client, state


async def check_refused(server: TestServer, client: MemoryClient, state: str, reason: str, **other: Any) -> None:
    call = {"name": "delete", "arguments": {"path": "a"}, "answers": {"sure": YES}, **other}
    answer = await round_of(client, **call, state=state)
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32602, NO_KEY)
    assert set(answer["error"]["data"]) == {"correlationId"}
    assert ran == []
    (logged,) = [entry for entry in server.log if entry["message"] == "requestState refused"]
    assert logged["reason"].startswith(reason)


async def test_a_state_that_was_tampered_with_is_refused() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        await check_refused(server, client, state + "-TAMPERED", "")


async def test_a_state_is_for_one_caller() -> None:
    async with open_server(TOOLS) as server:
        _, state = await state_of(server, Caller("ada"))
        other = server.connect(modern=True, capabilities=FORM, caller=Caller("eve"))
        await check_refused(server, other, state, "tampered with")


async def test_a_state_is_for_the_arguments_that_were_asked_about() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        await check_refused(server, client, state, "tampered with", arguments={"path": "b"})


async def test_a_state_is_for_one_tool() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        await check_refused(server, client, state, "tampered with", name="order", arguments={"path": "a"})


async def test_a_state_expires_with_the_patience_for_a_person() -> None:
    clock = ManualClock()
    async with open_server(TOOLS, {"timeouts": {"input_ms": 1000}}, clock=clock) as server:
        client, state = await state_of(server)
        clock.advance(1)
        await check_refused(server, client, state, "expired")


@pytest.mark.parametrize(
    ("theirs", "is_opened"),
    [
        ({"security": {"state_key": "k" * 32}}, True),
        ({"security": {"state_key": "x" * 32}}, False),
        ({"security": {"state_key": "k" * 32}, "server": {"name": "another"}}, False),
        ({}, False),
    ],
)
async def test_servers_that_share_a_key_and_a_name_share_states(theirs: dict[str, Any], is_opened: bool) -> None:
    async with (
        open_server(TOOLS, {"security": {"state_key": "k" * 32}}) as server,
        open_server(TOOLS, theirs) as other,
    ):
        _, state = await state_of(server)
        client = other.connect(modern=True, capabilities=FORM)
        answer = await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state)
        assert ("result" in answer) is is_opened


# How often an answer counts.


async def test_one_answer_runs_a_tool_once() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        assert text_in((await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state))["result"]) == "a True"
        ran.clear()
        await check_refused(server, client, state, "its answers were used already")


async def test_calls_that_bring_the_same_answer_at_the_same_time_run_the_tool_once() -> None:
    async with open_server(TOOLS) as server:
        client, state = await state_of(server)
        rounds = [round_of(client, "delete", {"path": "a"}, {"sure": YES}, state) for _ in range(5)]
        answers = await asyncio.gather(*rounds)
        assert sum("result" in each for each in answers) == 1
        assert ran == [("a", True)]


async def test_an_earlier_round_of_a_call_cannot_be_played_again() -> None:
    async with open_server(TOOLS) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, first = asked_in(await round_of(client, "order", {"item": "hat"}))
        answers = {"choice": accept(size="M", gift=True), "colour": DECLINE}
        outcomes = []
        for _ in range(2):
            _, later = asked_in(await round_of(client, "order", {"item": "hat"}, answers, first))
            outcomes.append(await round_of(client, "order", {"item": "hat"}, {"card": accept(card="Yours")}, later))
        assert ["result" in each for each in outcomes] == [True, False]
        assert len(ran) == 1


@pytest.mark.parametrize("hints", [{"read_only": True}, {"idempotent": True}])
async def test_a_repeatable_tool_runs_again_with_the_same_answer(hints: dict[str, Any]) -> None:
    @tool(**hints)
    def look(path: str, sure: Annotated[bool, Ask("Really look at {path}?")]) -> str:
        """Does no harm when it runs twice."""
        ran.append((path, sure))
        return path

    async with open_server([look]) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, state = asked_in(await round_of(client, "look", {"path": "a"}))
        for _ in range(2):
            assert text_in((await round_of(client, "look", {"path": "a"}, {"sure": YES}, state))["result"]) == "a"
        assert len(ran) == 2


async def test_a_call_that_got_no_slot_has_not_used_its_answer() -> None:
    held = Held()
    config = {"resources": {"max_concurrent_executions": 1}}
    async with open_server([delete, held.tool], config) as server:
        client, state = await state_of(server)
        holding = begin(client, "hold")
        await held.begun.wait()
        refused = await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state)
        assert error_in(refused["result"])["details"]["reason"] == "no_free_slot"
        held.release.set()
        await client.answer(holding)
        assert text_in((await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state))["result"]) == "a True"


async def test_a_server_that_remembers_no_more_answers_refuses_them_as_retryable() -> None:
    clock = ManualClock()
    async with open_server(TOOLS, clock=clock) as server:
        server.runtime.shared.claims = DictClaims(clock, most=1)
        client = server.connect(modern=True, capabilities=FORM)
        states = [asked_in(await round_of(client, "delete", {"path": "a"}))[1] for _ in range(2)]
        for state, outcome in zip(states, ("ran", "refused"), strict=True):
            answer = await round_of(client, "delete", {"path": "a"}, {"sure": YES}, state)
            if outcome == "refused":
                assert error_in(answer["result"])["details"]["retryable"] is True
        assert ran == [("a", True)]


async def test_the_rounds_of_a_call_end_however_often_it_is_asked_again() -> None:
    clock = ManualClock()
    async with open_server(TOOLS, {"timeouts": {"input_ms": 1000}}, clock=clock) as server:
        client, state = await state_of(server)
        for _ in range(2):
            clock.advance(0.9)
            _, state = asked_in(await round_of(client, "delete", {"path": "a"}, {}, state))
        clock.advance(0.3)
        await check_refused(server, client, state, "expired")


words = ["Old?", "New?"]


@tool
def fickle(sure: Annotated[bool, Ask(lambda: words[0])]) -> bool:
    """Words its question by something else than its arguments."""
    return sure


async def test_an_answer_to_a_question_that_has_changed_is_asked_for_again() -> None:
    async with open_server([fickle]) as server:
        client = server.connect(modern=True, capabilities=FORM)
        _, state = asked_in(await round_of(client, "fickle"))
        words.pop(0)
        requests, state = asked_in(await round_of(client, "fickle", answers={"sure": YES}, state=state))
        assert requests["sure"]["params"]["message"] == "New?"
        assert text_in((await round_of(client, "fickle", answers={"sure": YES}, state=state))["result"]) is True


async def test_tools_without_questions_do_not_mind_answers() -> None:
    @tool
    def plain() -> str:
        """Asks nothing."""
        return "plain"

    async with open_server([plain]) as server:
        client = server.connect(modern=True)
        assert text_in((await round_of(client, "plain", answers={"x": {}}, state="?"))["result"]) == "plain"


# In the middle of the work.


@tool(timeout_ms=1000)
async def confer(ctx: ToolContext) -> list[Any]:
    """Asks while it runs."""
    size = await ctx.elicit("Which size?", Choice)
    why = roots = None
    with suppress(ClientCannotBeAsked):
        why = await ctx.sample("Why?", max_tokens=5, system="Be brief.")
    with suppress(ClientCannotBeAsked):
        roots = await ctx.list_roots()
    return [size, why, roots]


async def test_a_running_handler_can_ask() -> None:
    async with open_server([confer]) as server:
        client = await server.client(capabilities=ALL)
        call = begin(client, "confer")
        question = await client.question()
        assert question["params"]["message"] == "Which size?"
        client.reply(question, accept(size="M"))
        client.reply(await client.question(), said("because"))
        client.reply(await client.question(), {"roots": [{"uri": "file:///w", "name": "work"}]})
        assert text_in((await client.answer(call))["result"]) == [
            {"size": "M", "gift": False},
            "because",
            [{"uri": "file:///w", "name": "work"}],
        ]
        assert server.records[0]["asked"] == 3


@pytest.mark.parametrize("answer", [DECLINE, accept(size="XXL"), {}, {"action": "accept", "content": None}])
async def test_a_running_handler_gets_none_for_no_answer(answer: dict[str, Any]) -> None:
    async with open_server([confer]) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "confer")
        client.reply(await client.question(), answer)
        assert text_in((await client.answer(call))["result"]) == [None, None, None]


ASKING = {
    "elicit": ("elicitation/create", "Ask", lambda ctx: ctx.elicit("Which size?", Choice)),
    "sample": ("sampling/createMessage", "Sample", lambda ctx: ctx.sample("Why?")),
    "list_roots": ("roots/list", "Roots", lambda ctx: ctx.list_roots()),
}


@pytest.mark.parametrize("way", ASKING)
async def test_a_running_handler_that_asks_where_nobody_can_be_asked_fails_and_the_error_names_the_alternative(
    way: str,
) -> None:
    method, instead, ask = ASKING[way]

    @tool
    async def inquire(ctx: ToolContext) -> None:
        """Asks while it runs."""
        await ask(ctx)

    async with open_server([inquire]) as server:
        modern = server.connect(modern=True, capabilities=ALL)
        errors = [
            error_in(await (await server.client()).call_tool("inquire")),
            error_in((await round_of(modern, "inquire"))["result"]),
        ]
        for error, why in zip(errors, ("did not declare the capability", "does not carry requests"), strict=True):
            assert error["code"] == "INTERNAL"
            assert error["details"] == {"reason": "client_cannot_be_asked", "method": method}
            assert why in error["message"]
            assert f"Declare a parameter with {instead}," in error["message"]
        with pytest.raises(ClientCannotBeAsked, match="no MCP client made this call"):
            (await server.runtime.call("inquire")).unwrap()
        assert [record["outcome"] for record in server.records] == ["tool_error"] * 3


async def test_a_running_handlers_deadline_waits_for_the_person_too() -> None:
    clock = ManualClock()
    async with open_server([confer], {"timeouts": {"input_ms": 60_000}}, clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "confer")
        question = await client.question()
        clock.advance(30)
        client.reply(question, accept(size="L"))
        assert text_in((await client.answer(call))["result"]) == [{"size": "L", "gift": False}, None, None]
        assert (server.records[0]["outcome"], server.records[0]["durationMs"]) == ("success", 0.0)
        call = begin(client, "confer")
        await client.question()
        clock.advance(60)
        assert text_in((await client.answer(call))["result"]) == [None, None, None]


@tool(timeout_ms=1000)
async def confer_at_once(ctx: ToolContext) -> Any:
    """Asks two things at once, and then takes too long."""
    answers = await asyncio.gather(ctx.elicit("One?", bool), ctx.elicit("Two?", bool))
    ctx.log("info", answers)
    await ctx.cancellation.wait()


async def test_a_handler_may_ask_several_things_at_once() -> None:
    clock = ManualClock()
    async with open_server([confer_at_once], clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "confer_at_once")
        questions = [await client.question(), await client.question()]
        clock.advance(100)
        client.reply(questions[0], accept(value=True))
        for _ in range(5):  # Turns of the loop until the handler has the answer.
            await asyncio.sleep(0)
        clock.advance(100)
        client.reply(questions[1], accept(value=False))
        while not logged(client):
            await client.wire.wait()
        assert logged(client) == [{"level": "info", "data": [True, False]}]
        clock.advance(0.9)
        assert not server.log
        clock.advance(0.1)
        assert error_in((await client.answer(call))["result"])["code"] == "TIMEOUT"
        await server.runtime.runner.drain(PATIENCE)
        assert server.records[0]["waitedMs"] == 200_000.0


async def test_the_deadline_goes_on_after_a_question() -> None:
    clock = ManualClock()
    held = Held()

    @tool(timeout_ms=1000)
    async def dawdle(ctx: ToolContext) -> None:
        """Asks, and then takes too long."""
        await ctx.elicit("Ready?", bool)
        held.begun.set()
        await held.release.wait()

    async with open_server([dawdle], clock=clock) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "dawdle")
        question = await client.question()
        clock.advance(100)
        client.reply(question, accept(value=True))
        await held.begun.wait()
        clock.advance(1)
        assert error_in((await client.answer(call))["result"])["code"] == "TIMEOUT"
        held.release.set()


async def test_a_handler_that_waits_for_an_answer_is_stopped_when_the_call_is_withdrawn() -> None:
    async with open_server([confer]) as server:
        client = await server.client(capabilities=FORM)
        call = begin(client, "confer")
        await client.question()
        client.notify("notifications/cancelled", {"requestId": call})
        await server.runtime.runner.drain(PATIENCE)
        assert server.records[0]["outcome"] == "aborted"


# Log messages for the client.


@tool
def talk(ctx: ToolContext) -> str:
    """Says something of every weight, from a thread."""
    ctx.log("debug", "small")
    ctx.log("info", {"step": 1}, logger="talk")
    ctx.log("error", object)
    ctx.log("error", "\ud800")
    ctx.log("error", ["x" * 1000] * 10_000)
    return "said"


def logged(client: MemoryClient) -> list[dict[str, Any]]:
    return [each["params"] for each in client.received() if each.get("method") == "notifications/message"]


INFO = {"level": "info", "data": {"step": 1}, "logger": "talk"}
ERRORS = [
    {"level": "error", "data": "<class 'object'>"},
    {"level": "error", "data": "a message that has no JSON form"},
    {"level": "error", "data": "a message that is too large"},
]
DEBUG = {"level": "debug", "data": "small"}


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", [DEBUG, INFO, *ERRORS]), ("info", [INFO, *ERRORS]), ("warning", ERRORS), ("emergency", [])],
)
async def test_a_client_is_sent_the_messages_of_the_level_that_it_wants(level: str, expected: list[Any]) -> None:
    async with open_server([talk]) as server:
        client = await server.client()
        client.connection.client.log_level = level
        await client.call_tool("talk")
        assert logged(client) == expected
        modern = server.connect(modern=True)
        await modern.call_tool("talk", meta={"io.modelcontextprotocol/logLevel": level})
        assert logged(modern) == expected


async def test_before_it_says_so_a_handshake_client_wants_info_and_a_modern_one_nothing() -> None:
    async with open_server([talk]) as server:
        client = await server.client()
        await client.call_tool("talk")
        assert logged(client) == [INFO, *ERRORS]
        modern = server.connect(modern=True)
        for meta in ({}, {"io.modelcontextprotocol/logLevel": "loud"}, {"io.modelcontextprotocol/logLevel": 5}):
            await modern.call_tool("talk", meta=meta)
        assert logged(modern) == []
        assert (await server.runtime.call("talk")).value == "said"


@tool(timeout_ms=1000)
async def mutter(ctx: ToolContext) -> None:
    """Goes on talking when nobody listens."""
    await ctx.cancellation.wait()
    ctx.log("error", "too late")


async def test_nothing_is_said_about_a_call_that_has_been_answered() -> None:
    clock = ManualClock()
    async with open_server([mutter], clock=clock) as server:
        client = await server.client()
        call = begin(client, "mutter")
        await asyncio.sleep(0)
        clock.advance(1)
        await client.answer(call)
        await server.runtime.runner.drain(PATIENCE)
        assert logged(client) == []


async def test_messages_are_dropped_for_a_client_that_does_not_read() -> None:
    async with open_server([talk]) as server:
        client = await server.client()
        client.wire.is_full = True
        await client.call_tool("talk")
        assert logged(client) == []
