"""Tools that ask their client, in another process, in every way that there is; among them those of MCP's conformance
suite."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman import Ask, Root, Roots, Sample, ToolContext, choices, tool


class Name(Struct):
    name: str


class Colour(Struct):
    color: str


class Consent(Struct):
    ok: bool


class Contact(Struct):
    username: Annotated[str, "User's response"]
    email: Annotated[str, Meta(description="User's email address", extra_json_schema={"format": "email"})]


class Defaults(Struct):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


TITLES = {"value1": "First Option", "value2": "Second Option", "value3": "Third Option"}


class Enums(Struct, rename="camel"):
    untitled_single: Literal["option1", "option2", "option3"]
    titled_single: Annotated[str, choices(TITLES)]
    legacy_enum: Annotated[
        str,
        Meta(extra_json_schema={"enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]}),
    ]
    untitled_multi: list[Literal["option1", "option2", "option3"]]
    titled_multi: list[Annotated[str, choices(TITLES)]]


@tool
def test_input_required_result_elicitation(user_name: Annotated[Name, Ask("What is your name?")]) -> str:
    """Asks a person."""
    return f"Hello, {user_name.name}!"


@tool
def test_input_required_result_sampling(
    capital_question: Annotated[str, Sample("What is the capital of France?", max_tokens=100)],
) -> str:
    """Asks a model."""
    return capital_question


@tool
def test_input_required_result_list_roots(client_roots: Annotated[list[Root], Roots()]) -> list[Root]:
    """Asks for folders."""
    return client_roots


@tool
def test_input_required_result_request_state(confirm: Annotated[Consent, Ask("Please confirm")]) -> str:
    """Asks, and gets the state back."""
    return f"state-ok: {confirm.ok}"


@tool
def test_input_required_result_tampered_state(confirm: Annotated[Consent, Ask("Please confirm")]) -> str:
    """The same, for those who change it."""
    return f"state-ok: {confirm.ok}"


@tool
def test_input_required_result_multiple_inputs(
    user_name: Annotated[Name, Ask("What is your name?")],
    greeting: Annotated[str, Sample("Generate a greeting", max_tokens=50)],
    client_roots: Annotated[list[Root], Roots()],
) -> str:
    """Asks for three things at once."""
    return f"{greeting} {user_name.name} {client_roots[0].uri}"


@tool
def test_input_required_result_multi_round(
    step1: Annotated[Name, Ask("Step 1: What is your name?")],
    step2: Annotated[Colour, Ask(lambda step1: f"Step 2: What is your favorite color, {step1.name}?")],
) -> str:
    """Asks for two things, one after the other."""
    return f"{step1.name} likes {step2.color}"


@tool
def test_input_required_result_capabilities(
    user_name: Annotated[Name | None, Ask("What is your name?")],
    capital_question: Annotated[str | None, Sample("What is the capital of France?")],
) -> str:
    """Asks for what the client can answer."""
    return f"{user_name} {capital_question}"


@tool
async def test_elicitation(message: str, ctx: ToolContext) -> str:
    """Asks in the middle of its work."""
    return f"User response: {await ctx.elicit(message, Contact)}"


@tool
async def test_sampling(prompt: str, ctx: ToolContext) -> str:
    """Asks a model in the middle of its work."""
    return f"LLM response: {await ctx.sample(prompt, max_tokens=100)}"


@tool
def test_elicitation_sep1034_defaults(answer: Annotated[Defaults | None, Ask("Defaults of every kind")]) -> str:
    """Offers defaults."""
    return f"Elicitation completed: {answer}"


@tool
def test_elicitation_sep1330_enums(answer: Annotated[Enums | None, Ask("Choices of every kind")]) -> str:
    """Offers choices."""
    return f"Elicitation completed: {answer}"


@tool
async def test_tool_with_logging(ctx: ToolContext) -> str:
    """Logs as it goes."""
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log("info", said)
        await asyncio.sleep(0.05)
    return "done"


@tool
def delete(path: str, sure: Annotated[bool, Ask("Really delete {path}?")], ctx: ToolContext) -> str:
    """Asks, on a thread, for what it cannot do without."""
    ctx.logger.info("deleting")
    return f"{path}: {sure}"
