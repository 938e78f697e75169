"""A server with everything that MCP's public conformance suite asks for: `python examples/conformance.py --port 8000`.

It is also a tour of what a tool, a resource and a prompt can do.
"""

import argparse
import asyncio
import base64
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dragoman import (
    Ask,
    Audio,
    EmbeddedResource,
    Image,
    Message,
    Offers,
    Root,
    Roots,
    Sample,
    ServerOptions,
    Text,
    TextResource,
    ToolContext,
    choices,
    create_server,
    prompt,
    resource,
    start_http_server,
    tool,
)
from dragoman.errors import InvalidArgument, ProtocolError
from dragoman.tools.attached import made_of

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SILENCE = base64.b64decode("UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQQAAAAAAAAA")


# What tools return.


@tool
async def test_simple_text() -> Text:
    """Returns a text."""
    return Text("This is a simple text response for testing.")


@tool
async def test_image_content() -> Image:
    """Returns a picture of one dot."""
    return Image(DOT)


@tool
async def test_audio_content() -> Audio:
    """Returns a moment of silence."""
    return Audio(SILENCE, "audio/wav")


@tool
async def test_embedded_resource() -> EmbeddedResource:
    """Returns a resource."""
    text = TextResource("test://embedded-resource", "This is an embedded resource content.", "text/plain")
    return EmbeddedResource(text)


@tool
async def test_multiple_content_types() -> list[Text | Image | EmbeddedResource]:
    """Returns a text, a picture and a resource."""
    data = TextResource("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return [Text("Multiple content types test:"), Image(DOT), EmbeddedResource(data)]


@tool
async def test_error_handling() -> str:
    """Fails, and tells the client why."""
    raise InvalidArgument("This tool intentionally returns an error for testing")


@tool(
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(
    name: str = "",
    address: dict[str, str] | None = None,
    contactMethod: str = "",
    phone: str = "",
    email: str = "",
) -> str:
    """Has a schema with everything in it."""
    return f"{name} {phone or email}"


@tool
async def region_report(
    region: Annotated[str, Meta(description="which region", extra_json_schema={"x-mcp-header": "Region"})],
    priority: Annotated[int, Meta(extra_json_schema={"x-mcp-header": "Priority"})] = 1,
) -> Text:
    """Has its region and priority repeated in headers, for whoever routes requests."""
    return Text(f"Region {region}, priority {priority}")


# What tools say while they work.


@tool
async def test_tool_with_logging(ctx: ToolContext) -> Text:
    """Logs to the client as it goes."""
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log("info", said)
        await asyncio.sleep(0.05)
    return Text("Tool with logging executed successfully")


@tool
async def test_logging_tool(ctx: ToolContext) -> Text:
    """Logs to those clients that ask for it."""
    ctx.log("info", "This is sent only when it is wanted")
    return Text("done")


@tool
async def test_tool_with_progress(ctx: ToolContext) -> Text:
    """Says how far it is."""
    for done in (0, 50, 100):
        ctx.progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return Text("Tool with progress executed successfully")


# What tools ask.


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


OPTIONS = {"value1": "First Option", "value2": "Second Option", "value3": "Third Option"}
LEGACY = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}


class Enums(Struct, rename="camel"):
    untitled_single: Literal["option1", "option2", "option3"]
    titled_single: Annotated[str, choices(OPTIONS)]
    legacy_enum: Annotated[str, Meta(extra_json_schema=LEGACY)]
    untitled_multi: list[Literal["option1", "option2", "option3"]]
    titled_multi: list[Annotated[str, choices(OPTIONS)]]


@tool
async def test_elicitation(message: str, ctx: ToolContext) -> Text:
    """Asks the person in the middle of its work."""
    return Text(f"User response: {await ctx.elicit(message, Contact)}")


@tool
async def test_sampling(prompt: str, ctx: ToolContext) -> Text:
    """Asks the model in the middle of its work."""
    return Text(f"LLM response: {await ctx.sample(prompt, max_tokens=100)}")


@tool
async def test_elicitation_sep1034_defaults(answer: Annotated[Defaults | None, Ask("Please review")]) -> Text:
    """Asks with defaults of every kind."""
    return Text(f"Elicitation completed: {answer}")


@tool
async def test_elicitation_sep1330_enums(answer: Annotated[Enums | None, Ask("Please choose")]) -> Text:
    """Asks with choices of every kind."""
    return Text(f"Elicitation completed: {answer}")


@tool
async def test_input_required_result_elicitation(user_name: Annotated[Name, Ask("What is your name?")]) -> Text:
    """Asks the person."""
    return Text(f"Hello, {user_name.name}!")


@tool
async def test_streaming_elicitation(user_name: Annotated[Name, Ask("What is your name?")]) -> Text:
    """Asks the person, who is never sent a request in the modern era."""
    return Text(f"Hello, {user_name.name}!")


@tool
async def test_missing_capability(
    thought: Annotated[str, Sample("What do you think?", max_tokens=100)],
) -> Text:
    """Needs a client that has a model."""
    return Text(thought)


@tool
async def test_input_required_result_sampling(
    capital_question: Annotated[str, Sample("What is the capital of France?", max_tokens=100)],
) -> Text:
    """Asks the model."""
    return Text(capital_question)


@tool
async def test_input_required_result_list_roots(client_roots: Annotated[list[Root], Roots()]) -> Text:
    """Asks for the folders that it may work in."""
    return Text(", ".join(root.uri for root in client_roots))


@tool
async def test_input_required_result_request_state(confirm: Annotated[Consent, Ask("Please confirm")]) -> Text:
    """Asks, and gets the state back."""
    return Text(f"state-ok: {confirm.ok}")


@tool
async def test_input_required_result_tampered_state(confirm: Annotated[Consent, Ask("Please confirm")]) -> Text:
    """The same, for those who change it."""
    return Text(f"state-ok: {confirm.ok}")


@tool
async def test_input_required_result_multiple_inputs(
    user_name: Annotated[Name, Ask("What is your name?")],
    greeting: Annotated[str, Sample("Generate a greeting", max_tokens=50)],
    client_roots: Annotated[list[Root], Roots()],
) -> Text:
    """Asks for three things at once."""
    return Text(f"{greeting} {user_name.name}, you have {len(client_roots)} folders")


@tool
async def test_input_required_result_multi_round(
    step1: Annotated[Name, Ask("Step 1: What is your name?")],
    step2: Annotated[Colour, Ask(lambda step1: f"Step 2: What is your favorite color, {step1.name}?")],
) -> Text:
    """Asks for two things, one after the other."""
    return Text(f"{step1.name} likes {step2.color}")


@tool
async def test_input_required_result_capabilities(
    user_name: Annotated[Name | None, Ask("What is your name?")],
    capital_question: Annotated[str | None, Sample("What is the capital of France?", max_tokens=100)],
) -> Text:
    """Asks for what the client can answer."""
    return Text(f"{user_name} {capital_question}")


# What outlives its client.


class Confirmed(Struct):
    confirm: bool


@tool
async def greet(name: str) -> Text:
    """Greets, at once: it never becomes a task."""
    return Text(f"Hello, {name}!")


@tool(task="optional", idempotent=True, timeout_ms=120_000)
async def slow_compute(ctx: ToolContext, seconds: float = 0.0, label: str = "") -> Text:
    """Takes its time, and stops when it is told to."""
    for done in range(round(seconds * 10)):
        ctx.cancellation.raise_if_set()
        ctx.progress(done / 10, seconds)
        await asyncio.sleep(0.1)
    return Text(f"Computed {label} in {seconds} s")


@tool(task="required")
async def failing_job() -> Text:
    """Fails, after a while."""
    await asyncio.sleep(1)
    raise InvalidArgument("This job always fails")


@tool(task="optional")
async def protocol_error_job() -> Text:
    """Ends with a JSON-RPC error, and no result."""
    raise ProtocolError("This job always ends with a protocol error")


@tool(task="optional")
async def confirm_delete(filename: str, ctx: ToolContext) -> Text:
    """Asks before it would delete something."""
    answer = await ctx.elicit(f"Delete {filename}?", Confirmed)
    is_sure = answer is not None and answer.confirm
    return Text(f"{filename} was {'deleted' if is_sure else 'kept'}")


@tool(task="optional")
async def multi_input(ctx: ToolContext) -> Text:
    """Asks for two things at once."""
    name, consent = await asyncio.gather(ctx.elicit("What is your name?", Name), ctx.elicit("Are you sure?", Confirmed))
    return Text(f"{name}, {consent}")


@tool(task="required")
async def test_tool_with_task(user_name: Annotated[Name, Ask("What is your name?")]) -> Text:
    """Asks first, and becomes a task when it has its answer."""
    return Text(f"Hello, {user_name.name}!")


# What there is to read.


@resource("test://static-text")
async def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@resource("test://static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """A picture of one dot."""
    return DOT


@resource("test://watched-resource")
async def watched_resource() -> str:
    """A text that may change."""
    return "Watched resource content"


@resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> dict[str, Any]:
    """Data by id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# What a person may start with.


@prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@prompt(complete={"arg1": ["paris", "park", "party"]})
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A prompt that brings a resource along."""
    embedded = TextResource(resourceUri, "Embedded resource content for testing.", "text/plain")
    return [Message(EmbeddedResource(embedded)), Message("Please process the embedded resource above.")]


@prompt
async def test_prompt_with_image() -> list[Message]:
    """A prompt that brings a picture along."""
    return [Message(Image(DOT)), Message("Please analyze the image above.")]


class Context(Struct):
    context: str


@prompt
async def test_input_required_result_prompt(
    user_context: Annotated[Context, Ask("What context should the prompt use?")],
) -> str:
    """A prompt that asks the person something first."""
    return f"Use this context: {user_context.context}"


# What changes while the server runs.


@tool
async def newcomer() -> Text:
    """Comes and goes."""
    return Text("here")


@prompt
async def new_prompt() -> str:
    """Comes and goes."""
    return "here"


@tool
async def test_trigger_tool_change() -> Text:
    """Adds a tool, or takes it away again."""
    if not server.catalogue.unregister("newcomer"):
        server.catalogue.register(newcomer)
    return Text("changed")


@tool
async def test_trigger_prompt_change() -> Text:
    """Adds a prompt, or takes it away again."""
    if not server.offers.unregister("new_prompt"):
        server.offers.register(new_prompt)
    return Text("changed")


EVERYTHING = [
    each for name, each in tuple(globals().items()) if name not in ("newcomer", "new_prompt") and made_of(each)
]
server = create_server(ServerOptions(tools=EVERYTHING, offers=Offers()))

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    asyncio.run(start_http_server(server, port=parser.parse_args().port))
